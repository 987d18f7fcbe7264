"""Bulk jobs on Spark around the assigner: `loads`, `audit`, `lag`, `simulate`. Run by `assigner pipeline NAME`.

Each of these modules is one job: a function from a session and data to tables, and nothing that prints or parses a
command line. What they share: `session` (local, cluster, or the one that is there), `datasets` (checked input, claimed
output), `sql` (named views in the `.sql` files beside), `progress` and `errors` (what the user sees), `chart`, and for
`--sample`: `traces`, `sample_data`, `sample_ownership`. They import the core's values and the registry of
strategies, never a running service.

The same code runs on one machine and on a cluster, where the package has to be installed on every node.
"""

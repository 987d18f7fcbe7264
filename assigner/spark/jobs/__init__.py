"""Runs bulk jobs on Spark around the assigner: `loads`, `audit`, `lag`, `simulate`, by `assigner pipeline NAME`.

Each of these modules is one job: a function from a session and data to tables, and nothing that prints or parses a
command line. They share `session` (a local session, a cluster's, or the active one), `datasets` (checked input, a new
output directory), `sql` (named views from `.sql` files), `progress` and `errors` (what the user sees), `chart`, and for
`--sample`: `traces`, `sample_data`, `sample_ownership`. They import the core's values and the registry of strategies,
never a running service.

The same code runs on one machine and on a cluster, where the package has to be installed on every node.
"""

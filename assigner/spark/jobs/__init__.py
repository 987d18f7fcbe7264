"""Bulk jobs on Spark around the assigner: `loads`, `audit`, `lag`, `simulate`. Run by `assigner pipeline NAME`.

Each module is one job: a function from a session and data to tables, and nothing that prints or parses a command line.
The same code runs on one machine and on a cluster, where the package has to be installed on every node.
"""

"""The commands of `assigner`; each module is imported when one of its commands runs.

- Processes: `serve` (and gateway), `demo`, `consume` (a consumer that prints its events); `config` shows the settings
  of `serve`.
- Groups: `groups` (groups, describe, history, topics, pause, resume, rebalance, options) with its tables in
  `group_view` and `classic_view` and its `key=value` parser in `options`; `drain`, `loads`, and the package `offsets`.
- Identity: `token` (keygen, issue, show, user).
- What-if plans: `plan`. It reads a group from a file or, through `spec_from_description`, from the service.
- Bulk jobs on Spark: `pipeline`, with the options that all jobs share in `pipeline_runs`.

A command parses its arguments, calls the service, prints the reply, and raises `exit_codes.Failure`. It decides nothing
about groups.
"""

"""The commands of `assigner`, imported one by one when they run.

- Run: `serve`, `demo`, `consume` (a consumer that prints what it is told); `config` shows the settings of `serve`.
- Look at and change groups: `groups` (groups, describe, topics, pause, resume, rebalance, options), drawn by
  `group_view`; `options` parses `key=value`; `drain`, `loads`, `offsets`.
- What if: `plan`, from a file or, by `live_sketch`, from a running group.
- Bulk jobs on Spark: `pipeline`, and in `pipeline_runs` what all of them share.

A command parses, calls, prints, and raises `exit_codes.Failure`; it decides nothing about groups itself.
"""

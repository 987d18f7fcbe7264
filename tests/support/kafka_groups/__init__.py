"""Kafka clients of every kind in one group: their processes, a gateway in front of a broker, and what became of each
record.

In the order of reading:

- `events`: what every member says, as lines of JSON, whatever it is written in.
- `ledger`: who processed what and owned what, gathered from those lines.
- `checks`: what is wrong with a ledger: losses, duplicates, double owners. Pure.
- `gateway_process`: a gateway in a process of its own, in front of a broker.
- `scene`: a broker, and what is in front of it.
- `python_member`, `assigner_member`, `spark_member`, `java`: the programs.
- `members`: their processes, which may be killed and frozen.
- `course`: a stream of records, and members that join, leave, die and freeze while it flows.

Nothing here decides what is promised: the tests do, and `python -m tests.kafka_groups.mixed`.
"""

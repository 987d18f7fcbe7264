"""Measures our strategies, Kafka's assignors and two published algorithms on the same problems.

`python -m bench.strategies` prints the tables. They show how long a plan takes, what it moves, how far that is from
the least possible, and how even the result is. In the order of reading:

1. `grid`: the problems, which are groups of many shapes, and what has happened to each since its last plan.
2. `contestants`: asks everybody in the same way. `timed_calls` calls and times; `models` has the published algorithms;
   `kafka_assignors` runs Kafka's own in a Java process, whose source is `KafkaAssignors.java`.
3. `bounds`: the fewest moves that a problem needs, by flows; more closely by `linear_programs`, and with `racks`.
4. What is measured: `cells` of the grid, the `targets` for the largest group, the `memory` of a million partitions.
5. `sheets`: the tables, for a terminal or a page. `__main__`: the command.

Of the project it imports `assigner.strategy`, `assigner.errors` and `tools`, nothing of the service; the strategies
are found by entry point. Not promised: that a bound can be met (`Bound.loose` says when perhaps not), and Kafka's
figures where Java or Kafka's jars are missing.
"""

"""Benchmarks: commands that measure the project and print what they found as a table, such as `python -m bench.store`.

`docs/how-to/run-the-benchmarks.md` lists the commands and says how to read their tables; `python -m bench` runs the
shorter ones, one after the other. Here belongs what gives a figure for people to judge; what must hold is a test. In
the order of reading:

1. One part by itself: `store`, `offsets`, `encoding`, `imports`, `gate`, `auth`.
2. The whole service: `rebalance`, whose consumers run in a process of their own (`consumers`), and `streams`, whose
   consumer streams are opened by another process (`open_streams`). Both watch the event loop with `lag`. `attacks`
   measures what hostile peers cost.
3. Packages: `cutover` compares routers and their pods with a Kafka consumer group, `gateway` the gateway for Kafka
   clients with the broker behind it, `strategies` compares plans, `day` simulates a day for each strategy, `soak` looks
   for growth under churn, `spark` compares sources and times the audit. `sheets` makes tables for a terminal or a page.

Benchmarks import whatever they measure, the tests' servers and `tools`; only tests import a benchmark, and no wheel
contains one. Not promised: that figures of two machines, or of a busy one, can be compared.
"""

"""Makes every decision of the service and of the client, by pure functions and passive state machines.

Events and the time go in; writes, commands and the next wake-up come out. Nothing here waits, reads a clock, rolls
dice, logs or does I/O, so every decision runs unchanged under virtual time. Drivers in `leader`, `members`, `offsets`,
`topics`, `admin` and `client` carry the decisions out. May import `model`, `store` (its values), `strategy` (its
interface), `api` and `errors`.

What is known: `group` (one group's records in memory), `liveness` (whether an owner's session is alive),
`standby_copies` (who holds a copy). What is written: `writes` (a write with its preconditions, and the writes in
flight), `transitions` (every change of ownership as a write), `work_queue` (what to examine, and when).

The leader: `coordination` takes events in and fixes the order of decisions; `planning` makes and executes plans,
`handoff` moves one partition, `standbys` places copies, `loads` weighs partitions, `leader_context` is what they share,
`conditions` is what an operator should know.

Consumers: `sessions` (who may register), `consumer_view` (what a consumer is sent), `client` (what its library does),
`offset_commits` (which commits count). Kafka's own clients: `kafka_groups`. Instances: `leader_spread` (who leads which
group). Observers: `ownership_events` (who held what), `whatif` (what a change would move).

The contract `core-layers` in `pyproject.toml` fixes the import order in here. Not promised: that a decision takes
effect. Each write carries preconditions, and the store refuses it if something changed meanwhile.
"""

"""Compares the gateway for Kafka clients with the broker behind it: `python -m bench.gateway [--quick]`.

Broker and gateway are asked the same in one run, so that their ratio says more than either figure: joins and leaves of
unmodified clients, heartbeats per second of processor time, durable commits, a storm of classic joins, and records that
pass through.

- `raw`: Kafka's protocol by hand, to send more than clients do: connections, a Kafka 4 member, a classic group.
- `subjects`: the broker, and `assigner serve --gateway` on each store, as processes whose processor time is read.
- `measures`: one function for each row.
"""

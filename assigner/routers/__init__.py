"""Serves the routers at this instance: registration, tables and their changes, acks of freezes, published loads.

This package reads, writes and retries; the decisions are pure functions in `assigner.core.routers`. It may import
`streams`, `storage`, `core` and what lies below them. It does not know `members`, and no leader: what routers,
consumers and leaders tell each other is in the store.

`registration` (the calls of `api.Routers`: the registration under a lease, renewals, leaving), `streams` (the table and
its changes, from the group's mirror), `table_listing` and `change_log` (what the streams of a group share: what a table
lists, and what has changed), `acks` (acks of freezes, as records under the router's lease), `loads` (published loads,
for the routers that asked).

Not promised: that a router whose registration has ended has stopped. It holds everything back by its own clock, two
thirds of its TTL after its last renewal; what keeps a late one from doing harm are the owners' gates.
"""

"""Reads and writes records: everything between the `Store` interface and the users of records.

A module belongs here if several drivers need it and it decides nothing about partitions. The package may import
`observability` and what is below it, the core's values included; it does not know members, leaders or operators.

- `update`: the one compare-and-swap loop, which also resolves writes of unknown outcome. `batch_writer`: many
  independent writes, packed into few transactions. `multi_get`: many keys in few reads.
- `watch_loop`: list a prefix, watch it, list it again. On top of it `mirror` (all records of a group, shared by its
  leader, its streams and operators) and `prefix_mirror` (records of one kind).
- `groups`: the index of known groups. `kinds`: changes the kind of an empty group. `epochs`: raises the epoch floor
  before records are deleted. `load_records`: the loads of a group.
- `incarnation`: notices that the store's data was replaced. `health`: finds out whether the store accepts writes.

Not promised: that a mirror is current at a given moment. A writer that needs its own write in the mirror waits for that
write's revision, and every write has the revisions that it was decided on as preconditions.
"""

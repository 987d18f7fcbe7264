"""The leader's side of an instance: it plans the groups that the instance leads, and moves their partitions.

- `leadership` campaigns for every known group, runs the work of each term that it wins, and hands groups over to their
  preferred leaders.
- `terms` runs a `coordinator` for each group that is led here and not idle. `coordinator` feeds the group's changes to
  `core.coordination` and carries out the decisions (writes, plans, lease checks).
- `load_watch` follows the loads that plans are weighted by. `history` stores the last moves of a group. `ownership_log`
  writes every change of an owner to the event log. `summaries` stores one record per led group, so that listing groups
  opens no mirror.

The package may import `members`, `topics`, `storage` and what is below; it does not know `offsets`, operators or any
protocol. Decisions are the core's.

Not promised: that there is one leader at a time. A leader that is frozen may believe that it still leads; its writes
are fenced by its term's leader key, so they fail.
"""

"""What an instance does for the groups that it leads.

- `leadership` campaigns for every known group, runs the work of each term that it wins, and hands groups over to their
  preferred leaders.
- `coordinator` is that work: it feeds the group's changes to `core.coordination` and carries out the decisions (writes,
  plans, lease checks).
- `load_watch`: the loads that plans are made by. `history`: the last moves of a group. `ownership_log`: every change of
  an owner, for the event log. `summaries`: one line about each led group, so that listing groups opens no mirror.

The package may import `members`, `topics`, `storage` and what is below; it does not know `offsets`, operators or any
protocol. It decides nothing itself that the core could decide.

Not promised: that there is one leader at a time. A leader that is frozen may believe that it still leads; its writes
are fenced by its term's leader key, so they fail.
"""

"""Solves problems with partitions of unequal weight: loads within a tolerance, few moves, and none for a small change.

In the order of files: `solver` states the rules and their bounds; `parts` splits a problem into parts without a common
topic; `goals` computes each member's fair load; `placing` promotes standbys and places units without an owner;
`shedding` unloads overloaded members in bulk; `local_search` finishes with single moves and swaps; `lower_bound`
computes how many moves any plan as balanced needs. It imports `strategies.problem`, and the result type of
`strategies.uniform`.

Not promised: the fewest moves (finding them is bin packing); racks are ignored.
"""

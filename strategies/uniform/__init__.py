"""The solver for homogeneous subscriptions: every member may own every unit.

It is linear in the units, since members are interchangeable: each gets the floor of every topic, and only the
remainders are a choice. The story in the order of files: `solver` decides whether a problem is of this kind; `model`
counts what members have; `balance` (per topic and over all) or `balance_total` (over all only) decides who gets
remainders, with the fewest moves; `round_robin` does so where nobody owns anything yet; `solver` turns counts into
owners. It imports `strategies.problem` only.

Not promised: a solution. The solver returns None for problems that are not of this kind.
"""

"""Solves problems with homogeneous subscriptions: every member may own every unit.

The solver is linear in the units, because members are interchangeable: each gets the floor of every topic, and only
remainders are to be decided. In the order of files: `solver` decides whether a problem is of this kind; `model`
counts what members have; `balance` (per topic and over all) or `balance_total` (over all only) decides who gets
remainders, with the fewest moves; `round_robin` does so where no unit has an owner yet; `solver` turns counts into
owners. It imports `strategies.problem` only.

Not promised: a solution. The solver returns None for problems that are not of this kind.
"""

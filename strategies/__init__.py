"""The built-in assignment strategies, found by entry point under the names of their modules.

A strategy is a pure function from a `Problem` to a `Solution`: no clock, no I/O, no random numbers, and the same result
on every instance. It may import `assigner.strategy`, `assigner.errors`, numpy and the packages below, nothing of the
service; the service never imports a strategy. `docs/how-to/write-a-strategy.md` is for writing one.

Entry points: `sticky_balanced` (the default), `copartitioned` and `spread_first`, which build on it; `rendezvous` and
`jump_hash`, which share `hashing`; `range`.

One plan of `sticky_balanced`, in the order of files:

1. `problem`: check the problem and the options, fold co-partitioned topics into units, order the members.
2. `sticky_balanced` itself: split by components, and choose the solver.
   - `weighted`: partitions of different weights.
   - `uniform`: all members may own everything. Its result stands where it meets its own lower bound.
   - `exact`: everything else (different subscriptions, holds, caps, sets, racks), starting from `uniform` if possible.
3. `standbys.promotion`: among equally good owners, prefer holders of a standby copy.
4. `standbys.placement`: place the standby copies for the new owners.

Not promised: an optimum beyond the budgets that each solver names; `Explanation.unproved` tells when one ran out.
"""

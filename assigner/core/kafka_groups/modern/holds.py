"""How long the answer of a heartbeat is held back, so that a member that only polls hears of news at once.

1. Only an answer that has nothing to tell is held, and never that of a full request, whose client waits for all.
2. Answers of a connection keep their order, so another request on it ends the hold.
3. An answer that was cut short so says a short interval: its client comes back soon, to be held again. Otherwise a
   client that commits often would hear of nothing for most of the time.
4. A newcomer that expects more partitions is told the short interval too, for a while.
5. A hold lasts as long as the interval. A client counts that from the time it sent the request, so the next request
   follows at once.
6. Whoever holds an answer renews the member's lease meanwhile.
7. News that ends a hold is gathered for a moment: a plan is written in parts, and each answer costs the client a call
   of its callbacks.

The answer to a join is held for the group's debounce, in which the plan for the newcomer is made. Otherwise the client
would call its callbacks for an empty assignment first, or for what it had under its member id before it left.
"""

from __future__ import annotations

from assigner.core.kafka_groups.modern.requests import Heartbeat

SHORT_INTERVAL = 0.2
NEWCOMER = 3.0
"""Seconds after a join, or a change of the subscription, in which a member that expects more partitions is told the
short interval."""
GATHERED = 0.03
"""Seconds for which news is gathered."""
PLAN_GRACE = 0.5
"""Seconds that a plan may take to reach the member, after the debounce."""


def hold_until(request: Heartbeat, *, has_news: bool, expects_more: bool, interval: float, debounce: float) -> float:
    """The time until which an answer may be held, in seconds since the request arrived; 0: answer now. `expects_more`:
    a plan will give the member more than it has."""
    if request.joins:
        return min(debounce + PLAN_GRACE, interval) if expects_more else 0.0
    if has_news or request.is_full:
        return 0.0
    return interval


def next_interval(*, interval: float, cut_short: bool, is_newcomer: bool, expects_more: bool) -> float:
    """The interval that an answer says. `cut_short`: another request ended the hold."""
    return min(SHORT_INTERVAL, interval) if cut_short or (is_newcomer and expects_more) else interval


def renewal_is_due(since_renewal: float, ttl: float) -> bool:
    """Whether a heartbeat renews the lease: one that follows soon need not."""
    return since_renewal >= ttl / 4

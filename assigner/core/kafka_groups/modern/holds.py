"""How long the answer of a heartbeat is held back, so that a member that only polls hears of news at once.

1. Only an answer that has nothing to tell is held, and never that of a full request, whose client waits for all.
2. Answers of a connection keep their order, so another request on it ends the hold.
3. An answer that was cut short so says a short interval, and those that follow for a while: the client comes back
   soon, to be held again. Otherwise a client that commits often would hear of nothing for most of the time.
4. A newcomer that expects more partitions is told a very short interval, for a while.
5. A hold ends clearly before the interval that the client was last told is over. librdkafka gives a heartbeat up after
   that time and may hang up, whatever else it waits for on the connection. A client counts the interval from the time
   it sent the request, so the next one follows soon.
6. Whoever holds an answer renews the member's lease meanwhile.
7. News that ends a hold is gathered for a moment: a plan is written in parts, and each answer costs the client a call
   of its callbacks.

The answer to a join is held for the group's debounce, in which the plan for the newcomer is made. Otherwise the client
would call its callbacks for an empty assignment first, or for what it had under its member id before it left.
"""

from __future__ import annotations

from assigner.core.kafka_groups.modern.requests import Heartbeat

SHORT_INTERVAL = 1.0
TALKATIVE = 15.0
"""Seconds after a hold was cut short in which the short interval is told: longer than clients usually wait between two
commits. An interval that changed all the time would cost more, since some clients begin to count anew."""
NEWCOMER_INTERVAL = 0.2
NEWCOMER = 3.0
"""Seconds after a join, or a change of the subscription, in which a member that expects more partitions is told a
very short interval."""
GATHERED = 0.03
"""Seconds for which news is gathered."""
PLAN_GRACE = 0.5
"""Seconds that a plan may take to reach the member, after the debounce."""
_MARGIN, _SHARE = 0.5, 0.4
"""Of an interval, in seconds or as a share of it if that is less: for the way to the client, and a busy machine."""


def patience(told: float) -> float:
    """How long a client surely waits for an answer that was last told this interval."""
    return told - min(_MARGIN, _SHARE * told)


def hold_until(
    request: Heartbeat, *, has_news: bool, expects_more: bool, told: float, interval: float, debounce: float
) -> float:
    """The time until which an answer may be held, in seconds since the request arrived; 0: answer now. `expects_more`:
    a plan will give the member more than it has. `told`: the interval that the client was last told."""
    if request.joins:
        return min(debounce + PLAN_GRACE, interval) if expects_more else 0.0
    if has_news or request.is_full:
        return 0.0
    return patience(told)


def next_interval(*, interval: float, is_talkative: bool, is_newcomer: bool, expects_more: bool) -> float:
    """The interval that an answer says. `is_talkative`: another request ended a hold not long ago."""
    if is_newcomer and expects_more:
        return min(NEWCOMER_INTERVAL, interval)
    return min(SHORT_INTERVAL, interval) if is_talkative else interval


def renewal_is_due(since_renewal: float, ttl: float) -> bool:
    """Whether a heartbeat renews the lease: one that follows soon need not."""
    return since_renewal >= ttl / 4

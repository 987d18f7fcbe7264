"""Decides what Kafka clients may do, by the same rules as gRPC calls: roles, and patterns of groups and names.

What the brokers are asked to do is decided by role alone. They know the gateway's own user only, so their access rules
do not tell one client from another; topics are not compared with anything here.
"""

from __future__ import annotations

from collections import Counter

from assigner.auth.actions import Action
from assigner.auth.identity import Principal
from assigner.auth.rules import Resource, decide
from assigner.clock import Clock
from assigner.logs import get_logger
from assigner.model.names import qualified_group

_log = get_logger(__name__)


class ClientAccess:
    def __init__(self, clock: Clock, *, required: bool) -> None:
        """`required`: clients must be somebody; else one that is nobody may do everything."""
        self.required = required
        self.denials: Counter[tuple[str, str]] = Counter()
        """By kind and claim, as the metrics of identities count them."""
        self._clock = clock

    def reason(
        self,
        principal: Principal | None,
        action: Action,
        org: str,
        *,
        group: str | None = None,
        name: str | None = None,
        topic: str | None = None,
    ) -> str | None:
        """Return why the principal may not do this; None: it may. `group`: under the name that clients of the
        organization use. `topic` is not looked at."""
        if principal is None and not self.required:
            return None
        qualified = None if group is None else qualified_group(org, group)
        denial = decide(principal, action, Resource(group=qualified, name=name), self._clock.wall())
        if denial is None:
            return None
        self.denials[denial.kind.value, denial.claim] += 1
        _log.warning(
            "kafka_client_denied",
            principal=principal.identity if principal else "",
            action=action.value,
            group=qualified or "",
            claim=denial.claim,
            reason=denial.message,
        )
        return denial.message

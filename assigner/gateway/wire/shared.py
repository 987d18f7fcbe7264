"""Holds what all connections of one gateway share, and knows where each broker is reached through it.

Groups are coordinated everywhere: a client that asks for the coordinator of a group is told the address of one of the
brokers' ports here, the same one for as long as that broker is up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from assigner.aio.wakeup import Wakeup
from assigner.clock import Clock
from assigner.gateway.codec import NO_TIME, error_code, make, nested, response_class
from assigner.gateway.login.access import ClientAccess
from assigner.gateway.login.sasl import Logins
from assigner.gateway.requests import Handlers, Request
from assigner.gateway.settings import GatewaySettings
from assigner.gateway.upstream.brokers import Broker, BrokerApis, Brokers
from assigner.gateway.wire.traffic import GatewayTraffic
from assigner.gateway.wire.versions import FIND_COORDINATOR, VersionAnswers, offered
from assigner.model.names import qualified_group

BOOTSTRAP = -1
"""Stands for the node id on the port that stands for no broker."""
COORDINATOR_NOT_AVAILABLE = 15
INVALID_REQUEST = 42
_GROUP, _TRANSACTION = 0, 1
_KEYS = 4
"""The version of FindCoordinator from which on it asks for several keys."""


class Wire:
    def __init__(
        self,
        settings: GatewaySettings,
        handlers: Handlers,
        brokers: Brokers,
        access: ClientAccess,
        logins: Logins,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.handlers = handlers
        self.brokers = brokers
        self.access = access
        self.logins = logins
        self.clock = clock
        self.traffic = GatewayTraffic()
        self.with_sasl = bool(settings.sasl_mechanisms)
        self.advertised_host = ""
        self.ports: dict[int, int] = {}
        """The port of each broker here, by node id; kept while the broker is away."""
        self.changed = Wakeup()
        """Notified when ports were opened or closed."""
        self._versions: dict[int, tuple[BrokerApis, VersionAnswers]] = {}

    # --- brokers ---------------------------------------------------------------------------------------------------

    def endpoint(self, node_id: int) -> tuple[str, int] | None:
        """The address of a broker's port here; None: it has none, and is looked for."""
        port = self.ports.get(node_id)
        if port is None:
            self.brokers.look()
            return None
        return self.advertised_host, port

    def broker(self, node_id: int) -> Broker | None:
        """The broker that a port's connections are passed on to; None: it is away, or none is up."""
        if node_id == BOOTSTRAP:
            return self.brokers.next_up()
        found = self.brokers.get(node_id)
        return found if found is not None and found.is_up else None

    def versions(self, node_id: int) -> VersionAnswers | None:
        """What clients of a port are offered; None: its broker is away."""
        if node_id == BOOTSTRAP:
            apis = self.brokers.common_apis()
        else:
            found = self.brokers.get(node_id)
            apis = None if found is None else found.apis
        if apis is None:
            return None
        known = self._versions.get(node_id)
        if known is not None and known[0] is apis:
            return known[1]
        answers = VersionAnswers(apis, offered(apis, self.handlers, with_sasl=self.with_sasl))
        self._versions[node_id] = apis, answers
        return answers

    # --- coordinators ------------------------------------------------------------------------------------------------

    def find_coordinator(self, request: Request, entity: Any) -> Any | None:
        """Answer a FindCoordinator; None: it is about transactions, and the brokers know."""
        kind = int(getattr(entity, "key_type", _GROUP))
        if kind == _TRANSACTION:
            return None
        keys = entity.coordinator_keys if request.version >= _KEYS else (entity.key,)
        found = [self._coordinator(request, str(key)) if kind == _GROUP else _refused(INVALID_REQUEST) for key in keys]
        schema = response_class(FIND_COORDINATOR, request.version)
        if request.version < _KEYS:
            return make(schema, throttle_time=NO_TIME, **found[0])
        coordinator = nested(schema, "Coordinator")
        coordinators = tuple(make(coordinator, key=key, **one) for key, one in zip(keys, found, strict=True))
        return make(schema, throttle_time=NO_TIME, coordinators=coordinators)

    def _coordinator(self, request: Request, group: str) -> dict[str, Any]:
        broker = self.brokers.coordinator_of(qualified_group(request.client.org, group))
        found = None if broker is None else self.endpoint(broker.node_id)
        if broker is None or found is None:
            return _refused(COORDINATOR_NOT_AVAILABLE)
        return {
            "error_code": error_code(0),
            "error_message": None,
            "node_id": broker.node_id,
            "host": found[0],
            "port": found[1],
        }

    def listed_at(self, node_id: int, request: Request, answer: Any) -> Any:
        """Leave the groups in an answer to ListGroups that are coordinated at this port: clients ask all brokers, and
        put together what each of them says."""
        if node_id == BOOTSTRAP:
            return answer
        here = []
        for group in answer.groups:
            broker = self.brokers.coordinator_of(qualified_group(request.client.org, str(group.group_id)))
            if broker is None or broker.node_id == node_id:
                here.append(group)
        return replace(answer, groups=tuple(here))


def _refused(code: int) -> dict[str, Any]:
    return {"error_code": error_code(code), "error_message": None, "node_id": -1, "host": "", "port": -1}

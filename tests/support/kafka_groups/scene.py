"""Where a group lives: a broker, and in front of it nothing, a gateway that is the whole service, or two on etcd."""

from __future__ import annotations

from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any, Self

from tests.support.kafka_groups.gateway_process import GatewayProcess, ServiceProcess, etcd_store
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.kafka import KafkaBroker

TOPIC = "orders"
CONSUMER_TTL = 6.0


class Place(str, Enum):
    BROKER = "broker"
    """No gateway: the group is Kafka's own."""
    MEMORY = "memory"
    """One process is the service and the gateway, and loses the group with its life."""
    ETCD = "etcd"
    """Two services, and two gateways of their own, of which one may be killed."""


class Scene:
    """A broker with a topic, and what is in front of it."""

    def __init__(self, place: Place, directory: Path, partitions: int, **settings: Any) -> None:
        """`settings`: of the service and the gateway, with `__` for a dot."""
        self.place = place
        self.partitions = partitions
        self.broker: KafkaBroker
        self.gateways: list[GatewayProcess] = []
        self.assigner_addresses: list[str] = []
        self._directory = directory
        self._settings: dict[str, Any] = {
            "consumer_ttl": CONSUMER_TTL,
            "leader_ttl": CONSUMER_TTL,
            "group.handoff_mode": "exclusive",
            "group.debounce": 0.2,
            "gateway.initial_rebalance_delay": 0.5,
            "gateway.heartbeat_interval": 1.0,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        self._stack = ExitStack()

    @property
    def bootstrap(self) -> str:
        """Where Kafka clients connect."""
        return ",".join(gateway.bootstrap for gateway in self.gateways) or self.broker.bootstrap

    @property
    def steady(self) -> str:
        """The gateway that is not killed, or the broker."""
        return self.gateways[-1].bootstrap if self.gateways else self.broker.bootstrap

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # A session as short as the assigner's, so that a frozen member is missed as soon.
            short = {
                "group.consumer.session.timeout.ms": f"{CONSUMER_TTL * 1000:.0f}",
                "group.consumer.min.session.timeout.ms": "1000",
                "group.consumer.heartbeat.interval.ms": "1000",
                "group.consumer.min.heartbeat.interval.ms": "500",
                "log.retention.hours": "1",
            }
            self.broker = stack.enter_context(KafkaBroker(self._directory / "broker", settings=short))
            self.broker.create_topic(TOPIC, self.partitions)
            if self.place is Place.MEMORY:
                gateway = self._start_gateway(stack, "gateway", None)
                self.assigner_addresses = [gateway.grpc_address]
            elif self.place is Place.ETCD:
                self._start_on_etcd(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def logs(self) -> str:
        return "\n".join(gateway.log_tail() for gateway in self.gateways)

    def _start_gateway(self, stack: ExitStack, name: str, store: dict[str, Any] | None) -> GatewayProcess:
        upstream, settings = self.broker.bootstrap, self._settings
        gateway = GatewayProcess(self._directory, upstream, name=name, store=store, settings=settings)
        stack.callback(gateway.stop)
        self.gateways.append(gateway.start())
        return gateway

    def _start_on_etcd(self, stack: ExitStack) -> None:
        etcd = stack.enter_context(EtcdServer(self._directory))
        store = etcd_store(etcd.endpoint)
        kafka = {"kafka.bootstrap_servers": self.broker.bootstrap}
        services = []
        for name in ("one", "two"):
            service = ServiceProcess(self._directory, name=name, store=store, settings={**self._settings, **kafka})
            stack.callback(service.stop)
            services.append(service)
        for service in services:
            service.wait_ready()
        self.assigner_addresses = [service.grpc_address for service in services]
        for name in ("gateway-one", "gateway-two"):
            self._start_gateway(stack, name, store)

"""The gRPC server: it translates messages to calls of `assigner.api`, and errors to statuses. It decides nothing.

What belongs here speaks gRPC. It may import `api`, `auth`, `model`, `proto`, `aio`, `clock`, `errors` and `logs`; it
reaches members, routers, offsets and administration through the interfaces of `api` only.

`server` puts the parts together, starts and drains them; `settings` are its sections of the settings; `access` says who
calls and what they may. `transport` is everything below a service: sockets, TLS, HTTP/2, limits. `services` are the
calls of consumers, routers and operators.

Not promised: anything about the order of calls on different connections.
"""

from __future__ import annotations

from assigner.server.server import GrpcServer
from assigner.server.settings import ServerSettings
from assigner.server.transport.traffic import ServerStatistics

__all__ = ["GrpcServer", "ServerSettings", "ServerStatistics"]

"""The gRPC server: translates the wire to `assigner.api` and errors to statuses. It decides nothing itself."""

from __future__ import annotations

from assigner.server.server import GrpcServer
from assigner.server.settings import ServerSettings
from assigner.server.transport.traffic import ServerStatistics

__all__ = ["GrpcServer", "ServerSettings", "ServerStatistics"]

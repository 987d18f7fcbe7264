"""HTTP: probes, metrics, and the table of routes they are served from."""

from assigner.web.liveness import LoopPulse, ProcessLiveness
from assigner.web.server import Route, WebServer

__all__ = ["LoopPulse", "ProcessLiveness", "Route", "WebServer"]

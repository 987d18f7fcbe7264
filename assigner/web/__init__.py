"""HTTP: probes, metrics, and the table of routes they are served from."""

from assigner.web.liveness import Liveness, Pulse
from assigner.web.server import Route, WebServer

__all__ = ["Liveness", "Pulse", "Route", "WebServer"]

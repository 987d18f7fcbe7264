"""The HTTP server: probes and metrics, and the table of routes they are served from.

The only package that imports aiohttp. It knows nothing of groups: `service` gives it functions to ask.

`server` serves routes and limits what a peer may do, `http` reads one connection, `liveness` notices an event
loop that stands still and a task that can't go on, and `settings` are its section of the settings.

Not promised: authentication. The HTTP port is for probes and scrapers.
"""

from assigner.web.liveness import LoopPulse, ProcessLiveness
from assigner.web.server import Route, WebServer

__all__ = ["LoopPulse", "ProcessLiveness", "Route", "WebServer"]

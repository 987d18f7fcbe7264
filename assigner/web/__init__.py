"""The HTTP server: probes and metrics, and the table of routes they are served from.

The only package that imports aiohttp. It knows nothing of groups: `service` passes it the functions that it calls.

`server` serves routes and limits what a peer may do, `http` reads one connection, `liveness` notices a blocked event
loop and a task that can't continue, and `settings` are its section of the settings.

Not promised: authentication. The HTTP port is for probes and scrapers.
"""

from assigner.web.liveness import LoopPulse, ProcessLiveness
from assigner.web.server import Route, WebServer

__all__ = ["LoopPulse", "ProcessLiveness", "Route", "WebServer"]

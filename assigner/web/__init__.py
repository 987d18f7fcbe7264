"""Serves probes and metrics over HTTP.

The only package that imports aiohttp. It knows nothing of groups: `service` passes it the functions that it calls.

`server` serves routes, limits what a peer may do, and has this package's section of the settings; `liveness` notices a
blocked event loop and a task that can't continue.

Not promised: authentication. The HTTP port is for probes and scrapers.
"""

from assigner.web.liveness import LoopPulse, ProcessLiveness
from assigner.web.server import HttpSettings, Route, WebServer

__all__ = ["HttpSettings", "LoopPulse", "ProcessLiveness", "Route", "WebServer"]

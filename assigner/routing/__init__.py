"""The library of request routers: a program sends each request to the owner of its partition, and loses none on a move.

A router process holds the requests of a partition back while the partition changes hands, and tells the service once it
sends nothing more to the old owner. It may import `client`, `core.routing`, `core.client`, `model`, `aio`, `proto`,
`clock`, `errors` and `logs`, and nothing of the service.

`router` is the main entry point. `handler` is the interface of the five steps of a cutover, and `executor` the ready
implementation of it: it holds requests back in the stash of `stash`, within limits. `session` keeps the router
registered, at one address after another, by one `registration` at a time: a stream, renewals and acks. `rpc` makes the
calls, `route_decoding` reads the tables, `cutovers` performs what `core.routing` decides.

Between routers and owners: `headers` says how a target travels, `admission` admits a request by it at its owner, and
`retries` decides what is sent again. `aiohttp` and `grpclib` do both for these libraries; they are imported by name.

Not promised: that a request which was let through arrives before its partition moves on, if the process is stopped in
between. It carries the epoch, and the gate of the owner refuses it then; `Router.newer_than` waits for the next owner.
"""

from assigner.client.channel import Unavailable
from assigner.client.session import Timing
from assigner.core.routing.partitioner import Partitioner
from assigner.core.routing.table import RoutingTable
from assigner.errors import InvalidInput, InvalidName, Superseded, UnknownTopic
from assigner.model.keys import TopicPartition
from assigner.model.routes import Route
from assigner.routing.executor import CutoverExecutor
from assigner.routing.handler import CutoverHandler, RouterClosed, Target
from assigner.routing.retries import MaybeServed, NotServed, Retries
from assigner.routing.router import Router, RouterStatistics
from assigner.routing.stash import RequestCounts, StashBound, StashLimits, StashOverflow

__all__ = [
    "CutoverExecutor",
    "CutoverHandler",
    "InvalidInput",
    "InvalidName",
    "MaybeServed",
    "NotServed",
    "Partitioner",
    "RequestCounts",
    "Retries",
    "Route",
    "Router",
    "RouterClosed",
    "RouterStatistics",
    "RoutingTable",
    "StashBound",
    "StashLimits",
    "StashOverflow",
    "Superseded",
    "Target",
    "Timing",
    "TopicPartition",
    "Unavailable",
    "UnknownTopic",
]

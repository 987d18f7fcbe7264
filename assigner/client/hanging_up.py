"""Ends a connection so that nothing of it outlives its event loop.

Over TLS a channel's `close` only begins a farewell, which the end of the loop would cut off, and leave an open socket
behind.
"""

from __future__ import annotations

import anyio
import anyio.lowlevel
from grpclib.client import Channel


async def hang_up(channel: Channel) -> None:
    protocol = channel._protocol
    transport = getattr(protocol.connection, "_transport", None) if protocol is not None else None
    channel.close()
    if transport is not None and transport.get_extra_info("ssl_object") is not None:
        transport.abort()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()

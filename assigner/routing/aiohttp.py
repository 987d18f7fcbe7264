"""Admits routed requests in an aiohttp server, and sends requests to the owners of their partitions with aiohttp.

Needs aiohttp (the extra of that name), and is imported by name: `assigner.routing` does not import it.

    app = web.Application(middlewares=[routed(consumer, exempt=["/healthz"])])

A request that is refused is answered with the header `assigner-refused` and JSON: 421 Misdirected Request if this
consumer does not own its partition under that epoch (RFC 9110, 15.5.20: not done here, may be tried elsewhere); 503
with Retry-After if its gate may open soon; 400 if its headers have no valid target.

    async with RoutedSession(router) as session, session.request("GET", "orders", key, "/carts/7") as response:
        cart = await response.json()

Not promised: the order of requests of a key that are in flight at the same time. A caller that needs an order waits for
each answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import anyio

from assigner.client.consumer import AssignerConsumer
from assigner.client.gate import ADMIT_WITHIN
from assigner.errors import AssignerError, how_to_install
from assigner.routing.admission import NotAdmitted, Remedy, RequestAdmission, request_target
from assigner.routing.handler import Target
from assigner.routing.headers import REFUSED, headers_of
from assigner.routing.retries import RequestRouter, Retries, Setback, Tries, address_of, no_address

try:
    import aiohttp
    from aiohttp import web
    from aiohttp.client_middlewares import ClientHandlerType
    from aiohttp.typedefs import Handler, Middleware
    from multidict import CIMultiDict
except ImportError as error:
    raise ImportError(f"assigner.routing.aiohttp needs aiohttp ({error}); {how_to_install('aiohttp')}") from error

__all__ = ["RoutedSession", "request_target", "routed"]

CONNECTIONS_PER_OWNER = 100
_RETRY_AFTER = "1"
_REASON_WITHIN = 1.0
"""Seconds in which the reason of a refusal is read."""
_STATUSES = {Remedy.LOOK_AGAIN: 421, Remedy.COME_AGAIN: 503, Remedy.NONE: 400}


# --- the owner's side ------------------------------------------------------------------------------------------------


def routed(
    consumer: AssignerConsumer, *, exempt: Collection[str] = (), within: float = ADMIT_WITHIN, required: bool = True
) -> Middleware:
    """Make a middleware that admits each request through the gate of its partition, and counts it as in progress until
    the handler has returned: a release waits for it. The handler finds the target by `request_target`.

    `exempt`: paths that need no target, such as those of probes. `within`: seconds that a request waits for a gate that
    is about to open. `required=False`: requests without a target are let through.

    The body is read before the request is admitted, up to the application's `client_max_size`, so that a release never
    waits for a slow sender."""
    admission = RequestAdmission(consumer, within=within, required=required)
    free = frozenset(exempt)

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in free:
            return await handler(request)
        await request.read()
        async with AsyncExitStack() as admitted:
            try:
                await admission.admit(request.headers.items(), admitted)
            except NotAdmitted as refusal:
                return _refused(refusal)
            return _begun(await handler(request))

    return admit


def _begun(response: web.StreamResponse) -> web.StreamResponse:
    """Remove the header of a refusal from the answer to a request that was begun: a handler that forwards the answer of
    another owner may have copied it."""
    if not response.prepared:
        response.headers.pop(REFUSED, None)
    return response


def _refused(refusal: NotAdmitted) -> web.Response:
    headers = {REFUSED: refusal.reason, "Cache-Control": "no-store"}
    if refusal.remedy is Remedy.COME_AGAIN:
        headers["Retry-After"] = _RETRY_AFTER
    body = {"reason": refusal.reason, "error": str(refusal)}
    return web.json_response(body, status=_STATUSES[refusal.remedy], headers=headers)


# --- the router's side -----------------------------------------------------------------------------------------------


class RoutedSession:
    """An aiohttp session whose requests go to the owners of their partitions, as an async context manager."""

    def __init__(
        self,
        router: RequestRouter,
        *,
        scheme: str = "http",
        retries: Retries = Retries(),  # noqa: B008  (frozen)
        **session: Any,
    ) -> None:
        """`session`: arguments of `aiohttp.ClientSession`. Unless they have a connector, each owner gets up to 100
        connections, so that one that hangs leaves the others theirs."""
        self._router = router
        self._scheme = scheme
        self._retries = retries.check()
        self._options = session
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        options = dict(self._options)
        options["middlewares"] = (*options.pop("middlewares", ()), _send_once)
        if "connector" not in options:
            options["connector"] = aiohttp.TCPConnector(limit=0, limit_per_host=CONNECTIONS_PER_OWNER)
        self._session = aiohttp.ClientSession(**options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def request(
        self,
        method: str,
        topic: str,
        key: bytes | str | None,
        path: str,
        *,
        idempotent: bool | None = None,
        size: int | None = None,
        **options: Any,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a request to the owner of the key's partition: `async with session.request(...) as response`. It is in
        flight while the block lasts, so read the response in there. `key`: None for a request without one, which any
        owner may serve.

        If the owner refuses the request, or no connection is made, it is sent again as `Retries` says, to whoever owns
        the partition by then. If the connection is lost after it was sent, it is sent again only if it is `idempotent`;
        None: GET, HEAD and OPTIONS are. `size`: its bytes, for the stash's limits; None: those of `data`. `options`:
        arguments of `aiohttp.ClientSession.request`. Redirects are not followed unless they say so.

        Raises `NotServed` if nothing was done, `MaybeServed` if nobody knows, what `Router.route` raises before
        anything was sent, and `TimeoutError` after the session's timeout, when nobody knows either."""
        if idempotent is None:
            idempotent = method.upper() in ("GET", "HEAD", "OPTIONS")
        data = options.get("data")
        if size is None:
            size = len(data) if isinstance(data, str | bytes | bytearray | memoryview) else 0
        options.setdefault("allow_redirects", False)
        return self._request(method, topic, key, path, idempotent, size, options)

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        topic: str,
        key: bytes | str | None,
        path: str,
        idempotent: bool,
        size: int,
        options: Mapping[str, Any],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        tries = Tries(self._router, self._retries, topic, key, size=size, idempotent=idempotent)
        repeatable = _is_repeatable(options.get("data"))
        while True:
            async with tries.next() as target:
                answer = await self._send(target, method, path, options)
                if isinstance(answer, aiohttp.ClientResponse):
                    async with answer:
                        yield answer
                    return
            await tries.after(target, answer, repeatable=repeatable)

    async def _send(
        self, target: Target, method: str, path: str, options: Mapping[str, Any]
    ) -> aiohttp.ClientResponse | Setback:
        if self._session is None:
            raise RuntimeError("a RoutedSession sends inside its block: `async with RoutedSession(router) as session`")
        address = address_of(target)
        if isinstance(address, Setback):
            return address
        url = f"{self._scheme}://{address}/{path.removeprefix('/')}"
        headers = CIMultiDict(options.get("headers") or ())
        headers.update(headers_of(target, self._router.group))
        try:
            response = await self._session.request(method, url, **{**options, "headers": headers})
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Setback("not_connected", str(error))
        except aiohttp.InvalidURL as error:
            return no_address(target, str(error))
        except _Lost as error:
            return Setback("connection_lost", str(error), maybe_done=True)
        return await _refusal_in(response) or response


class _Lost(AssignerError):
    """The connection was lost after it was made."""


async def _send_once(request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
    """Keeps aiohttp from sending a request again by itself, as it does with idempotent methods, PUT and DELETE among
    them: the caller is to say what is idempotent."""
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Lost(str(error) or type(error).__name__) from error


async def _refusal_in(response: aiohttp.ClientResponse) -> Setback | None:
    reason = response.headers.get(REFUSED)
    if reason is None:
        return None
    text = ""
    async with response:
        # The header is enough: an owner that dies before it has sent its reason has refused all the same.
        with suppress(aiohttp.ClientError), anyio.move_on_after(_REASON_WITHIN):
            text = (await response.content.read(1_000)).decode(errors="replace")
    remedy = next((remedy for remedy, status in _STATUSES.items() if status == response.status), Remedy.NONE)
    pause = response.headers.get("Retry-After", "")
    return Setback(reason, text or reason, remedy, pause=float(pause) if pause.isdecimal() else 0.0)


def _is_repeatable(data: Any) -> bool:
    """Whether a body can be sent again: a form or a stream is used up by the first try."""
    return data is None or isinstance(data, str | bytes | bytearray | memoryview | Mapping)

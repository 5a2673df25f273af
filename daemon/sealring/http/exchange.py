"""One client's connection: its requests one after the other, until either side ends it.

A request that is not HTTP/1.1 gets an error in the shape of the API's other errors, and ends the
connection. An offer to upgrade to HTTP/2 or to a websocket is ignored, as HTTP/1.1 asks of a server
that speaks neither, and the request is answered. An error here ends this connection alone.

A client that closes its sending side while it waits looks like one that has gone. Its request may
be given up, and it is told so in case it still listens.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping
from email.utils import formatdate
from http.client import responses
from typing import Any, Final
from urllib.parse import unquote

import attrs
import h11
import trio
from starlette.types import ASGIApp, Message, Scope

from sealring.dialects.errors import INVALID, ApiError
from sealring.http.connections import Place
from sealring.http.http1 import MAX_HEADER, Http1

# ---------------------------------------------------------------------- exchange
# One request and its answer, as an ASGI app takes and gives them.
#
# The body is read when the app asks for it, and no faster. After it, or once the answer has
# begun, `receive` waits for the client to leave. What is sent to a client that has gone is thrown
# away, as ASGI specifies; the app learns from `receive` that the client is gone.


log = logging.getLogger("sealring.api")

_WITHOUT_BODY: Final = (204, 304)
_REASONS: Final = {**responses, 499: "Client Closed Request", 529: "Overloaded"}
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE)


@attrs.define
class Endpoints:
    """Host and port of a connection's client, and of this server; *secure* if they speak TLS."""

    client: tuple[str, int]
    server: tuple[str, int]
    secure: bool = False


@attrs.define
class HttpExchange:
    """One request on *http*, to be answered once."""

    _http: Http1
    _request: h11.Request
    _ends: Endpoints
    _place: Place

    fault: ApiError | None = None
    """What is wrong with the request's body, if something is."""

    over: bool = False
    """Whether the whole answer has been given."""

    _body_read: bool = False
    _start: Message | None = None
    _begun: bool = False
    _has_body: bool = True

    async def run(self, app: ASGIApp) -> None:
        """Have *app* answer. Its faults are logged, and go no further."""
        try:
            await app(self._scope(), self._receive, self._send)
        except* Exception:
            log.exception("a request failed")

    def _scope(self) -> Scope:
        target, headers = _in_origin_form(self._request)
        path, _, query = target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._request.http_version.decode(),
            "method": self._request.method.decode(),
            "scheme": "https" if self._ends.secure else "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": self._ends.client,
            "server": self._ends.server,
            "state": {"connection": self._place.number},
        }

    async def _receive(self) -> Message:
        if not self._body_read and not self._begun:
            return await self._part()
        if not self.over and self.fault is None:
            await self._http.until_left()
        return {"type": "http.disconnect"}

    async def _part(self) -> Message:
        """The next part of the body."""
        await self._http.invite()
        try:
            body, more = await self._http.body_part()
        except ApiError as fault:
            self.fault = fault
            self._body_read = True
            return {"type": "http.disconnect"}
        self._body_read = not more
        return {"type": "http.request", "body": body, "more_body": more}

    async def _send(self, message: Message) -> None:
        if self._http.gone:
            await trio.lowlevel.checkpoint()
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            self._begin(self._start)
            self._start = None
        body = message.get("body", b"")
        if body and self._has_body:
            self._http.put(h11.Data(data=body))
        if not message.get("more_body", False):
            self._http.put(h11.EndOfMessage())
            self.over = True
        await self._http.flush()
        if self.over:
            self._http.release()

    def _begin(self, start: Message) -> None:
        self._begun = True
        status: int = start["status"]
        headers = [*start["headers"], (b"date", formatdate(usegmt=True).encode())]
        # A body that has not come whole may never come, and a next request would be part of it.
        if not self._http.discard_body() or self._place.last:
            headers.append((b"connection", b"close"))
        self._has_body = self._request.method != b"HEAD" and status not in _WITHOUT_BODY
        self._http.put(h11.Response(status_code=status, headers=headers, reason=_reason(status)))


def _in_origin_form(request: h11.Request) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The target's path and query, and the headers. Where the target names a host, as for a proxy,
    that host replaces the header's (RFC 9112, 3.2.2)."""
    absolute = _ABSOLUTE.fullmatch(request.target)
    if absolute is None:
        return request.target, list(request.headers)
    host, rest = absolute.groups()
    others = [(name, value) for name, value in request.headers if name != b"host"]
    return rest if rest.startswith(b"/") else b"/" + rest, [(b"host", host), *others]


def answer(
    status: int, headers: Mapping[str, str], body: bytes, *, only_header: bool = False
) -> list[h11.Event]:
    """Send an answer of the server's own, after which the connection ends."""
    told: list[tuple[str, Any]] = [
        *headers.items(),
        ("content-length", str(len(body))),
        ("date", formatdate(usegmt=True)),
        ("connection", "close"),
    ]
    parts = [] if only_header else [h11.Data(data=body)]
    begin = h11.Response(status_code=status, headers=told, reason=_reason(status))
    return [begin, *parts, h11.EndOfMessage()]


def _reason(status: int) -> bytes:
    """What the status line says of *status*, without which some clients do not take it."""
    return _REASONS.get(status, "Error").encode()


# ---------------------------------------------------------------------- connection


HEADER_SECONDS: Final = 20.0
"""Seconds for a request's header, from the connection's start or from the last answer on it."""

MAX_TARGET: Final = 2 << 10
"""Bytes of a request's target: a path is looked for among the routes, a query is split at each
``&``, and neither is for free. No path or query of this API is a tenth of it."""

_VERSIONS: Final = (b"1.0", b"1.1")


def _headers(error: ApiError) -> dict[str, str]:
    """The headers of an answer that no app gives."""
    name = f"req-{secrets.token_hex(12)}"
    log.debug("%s: refused: %d %s", name, error.status, error.code)
    told = {"content-type": "application/json", "x-content-type-options": "nosniff"}
    return {**told, **error.headers, "x-request-id": name}


@attrs.define
class HttpConnection:
    """A connection to *app*, which has *place*. With *wrong*, its first request gets that error."""

    _app: ASGIApp
    _place: Place
    _http: Http1
    _ends: Endpoints
    _wrong: ApiError | None = None
    _method: bytes = b""

    async def run(self) -> None:
        """Answer what the client asks."""
        try:
            while await self._one():
                pass
            self._place.linger()
            await self._http.linger()
        finally:
            self._http.close()
            self._place.leave()

    async def _one(self) -> bool:
        """Answer one request. True if another may follow."""
        self._place.idle()
        self._method = b""
        try:
            request = await self._request()
        except ApiError as error:
            self._place.busy()  # while it is told so, it does not wait for a request
            await self._refuse(error)
            return False
        if request is None:
            return False
        self._place.busy()
        exchange = HttpExchange(self._http, request, self._ends, self._place)
        await exchange.run(self._app)
        if not exchange.over:
            await self._break_off(exchange)
            return False
        return not self._place.last and self._http.again()

    async def _request(self) -> h11.Request | None:
        """The next request; None if there is none. Raises `ApiError`."""
        request = None
        with trio.move_on_after(HEADER_SECONDS) as limit:
            try:
                request = await self._http.request()
            except ApiError:
                if self._http.left:
                    return None  # in the middle of a header, which nobody waits for any more
                raise
        if limit.cancelled_caught:
            if not self._http.begun:
                return None
            late = f"The request's header did not arrive within {HEADER_SECONDS:g} seconds."
            raise ApiError(408, late, "request_timeout")
        if request is None:
            return None
        self._method = request.method
        if self._wrong is not None:
            raise self._wrong
        _check(request)
        return request

    async def _break_off(self, exchange: HttpExchange) -> None:
        """End a request that the app has not answered to its end."""
        if exchange.fault is not None:
            await self._refuse(exchange.fault)
        elif self._http.left:  # or has only said that it will send no more, and listens still
            hasty = "The client closed its side of the connection before it had its answer."
            await self._refuse(ApiError(499, hasty, "client_closed"))
        else:
            failed = "The server failed; its log says how."
            await self._refuse(ApiError(500, failed, "internal_error", kind="server_error"))

    async def _refuse(self, error: ApiError) -> None:
        if self._http.refusable:
            body = json.dumps(error.body()).encode()
            only_header = self._method == b"HEAD"
            for event in answer(error.status, _headers(error), body, only_header=only_header):
                self._http.put(event)
            await self._http.flush()


def refusal(error: ApiError) -> bytes:
    """The bytes of an answer with *error*, for a client from which nothing more is read."""
    http = h11.Connection(h11.SERVER)
    body = json.dumps(error.body()).encode()
    parts = answer(error.status, _headers(error), body)
    return b"".join(http.send(event) or b"" for event in parts)


def _check(request: h11.Request) -> None:
    """Raise `ApiError` for requests that h11 accepts and this server does not."""
    if request.http_version not in _VERSIONS:
        raise ApiError(505, "This server speaks HTTP/1.1.", "http_version_not_supported")
    if len(request.target) > MAX_TARGET:
        text = f"The request's path and query are larger than {MAX_TARGET >> 10} KiB."
        raise ApiError(414, text, "uri_too_long", kind=INVALID)
    size = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
    if size > MAX_HEADER:
        message = f"The header is larger than {MAX_HEADER >> 10} KiB."
        raise ApiError(431, message, "header_too_large")
    if request.method == b"CONNECT":
        raise ApiError(501, "This server is no proxy.", "not_implemented")
    names = [name for name, _ in request.headers]
    # RFC 9112, 6.1: whoever sends both, or the one in HTTP/1.0, may be smuggling a request.
    if b"transfer-encoding" in names and (
        b"content-length" in names or request.http_version == b"1.0"
    ):
        message = "The request says in two ways how long its body is."
        raise ApiError(400, message, "bad_request", kind=INVALID)

"""Listening for HTTP, in the event loop of the node, and ending in good order.

The node's event loop serves the app, so that an answer costs no change of threads; `http1` has
what each client gets. Neither a client nor a lack of descriptors ends the listening: connections
that wait for their clients are closed first (`connections`). The generator closes the server once
the requests under way have finished.

Any rank serves ``/livez``, ``/readyz`` and ``/metrics`` to whoever watches machines, at the address
`health` of its config (`serve_health`). Nobody needs a key there, as no probe or scraper has to
have one. So no answer names a member, an address, a model or a caller: there are numbers of ranks,
causes, counts, sizes and versions, of this node alone. What the head counts of requests is at its
API. The probes are served for all lives of a node, as its Unix socket: while the node changes to
another model it is alive, and not ready.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio
from sealring_protocol.diagnosis import Cause
from sealring_trio.files.models import model_name
from sealring_trio.net.connecting import cannot_listen
from sealring_trio.units import format_address, is_loopback, wall_ms
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from sealring.dialects.errors import INVALID, ApiError, unavailable
from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.http import kept, resume, state
from sealring.http.connections import (
    MAX_CONNECTIONS,
    Connections,
    Place,
    for_clients,
    raise_limit,
    source_of,
)
from sealring.http.gate import PREFIXES, Gate, error_response
from sealring.http.generate import CHAT, COMPLETION, MESSAGES, RESPONSES, Generate, Tokens
from sealring.http.head import ApiHead, Newcomers
from sealring.http.http1 import MAX_HEADER, STUCK_SECONDS, Endpoints, Http1, HttpConnection, refusal
from sealring.http.keys import KEY_FILE, ApiKeys
from sealring.http.metrics import MetricsPage, NodeCollector, metrics
from sealring.http.openapi import openapi
from sealring.http.tls import Tls, TlsSocket

log = logging.getLogger("sealring.api")
node_log = logging.getLogger("sealring")

BACKLOG: Final = 1024
"""Connections that wait to be accepted."""

CLOSE_SECONDS: Final = 1.0
"""Time for the connections to close when the server does."""

FULL_SECONDS: Final = 0.1
"""Pause where the system has no room for one more connection."""

ACCEPTS: Final = 16
"""Connections that are accepted in one pass of the event loop."""

_BROKEN: Final = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_TEXT: Final = "The model here generates text, and {}. Use another server for that."
_EMBEDS: Final = _TEXT.format("gives no embeddings, scores or ranks")
_MODERATES: Final = _TEXT.format("judges none")
_STATE: Final = (
    "No files, threads or batches are kept here: send the conversation with each request."
)
_COMPACTS: Final = (
    "Conversations are not compacted here: ask the model for a summary, and begin another with it."
)
_OLLAMA: Final = (
    "This is no Ollama server. Use the client's mode for OpenAI-compatible servers, with the base "
    "URL that ends with /v1."
)

UNSERVED: Final[Mapping[str, str]] = {
    "/v1/embeddings": _EMBEDS,
    "/v1/rerank": _EMBEDS,
    "/v2/rerank": _EMBEDS,
    "/rerank": _EMBEDS,
    "/v1/score": _EMBEDS,
    "/score": _EMBEDS,
    "/pooling": _EMBEDS,
    "/classify": _EMBEDS,
    "/v1/moderations": _MODERATES,
    "/v1/audio/{rest:path}": _TEXT.format("neither hears nor speaks"),
    "/v1/images/{rest:path}": _TEXT.format("makes no images"),
    "/v1/videos/{rest:path}": _TEXT.format("makes no videos"),
    "/v1/responses/compact": _COMPACTS,
    "/v1/realtime": _TEXT.format("neither hears nor speaks"),
    "/v1/files/{rest:path}": _STATE,
    "/v1/files": _STATE,
    "/v1/batches": _STATE,
    "/v1/assistants": _STATE,
    "/v1/threads": _STATE,
    "/v1/vector_stores": _STATE,
    "/v1/fine_tuning/{rest:path}": "Models are not trained here.",
    "/api/{rest:path}": _OLLAMA,
}
"""Paths of other servers that have nothing here, with what is said of each. A client that looks for
such an endpoint must not take the server for broken: it gets 404, with a code of its own."""


@attrs.define
class ApiServer:
    """The HTTP server of one head."""

    head: ApiHead
    pages: Sequence[BaseRoute] = ()
    app: ASGIApp | None = None
    """What it serves; None before it does."""

    _closing: trio.Event = attrs.field(factory=trio.Event)
    _closed: trio.Event = attrs.field(factory=trio.Event)

    @classmethod
    def of(
        cls,
        generator: Generator,
        config: Config,
        newcomers: Newcomers,
        pages: Sequence[BaseRoute] = (),
    ) -> ApiServer:
        """The server that *config* asks for. Raises `UserError`."""
        keys = ApiKeys(config.state / KEY_FILE)
        tls = None if config.tls is None else Tls.read(*config.tls)
        model = model_name(generator.model)
        return cls(ApiHead(generator, config, model, keys, tls, newcomers), pages)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`. Raises `OperationError` when it cannot listen."""
        address = self.head.config.api
        if address is None:
            raise ValueError("this node has no API")
        listeners = await listen(*address, "for the API", "api")
        book = Connections(_most())
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sample)
                nursery.start_soon(self.head.answers.run)
                if self.head.tls is not None:
                    nursery.start_soon(self.head.tls.watch)
                task_status.started()
                self._log_address(*address)
                self.app = build_app(self.head, self.pages, book.limit)
                await serve_connections(self.app, listeners, book, self._closing, self.head.tls)
                nursery.cancel_scope.cancel()
        finally:
            self._closed.set()

    async def close(self) -> None:
        """Stop listening, and let the connections end."""
        self._closing.set()
        with trio.move_on_after(2 * CLOSE_SECONDS):
            await self._closed.wait()

    def _log_address(self, host: str, port: int) -> None:
        config, tls = self.head.config, self.head.tls
        scheme = "http" if tls is None else "https"
        log.info("the API is at %s://%s/v1", scheme, format_address(host, port))
        if tls is None and not is_loopback(host):
            log.warning(
                "it is plain HTTP: keys and texts can be read on the way. Give it a certificate "
                "(tls_certificate and tls_key in the config), put a proxy that speaks TLS before "
                "it, or reach it through a tunnel"
            )
        if self.head.keys_needed:
            return
        if self.head.keys.made:
            log.warning(
                "it asks for no key on loopback, as the config says: whoever reaches this "
                "address has the API, through a proxy too"
            )
        for name, allowed in (
            ("allowed_hosts", config.hosts),
            ("allowed_origins", config.origins),
        ):
            if allowed.everyone:
                log.warning(
                    '%s = ["*"], and there are no keys: every web page that a browser on this '
                    "machine opens can use the API. Make a key (sealring apikey new), or name "
                    "those that may",
                    name,
                )

    async def _sample(self) -> None:
        while True:
            await trio.sleep(1.0)
            self.head.key_updates()
            self.head.history.sample(self.head.generator.tracer, wall_ms())


def _most() -> int:
    """The most connections that the API may have."""
    limit = raise_limit()
    most = min(MAX_CONNECTIONS, for_clients(limit))
    if most < MAX_CONNECTIONS:
        log.warning(
            "the API takes %d connections at once, for this process may open %d files; "
            "to have more, raise that limit: ulimit -n",
            most,
            limit,
        )
    return most


async def listen(host: str, port: int, purpose: str, key: str) -> list[trio.SocketListener]:
    """Listeners at this address. Raises `OperationError`, which names their *purpose* and the
    config's *key* for the address."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        change = f"Change '{key}' in the config."
        raise cannot_listen(error, host, port, change, purpose) from None
    for listener in listeners:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
            listener.socket.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STUCK_SECONDS * 1000)
            )
    return listeners


async def serve_connections(
    app: ASGIApp,
    listeners: Sequence[trio.SocketListener],
    book: Connections,
    closing: trio.Event,
    tls: Tls | None = None,
) -> None:
    """Serve *app* at *listeners*, which are closed at the end, until *closing*, with *tls* if it is
    given; what is still being answered then has `CLOSE_SECONDS`."""
    doors = [_plain(listener) for listener in listeners]
    try:
        async with trio.open_nursery() as turns:
            turns.start_soon(book.turns.give)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener in doors:
                        served = _Acceptor(app, book, tls, connections)
                        accepting.start_soon(served.accept, listener)
                    await closing.wait()
                    accepting.cancel_scope.cancel()
                for listener in doors:
                    listener.close()
                book.close()
                connections.cancel_scope.deadline = trio.current_time() + CLOSE_SECONDS
            turns.cancel_scope.cancel()
    finally:
        for listener in doors:
            listener.close()


def _plain(listener: trio.SocketListener) -> socket.socket:
    """The socket of *listener*, from which more than one connection can be taken in a pass."""
    of = listener.socket
    sock = socket.socket(of.family, of.type, of.proto, of.detach())
    sock.setblocking(False)
    return sock


@attrs.frozen
class _Acceptor:
    """Where connections to *app* come in, to be served in *connections*."""

    app: ASGIApp
    book: Connections
    tls: Tls | None
    connections: trio.Nursery

    async def accept(self, listener: socket.socket) -> None:
        """Take every connection that comes, and begin to serve it."""
        for number in itertools.count(1):
            if number % ACCEPTS == 0:
                await trio.lowlevel.checkpoint()
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
                continue
            except OSError as error:
                if error.errno in _BROKEN:
                    raise
                if error.errno in _FULL:
                    self.book.make_room()
                    await trio.sleep(FULL_SECONDS)
                continue  # else the client has gone
            try:
                client, server = sock.getpeername()[:2], sock.getsockname()[:2]
            except OSError:
                sock.close()  # it has been cut off already
                continue
            ends = Endpoints(client, server, secure=self.tls is not None)
            sock.setblocking(False)
            # Of a handshake that has not come whole something is always there to be read.
            seen = sock if self.tls is None else None
            place = self.book.admit(source_of(client[0]), seen)
            if place is not None:
                self.connections.start_soon(self._serve, sock, ends, place)
            elif self.tls is None:
                _turn_away(sock)
            else:
                sock.close()  # an answer would cost a handshake

    async def _serve(self, sock: socket.socket, ends: Endpoints, place: Place) -> None:
        """Serve one client. What goes wrong is logged, and ends with its connection."""
        try:
            with place.scope:
                await self._greet_and_serve(sock, ends, place)
        except* Exception:
            log.exception("a connection of the API failed")

    async def _greet_and_serve(self, sock: socket.socket, ends: Endpoints, place: Place) -> None:
        wrong = None
        stream: socket.socket | TlsSocket = sock
        if self.tls is not None:
            try:
                greeted = await self.tls.greet(sock, place)
            except BaseException:
                place.leave()
                raise
            if greeted is None:
                place.leave()
                return
            if greeted is sock:
                text = "This port speaks TLS, and the request was plain HTTP: use https://."
                wrong = ApiError(400, text, "tls_needed", kind=INVALID)
            stream = greeted
        await HttpConnection(self.app, place, Http1(stream, place), ends, wrong).run()


def _turn_away(sock: socket.socket) -> None:
    """Say that there is no room, and close *sock*."""
    error = unavailable("The API has as many connections as it may.", "overloaded")
    with sock, contextlib.suppress(OSError):
        sock.send(refusal(error))
        sock.recv(MAX_HEADER)  # the kernel throws the answer away if something is left unread


def build_app(
    head: ApiHead, pages: Sequence[BaseRoute] = (), connections: int = MAX_CONNECTIONS
) -> Starlette:
    """The ASGI app of *head*, to which there may be so many *connections*. The files of the *pages*
    need no key."""
    app = Starlette(
        routes=[
            Route("/health", state.health),
            Route("/livez", state.livez),
            Route("/readyz", state.readyz),
            *routes(),
            Route("/v1/chat/completions", Generate(head, CHAT), methods=["POST"]),
            Route("/v1/completions", Generate(head, COMPLETION), methods=["POST"]),
            Route("/v1/responses", Generate(head, RESPONSES), methods=["POST"]),
            Route("/v1/responses/input_tokens", Tokens(head, "count_input"), methods=["POST"]),
            Route("/v1/responses/{id}", kept.retrieve),
            Route("/v1/responses/{id}", kept.delete, methods=["DELETE"]),
            Route("/v1/responses/{id}/cancel", kept.cancel, methods=["POST"]),
            Route("/v1/responses/{id}/input_items", kept.input_items),
            Route("/v1/streams/{id}", resume.resume),
            Route("/v1/streams/{id}", resume.forget, methods=["DELETE"]),
            Route("/v1/messages", Generate(head, MESSAGES), methods=["POST"]),
            Route("/v1/messages/count_tokens", Tokens(head, "count"), methods=["POST"]),
            Route("/v1/models", state.models),
            Route("/v1/models/{id:path}", state.model),
            Route("/tokenize", Tokens(head, "tokenize"), methods=["POST"]),
            Route("/detokenize", Tokens(head, "detokenize"), methods=["POST"]),
            Route("/v1/cluster", state.cluster),
            Route("/v1/requests", state.LiveRequests().answer),
            Route("/v1/requests/{id}", state.cancel, methods=["DELETE"]),
            Route("/v1/requests/{id}/trace", state.trace),
            Route("/metrics", metrics),
            Route("/version", state.version),
            Route("/openapi.json", openapi),
            *pages,
        ],
        middleware=[Middleware(Gate, head=head, connections=connections)],
        exception_handlers={
            ApiError: api_error,
            HTTPException: http_error,
        },
    )
    app.state.head = head
    return app


async def api_error(request: Request, error: Exception) -> Response:
    """The answer to an `ApiError`."""
    assert isinstance(error, ApiError)  # noqa: S101  the app calls it for nothing else
    return error_response(error, request.url.path)


async def http_error(request: Request, error: Exception) -> Response:
    """The answer to what the router itself refuses."""
    assert isinstance(error, HTTPException)  # noqa: S101  the app calls it for nothing else
    path = request.url.path
    if error.status_code == 405:
        message = f"{path} does not take {request.method}."
        code = "method_not_allowed"
    else:
        message, code = f"There is nothing at {path}.", "not_found"
        if path.startswith("/v1/v1/messages"):
            message += " Anthropic's clients take the base URL without /v1."
        elif path.startswith("/v1/v1/") or f"/v1{path}" in PREFIXES:
            message += " The base URL ends with /v1, once."
    refusal = ApiError(error.status_code, message, code, kind=INVALID, headers=error.headers or {})
    return error_response(refusal, path)


def routes() -> list[BaseRoute]:
    """A route for each of `UNSERVED`."""
    return [
        Route(path, _refuse, methods=["GET", "POST", "PUT", "PATCH", "DELETE"], name=path)
        for path in UNSERVED
    ]


async def _refuse(request: Request) -> Response:
    says = UNSERVED[_route(request)]
    raise ApiError(404, says, "endpoint_not_supported")


def _route(request: Request) -> Any:
    return request.scope["route"].path


# ---------------------------------------------------------------------- probes


MAX_PROBES: Final = 32
"""Connections of probes at once. A further one takes the place of one that waits for a request."""


async def serve_health(
    address: tuple[str, int],
    generator: Callable[[], Generator | None],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at *address* until cancelled. *generator* gives that of the node's present life. Raises
    `OperationError` when it cannot listen."""
    listeners = await listen(*address, "for the probes", "health")
    at = format_address(*address)
    node_log.info("/livez, /readyz and /metrics are at http://%s", at)
    if not is_loopback(address[0]):
        text = "whoever reaches %s sees how this rank is; it names nobody, and asks no key"
        node_log.info(text, at)
    task_status.started()
    app = build_health(generator)
    await serve_connections(app, listeners, Connections(MAX_PROBES), trio.Event())


def build_health(generator: Callable[[], Generator | None]) -> Starlette:
    """The ASGI app of the three paths."""
    page = MetricsPage()
    page.registry.register(NodeCollector(generator))

    async def readyz(_: Request) -> JSONResponse:
        """Whether this rank does its part; else why not, by cause."""
        present = generator()
        if present is None:
            causes = [Cause.BEGINNING.value]
        else:
            causes = list(dict.fromkeys(each.cause.value for each in present.obstacles()))
            if present.serving and not causes:
                return JSONResponse({"status": "ready", "reasons": []})
        body = {"status": "unavailable", "reasons": causes}
        return JSONResponse(body, 503, {"Retry-After": "1"})

    async def counts(_: Request) -> Response:
        return await page.answer()

    return Starlette(
        routes=[
            Route("/livez", state.livez),
            Route("/readyz", readyz),
            Route("/metrics", counts),
        ],
        exception_handlers={ApiError: api_error, HTTPException: http_error},
    )

"""The ASGI apps: that of a head's API, and that of the probes of any rank.

Any rank serves ``/livez``, ``/readyz`` and ``/metrics`` to whoever watches machines, at the address
`health` of its config (`serve_health`). Nobody needs a key there, as no probe or scraper has to
have one. So no answer names a member, an address, a model or a caller: there are numbers of ranks,
causes, counts, sizes and versions, of this node alone. What the head counts of requests is at its
API. The probes are served for all lives of a node, as its Unix socket: while the node changes to
another model it is alive, and not ready.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio
from sealring_protocol.diagnosis import Cause
from sealring_trio.units import format_address, is_loopback
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from sealring.dialects.errors import INVALID, ApiError
from sealring.generation.generation import Generator
from sealring.http import kept, resume, state
from sealring.http.connections import MAX_CONNECTIONS, Connections
from sealring.http.gate import PREFIXES, Gate, error_response, nothing
from sealring.http.generate import CHAT, COMPLETION, MESSAGES, RESPONSES, Generate, Tokens
from sealring.http.head import ApiHead
from sealring.http.http1 import listen, serve_connections
from sealring.http.metrics import MetricsPage, NodeCollector, metrics
from sealring.http.openapi import openapi

log = logging.getLogger("sealring")

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


def build_app(
    head: ApiHead,
    pages: Sequence[BaseRoute] = (),
    connections: int = MAX_CONNECTIONS,
    admitted: Callable[[Scope], Awaitable[None]] = nothing,
) -> Starlette:
    """The ASGI app of *head*, to which there may be so many *connections*. The files of the *pages*
    need no key. For whom the gate lets in *admitted* is called first."""
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
        middleware=[Middleware(Gate, head=head, connections=connections, admitted=admitted)],
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
    log.info("/livez, /readyz and /metrics are at http://%s", at)
    if not is_loopback(address[0]):
        text = "whoever reaches %s sees how this rank is; it names nobody, and asks no key"
        log.info(text, at)
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

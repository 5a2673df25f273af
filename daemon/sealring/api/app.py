"""Maps paths to endpoints.

The page is mounted by whoever builds the app (*pages*): its files at ``/`` and
``/dashboard``, which need no key.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sealring.api import cluster, responses, unserved
from sealring.api.errors import INVALID, ApiError
from sealring.api.gate import PREFIXES, Gate
from sealring.api.generate import Generate
from sealring.api.head import ApiHead
from sealring.api.health import health, livez, readyz
from sealring.api.kinds import ChatKind, CompletionKind, MessagesKind, ResponsesKind
from sealring.api.metrics import metrics
from sealring.api.models import model, models
from sealring.api.openapi import openapi
from sealring.api.tokens import Tokens

log = logging.getLogger("sealring.api")


def build_app(head: ApiHead, pages: Sequence[BaseRoute] = ()) -> Starlette:
    """The ASGI app of *head*."""
    app = Starlette(
        routes=[
            *unserved.routes(),
            Route("/v1/chat/completions", Generate(head, ChatKind()), methods=["POST"]),
            Route("/v1/completions", Generate(head, CompletionKind()), methods=["POST"]),
            Route("/v1/responses", Generate(head, ResponsesKind()), methods=["POST"]),
            Route("/v1/responses/input_tokens", Tokens(head, "count_input"), methods=["POST"]),
            Route("/v1/responses/{id}", responses.retrieve),
            Route("/v1/responses/{id}", responses.delete, methods=["DELETE"]),
            Route("/v1/responses/{id}/cancel", responses.cancel, methods=["POST"]),
            Route("/v1/responses/{id}/input_items", responses.input_items),
            Route("/v1/messages", Generate(head, MessagesKind()), methods=["POST"]),
            Route("/v1/messages/count_tokens", Tokens(head, "count"), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{id:path}", model),
            Route("/tokenize", Tokens(head, "tokenize"), methods=["POST"]),
            Route("/detokenize", Tokens(head, "detokenize"), methods=["POST"]),
            Route("/v1/cluster", cluster.cluster),
            Route("/v1/requests", cluster.requests),
            Route("/v1/requests/{id}", cluster.cancel, methods=["DELETE"]),
            Route("/v1/requests/{id}/trace", cluster.trace),
            Route("/health", health),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/version", cluster.version),
            Route("/openapi.json", openapi),
            *pages,
        ],
        middleware=[Middleware(Gate, head=head)],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
        },
    )
    app.state.head = head
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101  the app calls it for nothing else
    return error.response(request.url.path)


async def _http_error(request: Request, error: Exception) -> Response:
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
    return ApiError(
        error.status_code, message, code, kind=INVALID, headers=error.headers or {}
    ).response(path)

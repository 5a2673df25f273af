"""Paths of other servers that have nothing here: clients are told so, and what to do.

A client that looks for an endpoint which is not there must not take the server for broken, so the
answer is 404 with a code of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sealring.api.errors import ApiError

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
"""Paths, with what is said of each."""


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

"""``GET /openapi.json``: a description of the API for programs (OpenAPI 3.1).

Bodies and answers are described by their pydantic models, and nothing of them is repeated here. The
document tells nothing of this ring, so it needs no key, as the page does not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import attrs
import pydantic
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sealring.dialects import answers
from sealring.dialects import answers as shapes
from sealring.dialects.anthropic import CountRequest, MessagesRequest
from sealring.dialects.fields import ADAPTED_HEADER, IGNORED_HEADER, TOOLS_HEADER
from sealring.dialects.messages import CHANGES
from sealring.dialects.responses import ResponsesRequest
from sealring.dialects.schema import (
    ChatRequest,
    CompletionRequest,
    Detokenize,
    TokenizeChat,
    TokenizeText,
)
from sealring.generation.status import VERSION
from sealring.http.gate import is_public

Schema = dict[str, Any]
Bodies = tuple[type[pydantic.BaseModel], ...]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
_TEXT: Final[Schema] = {"type": "string"}


@attrs.frozen
class Operation:
    """What one endpoint *says*: its *answer* (None: a text of the *kind*), which of *bodies* it
    takes, the data of the *events* of its stream, and what other status *also* has its answer. Its
    errors are *failed*."""

    says: str
    answer: type[pydantic.BaseModel] | None
    bodies: Bodies = ()
    events: type[pydantic.BaseModel] | None = None
    kind: str = JSON
    also: str = ""
    failed: type[pydantic.BaseModel] = answers.ErrorAnswer


OPERATIONS: Final[Mapping[str, Operation]] = {
    "POST /v1/chat/completions": Operation(
        "An answer to a conversation, whole or streamed.",
        answers.ChatAnswer,
        (ChatRequest,),
        answers.ChatChunk,
    ),
    "POST /v1/completions": Operation(
        "A continuation of a text, whole or streamed.",
        answers.TextAnswer,
        (CompletionRequest,),
        answers.TextChunk,
    ),
    "POST /v1/responses": Operation(
        "An answer as OpenAI's responses have it, whole or streamed.",
        shapes.ResponseAnswer,
        (ResponsesRequest,),
        shapes.StreamEvent,
    ),
    "POST /v1/responses/input_tokens": Operation(
        "How many tokens the prompt of such a response has.",
        shapes.InputTokens,
        (ResponsesRequest,),
    ),
    "GET /v1/responses/{id}": Operation("A response that is kept.", shapes.ResponseAnswer),
    "DELETE /v1/responses/{id}": Operation("Keeps a response no longer.", shapes.ResponseDeleted),
    "GET /v1/responses/{id}/input_items": Operation(
        "The items of its input; `limit`, `order` and `after` choose among them.",
        shapes.InputItems,
    ),
    "POST /v1/responses/{id}/cancel": Operation(
        "Always an error: none is made in the background.", None
    ),
    "POST /v1/messages": Operation(
        "An answer as Anthropic's messages have it, whole or streamed.",
        shapes.MessageAnswer,
        (MessagesRequest,),
        shapes.StreamEvent,
        failed=shapes.MessageError,
    ),
    "POST /v1/messages/count_tokens": Operation(
        "How many tokens a prompt of that form has.",
        shapes.TokenCount,
        (CountRequest,),
        failed=shapes.MessageError,
    ),
    "POST /tokenize": Operation(
        "The ids of a text, or of a conversation's prompt.",
        answers.Tokenized,
        (TokenizeText, TokenizeChat),
    ),
    "POST /detokenize": Operation("The text of ids.", answers.Detokenized, (Detokenize,)),
    "GET /v1/models": Operation(
        "The model under each of its names, and the length of its context.", answers.Cards
    ),
    "GET /v1/models/{id}": Operation(
        "The same for one name, with what the model can.", answers.FullCard
    ),
    "GET /v1/cluster": Operation(
        "The state of the ring: ranks, links, strategy, rows, what is in the way. With "
        "`?history=1` the last minutes, second by second.",
        answers.Cluster,
    ),
    "GET /v1/cluster/events": Operation(
        "The same as a stream of server-sent events, one each second; the page listens to it.",
        None,
        kind=EVENTS,
    ),
    "GET /v1/requests": Operation(
        "The requests under way, then the latest that are over; never their texts.",
        answers.Traces,
    ),
    "DELETE /v1/requests/{id}": Operation("Ends a request that is under way.", answers.Cancelled),
    "GET /v1/requests/{id}/trace": Operation(
        "Where the time of one request went.", answers.TraceNow
    ),
    "GET /health": Operation(
        "Whether the ring can answer now, and why not: 200 or 503.", answers.Health, also="503"
    ),
    "GET /livez": Operation(
        "Whether the process lives: 200 as long as it answers at all.", answers.Alive
    ),
    "GET /readyz": Operation(
        "Whether to send requests here: 200 if one would be answered now, else 503 with the "
        "reasons, also while the head drains or its queue is full.",
        answers.Readiness,
        also="503",
    ),
    "GET /metrics": Operation(
        "Counters, histograms and gauges for Prometheus.", None, kind="text/plain"
    ),
    "GET /version": Operation("The version that runs here.", answers.Version),
    "GET /openapi.json": Operation("A description of the API for programs (OpenAPI 3.1).", None),
    "GET /": Operation(
        "The page: a chat, and at `#ring` the ring at work.", None, kind="text/html"
    ),
}
"""By method and path."""


async def openapi(request: Request) -> Response:
    """``GET /openapi.json``."""
    return Response(_written(), media_type=JSON)


@functools.cache
def _written() -> bytes:
    """The document's bytes: to write them takes 3 ms."""
    return bytes(JSONResponse(document()).body)


@functools.cache
def document() -> Schema:
    """The document."""
    modes: list[tuple[type[pydantic.BaseModel], Any]] = []
    for operation in OPERATIONS.values():
        modes += [(body, "validation") for body in operation.bodies]
        told = (operation.answer, operation.events, operation.failed)
        modes += [(each, "serialization") for each in told if each is not None]
    refs, schemas = models_json_schema(
        list(dict.fromkeys(modes)), ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Schema] = {}
    for place, operation in OPERATIONS.items():
        method, path = place.split()
        paths.setdefault(path, {})[method.lower()] = _described(path, operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sealring",
            "version": VERSION,
            "description": "An OpenAI-compatible API of a ring of machines that run one language "
            "model. Fields that are not described have no effect; the header "
            f"{IGNORED_HEADER} of an answer names them.",
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed once 'sealring apikey new' has made a key.",
                }
            },
        },
    }


def _described(path: str, operation: Operation, refs: Mapping[Any, Schema]) -> Schema:
    # OpenAPI 3.1 has no words for the events of a stream; 3.2 has, and few programs know it.
    text = {JSON: {"schema": {"type": "object"}}, EVENTS: {}}
    kinds: Schema = {operation.kind: text.get(operation.kind, {"schema": _TEXT})}
    if operation.answer is not None:
        kinds = {JSON: {"schema": refs[operation.answer, "serialization"]}}
    if operation.events is not None:
        kinds[EVENTS] = {"x-event-data": refs[operation.events, "serialization"]}
    answer: Schema = {"description": operation.says, "content": kinds}
    if operation.events is not None:
        answer["headers"] = _HEADERS
    failed = {"schema": refs[operation.failed, "serialization"]}
    told: Schema = {
        "summary": operation.says,
        "responses": {
            "200": answer,
            **({operation.also: answer} if operation.also else {}),
            "default": {"description": "What went wrong.", "content": {JSON: failed}},
        },
    }
    if is_public(path):
        told["security"] = []
    if "{id}" in path:
        told["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    if operation.bodies:
        bodies = [refs[body, "validation"] for body in operation.bodies]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        told["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return told


_HEADERS: Final[Schema] = {
    IGNORED_HEADER: {
        "description": "The fields of the body that had no effect.",
        "schema": _TEXT,
    },
    ADAPTED_HEADER: {
        "description": "What was changed in a conversation that the model's template refused: "
        + ", ".join(f"'{name}'" for name in CHANGES)
        + ".",
        "schema": _TEXT,
    },
    TOOLS_HEADER: {
        "description": "'in-words' if the model was told of the tools in a message, as its chat "
        "template has none; 'as-json' if the answer is held to the JSON of a call, too.",
        "schema": _TEXT,
    },
}

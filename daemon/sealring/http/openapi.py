"""``GET /openapi.json``: a description of the API for programs (OpenAPI 3.1).

Bodies are described by the models that check them. Answers are made as plain objects, which costs
the event loop less; the models here are their description: a field that is missing here, or too
many, fails a test. The document says nothing of this ring, so it needs no key, as the page does
not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs
import pydantic
from pydantic.json_schema import models_json_schema
from sealring_trio.node.service import this_build
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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
from sealring.http.gate import is_public

Schema = dict[str, Any]
Bodies = tuple[type[pydantic.BaseModel], ...]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
_TEXT: Final[Schema] = {"type": "string"}


class _Answer(pydantic.BaseModel):
    """A part of an answer."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")


class _OpenAnswer(_Answer):
    """A part of an answer that has more than is described."""

    model_config = pydantic.ConfigDict(extra="allow")


class ErrorBody(_Answer):
    """What went wrong. *code* is for programs, *message* for people; *param* names the field of the
    body that is to blame."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(_Answer):
    """An answer that is an error."""

    error: ErrorBody


class PromptDetails(_Answer):
    """Of the prompt's tokens."""

    cached_tokens: int


class PromptScore(_Answer):
    """A token in a place of the prompt; *rank* 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PromptScores = list[dict[str, PromptScore] | None]
"""For each token of the prompt what it and the likeliest ones have, by id; None for the first."""


class CompletionDetails(_Answer):
    """Of the answer's tokens: those that were guessed rightly, and guesses that were wrong."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(_Answer):
    """The counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TokenLogprob(_Answer):
    """A token, its log probability and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    """The token that was drawn, and the likeliest ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(_Answer):
    """Log probabilities of a message."""

    content: list[ChosenLogprob]
    refusal: None


class CalledFunction(_Answer):
    """What is called; *arguments* is a JSON text."""

    name: str
    arguments: str


class ToolCall(_Answer):
    """A call that the client is to make."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(_Answer):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChoice(_Answer):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]


class _Completion(_Answer):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatAnswer(_Completion):
    """A whole chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptScores | None = None


class FunctionDelta(_Answer):
    """What is called; *arguments* are more of the JSON text that was sent before."""

    name: str | None = None
    arguments: str


class CallDelta(_Answer):
    """More of a call; *index* is its number among those of the message. Its id and name come
    first."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class MessageDelta(_Answer):
    """What is new in a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChatChunkChoice(_Answer):
    """What is new in one of the answers."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None


class ChatChunk(_Completion):
    """The data of an event of a chat completion's stream; the last event's is ``[DONE]``."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class TextLogprobs(_Answer):
    """Log probabilities in columns, one entry for each token; *text_offset* is in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(_Answer):
    """One of the continuations."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: PromptScores | None = None


class TextChunkChoice(TextChoice):
    """What is new in one of the continuations."""

    finish_reason: Literal["stop", "length"] | None  # type: ignore[assignment]


class TextChunk(_Completion):
    """The data of an event of a text completion's stream; the last event's is ``[DONE]``."""

    object: Literal["text_completion"]
    choices: list[TextChunkChoice]
    usage: Usage | None = None


class TextAnswer(_Completion):
    """A whole text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage


class Card(_Answer):
    """The model under one of its names; *root* is its own."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    context_length: int | None
    max_model_len: int | None
    chat_template: bool


class Cards(_Answer):
    """The model under each of its names."""

    object: Literal["list"]
    data: list[Card]


class Capabilities(_Answer):
    """What the model can. *tools* are ``in-words`` where its template has none."""

    chat: bool
    completion: bool
    tools: Literal["template", "in-words"]
    reasoning: bool
    reasoning_effort: bool
    fill_in_the_middle: bool
    logprobs: bool
    structured_output: bool
    embeddings: bool
    vision: bool
    audio: bool


class Sampling(_Answer):
    """How the model's makers have its answers drawn; what they do not say is left out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class FullCard(Card):
    """The model, how its answers are drawn where a request does not say, and what it can; null if
    its tokenizer cannot be read."""

    sampling: Sampling
    capabilities: Capabilities | None


class Tokenized(_Answer):
    """The ids of a text or of a conversation's prompt, and their number."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(_Answer):
    """The text of ids."""

    prompt: str


class Version(_Answer):
    """What runs here."""

    version: str


class Health(_Answer):
    """Whether the ring can answer now, and if not, why."""

    status: Literal["ok", "unavailable"]
    ranks: int
    degraded: list[dict[str, Any]]
    faults: list[str]
    roster: str
    why: list[dict[str, Any]]
    starved: list[dict[str, Any]]


class Alive(_Answer):
    """That the process lives."""

    status: Literal["alive"]


class Readiness(_Answer):
    """Whether to send requests here, and why not."""

    status: Literal["ready", "unavailable"]
    reasons: list[str]


class Cluster(pydantic.BaseModel):
    """The state of the ring. It has more than is described here, and changes with versions."""

    version: str
    model: str
    healthy: bool
    faults: list[str]
    ranks: list[dict[str, Any]]
    requests: list[dict[str, Any]]


class NewcomerAnswer(_Answer):
    """A machine that has knocked with an invitation. What it says of itself is ASCII here."""

    id: str
    state: Literal["waiting", "admitted", "joined", "refused", "left"]
    name: str
    calls_itself: str
    looks_like: str
    fingerprint: str
    system: str
    memory: int
    source: str
    addresses: list[str]
    waited_s: int
    invitation_s: int
    by: str
    why: str


class NewcomersAnswer(_Answer):
    """Those that wait, and those that did within the last minute; whether the caller may decide,
    else why not, and what to type on the head's machine, before the fingerprint."""

    object: Literal["list"]
    data: list[NewcomerAnswer]
    may_admit: bool
    why_not: str
    command: str


class TraceAnswer(_Answer):
    """Where the time of one request went."""

    id: str
    request_id: str
    trace_id: str
    kind: str
    owner: str
    began_ms: int
    state: str
    choices: int
    prompt_tokens: int
    cached_tokens: int
    read_tokens: int
    tokens: int
    tokens_per_s: float
    accepted_guesses: int
    rejected_guesses: int
    steps: int
    phases_ms: dict[str, Any]


class TraceNow(TraceAnswer):
    """The same, and in words what is done for it until its first token."""

    doing: str


class Traces(_Answer):
    """The requests under way, then the latest that are over."""

    object: Literal["list"]
    data: list[TraceAnswer]


class Cancelled(_Answer):
    """A request that has been ended."""

    id: str
    object: Literal["request"]
    cancelled: Literal[True]


class StreamEvent(_OpenAnswer):
    """One event of a stream, of which each *type* has fields of its own."""

    type: str


class InputDetails(_Answer):
    """Of the input's tokens."""

    cached_tokens: int


class OutputDetails(_Answer):
    """Of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(_Answer):
    """The counts of tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFault(_Answer):
    """Why a response failed."""

    code: str
    message: str


class Incomplete(_Answer):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseAnswer(_OpenAnswer):
    """A response. It repeats fields of the request, too."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "failed", "in_progress", "cancelled"]
    error: ResponseFault | None
    incomplete_details: Incomplete | None
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | None


class StreamDeleted(_Answer):
    """An answer that nobody can come back to any more."""

    id: str
    object: Literal["stream"]
    deleted: Literal[True]


class ResponseDeleted(_Answer):
    """A response that is kept no longer."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(_Answer):
    """Items of a response's input."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageUsage(_OpenAnswer):
    """The counts of tokens; what was cached is no input."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int


class MessageAnswer(_Answer):
    """A message of Anthropic's."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class InputTokens(_Answer):
    """The length of a response's prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class TokenCount(_Answer):
    """How many tokens a prompt has."""

    input_tokens: int


class MessageFault(_Answer):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class MessageError(_OpenAnswer):
    """An answer below ``/v1/messages`` that is an error."""

    type: Literal["error"]
    error: MessageFault


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
    failed: type[pydantic.BaseModel] = ErrorAnswer


OPERATIONS: Final[Mapping[str, Operation]] = {
    "POST /v1/chat/completions": Operation(
        "An answer to a conversation, whole or streamed.",
        ChatAnswer,
        (ChatRequest,),
        ChatChunk,
    ),
    "POST /v1/completions": Operation(
        "A continuation of a text, whole or streamed.",
        TextAnswer,
        (CompletionRequest,),
        TextChunk,
    ),
    "POST /v1/responses": Operation(
        "An answer as OpenAI's responses have it, whole or streamed.",
        ResponseAnswer,
        (ResponsesRequest,),
        StreamEvent,
    ),
    "POST /v1/responses/input_tokens": Operation(
        "How many tokens the prompt of such a response has.",
        InputTokens,
        (ResponsesRequest,),
    ),
    "GET /v1/responses/{id}": Operation(
        "A response that is kept; with `?stream=true` its events, after that of "
        "`starting_after`, if they are.",
        ResponseAnswer,
        events=StreamEvent,
    ),
    "DELETE /v1/responses/{id}": Operation("Keeps a response no longer.", ResponseDeleted),
    "GET /v1/responses/{id}/input_items": Operation(
        "The items of its input; `limit`, `order` and `after` choose among them.",
        InputItems,
    ),
    "POST /v1/responses/{id}/cancel": Operation(
        "Ends a response that is made in the background.", ResponseAnswer
    ),
    "GET /v1/streams/{id}": Operation(
        "What follows the event of `Last-Event-ID`, or of `?starting_after=N`, in an answer that "
        "is kept.",
        None,
        kind=EVENTS,
    ),
    "DELETE /v1/streams/{id}": Operation(
        "Ends an answer if it is under way, and keeps it no longer.", StreamDeleted
    ),
    "POST /v1/messages": Operation(
        "An answer as Anthropic's messages have it, whole or streamed.",
        MessageAnswer,
        (MessagesRequest,),
        StreamEvent,
        failed=MessageError,
    ),
    "POST /v1/messages/count_tokens": Operation(
        "How many tokens a prompt of that form has.",
        TokenCount,
        (CountRequest,),
        failed=MessageError,
    ),
    "POST /tokenize": Operation(
        "The ids of a text, or of a conversation's prompt.",
        Tokenized,
        (TokenizeText, TokenizeChat),
    ),
    "POST /detokenize": Operation("The text of ids.", Detokenized, (Detokenize,)),
    "GET /v1/models": Operation(
        "The model under each of its names, and the length of its context.", Cards
    ),
    "GET /v1/models/{id}": Operation("The same for one name, with what the model can.", FullCard),
    "GET /v1/cluster": Operation(
        "The state of the ring: ranks, links, strategy, rows, what is in the way. With "
        "`?history=1` the last minutes, second by second.",
        Cluster,
    ),
    "GET /v1/cluster/events": Operation(
        "The same as a stream of server-sent events, one each second, and at once when a machine "
        "knocks or somebody decides about it; the page listens to it.",
        None,
        kind=EVENTS,
    ),
    "GET /v1/requests": Operation(
        "The requests under way, then the latest that are over; never their texts.",
        Traces,
    ),
    "DELETE /v1/requests/{id}": Operation("Ends a request that is under way.", Cancelled),
    "GET /v1/requests/{id}/trace": Operation("Where the time of one request went.", TraceNow),
    "GET /v1/newcomers": Operation(
        "The machines that wait to join, and whether the caller may decide.", NewcomersAnswer
    ),
    "POST /v1/newcomers/{id}/accept": Operation(
        "Lets a machine in; answered once it has joined. Takes a key that may admit.",
        NewcomerAnswer,
    ),
    "POST /v1/newcomers/{id}/refuse": Operation(
        "Sends a machine away, and ends its invitation. Takes a key that may admit.",
        NewcomerAnswer,
    ),
    "GET /health": Operation(
        "Whether the ring can answer now, and why not: 200 or 503.", Health, also="503"
    ),
    "GET /livez": Operation("Whether the process lives: 200 as long as it answers at all.", Alive),
    "GET /readyz": Operation(
        "Whether to send requests here: 200 if one would be answered now, else 503 with the "
        "reasons, also while the head drains or its queue is full.",
        Readiness,
        also="503",
    ),
    "GET /metrics": Operation(
        "Counters, histograms and gauges for Prometheus.", None, kind="text/plain"
    ),
    "GET /version": Operation("The version that runs here.", Version),
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
        answers = (operation.answer, operation.events, operation.failed)
        modes += [(each, "serialization") for each in answers if each is not None]
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
            "version": this_build().version,
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
    described: Schema = {
        "summary": operation.says,
        "responses": {
            "200": answer,
            **({operation.also: answer} if operation.also else {}),
            "default": {"description": "What went wrong.", "content": {JSON: failed}},
        },
    }
    if is_public(path):
        described["security"] = []
    if "{id}" in path:
        described["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    if operation.bodies:
        bodies = [refs[body, "validation"] for body in operation.bodies]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return described


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
        "description": "'in-words' if a message describes the tools to the model, as its chat "
        "template has none; 'as-json' if the answer is held to the JSON of a call, too.",
        "schema": _TEXT,
    },
}

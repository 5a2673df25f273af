"""What answers of OpenAI's responses and Anthropic's messages look like, as `answer_schema` says it
of the others."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from sealring.api.answer_schema import Told


class Event(pydantic.BaseModel):
    """One event of a stream, of which each *type* has fields of its own."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    type: str


class InputDetails(Told):
    """Of the input's tokens."""

    cached_tokens: int


class OutputDetails(Told):
    """Of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(Told):
    """The counts of tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFault(Told):
    """Why a response failed."""

    code: str
    message: str


class Incomplete(Told):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseAnswer(pydantic.BaseModel):
    """A response. It repeats fields of the request, too."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    error: ResponseFault | None
    incomplete_details: Incomplete | None
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | None


class ResponseDeleted(Told):
    """A response that is kept no longer."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(Told):
    """Items of a response's input."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageUsage(pydantic.BaseModel):
    """The counts of tokens; what was cached is no input."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int


class MessageAnswer(Told):
    """A message of Anthropic's."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class InputTokens(Told):
    """The length of a response's prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class TokenCount(Told):
    """How many tokens a prompt has."""

    input_tokens: int


class MessageFault(Told):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class MessageError(pydantic.BaseModel):
    """An answer below ``/v1/messages`` that is an error."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    type: Literal["error"]
    error: MessageFault

"""The body of ``POST /v1/responses``, checked in its form; `responses_input` makes the inner
request of it.

Unknown fields are ignored, and a header names them. Known ones that cannot be honoured are refused
by name. Items, parts and tools have one class each with the fields
of all their kinds, since a union of many would blame the wrong kind for a fault; `responses_input`
looks at the kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import pydantic
from sealring_protocol.limits import MAX_LOGPROBS

from sealring.api.values import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    U32,
    Body,
    Count,
    Model,
    Name,
    Number,
    Penalty,
    Several,
)

MAX_METADATA: Final = 16
"""Entries of ``metadata``, as OpenAI has it."""


class Part(Model):
    """A part of a message, a reasoning item or a tool's output."""

    type: Name
    text: str | None = None
    refusal: str | None = None
    file_data: str | None = None
    filename: str | None = None


Parts = Annotated[list[Part], Several(max_length=MAX_PARTS)]


class Item(Model):
    """One item of the input: a message, a call, its output, reasoning, or a reference to one. Items
    of tools that a server ran keep all that they have."""

    model_config = pydantic.ConfigDict(extra="allow")

    type: Name = "message"
    id: Name | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Parts | None = None
    name: str | None = None
    namespace: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | Parts | None = None
    summary: Parts | None = None
    encrypted_content: str | None = None

    @property
    def refers(self) -> bool:
        """Whether it only names an item of an earlier response. OpenAI lets its type out."""
        bare = self.id is not None and self.role is None and self.content is None
        return self.type == "item_reference" or (self.type == "message" and bare)


Items = Annotated[list[Item], Several(max_length=MAX_MESSAGES)]


def _as_items(given: Any) -> Any:
    """A text as the user's message. In a union a fault of one item would be blamed on the text."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class Grammar(Model):
    """The form of a custom tool's input."""

    type: Name
    syntax: str | None = None
    definition: str | None = None


class _Named(Model):
    """What has the name of a tool; or has it in a function, as in chat completions."""

    type: Name
    name: Name | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        function = given.get("function") if isinstance(given, dict) else None
        return {**function, **given} if isinstance(function, dict) else given


class ResponseTool(_Named):
    """A tool: a function, a custom tool, a namespace of these, or one that the server would run."""

    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: Grammar | None = None
    tools: Annotated[list[ResponseTool], Several(max_length=MAX_TOOLS)] | None = None


class ToolRef(_Named):
    """A tool by its name."""

    namespace: Name | None = None


class ToolChoice(ToolRef):
    """The tool that has to be called, or with ``allowed_tools`` those that may be."""

    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[ToolRef], Several(max_length=MAX_TOOLS)] | None = None


class TextFormat(Model):
    """The form of the answer's text."""

    type: Name
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Number(alias="schema")] = None
    strict: bool | None = None


class TextOptions(Model):
    """What the answer's text has to be like."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(Model):
    """How much the model thinks, and in which form that is told."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(Body):
    """The body of ``POST /v1/responses``."""

    model: Name
    input: Annotated[Items, pydantic.BeforeValidator(_as_items, str | Items)] | None = None
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Number(ge=0, le=2)] | None = None
    top_p: Annotated[float, Number(gt=0, le=1)] | None = None
    top_k: Annotated[int, Number(ge=-1, le=U32)] | None = None
    min_p: Annotated[float, Number(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Number(ge=-(1 << 63), lt=1 << 64)] | None = None
    tools: Annotated[list[ResponseTool], Several(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    top_logprobs: Annotated[int, Number(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[str], Several(max_length=MAX_PARTS)] | None = None
    metadata: Annotated[dict[str, str], Number(max_length=MAX_METADATA)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    user: str | None = None
    # Known, and refused.
    conversation: Any = None
    prompt: Any = None

    @property
    def references(self) -> list[str]:
        """The ids of the items that it refers to."""
        return [item.id or "" for item in self.input or () if item.refers]


REFUSED: Final[Mapping[str, str]] = {
    "conversation": "Conversations are not kept here; use 'previous_response_id', or send the "
    "items again.",
    "prompt": "There are no prompt templates here; use 'instructions' and 'input'.",
}
"""Fields that are known and always refused, with what is said of each."""

IGNORED_TOOLS: Final = ("web_search", "web_search_preview", "tool_search")
"""Tools of the server's that clients offer with every request, and that a model need not use. They
are left out, and a header says so."""

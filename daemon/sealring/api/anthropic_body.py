"""The bodies of ``POST /v1/messages`` and its ``count_tokens``, checked in their form;
`anthropic_input` makes the inner request of them.

Unknown fields are ignored, and a header names them. Known ones that cannot be honoured are refused
by name. A block has the fields of all its kinds, since a union would
blame the wrong kind for a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import pydantic

from sealring.api.values import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    MAX_TOOLS,
    U32,
    Body,
    Count,
    Model,
    Name,
    Number,
    Several,
    Stop,
)


class Block(Model):
    """A block of a message, of the system prompt, or of a tool's result. Blocks of tools that a
    server ran keep all that they have."""

    model_config = pydantic.ConfigDict(extra="allow")

    type: Name
    text: str | None = None
    thinking: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Name | None = None
    content: str | Annotated[list[Block], Several(max_length=MAX_PARTS)] | dict[str, Any] | None = (
        None
    )
    is_error: bool | None = None
    source: str | dict[str, Any] | None = None
    title: str | None = None
    tool_name: str | None = None


Blocks = Annotated[list[Block], Several(max_length=MAX_PARTS)]


class Turn(Model):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class MessageTool(Model):
    """A tool that the client runs, or by another *type* one that the server would run."""

    type: Name | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessageToolChoice(Model):
    """Which tools the answer may or must use."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Model):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Model):
    """The form of the answer's text."""

    type: Name
    schema_: Annotated[dict[str, Any] | None, Number(alias="schema")] = None


class OutputConfig(Model):
    """How hard the model tries, and the form of its answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(Body):
    """The body of ``POST /v1/messages/count_tokens``."""

    model: Name
    messages: Annotated[list[Turn], Several(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Blocks | None = None
    tools: Annotated[list[MessageTool], Several(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Known, and refused.
    mcp_servers: Any = None
    container: Any = None


class MessagesRequest(CountRequest):
    """The body of ``POST /v1/messages``."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[Stop], Several(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Number(ge=0, le=1)] | None = None
    top_p: Annotated[float, Number(gt=0, le=1)] | None = None
    top_k: Annotated[int, Number(ge=0, le=U32)] | None = None


IGNORED_TOOLS: Final = ("web_search_", "web_fetch_", "tool_search_")
"""How the types of tools of the server's begin that clients offer with every request, and that a
model need not use. They are left out, and a header says so."""

REFUSED: Final[Mapping[str, str]] = {
    "mcp_servers": "This server calls no other servers; offer their tools as the client's own.",
    "container": "This server runs no code.",
}
"""Fields that are known and always refused unless empty, with what is said of each."""

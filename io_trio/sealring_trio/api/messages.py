"""A conversation as the model's chat template takes it, and as the text of a prompt.

A template gets plain values: each content one text, a tool call's arguments as an object rather
than the text that the API carries, and only the fields that a message has. A developer is the
system to models here. Without a grammar there is one way to force a tool call: begin the model's
answer with the mark that opens a call in its format.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
from sealring_model.text.tokens import Tokenizer

from sealring_trio.api.errors import invalid, unsupported
from sealring_trio.api.schema import ChatRequest, Message, NamedTool


@attrs.frozen
class Conversation:
    """A prompt's *text*, and the *tools* that its answer may call, as the template got them. If
    *forced*, the answer must call one."""

    text: str
    tools: list[dict[str, Any]]
    forced: bool


@attrs.frozen
class Opening:
    """A prompt's *ids*, and where its answer begins: within the *reasoning*, or a tool call."""

    ids: list[int]
    reasoning: bool
    calling: bool


def render(tokenizer: Tokenizer, asked: ChatRequest) -> Conversation:
    """The prompt of *asked*. Raises `ApiError` for what the model's template does not take."""
    tools = _tools(asked)
    forced = bool(tools) and asked.tool_choice not in (None, "auto")
    if tools and tokenizer.tools is None:
        raise unsupported("tools", "This model's chat template has no tools.")
    settings = dict(asked.chat_template_kwargs or {})
    if asked.reasoning_effort is not None:
        settings.setdefault("reasoning_effort", asked.reasoning_effort)
    if tokenizer.think[0] and (forced or asked.reasoning_effort == "none"):
        settings.setdefault("enable_thinking", False)
    if wrong := sorted(tokenizer.reserved & settings.keys()):
        raise invalid(f"chat_template_kwargs may not set '{wrong[0]}'.", "chat_template_kwargs")
    messages = [_plain(message) for message in asked.messages]
    try:
        text = tokenizer.render(messages, tools, **settings)
    except ValueError as error:
        raise invalid(f"{error}.", "messages") from None
    return Conversation(text, tools, forced)


def tokenise(tokenizer: Tokenizer, talk: Conversation) -> Opening:
    """*talk* as ids. A forced tool call is begun."""
    ids = tokenizer.encode_rendered(talk.text)
    reasoning = tokenizer.opens_thinking(ids)
    if talk.forced and tokenizer.tools is not None:
        opening = (tokenizer.think[1] if reasoning else "") + tokenizer.tools.start
        ids += tokenizer.encode_part(opening)
        reasoning = False
    return Opening(ids, reasoning, talk.forced)


def _tools(asked: ChatRequest) -> list[dict[str, Any]]:
    """The tools that the prompt names."""
    if asked.tool_choice == "none":
        return []
    named = asked.tool_choice.function.name if isinstance(asked.tool_choice, NamedTool) else None
    return [
        tool.model_dump(exclude_none=True)
        for tool in asked.tools or ()
        if named is None or tool.function.name == named
    ]


def _plain(message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": message.text}
    for name in ("name", "reasoning_content", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return plain


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise invalid(
            "The arguments of a tool call are no JSON.", "messages.tool_calls.function.arguments"
        ) from None

"""From the body of ``POST /v1/messages`` to the inner request, for the text workers.

A turn of several blocks becomes the messages that it stands for: each tool's result is one of the
tool's, and what else a turn says is one of its role. Turns of one role after each other are one, as
Anthropic has it. The system's words in the middle of a conversation go into the user's turn within
marks, since many templates take them only at the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from sealring_trio.api.anthropic_body import (
    REFUSED,
    Block,
    CountRequest,
    MessagesRequest,
    MessageTool,
    MessageToolChoice,
    Turn,
)
from sealring_trio.api.errors import invalid, named_as, unsupported
from sealring_trio.api.fields import OF_CHAT, refuse_of_chat
from sealring_trio.api.schema import ChatRequest, checked, parse, validated, whole_body

_PARAMS: Final = {
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
}
"""What fields of the inner request are here."""

_BILLING: Final = "x-anthropic-billing-header:"
"""How a block of the system prompt begins that Claude Code means for Anthropic's accounting. It
differs with each request, so no prefix of a prompt would ever be found again."""

_BETWEEN: Final = "\n\n"


def read_messages(body: bytes) -> MessagesRequest:
    """The request in *body*. Raises `ApiError`."""
    told = parse(body)
    refuse_of_chat(told)
    return whole_body(MessagesRequest, told, OF_CHAT)


def params_of(asked: CountRequest) -> dict[str, str]:
    """What fields of the inner request are in *asked*."""
    params = dict(_PARAMS)
    for at in range(len(asked.tools or ())):
        params[f"tools.{at}.function"] = f"tools.{at}"
        params[f"tools.{at}.function.parameters"] = f"tools.{at}.input_schema"
    if asked.thinking is not None:
        params["chat_template_kwargs.enable_thinking"] = "thinking"
        if asked.thinking.type == "disabled":
            params["reasoning_effort"] = "thinking"
    return params


def convert(asked: CountRequest) -> ChatRequest:
    """The inner request that *asked* means. Raises `ApiError`."""
    for name, message in REFUSED.items():
        if getattr(asked, name):
            raise unsupported(name, message)
    fields: dict[str, Any] = {
        "model": asked.model,
        "messages": _messages(asked),
        "tools": [_tool(tool) for tool in asked.tools or ()] or None,
        **_choice(asked.tool_choice),
        **_effort(asked),
    }
    if isinstance(asked, MessagesRequest):
        fields |= {
            "max_completion_tokens": asked.max_tokens,
            "stream": asked.stream,
            "stop": asked.stop_sequences,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
        }
    with named_as(params_of(asked)):
        return checked(validated(ChatRequest, fields))


def _tool(tool: MessageTool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise unsupported(
            "tools", f"This server has no tool '{tool.type}'; offer tools with an input_schema."
        )
    function = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _choice(choice: MessageToolChoice | None) -> dict[str, Any]:
    """The fields of the inner request for *choice*."""
    if choice is None:
        return {}
    told: Any = {"any": "required"}.get(choice.type, choice.type)
    if choice.type == "tool":
        if choice.name is None:
            raise invalid("tool_choice needs a name.", "tool_choice.name")
        told = {"type": "function", "function": {"name": choice.name}}
    return {"tool_choice": told, "parallel_tool_calls": not choice.disable_parallel_tool_use}


def _effort(asked: CountRequest) -> dict[str, Any]:
    """The fields of the inner request for how the model thinks, and the form of its answer."""
    told: dict[str, Any] = {}
    config = asked.output_config
    if config is not None and config.effort is not None:
        told["reasoning_effort"] = config.effort
    if config is not None and config.format is not None:
        schema = {"name": "output", "schema": config.format.schema_, "strict": True}
        told["response_format"] = {"type": config.format.type, "json_schema": schema}
    if asked.thinking is not None:
        if asked.thinking.type == "disabled":
            told["reasoning_effort"] = "none"
        else:
            told["chat_template_kwargs"] = {"enable_thinking": True}
    return told


def _messages(asked: CountRequest) -> list[dict[str, Any]]:
    talk = _Talk()
    if asked.system:
        blocks = _blocks(asked.system)
        texts = [_plain(block, f"system.{at}") for at, block in enumerate(blocks)]
        own = [text for text in texts if not text.startswith(_BILLING)]
        if own:
            talk.open({"role": "system", "content": own})
    for at, turn in enumerate(asked.messages):
        talk.add(turn, f"messages.{at}.content")
    messages = talk.joined()
    if messages[-1]["role"] == "assistant":
        raise unsupported(
            "messages",
            "The conversation ends with the assistant's turn. An answer cannot be begun for the "
            "model here; end with the user's turn.",
        )
    return messages


class _Talk:
    """Makes messages of turns. The texts of a message are in lists until it is whole."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    def open(self, message: dict[str, Any]) -> None:
        """Add *message*."""
        self._messages.append(message)

    def joined(self) -> list[dict[str, Any]]:
        """The messages."""
        for message in self._messages:
            for field in ("content", "reasoning_content"):
                if field in message:
                    message[field] = _BETWEEN.join(message[field])
        return self._messages

    def add(self, turn: Turn, place: str) -> None:
        """Add the messages of *turn*, whose content is at *place*. Raises `ApiError`."""
        blocks = _blocks(turn.content)
        for at, block in enumerate(blocks):
            where = place if isinstance(turn.content, str) else f"{place}.{at}"
            match turn.role, block.type:
                case "assistant", "thinking":
                    self._add("assistant", "reasoning_content", block.thinking or "")
                case "assistant", "redacted_thinking":
                    pass
                case "assistant", "tool_use":
                    self._called(block, where)
                case "user", "tool_result":
                    self._result(block, where)
                case "system", _:
                    text = f"<system-reminder>\n{_plain(block, where)}\n</system-reminder>"
                    self._add("user", "content", text)
                case role, _:
                    self._add(role, "content", _plain(block, where))
        if not blocks:
            self._add("assistant" if turn.role == "assistant" else "user", "content", "")

    def _message(self, role: str) -> dict[str, Any]:
        """The last message, if it is of *role*, or else a new one."""
        if not self._messages or self._messages[-1]["role"] != role:
            self.open({"role": role})
        return self._messages[-1]

    def _add(self, role: str, field: str, text: str) -> None:
        self._message(role).setdefault(field, []).append(text)

    def _called(self, block: Block, place: str) -> None:
        if not block.name or not block.id:
            raise invalid(f"{place}: a call needs 'id' and 'name'.", place)
        function = {"name": block.name, "arguments": json.dumps(block.input or {})}
        call = {"id": block.id, "type": "function", "function": function}
        self._message("assistant").setdefault("tool_calls", []).append(call)

    def _result(self, block: Block, place: str) -> None:
        texts = [_plain(part, place) for part in _blocks(block.content or "")]
        if block.is_error:
            texts[:1] = [f"Error: {text}" for text in texts[:1] or [""]]
        self.open({"role": "tool", "tool_call_id": block.tool_use_id, "content": texts})


def _blocks(content: str | Iterable[Block]) -> list[Block]:
    return [Block(type="text", text=content)] if isinstance(content, str) else list(content)


def _plain(block: Block, place: str) -> str:
    """The text of *block*. Raises `ApiError` for a block of another kind."""
    if block.type != "text":
        raise unsupported(
            place,
            f"{place}: blocks of type '{block.type}' are not supported: the model reads text.",
        )
    return block.text or ""

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
    IGNORED_TOOLS,
    REFUSED,
    Block,
    CountRequest,
    MessagesRequest,
    MessageTool,
    MessageToolChoice,
    Turn,
)
from sealring_trio.api.errors import invalid, named_as, unsupported
from sealring_trio.api.fields import OF_CHAT, left_out, past, refuse_of_chat, text_of_file
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
    talk = _talk(asked)
    fields: dict[str, Any] = {
        "model": asked.model,
        "messages": talk.joined(),
        "tools": [_tool(tool) for tool in asked.tools or () if not _is_served(tool)] or None,
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
    fields["continue_final_message"] = talk.goes_on or None
    with named_as(params_of(asked)):
        request = checked(validated(ChatRequest, fields))
    served = {f"tools.{tool.type}": None for tool in asked.tools or () if _is_served(tool)}
    request._ignored = (*talk.left_out, *served)
    return request


def _is_served(tool: MessageTool) -> bool:
    """Whether *tool* is one that the server would run, and an answer can do without."""
    return tool.type is not None and tool.type.startswith(IGNORED_TOOLS)


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


def _talk(asked: CountRequest) -> _Talk:
    talk = _Talk()
    if asked.system:
        blocks = _blocks(asked.system)
        texts = [
            talk.plain(block, f"system.{at}", history=False) for at, block in enumerate(blocks)
        ]
        own = [text for text in texts if not text.startswith(_BILLING)]
        if own:
            talk.open({"role": "system", "content": own})
    earlier = past([turn.role == "assistant" for turn in asked.messages])
    for at, turn in enumerate(asked.messages):
        talk.add(turn, f"messages.{at}.content", history=at < earlier)
    return talk


class _Talk:
    """Makes messages of turns. The texts of a message are in lists until it is whole. Of what is no
    text in earlier turns, the places are in *left_out*."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self.left_out: list[str] = []

    @property
    def goes_on(self) -> bool:
        """Whether the answer goes on with what the assistant has begun to say. Raises `ApiError` if
        it has ended with a call."""
        last = self._messages[-1]
        if last["role"] == "assistant" and last.get("tool_calls"):
            raise invalid(
                "The conversation ends with the assistant's call of a tool. Add the user's turn "
                "with its result.",
                "messages",
            )
        return bool(last["role"] == "assistant")

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

    def plain(self, block: Block, place: str, *, history: bool) -> str:
        """The text of *block*. Raises `ApiError` for one that has none, unless it is of the
        *history*."""
        if block.type == "text":
            return block.text or ""
        if (text := _as_text(block)) is not None:
            return text
        text = left_out(block.type, place, history=history)
        self.left_out.append(place)
        return text

    def add(self, turn: Turn, place: str, *, history: bool) -> None:
        """Add the messages of *turn*, whose content is at *place*, maybe of the *history*. Raises
        `ApiError`."""
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
                    self._result(block, where, history=history)
                case "system", _:
                    text = self.plain(block, where, history=history)
                    self._add("user", "content", f"<system-reminder>\n{text}\n</system-reminder>")
                case "assistant", "document" | "search_result" as kind:
                    # Without a line of ours, marks that it begins with would be around thoughts.
                    text = self.plain(block, where, history=history)
                    self._add("assistant", "content", f"[{kind}]\n{text}")
                case role, _:
                    self._add(role, "content", self.plain(block, where, history=history))
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

    def _result(self, block: Block, place: str, *, history: bool) -> None:
        parts = _blocks(block.content or "")
        texts = [self.plain(part, place, history=history) for part in parts]
        if block.is_error:
            texts[:1] = [f"Error: {text}" for text in texts[:1] or [""]]
        self.open({"role": "tool", "tool_call_id": block.tool_use_id, "content": texts})


def _blocks(content: str | Iterable[Block] | dict[str, Any]) -> list[Block]:
    if isinstance(content, str):
        return [Block(type="text", text=content)]
    if isinstance(content, dict):
        return [validated(Block, {"type": "text", **content})]
    return list(content)


def _as_text(block: Block) -> str | None:
    """The text of a *block* of another kind that has one: a document, what a search found, and
    what was called and found by tools that a server ran; None if it has none."""
    match block.type:
        case "document" | "search_result":
            return _document(block)
        case "tool_reference":
            return f"[tool: {block.tool_name}]"
        case kind if kind.endswith(("tool_use", "tool_result")):
            told = block.model_dump(exclude_none=True, exclude={"id", "tool_use_id"})
            return f"[{told.pop('type')}: {json.dumps(_readable(told), ensure_ascii=False)}]"
        case _:
            return None


def _document(block: Block) -> str | None:
    """What the document or search result *block* says, under its title; None if it is no text."""
    source = block.source if isinstance(block.source, dict) else {}
    match source.get("type"):
        case "text":
            text = source.get("data")
        case "content":
            text = _texts(source.get("content"))
        case "base64":
            text = text_of_file(f"data:{source.get('media_type')};base64,{source.get('data')}")
        case None if block.content is not None:
            text = _texts(block.model_dump()["content"])
        case _:
            text = None
    if not isinstance(text, str):
        return None
    at = block.source if isinstance(block.source, str) else None
    return "\n".join(filter(None, (block.title, at, text)))


def _texts(content: Any) -> str | None:
    """The texts of *content*, a text or blocks of text; None if there are others."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [None]
    texts = [each.get("text") if isinstance(each, dict) else None for each in blocks]
    said = [text for text in texts if isinstance(text, str)]
    return _BETWEEN.join(said) if len(said) == len(texts) else None


def _readable(value: Any) -> Any:
    """*value* without what only its server could read."""
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if not name.startswith("encrypted")}
        return {name: _readable(each) for name, each in kept.items() if each is not None}
    return [_readable(each) for each in value] if isinstance(value, list) else value

"""Anthropic's messages: the body, the inner request that it becomes, and the answers.

A block has the fields of all its kinds, since a union would blame the wrong kind for a fault. A
turn of several blocks becomes the messages that it stands for: each tool's result is one of the
tool's, and what else a turn says is one of its role. Turns of one role after each other are one, as
Anthropic has it. The system's words in the middle of a conversation go into the user's turn within
marks, since many templates take them only at the beginning.

An answer is a list of blocks (thinking, text, tool use), whole or as typed events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import attrs
import pydantic
from pydantic_core import from_json
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Content, Reasoning

from sealring.dialects.errors import ANTHROPIC, ApiError, invalid, named_as, unsupported
from sealring.dialects.fields import OF_CHAT, left_out, past, refuse_of_chat, text_of_file
from sealring.dialects.replies import (
    About,
    Delta,
    Finish,
    Shape,
    broken_off,
    event,
    json_bytes,
)
from sealring.dialects.schema import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    MAX_TOOLS,
    U32,
    Body,
    ChatRequest,
    Count,
    Model,
    Name,
    Number,
    Several,
    Stop,
    checked,
    parse,
    validated,
    whole_body,
)

if TYPE_CHECKING:
    from sealring.generation.trace import Trace


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
    sent = parse(body)
    refuse_of_chat(sent)
    return whole_body(MessagesRequest, sent, OF_CHAT)


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
    choose: Any = {"any": "required"}.get(choice.type, choice.type)
    if choice.type == "tool":
        if choice.name is None:
            raise invalid("tool_choice needs a name.", "tool_choice.name")
        choose = {"type": "function", "function": {"name": choice.name}}
    return {"tool_choice": choose, "parallel_tool_calls": not choice.disable_parallel_tool_use}


def _effort(asked: CountRequest) -> dict[str, Any]:
    """The fields of the inner request for how the model thinks, and the form of its answer."""
    fields: dict[str, Any] = {}
    config = asked.output_config
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    if config is not None and config.format is not None:
        schema = {"name": "output", "schema": config.format.schema_, "strict": True}
        fields["response_format"] = {"type": config.format.type, "json_schema": schema}
    if asked.thinking is not None:
        if asked.thinking.type == "disabled":
            fields["reasoning_effort"] = "none"
        else:
            fields["chat_template_kwargs"] = {"enable_thinking": True}
    return fields


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


@attrs.define(eq=False)
class _Talk:
    """Makes messages of turns. The texts of a message are in lists until it is whole. Of what is no
    text in earlier turns, the places are in *left_out*."""

    left_out: list[str] = attrs.field(factory=list)
    _messages: list[dict[str, Any]] = attrs.field(factory=list)
    _out: set[str] = attrs.field(factory=set)  # texts for blocks that were left out right before

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
                    message[field] = _BETWEEN.join(filter(None, message[field]))
        return self._messages

    def plain(self, block: Block, place: str, *, history: bool) -> str:
        """The text of *block*. Raises `ApiError` for one that has none, unless it is of the
        *history*."""
        text = (block.text or "") if block.type == "text" else _as_text(block)
        if text is not None:
            self._out.clear()
            return text
        text = left_out(block.type, place, self._out, history=history)
        self.left_out.append(place)
        return text

    def add(self, turn: Turn, place: str, *, history: bool) -> None:
        """Add the messages of *turn*, whose content is at *place*, maybe of the *history*. Raises
        `ApiError`."""
        blocks = _blocks(turn.content)
        self._out.clear()
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
                    if text:
                        text = f"<system-reminder>\n{text}\n</system-reminder>"
                    self._add("user", "content", text)
                case "assistant", kind if kind != "text":
                    # It is no part of the answer: its marks could begin or end the thoughts.
                    self._add("user", "content", self.plain(block, where, history=history))
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
        self._out.clear()
        texts = [self.plain(part, place, history=history) for part in parts]
        if block.is_error:
            texts[:1] = [f"Error: {text}" for text in texts[:1] or [""]]
        self._out.clear()
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
            fields = block.model_dump(exclude_none=True, exclude={"id", "tool_use_id"})
            return f"[{fields.pop('type')}: {json.dumps(_readable(fields), ensure_ascii=False)}]"
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


Fields = dict[str, Any]

_UNSIGNED: Final = "unsigned"
"""The signature of all thinking here: clients send it back, and nobody checks it."""

_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@attrs.define(eq=False)
class MessageShape(Shape):
    """One message, after a prompt of so many tokens, of *limit* tokens at most: one that is shorter
    and yet cut off was bounded by the model's context. One that is *streamed* keeps nothing of what
    it has sent."""

    silence = b": keepalive\n" + event({"type": "ping"})
    _about: About
    _prompt: int
    _limit: int | None
    _streamed: bool = attrs.field(kw_only=True)
    _begun: int = 0
    _blocks: list[Fields] = attrs.field(factory=list)
    _open: str = ""  # the field of the last block that is being filled
    _block: Fields = attrs.field(factory=dict)  # as it began
    _text: bytearray = attrs.field(factory=bytearray)  # what it has
    _sent: bool = False  # whether the arguments of a call are sent as they come
    _finish: Finish = attrs.field(factory=lambda: Finish("stop"))

    def opening(self) -> bytes:
        """The message before it has anything."""
        usage = _usage(self._prompt, 0, 0)
        ping = event({"type": "ping"})
        return self.event({"type": "message_start", "message": self._message(usage)}) + ping

    def add(self, delta: Delta) -> list[Fields]:
        """The events of *delta*, and of the blocks that it ends and begins."""
        events: list[Fields] = []
        for part in delta.said:
            match part:
                case Content(text):
                    events += self._write("text", text)
                case Reasoning(text):
                    events += self._write("thinking", text)
                case CallStart():
                    events += self._close() + self._use(part)
                case CallPart(text):
                    events += self._used(text)
                case CallEnd():
                    events += self._close()
        if delta.finish is not None:
            self._finish = delta.finish
            events += self._close()
        return events

    def event(self, body: Fields) -> bytes:
        """*body* as an event of its type."""
        return event(body)

    def closing(self, trace: Trace) -> bytes:
        """Why the message ends, and its counts."""
        reason, stop = self._stop(trace)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        ended = {"type": "message_delta", "delta": delta, "usage": _counts(trace)}
        return self.event(ended) + self.event({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        """*error* as an event."""
        return broken_off(ANTHROPIC, error, self._about.id, 0)

    def whole(self, trace: Trace) -> tuple[bytes]:
        """The message in one piece."""
        reason, stop = self._stop(trace)
        ended = {"stop_reason": reason, "stop_sequence": stop}
        return (json_bytes({**self._message(_counts(trace)), **ended}),)

    def _stop(self, trace: Trace) -> tuple[str, str | None]:
        """Why the message ends, and before which stop string."""
        reason = self._finish.reason
        if reason == "stop" and self._finish.stop:
            return "stop_sequence", self._finish.stop
        if reason == "length" and (self._limit is None or trace.tokens < self._limit):
            return "model_context_window_exceeded", None
        return _REASONS[reason], None

    def _message(self, usage: Fields) -> Fields:
        return {
            "id": self._about.id,
            "type": "message",
            "role": "assistant",
            "model": self._about.model,
            "content": self._blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _write(self, kind: str, text: str) -> list[Fields]:
        """Add *text* to a block of *kind*, which may begin with it."""
        events: list[Fields] = []
        if self._open != kind:
            events = self._close()
            block = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            events.append(self._begin(block))
            self._open, self._block = kind, {"type": kind}
        self._add(text)
        return [*events, self._fill({"type": f"{kind}_delta", kind: text})]

    def _close(self) -> list[Fields]:
        """End the block that is open."""
        if not self._open:
            return []
        kind = self._open
        block, text = {**self._block}, self._text.decode()
        events: list[Fields] = []
        if kind == "input":
            block[kind] = _object(text)
            if not self._sent:
                events = self._filled(json_bytes(block[kind]).decode())
        else:
            block[kind] = text
        if kind == "thinking":
            block["signature"] = _UNSIGNED
            events.append(self._fill({"type": "signature_delta", "signature": _UNSIGNED}))
        self._keep(block)
        self._open, self._text, self._sent = "", bytearray(), False
        return [*events, self._end()]

    def _use(self, call: CallStart) -> list[Fields]:
        """The event of *call*, a block that its arguments fill."""
        self._open = "input"
        block: Fields = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        self._block = block
        return [self._begin(block)]

    def _used(self, text: str) -> list[Fields]:
        """The events of more *text* of a call's arguments. What is no object is put into one when
        it is whole."""
        if not self._sent:
            self._text += (text if self._text else text.lstrip()).encode()
            if not self._text.startswith(b"{"):
                return []
            text, self._sent, self._text = self._text.decode(), True, bytearray()
        self._add(text)
        return self._filled(text)

    def _add(self, text: str) -> None:
        """Keep *text* of the block, unless it is streamed."""
        if not self._streamed:
            said = text.encode()
            self._text += said
            self.kept += len(said)

    def _filled(self, text: str) -> list[Fields]:
        return [self._fill({"type": "input_json_delta", "partial_json": text})]

    def _begin(self, block: Fields) -> Fields:
        self._begun += 1
        return {"type": "content_block_start", "index": self._last, "content_block": block}

    def _keep(self, block: Fields) -> None:
        if not self._streamed:
            self._blocks.append(block)

    def _fill(self, delta: Fields) -> Fields:
        return {"type": "content_block_delta", "index": self._last, "delta": delta}

    def _end(self) -> Fields:
        return {"type": "content_block_stop", "index": self._last}

    @property
    def _last(self) -> int:
        return self._begun - 1


def _object(arguments: str) -> Fields:
    """A call's *arguments*, which are an object, or are put into one. Of an object that was cut
    off: its whole members, as clients read it that have it streamed."""
    try:
        given = from_json(arguments or "{}", allow_inf_nan=False, allow_partial=True)
    except ValueError:
        given = arguments
    return given if isinstance(given, dict) else {"arguments": given}


def _counts(trace: Trace) -> Fields:
    return _usage(trace.prompt_tokens, trace.cached_tokens, trace.tokens)


def _usage(prompt: int, cached: int, tokens: int) -> Fields:
    """The counts as Anthropic has them: what was cached does not count as input."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": tokens,
    }

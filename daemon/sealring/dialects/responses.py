"""OpenAI's responses: the body, the inner request that it becomes, and the answers.

Items, parts and tools have one class each with the fields of all their kinds, since a union of many
would blame the wrong kind for a fault; `convert` looks at the kind. It makes messages of items:
what the model said in one turn (reasoning, text, calls) is one message of the assistant's, and the
instructions are one system message with the system's and developer's messages that come first,
since many templates take only one. A custom tool, whose input is free text, becomes a function with
one text argument. A namespace's tools become functions with the namespace in their names. `Names`
says what each was.

An answer is a list of items (reasoning, messages, calls). Each is added, filled by deltas and done
before the next one begins. Events are numbered, and the last one has the whole response. What the
model thinks is the text of a reasoning item, or its summary where a client asked for one: there is
no other summary of it here.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import attrs
import pydantic
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Content, Reasoning
from sealring_protocol.control.requests import TokenOut
from sealring_protocol.limits import MAX_LOGPROBS

from sealring.dialects.errors import ApiError, invalid, named_as, unsupported
from sealring.dialects.fields import OF_CHAT, left_out, past, refuse_of_chat, text_of_file
from sealring.dialects.replies import (
    About,
    CallArguments,
    Delta,
    Finish,
    Shape,
    TokenBytes,
    add_json,
    chat_logprobs,
    cut,
    event,
    json_bytes,
)
from sealring.dialects.schema import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    U32,
    Body,
    ChatRequest,
    Count,
    Model,
    Name,
    Number,
    Penalty,
    Several,
    checked,
    missing,
    parse,
    validated,
    whole_body,
)

if TYPE_CHECKING:
    from sealring.generation.trace import Trace

MAX_METADATA: Final = 16
"""Entries of ``metadata``, with keys of 64 characters and values of 512, as OpenAI has it."""

_Key = Annotated[str, pydantic.StringConstraints(max_length=64)]
_Value = Annotated[str, pydantic.StringConstraints(max_length=512)]


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
    """How much the model thinks, and in which form that is given."""

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
    metadata: Annotated[dict[_Key, _Value], Number(max_length=MAX_METADATA)] | None = None
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


_SAME: Final = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "parallel_tool_calls",
    "chat_template_kwargs",
)
"""Fields that the inner request has under the same name."""

PARAMS: Final = {
    "messages": "input",
    "messages.tool_calls.function.arguments": "input",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "logprobs": "include",
}
"""What fields of the inner request are here."""

_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""What chat completions call ``max_output_tokens``."""

_LOGPROBS: Final = "message.output_text.logprobs"

_TEXTS: Final = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_CALLS: Final = ("reasoning", "function_call", "custom_tool_call")
_SERVED: Final = ("web_search_call", "file_search_call", "code_interpreter_call", "mcp_")
"""How the types of items of tools begin that a server ran: they become text for the model."""

_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_SEPARATOR: Final = "__"

Names = dict[str, tuple[str, str, bool]]
"""By the name of a function of the inner request: the tool's own name, its namespace (empty for
none), and whether it is a custom tool."""


@attrs.frozen
class Converted:
    """The inner *request*, and what its fields are here (*params*); what its functions are
    (*names*); the fields that the response repeats (*echo*); and the *items* of the input, each
    with an id."""

    request: ChatRequest
    params: dict[str, str]
    names: Names
    echo: dict[str, Any]
    items: list[dict[str, Any]]


def read_responses(body: bytes) -> ResponsesRequest:
    """The request in *body*. Raises `ApiError`."""
    sent = parse(body)
    refuse_of_chat(sent)
    for name in _LIMITS:
        if isinstance(sent, dict) and sent.get("max_output_tokens") is None and name in sent:
            sent["max_output_tokens"] = sent.pop(name)
    asked = whole_body(ResponsesRequest, sent, OF_CHAT | {"tool_choice"})  # of either shape
    for name, message in REFUSED.items():
        if getattr(asked, name) is not None:
            raise unsupported(name, message)
    if asked.input is None and not (asked.instructions or asked.previous_response_id):
        raise missing(("input",), sent)
    _check_references(asked.input or ())
    if asked.background and not (asked.stream and asked.store is not False):
        raise unsupported(
            "background",
            "A response is made in the background only if it is streamed and stored: set 'stream' "
            "to true, and leave 'store' out.",
        )
    return asked


def convert(asked: ResponsesRequest, before: bytes, referred: bytes = b"") -> Converted:
    """What *asked* means; *before* are the items of the responses before it, and *referred* those
    that it refers to, both as JSON in lines. Raises `ApiError`."""
    known = {item.id: item for item in _read_items(referred)}
    new = [known[item.id] if item.refers else item for item in asked.input or ()]
    tools = _Tools(asked.tools or [])
    kept = _read_items(before)
    if len(kept) + len(new) > MAX_MESSAGES:
        raise invalid(f"A conversation has at most {MAX_MESSAGES} items.", "input")
    talk = _Talk(tools, len(kept))
    messages = talk.of(asked.instructions, [*kept, *new])
    wants = _LOGPROBS in (asked.include or ()) or asked.top_logprobs
    fields: dict[str, Any] = {
        **{name: getattr(asked, name) for name in _SAME},
        "messages": messages,
        "max_completion_tokens": asked.max_output_tokens,
        "logprobs": bool(wants) or None,
        "top_logprobs": asked.top_logprobs if wants else None,
        "reasoning_effort": asked.reasoning.effort if asked.reasoning else None,
        "response_format": _response_format(asked),
        "tool_choice": tools.choose(asked.tool_choice),
        "tools": tools.functions or None,
    }
    params = PARAMS | tools.params
    with named_as(params):
        request = checked(validated(ChatRequest, fields))
    ignored = [f"tools.{kind}" for kind in sorted({*tools.ignored})]
    request._ignored = (*talk.left_out, *ignored, *_repeated_alone(asked))
    return Converted(request, params, tools.names, _echo(asked), list(_named(new)))


def _repeated_alone(asked: ResponsesRequest) -> Iterator[str]:
    """The fields of *asked* that the response repeats, or ought to, and that have no effect."""
    yield from (f"include.{each}" for each in asked.include or () if each != _LOGPROBS)
    if asked.text is not None and asked.text.verbosity is not None:
        yield "text.verbosity"
    if asked.truncation == "auto":
        yield "truncation"
    if asked.user is not None:
        yield "user"


def _check_references(items: Iterable[Item]) -> None:
    """Refuse references without an id, and two to one item: the texts that they stand for may be
    long."""
    seen = set()
    for number, item in enumerate(items):
        if item.refers and item.id is None:
            raise invalid(
                "A reference to an item needs its id.",
                f"input.{number}.id",
                "missing_required_parameter",
            )
        if item.refers and item.id in seen:
            raise invalid(
                f"Duplicate item found with id '{item.id}'. Remove duplicate items from your input "
                "and try again.",
                f"input.{number}",
            )
        seen.add(item.id if item.refers else None)


def _read_items(lines: bytes) -> list[Item]:
    """Items that are kept, of JSON in *lines*."""
    return [validated(Item, each) for each in parse(b"[" + lines.replace(b"\n", b",") + b"]")]


def _response_format(asked: ResponsesRequest) -> dict[str, Any] | None:
    """The form of the answer as chat completions say it."""
    if asked.text is None or (form := asked.text.format) is None:
        return None
    if form.type != "json_schema":
        return {"type": form.type}
    schema = form.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
    return {"type": form.type, "json_schema": schema}


def _echo(asked: ResponsesRequest) -> dict[str, Any]:
    """The fields of *asked* that the response repeats, with the defaults of those left out."""
    sent = asked.model_dump(by_alias=True, exclude_none=True)
    return {
        "background": bool(asked.background),
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "reasoning": {"effort": None, "summary": None} | sent.get("reasoning", {}),
        "store": asked.store is not False,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "text": {"format": {"type": "text"}} | sent.get("text", {}),
        "tool_choice": sent.get("tool_choice", "auto"),
        "tools": sent.get("tools", []),
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "truncation": asked.truncation or "disabled",
        "user": asked.user,
    }


def _named(items: Iterable[Item]) -> Iterator[dict[str, Any]]:
    """*items* as they are kept and listed: each with an id first, and its text in parts."""
    for item in items:
        fields = item.model_dump(exclude_none=True)
        prefix = _PREFIXES.get(item.type, "item")
        name = fields.pop("id", None) or f"{prefix}_{secrets.token_hex(12)}"
        if item.type == "message" and isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            fields["content"] = [{"type": kind, "text": item.content}]
        yield {"id": name, "type": item.type, **fields}


class _Tools:
    """The tools of a request as functions, and what they are called."""

    def __init__(self, tools: Iterable[ResponseTool]) -> None:
        self.functions: list[dict[str, Any]] = []
        self.ignored: list[str] = []
        self.names: Names = {}
        self._places: dict[str, str] = {}  # of each function's tool in the body
        for at, tool in enumerate(tools):
            self._add(tool, "", f"tools.{at}")

    @property
    def params(self) -> dict[str, str]:
        """What the fields of the functions are here."""
        names = (tool["function"]["name"] for tool in self.functions)
        return {f"tools.{at}.function": self._places[name] for at, name in enumerate(names)}

    def inner(self, name: str, namespace: str | None) -> str:
        """What the tool *name* of *namespace* is called in the inner request."""
        return f"{namespace}{_SEPARATOR}{name}" if namespace else name

    def choose(self, choice: str | ToolChoice | None) -> Any:
        """*choice* as chat completions say it. Those that it does not allow are left out."""
        if not isinstance(choice, ToolChoice):
            return choice
        if choice.type == "allowed_tools":
            allowed = {self._chosen(tool) for tool in choice.tools or ()}
            self.functions = [
                tool for tool in self.functions if tool["function"]["name"] in allowed
            ]
            return choice.mode or "auto"
        return {"type": "function", "function": {"name": self._chosen(choice)}}

    def _chosen(self, tool: ToolRef) -> str:
        if tool.type not in ("function", "custom") or tool.name is None:
            raise unsupported("tool_choice", f"A tool of type '{tool.type}' cannot be chosen here.")
        return self.inner(tool.name, tool.namespace)

    def _add(self, tool: ResponseTool, namespace: str, place: str) -> None:
        if tool.type in IGNORED_TOOLS and not namespace:
            self.ignored.append(tool.type)
        elif tool.type not in ("function", "custom", "namespace") or (
            tool.type == "namespace" and namespace
        ):
            raise unsupported(
                "tools", f"This server has no tool '{tool.type}'; offer functions instead."
            )
        elif tool.name is None:
            raise invalid(f"{place}: a tool needs a name.", "tools", "missing_required_parameter")
        elif tool.type == "namespace":
            for at, each in enumerate(tool.tools or ()):
                self._add(each, tool.name, f"{place}.tools.{at}")
        else:
            self._function(tool, tool.name, namespace, place)

    def _function(self, tool: ResponseTool, own: str, namespace: str, place: str) -> None:
        name = self.inner(own, namespace)
        if name in self._places:
            raise invalid(f"Two tools are called '{name}'.", "tools")
        self._places[name] = place
        function: dict[str, Any] = {"name": name, "description": tool.description}
        if tool.type == "custom":
            function["parameters"] = _free_text(tool)
        else:
            function |= {"parameters": tool.parameters, "strict": tool.strict}
        if namespace or tool.type == "custom":
            self.names[name] = (own, namespace, tool.type == "custom")
        self.functions.append({"type": "function", "function": function})


def _free_text(tool: ResponseTool) -> dict[str, Any]:
    """The parameters of a function that takes the input of the custom *tool*."""
    about = "The whole input, as plain text."
    if tool.format is not None and tool.format.definition:
        about += f" It follows this grammar ({tool.format.syntax}):\n{tool.format.definition}"
    return {
        "type": "object",
        "properties": {"input": {"type": "string", "description": about}},
        "required": ["input"],
        "additionalProperties": False,
    }


@attrs.define(eq=False)
class _Talk:
    """Makes messages of items, of which the first *before* are of earlier responses. Of what is no
    text in earlier turns, the places are in *left_out*."""

    _tools: _Tools
    _before: int
    left_out: list[str] = attrs.field(factory=list)
    _history: int = 0
    _messages: list[dict[str, Any]] = attrs.field(factory=list)

    def of(self, instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
        """The messages of *items*, after the *instructions*. Raises `ApiError`."""
        first = [instructions] if instructions else []
        self._history = max(self._before, past([_is_said(item) for item in items]))
        for number, item in enumerate(items):
            opens = item.type == "message" and item.role in ("system", "developer")
            if opens and not self._messages:
                first.append(self._text(item.content, number))
            else:
                self._add(item, number)
        if first:
            self._messages.insert(0, {"role": "system", "content": "\n\n".join(first)})
        return self._messages

    def _add(self, item: Item, number: int) -> None:
        place = self._place(number)
        match item.type:
            case "message" if item.role == "assistant":
                self._said("content", self._text(item.content, number))
            case "message":
                if item.role is None:
                    raise invalid(f"{place}: a message needs a role.", f"{place}.role")
                text = self._text(item.content, number)
                self._messages.append({"role": item.role, "content": text})
            case "reasoning":
                if text := self._text(item.content or item.summary or "", number):
                    self._said("reasoning_content", text)
            case "function_call":
                self._called(item, item.arguments or "{}", place)
            case "custom_tool_call":
                self._called(item, json.dumps({"input": item.input or ""}), place)
            case "function_call_output" | "custom_tool_call_output":
                message = {"role": "tool", "tool_call_id": item.call_id}
                text = self._text(item.output, number, "output")
                self._messages.append({**message, "content": text})
            case kind if kind.startswith(_SERVED):
                fields = item.model_dump(exclude_none=True, exclude={"id", "type", "status"})
                # What a tool found is no part of the answer: its marks could be thoughts' there.
                text = f"[{kind}: {json.dumps(fields, ensure_ascii=False)}]"
                self._messages.append({"role": "user", "content": text})
            case other:
                raise unsupported(
                    place, f"Items of type '{other}' are not supported; leave them out."
                )

    def _place(self, number: int) -> str:
        """Where the item *number* of the conversation is in the body, or what it is if it was
        kept."""
        at = number - self._before
        return f"input.{at}" if at >= 0 else "previous_response_id"

    def _text(self, content: str | list[Part] | None, number: int, field: str = "content") -> str:
        """The text of *content*, the *field* of item *number*. Raises `ApiError` for what is none,
        unless the item is of the history."""
        if content is None or isinstance(content, str):
            return content or ""
        texts = []
        out: set[str] = set()
        for at, part in enumerate(content):
            text = _text_of(part)
            if text is not None:
                out.clear()
            else:
                place = self._place(number)
                if number >= self._before:
                    place += f".{field}.{at}"
                text = left_out(part.type, place, out, history=number < self._history)
                self.left_out.append(place)
            texts.append(text)
        return "".join(texts)

    def _said(self, field: str, text: str) -> None:
        """Add *text* to the assistant's turn; another one begins where the turn has it already, or
        has gone on to calls."""
        turn = self._turn()
        if turn.get("content") or turn.get("tool_calls") or field in turn:
            self._messages.append({"role": "assistant"})
        self._messages[-1][field] = text

    def _called(self, item: Item, arguments: str, place: str) -> None:
        if not item.name or not item.call_id:
            raise invalid(f"{place}: a call needs 'name' and 'call_id'.", place)
        function = {
            "name": self._tools.inner(item.name, item.namespace),
            "arguments": arguments,
        }
        call = {"id": item.call_id, "type": "function", "function": function}
        self._turn().setdefault("tool_calls", []).append(call)

    def _turn(self) -> dict[str, Any]:
        """The message of the assistant's turn."""
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant"})
        return self._messages[-1]


def _text_of(part: Part) -> str | None:
    """The text of *part*; None if it has none."""
    if part.type == "refusal":
        return part.refusal or ""
    if part.type in _TEXTS:
        return part.text or ""
    return text_of_file(part.file_data, part.filename)


def _is_said(item: Item) -> bool:
    """Whether *item* is of an answer of the model's."""
    if item.type == "message":
        return item.role == "assistant"
    return item.type in _CALLS or item.type.startswith(_SERVED)


Fields = dict[str, Any]
Keep = Callable[[bytes, tuple[bytes, ...]], None]
"""Keeps a response, given as JSON, and the items of its output."""

_FAILED: Final = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


@attrs.frozen
class Wanted:
    """How a client wants a response: *echo* are fields that it repeats, as a JSON object; *names*
    says which tools the functions are; with *summary* reasoning is given as its summary."""

    echo: bytes
    names: Mapping[str, Sequence[Any]]
    summary: bool


@attrs.frozen
class _Filled:
    """What is of an item that comes in pieces: how its id begins, the *event* of a piece, and the
    *field* that has them: of a call a text, or else a list with a *part*, whose type that is, and
    of which the *parted* events are."""

    prefix: str
    event: str
    field: str
    part: str = ""
    parted: str = ""


_FILLED: Final = {
    "message": _Filled(
        "msg", "response.output_text", "content", "output_text", "response.content_part"
    ),
    "reasoning": _Filled(
        "rs", "response.reasoning_text", "content", "reasoning_text", "response.content_part"
    ),
    "summary": _Filled(
        "rs",
        "response.reasoning_summary_text",
        "summary",
        "summary_text",
        "response.reasoning_summary_part",
    ),
    "function_call": _Filled("fc", "response.function_call_arguments", "arguments"),
    "custom_tool_call": _Filled("ctc", "response.custom_tool_call_input", "input"),
}


@attrs.define
class _Open:
    """The item that is being filled: its *body* as it was added, its text so far as UTF-8, and the
    log probabilities as JSON without brackets. Of a call *called* says what has been sent of
    that."""

    body: Fields
    filled: _Filled
    called: CallArguments | None = None
    text: bytearray = attrs.field(factory=bytearray)
    logprobs: bytearray = attrs.field(factory=bytearray)

    @property
    def has_logprobs(self) -> bool:
        """Whether its part has a field for log probabilities."""
        return self.filled.part == "output_text"

    def part(self) -> bytes:
        """The JSON of its part with the text so far."""
        part: Fields = {"type": self.filled.part, "text": self.text.decode()}
        if not self.has_logprobs:
            return json_bytes(part)
        head = json_bytes({**part, "annotations": []})[:-1]
        return b'%b,"logprobs":[%b]}' % (head, bytes(self.logprobs))


@attrs.frozen
class _Made:
    """The last value of an event, which is JSON already: with log probabilities it is large."""

    json: bytes


@attrs.define(eq=False)
class ResponseShape(Shape):
    """One response. Log probabilities are of its text, with *bytes_of* each token, when that is
    given, and of *most* others in its place. *keep* gets it when it is complete."""

    _about: About
    _wanted: Wanted
    _bytes_of: TokenBytes | None
    _keep: Keep | None
    _most: int = 0
    _number: int = 0
    _done: list[bytes] = attrs.field(factory=list)  # items, as JSON
    _open: _Open | None = None
    _finish: Finish = attrs.field(factory=lambda: Finish("stop"))
    _thought: int = 0

    def opening(self) -> bytes:
        """The response before it has anything."""
        begun = self._response("in_progress")
        return self._about_all("response.created", begun) + self._about_all(
            "response.in_progress", begun
        )

    def add(self, delta: Delta) -> Iterator[Fields]:
        """The events of *delta*, and of the items that it ends and begins."""
        self._thought += delta.thought
        tokens = delta.tokens[delta.thought :]
        if delta.finish is not None:
            self._finish = delta.finish
        for part in delta.said:
            match part:
                case Content(text):
                    yield from self._write("message", text, tokens)
                    tokens = ()
                case Reasoning(text):
                    kind = "summary" if self._wanted.summary else "reasoning"
                    yield from self._write(kind, text, ())
                case CallStart():
                    yield from self._close()
                    yield self._call(part)
                case CallPart(text):
                    yield from self._called(text)
                case CallEnd():
                    yield from self._close()
        if delta.finish is not None:
            if self._open is None and not self._done:
                yield from self._write("message", "", tokens)
            yield from self._close()

    def event(self, body: Fields) -> bytes:
        """*body* as an event with its number."""
        numbered = {"type": body["type"], "sequence_number": self._number, **body}
        self._number += 1
        name, last = next(reversed(numbered.items()))
        if not isinstance(last, _Made):
            return event(numbered)
        del numbered[name]
        head = event(numbered).removesuffix(b"}\n\n")
        return b'%b,"%b":%b}\n\n' % (head, name.encode(), last.json)

    def closing(self, trace: Trace) -> bytes:
        """The whole response."""
        return self._about_all(f"response.{self._status}", *self.whole(trace))

    def failure(self, error: ApiError) -> bytes:
        """The response as far as it came, and *error*."""
        code = _FAILED.get(error.status, "server_error")
        fault = {"code": code, "message": error.message}
        response = _Made(self._response("failed", error=fault))
        return self.event({"type": "response.failed", "resumable": False, "response": response})

    def so_far(self, status: str) -> bytes:
        """The response as far as it came, with this *status*."""
        return self._response(status)

    def whole(self, trace: Trace) -> tuple[bytes]:
        """The response in one piece, which is also kept."""
        usage = {
            "input_tokens": trace.prompt_tokens,
            "input_tokens_details": {"cached_tokens": trace.cached_tokens},
            "output_tokens": trace.tokens,
            "output_tokens_details": {"reasoning_tokens": min(self._thought, trace.tokens)},
            "total_tokens": trace.prompt_tokens + trace.tokens,
        }
        made = self._response(self._status, usage=usage)
        if self._keep is not None:
            self._keep(made, tuple(self._done))
        return (made,)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish.reason == "length" else "completed"

    def _response(
        self, status: str, usage: Fields | None = None, error: Fields | None = None
    ) -> bytes:
        short = {"reason": "max_output_tokens"} if status == "incomplete" else None
        fields = {
            "id": self._about.id,
            "object": "response",
            "created_at": self._about.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": short,
            "model": self._about.model,
            "usage": usage,
        }
        # What the client sent may be large. It was made JSON by a text worker.
        output = b",".join(self._done)
        return json_bytes(fields)[:-1] + b',"output":[%b],%b' % (output, self._wanted.echo[1:])

    def _about_all(self, kind: str, response: bytes) -> bytes:
        return self.event({"type": kind, "response": _Made(response)})

    def _write(self, kind: str, text: str, tokens: tuple[TokenOut, ...]) -> Iterator[Fields]:
        """Add *text* to the item of *kind*, which may begin with it. Where its *tokens* are `cut`,
        all of it is in the first event."""
        item = self._open
        if item is None or item.filled is not _FILLED[kind]:
            yield from self._close()
            self._open = item = self._opened(kind)
            yield self._of_item("added", item.body)
            yield self._of(item, "added", parted=True, part=_Made(item.part()))
        for part in cut(tokens):
            more = self._more(item, text, part)
            if text or more.get("logprobs"):
                yield self._of(item, "delta", **more)
            text = ""

    def _more(self, item: _Open, text: str, tokens: Sequence[TokenOut]) -> Fields:
        """Add *text* and the log probabilities of *tokens* to *item*; what their event has."""
        before = len(item.text) + len(item.logprobs)
        item.text += text.encode()
        more: Fields = {"delta": text}
        if item.has_logprobs:
            more["logprobs"] = []
            if self._bytes_of is not None:
                more["logprobs"] = chat_logprobs(tokens, self._bytes_of, self._most)
            add_json(item.logprobs, more["logprobs"])
        self.kept += len(item.text) + len(item.logprobs) - before
        return more

    def _close(self) -> Iterator[Fields]:
        """End the item that is open."""
        item, self._open = self._open, None
        if item is None:
            return
        if item.called is not None:
            yield from self._close_call(item, item.called)
            return
        text, part = item.text.decode(), item.part()
        last = self._of(item, "done", text=text)
        if item.has_logprobs:
            last["logprobs"] = _Made(b"[%b]" % bytes(item.logprobs))
        yield last
        yield self._of(item, "done", parted=True, part=_Made(part))
        field, body = item.filled.field, {**item.body, "status": self._status}
        del body[field]
        yield self._end(b'%b,"%b":[%b]}' % (json_bytes(body)[:-1], field.encode(), part))

    def _call(self, call: CallStart) -> Fields:
        """The event of *call*, an item that its arguments fill."""
        name, namespace, custom = self._wanted.names.get(call.name, (call.name, "", False))
        kind = "custom_tool_call" if custom else "function_call"
        filled = _FILLED[kind]
        body = {
            "id": self._name(filled.prefix),
            "type": kind,
            "status": "in_progress",
            "call_id": call.id,
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            filled.field: "",
        }
        self._open = _Open(body, filled, CallArguments(custom=bool(custom)))
        return self._of_item("added", body)

    def _called(self, text: str) -> list[Fields]:
        """The events of more *text* of a call's arguments."""
        item = self._open
        if item is None or item.called is None:
            return []
        more = text.encode()
        item.text += more
        self.kept += len(more)
        return self._given(item, item.called.add(text))

    def _given(self, item: _Open, text: str) -> list[Fields]:
        """The event of more *text* that the call *item* is given."""
        return [self._of(item, "delta", delta=text)] if text else []

    def _close_call(self, item: _Open, called: CallArguments) -> Iterator[Fields]:
        """The events of the call *item* at its end."""
        rest, given = called.end(item.text.decode())
        whole: Fields = {item.filled.field: given}
        yield from self._given(item, rest)
        name: Fields = {} if called.custom else {"name": item.body["name"]}
        yield self._of(item, "done", **name, **whole)
        yield self._end(json_bytes({**item.body, "status": self._status, **whole}))

    def _end(self, item: bytes) -> Fields:
        """Keep *item*, which is whole; the event of that."""
        ended = self._of_item("done", _Made(item))
        self._done.append(item)
        return ended

    def _of_item(self, what: str, item: Fields | _Made) -> Fields:
        kind = f"response.output_item.{what}"
        return {"type": kind, "output_index": len(self._done), "item": item}

    def _of(self, item: _Open, what: str, *, parted: bool = False, **more: Any) -> Fields:
        """The event that *what* is done to *item*, or to its part as such (*parted*), with *more*
        fields."""
        filled = item.filled
        index = {f"{filled.field}_index": 0} if filled.part else {}
        return {
            "type": f"{filled.parted if parted else filled.event}.{what}",
            "item_id": item.body["id"],
            "output_index": len(self._done),
            **index,
            **more,
        }

    def _opened(self, kind: str) -> _Open:
        """An item of *kind* with nothing in it."""
        filled = _FILLED[kind]
        type_ = "message" if kind == "message" else "reasoning"
        body: Fields = {"id": self._name(filled.prefix), "type": type_, "status": "in_progress"}
        more: Fields = {"role": "assistant"} if kind == "message" else {"summary": []}
        return _Open({**body, **more, filled.field: []}, filled)

    def _name(self, prefix: str) -> str:
        return f"{prefix}_{self._about.names.next()}"

"""A conversation as the model's chat template takes it, and as the text of a prompt.

A template gets plain values: each content one text, a tool call's arguments as an object rather
than the text that the API carries (a text that is no JSON stays one), and only the fields that a
message has. A developer is the system to models here. A tool call that must be made is begun for
the model, by the mark that opens a call in its format; `holding` holds what follows to its form.

For a model whose chat template has no tools, the system message has them (`instructions`), and how
to call one; earlier calls and their results become text in the same form. It is that of Hermes and
Qwen, which many models have seen: JSON between `<tool_call>` and `</tool_call>`. A model that never
learned to call functions may not keep to it; then its answer is text.

Most templates take any number of calls in a message, their arguments as objects, and thoughts as
``reasoning_content``. Where one does not, its row of `sealring_model.text.formats` says so, and the
turns are fitted (`fit_turns`).

Many templates take less than the APIs do: one system message at the front or none, users and the
assistant in turn, ids of calls of nine characters, arguments that are objects. So a conversation
that is refused is `adapted`: changed, one kind of change after the other, until the template takes
it. Changes that turn out not to be needed are undone. The answer's header names the others.
Nothing that somebody wrote is left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final

import attrs
from sealring_model.text import formats
from sealring_model.text.formats import CallFormat
from sealring_model.text.tokens import Tokenizer, ToolFormat

from sealring.dialects.errors import invalid, unsupported
from sealring.dialects.fields import LONGEST_NAME, MAX_IGNORED
from sealring.dialects.schema import ChatRequest, Message, NamedTool

Plain = dict[str, Any]


PLAIN: Final = ToolFormat.of(formats.PLAIN)
"""How a model to which tools are described writes a call where it must: the answer, which is held
to that form (`tool_forms`), is nothing else."""

Change = Callable[[Sequence[Plain]], list[Plain]]

_BETWEEN: Final = "\n\n"
_BEGIN: Final = "Please begin."
_PROBE: Final = "kwyjibo"
"""A word that no template looks for."""

_ID: Final = 9
"""Characters of a call's id in templates that say how many it has (Mistral's)."""


@attrs.frozen
class Conversation:
    """A prompt's *text*, and the *tools* that its answer may call, as the template got them, or
    *in_words*. They are called as *calls* has it. If *forced*, the answer must call one. Fields
    that are *ignored* had no effect. The template got *messages*."""

    text: str
    tools: list[dict[str, Any]]
    forced: bool
    calls: ToolFormat
    in_words: bool = False
    ignored: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()
    messages: list[dict[str, Any]] = attrs.field(factory=list)
    render_only: Callable[[list[dict[str, Any]]], str] | None = None
    """Renders other messages with the same tools and settings, without the answer's opening. Raises
    `ValueError`."""

    @property
    def plain(self) -> bool:
        """Whether the answer is the JSON of a call, and nothing else."""
        return self.calls is PLAIN


@attrs.frozen
class Opening:
    """A prompt's *ids*, and where its answer begins: within the *reasoning*, or a tool call. The
    first *rendered* ones are the template's."""

    ids: list[int]
    reasoning: bool
    calling: bool
    rendered: int = 0


def render(tokenizer: Tokenizer, asked: ChatRequest) -> Conversation:
    """The prompt of *asked*. Raises `ApiError` for what the model's template does not take."""
    tools = asked_tools(asked)
    for tool in tools:
        tool["function"].pop("strict", None)  # no part of a prompt
    forced = bool(tools) and asked.tool_choice not in (None, "auto")
    settings, ignored = _settings(tokenizer, asked, forced=forced)
    messages = [_plain(message) for message in asked.messages]
    calls = PLAIN if tokenizer.tools is None and forced else tokenizer.calls
    try:
        # From here on only the template and we write marks.
        messages, guarded = tokenizer.guard_messages(messages), tokenizer.guard(tools)
        settings = {name: tokenizer.guard(value) for name, value in settings.items()}
        if tokenizer.tools is None:
            messages = in_words(messages, tokenizer.calls)
        elif tokenizer.format is not None:
            messages = fit_turns(messages, tokenizer.format, guarded)
        if tools and tokenizer.in_words:
            write = partial(_described, tokenizer, instructions(guarded, calls))
        else:
            write = partial(_rendered, tokenizer, guarded)
        text, changes = adapted(messages, partial(write, settings))
    except ValueError as error:
        raise invalid(f"{error}.", "messages") from None
    only = partial(write, settings | {"begin_answer": False, "go_on": False})
    described = bool(tools) and tokenizer.in_words
    given = _changed(messages, {name: CHANGES[name] for name in changes})
    return Conversation(text, tools, forced, calls, described, ignored, changes, given, only)


def _settings(
    tokenizer: Tokenizer, asked: ChatRequest, *, forced: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the template is given beside messages and tools, and which fields it does not look at.
    Raises `ApiError`."""
    given = asked.chat_template_kwargs or {}
    settings = dict(given)
    untaken = (name for name in given if len(name) > LONGEST_NAME or not tokenizer.takes(name))
    ignored = [f"chat_template_kwargs.{name}" for name in islice(untaken, MAX_IGNORED + 1)]
    thinks_or_not = bool(tokenizer.think[0]) and tokenizer.takes("enable_thinking")
    if (effort := asked.reasoning_effort) is not None:
        settings.setdefault("reasoning_effort", effort)
        if not tokenizer.takes("reasoning_effort") and not (effort == "none" and thinks_or_not):
            ignored.append("reasoning_effort")
    if tokenizer.think[0] and (forced or effort == "none"):
        settings.setdefault("enable_thinking", False)
    if wrong := sorted(tokenizer.reserved & settings.keys()):
        raise invalid(f"chat_template_kwargs may not set '{wrong[0]}'.", "chat_template_kwargs")
    if asked.documents:
        if not tokenizer.takes("documents"):
            text = "This model's chat template has no documents; put their text into a message."
            raise unsupported("documents", text)
        settings["documents"] = asked.documents
    if asked.continue_final_message:
        settings["go_on"] = True
    elif asked.add_generation_prompt is False:
        settings["begin_answer"] = False
    return settings, tuple(ignored)


def _described(
    tokenizer: Tokenizer, tools: str, settings: dict[str, Any], messages: list[dict[str, Any]]
) -> str:
    """The text of *messages* with the description of *tools*: in the system message, or in the
    user's where the template takes no system message. Raises `ValueError`."""
    try:
        return tokenizer.render(with_system(messages, tools), **settings)
    except ValueError:
        return tokenizer.render(with_user(messages, tools), **settings)


def _rendered(
    tokenizer: Tokenizer,
    tools: list[dict[str, Any]],
    settings: dict[str, Any],
    messages: list[dict[str, Any]],
) -> str:
    """The text of *messages* and *tools*. Raises `ValueError`."""
    return tokenizer.render(messages, tools, **settings)


def tokenise(tokenizer: Tokenizer, talk: Conversation, around: bool | None = None) -> Opening:
    """*talk* as ids, with special tokens *around* it if that is said. A forced tool call is
    begun. Raises `ApiError` for a text that can only be control tokens."""
    try:
        ids = tokenizer.encode_rendered(talk.text, around=around)
    except ValueError as error:
        raise invalid(f"{error}.", "messages") from None
    reasoning, rendered = tokenizer.opens_thinking(ids), len(ids)
    if talk.forced:
        opening = (tokenizer.think[1] if reasoning else "") + talk.calls.start
        ids += tokenizer.encode_part(opening) if opening else []
        reasoning = False
    return Opening(ids, reasoning, talk.forced, rendered)


_NEAR: Final = 16
"""Tokens within which a turn's own marks stand before what is said in it."""


def branches(tokenizer: Tokenizer, talk: Conversation, opening: Opening) -> list[int]:
    """Lengths of *opening*'s ids, of *talk*, at which a later prompt is likely to go another way:
    after the system prompt and the tools, after the user's last turn, and before the answer's
    opening, which a template may render otherwise in the next turn.

    They are found by rendering parts of the conversation. Those that the template refuses are left
    out, and so are those that are no boundaries of tokens.
    """
    if talk.render_only is None:
        return []
    ids = opening.ids[: opening.rendered]
    users = [at for at, message in enumerate(talk.messages) if message["role"] == "user"]
    ends = {len(talk.messages), *(at + 1 for at in users[-1:])}
    found = {_length_of(tokenizer, talk, talk.messages[:end], ids) for end in ends}
    found.add(_head(tokenizer, talk, ids))
    return sorted(found - {0})


def _length_of(
    tokenizer: Tokenizer, talk: Conversation, part: list[dict[str, Any]], ids: Sequence[int]
) -> int:
    """How many of *ids*, of *talk*, are its *part*; 0 if that cannot be said. What comes after it
    is made tokens by itself, for most often that is short."""
    assert talk.render_only is not None  # noqa: S101  the caller has checked it
    try:
        text = talk.render_only(part)
    except ValueError:
        return 0
    if not talk.text.startswith(text):
        return 0
    rest = []
    if len(text) < len(talk.text):
        rest = tokenizer.encode_rendered(talk.text[len(text) :], around=False)
    length = len(ids) - len(rest)
    return length if length > 0 and list(ids[length:]) == rest else 0


def _head(tokenizer: Tokenizer, talk: Conversation, ids: Sequence[int]) -> int:
    """How many of *ids*, of *talk*, another conversation with the same system prompt and the same
    tools has, too."""
    assert talk.render_only is not None  # noqa: S101  the caller has checked it
    others = (at for at, message in enumerate(talk.messages) if message["role"] != "system")
    first = next(others, None)
    if first is None:
        return 0
    content = "1" if str(talk.messages[first]["content"]).startswith("0") else "0"
    try:
        text = talk.render_only([*talk.messages[:first], {"role": "user", "content": content}])
    except ValueError:
        return 0
    pairs = zip(ids, tokenizer.encode_rendered(text), strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    # Back to where a special token parts the text: what another message begins with might change
    # the tokens just before it.
    for at in range(length, max(0, length - _NEAR), -1):
        if not tokenizer.special.isdisjoint(ids[at - 1 : at + 1]):
            return at
    return length


def asked_tools(asked: ChatRequest) -> list[dict[str, Any]]:
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


def _arguments(text: str | dict[str, Any] | None) -> Any:
    """What a call was given. *text* that is no JSON, as that of a call that was cut off, stays."""
    if isinstance(text, dict):
        return text
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text


def instructions(tools: Sequence[Mapping[str, Any]], calls: ToolFormat) -> str:
    """The description of *tools* for a model, to be called as *calls* has it."""
    lines = "\n".join(_json(tool["function"]) for tool in tools)
    example = calls.start + _json({"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}) + calls.end
    if calls.format is not None and calls.format.written:
        example = calls.format.written
    return (
        f"You may call these functions, each described by a line of JSON:\n{lines}\n"
        f"To call one, answer with a line like this and nothing after it:\n"
        f"{example}"
    )


def in_words(messages: Sequence[Plain], calls: ToolFormat) -> list[Plain]:
    """*messages* with their tool calls and results as text."""
    return [_in_words(message, calls) for message in messages]


def _in_words(message: Plain, calls: ToolFormat) -> Plain:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>{message['content']}</tool_response>"}
    if not (made := message.get("tool_calls")):
        return message
    lines = [f"{calls.start}{_json(call['function'])}{calls.end}" for call in made]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return rest | {"content": "\n".join(filter(None, [message["content"], *lines]))}


def with_system(messages: Sequence[Plain], text: str) -> list[Plain]:
    """*messages* with *text* at the end of the system message, which is made if there is none."""
    if messages and messages[0]["role"] == "system":
        return _with(messages, 0, "{content}\n\n{text}", text)
    return [{"role": "system", "content": text}, *messages]


def with_user(messages: Sequence[Plain], text: str) -> list[Plain]:
    """*messages* with *text* before the first thing that the user says, for a template that takes
    no system message."""
    at = next((n for n, message in enumerate(messages) if message["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": text}, *messages]
    return _with(messages, at, "{text}\n\n{content}", text)


def _with(messages: Sequence[Plain], at: int, form: str, text: str) -> list[Plain]:
    changed = messages[at] | {"content": form.format(text=text, content=messages[at]["content"])}
    return [*messages[:at], changed, *messages[at + 1 :]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def fit_turns(
    messages: Sequence[Plain], format: CallFormat, tools: Sequence[Mapping[str, Any]]
) -> list[Plain]:
    """*messages* as a template of *format* takes them, which is given *tools* with them."""
    apart = _words_apart(messages) if format.apart else messages
    made = list(_one_call_each(apart) if format.one else apart)
    made = [_message(message, format) for message in made]
    return _with_tools(made, tools) if format.system else made


def _message(message: Plain, format: CallFormat) -> Plain:
    made = dict(message)
    calls = made.get("tool_calls")
    if calls and format.system:  # its template knows no calls
        del made["tool_calls"]
        written = json.dumps([call["function"] for call in calls], ensure_ascii=False)
        made["content"] += f"{format.start}{written}{format.end}"
    elif calls and format.as_text:
        made["tool_calls"] = [_with_text(call) for call in calls]
    if format.system and made["role"] == "tool":
        made["role"] = "tool_response"
    if format.thoughts != "reasoning_content" and "reasoning_content" in made:
        made[format.thoughts] = made.pop("reasoning_content")
        if calls and made["content"]:  # of a call it takes one or the other
            made[format.thoughts] += f"\n\n{made['content']}"
            made["content"] = ""
    return made


def _with_text(call: Plain) -> Plain:
    function = call["function"]
    given = function["arguments"]
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _with_tools(messages: Sequence[Plain], tools: Sequence[Mapping[str, Any]]) -> list[Plain]:
    """*messages* with *tools* as a field of the system message, which is made if there is none."""
    if not tools:
        return list(messages)
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"tools": listed}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": listed}, *messages]


def _words_apart(messages: Sequence[Plain]) -> list[Plain]:
    """*messages* with what one says beside its calls in a message before it: the template would
    leave it out."""
    made: list[Plain] = []
    for message in messages:
        if message.get("tool_calls") and message["content"]:
            made.append({"role": message["role"], "content": message["content"]})
            message = message | {"content": ""}  # noqa: PLW2901
        made.append(message)
    return made


def _one_call_each(messages: Sequence[Plain]) -> Iterator[Plain]:
    """*messages* with one call in each, followed by its result. What else a message says is in the
    first."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": message["role"], "content": ""}
            yield {**said, "tool_calls": [call]}
            own = [result for result in results if result.get("tool_call_id") == call["id"]]
            last = number == len(calls) - 1
            yield from results if last else own[:1] or results[:1]
            results = [] if last else _without(results, (own or results)[:1])


def _without(results: Sequence[Plain], given: Sequence[Plain]) -> list[Plain]:
    return [result for result in results if all(result is not each for each in given)]


def adapted(
    messages: list[Plain], write: Callable[[list[Plain]], str]
) -> tuple[str, tuple[str, ...]]:
    """What *write* makes of *messages*, changed if it refuses them as they are, and the names of
    the changes. Raises its `ValueError` if no change helps."""
    try:
        return _whole(messages, write), ()
    except ValueError as error:
        refusal = error
    done: dict[str, Change] = {}
    for name, change in CHANGES.items():
        if _changed(messages, done | {name: change}) == _changed(messages, done):
            continue
        done[name] = change
        if _written(_changed(messages, done), write) is not None:
            break
    else:
        raise refusal
    for name in list(done):
        fewer = {other: change for other, change in done.items() if other != name}
        if _written(_changed(messages, fewer), write) is not None:
            done = fewer
    return _whole(_changed(messages, done), write), tuple(done)


def _changed(messages: Sequence[Plain], changes: Mapping[str, Change]) -> list[Plain]:
    found = list(messages)
    for change in changes.values():
        found = change(found)
    return found


def _written(messages: list[Plain], write: Callable[[list[Plain]], str]) -> str | None:
    try:
        return _whole(messages, write)
    except ValueError:
        return None


def _whole(messages: list[Plain], write: Callable[[list[Plain]], str]) -> str:
    """What *write* makes of *messages*. Raises `ValueError` if it refuses them, or leaves a system
    message out, as templates do that look for it in one place. One whose words it changes, as
    SmolLM3's takes out ``/think``, is not left out: a word in its place is written."""
    text = write(messages)
    probes = {at: f"{_PROBE}{at}" for at, each in enumerate(messages) if _lacks(text, each)}
    if probes:
        tried = [m | {"content": probes.get(at, m["content"])} for at, m in enumerate(messages)]
        written = set(re.findall(rf"{_PROBE}\d+", write(tried).lower()))
        if not written.issuperset(probes.values()):
            raise ValueError("the chat template leaves a system message out")
    return text


def _lacks(text: str, message: Plain) -> bool:
    """Whether *message* is the system's, and its longest line is not in *text*."""
    if message["role"] != "system":
        return False
    said = max((line.strip() for line in message["content"].splitlines()), key=len, default="")
    return said not in text and _json_within(said) not in text


def _json_within(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _leading(messages: Sequence[Plain]) -> int:
    """How many system messages are at the front."""
    return sum(1 for _ in takewhile(lambda each: each["role"] == "system", messages))


def _wrap_arguments(messages: Sequence[Plain]) -> list[Plain]:
    """Have an object of arguments that are none: those of a call that was cut off are a text."""
    return [
        message | {"tool_calls": [_with_object(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _with_object(call: Plain) -> Plain:
    function = call["function"]
    given = function["arguments"]
    if isinstance(given, dict) or _is_object(given):
        return call
    wrapped = {} if given is None else {"arguments": given}
    return call | {"function": function | {"arguments": wrapped}}


def _is_object(text: Any) -> bool:
    """Whether *text* is an object as JSON, which is how some templates take arguments."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _short_ids(messages: Sequence[Plain]) -> list[Plain]:
    """Give calls ids of nine letters and digits."""
    changed = [dict(message) for message in messages]
    for message in changed:
        if "tool_call_id" in message:
            message["tool_call_id"] = _short(message["tool_call_id"])
        if "tool_calls" in message:
            calls = message["tool_calls"]
            message["tool_calls"] = [call | {"id": _short(call["id"])} for call in calls]
    return changed


def _short(name: str) -> str:
    plain = len(name) == _ID and name.isascii() and name.isalnum()
    return name if plain else hashlib.sha256(name.encode(errors="replace")).hexdigest()[:_ID]


def _split_calls(messages: Sequence[Plain]) -> list[Plain]:
    """Have a message of its own for each call, before its result."""
    changed: list[Plain] = []
    waiting: list[Plain] = []
    for message in messages:
        if message["role"] != "tool":
            changed += waiting
            waiting = []
        first, *rest = message.get("tool_calls") or [None]
        if rest:
            changed.append(message | {"tool_calls": [first]})
            only = {"role": message["role"], "content": ""}
            waiting = [only | {"tool_calls": [call]} for call in rest]
            continue
        for call in waiting:
            if call["tool_calls"][0]["id"] == message.get("tool_call_id"):
                waiting.remove(call)
                changed.append(call)
                break
        changed.append(message)
    return changed + waiting


def _wrap_results(messages: Sequence[Plain]) -> list[Plain]:
    """Have the user say a result that no call comes before."""
    called: set[str] = set()
    changed = []
    for message in messages:
        called |= {call["id"] for call in message.get("tool_calls", ())}
        lost = message["role"] == "tool" and message.get("tool_call_id", "") not in called
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        changed.append(_user(text) if lost else message)
    return changed


def _join_systems(messages: Sequence[Plain]) -> list[Plain]:
    """Have one system message of those at the front."""
    count = _leading(messages)
    return [*_joined(messages[:count]), *messages[count:]]


def _wrap_systems(messages: Sequence[Plain]) -> list[Plain]:
    """Have the user say what a later system message says, as such."""
    count = _leading(messages)
    return [
        _user(f"<system-reminder>\n{message['content']}\n</system-reminder>")
        if message["role"] == "system" and at >= count
        else message
        for at, message in enumerate(messages)
    ]


def _join_turns(messages: Sequence[Plain]) -> list[Plain]:
    """Have one message of those that the user, or the assistant, says one after the other."""
    return _joined(messages)


def _add_user(messages: Sequence[Plain]) -> list[Plain]:
    """Have the user begin."""
    count = _leading(messages)
    rest = messages[count:]
    begun = rest and rest[0]["role"] == "user"
    return list(messages) if begun else [*messages[:count], _user(_BEGIN), *rest]


def _system_to_user(messages: Sequence[Plain]) -> list[Plain]:
    """Have the user say what the system says at the front."""
    count = _leading(messages)
    said = [_user(message["content"]) for message in messages[:count]]
    if count and len(messages) > count and messages[count]["role"] == "user":
        return [*_joined([*said, messages[count]]), *messages[count + 1 :]]
    return [*_joined(said), *messages[count:]]


CHANGES: Final[Mapping[str, Change]] = {
    "tool-arguments-wrapped": _wrap_arguments,
    "tool-call-ids-shortened": _short_ids,
    "tool-calls-split": _split_calls,
    "tool-results-wrapped": _wrap_results,
    "system-joined": _join_systems,
    "system-wrapped": _wrap_systems,
    "turns-joined": _join_turns,
    "user-added": _add_user,
    "system-to-user": _system_to_user,
}
"""By the name that the header has for it: each change of a conversation, in this order."""


def _user(text: str) -> Plain:
    return {"role": "user", "content": text}


def _joined(messages: Sequence[Plain]) -> list[Plain]:
    """*messages* with one for those of one role that follow one another. Results stay apart, and
    so does what follows a call."""
    joined: list[Plain] = []
    for message in messages:
        last = joined[-1] if joined else {"role": ""}
        if message["role"] == last["role"] != "tool" and not last.get("tool_calls"):
            joined[-1] = _both(joined[-1], message)
        else:
            joined.append(message)
    return joined


def _both(one: Plain, other: Plain) -> Plain:
    both = one | other
    for name in ("content", "reasoning_content"):
        if name in both:
            both[name] = _BETWEEN.join(filter(None, (one.get(name), other.get(name))))
    return both

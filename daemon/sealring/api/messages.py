"""A conversation as the model's chat template takes it, and as the text of a prompt.

A template gets plain values: each content one text, a tool call's arguments as an object rather
than the text that the API carries (a text that is no JSON stays one), and only the fields that a
message has. A developer is the system to models here. A tool call that must be made is begun for
the model, by the mark that opens a call in its format; `holding` holds what follows to its form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final

import attrs
from sealring_model.text.tokens import Tokenizer, ToolFormat

from sealring.api import told_tools, turns
from sealring.api.adapting import adapted
from sealring.api.conversation import Message, NamedTool
from sealring.api.errors import invalid, unsupported
from sealring.api.fields import LONGEST_NAME, MAX_IGNORED
from sealring.api.schema import ChatRequest
from sealring.api.told_tools import PLAIN


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
    in_words = tokenizer.in_words
    calls = PLAIN if tokenizer.tools is None and forced else tokenizer.calls
    try:
        # From here on only the template and we write marks.
        messages, told = tokenizer.guard_messages(messages), tokenizer.guard(tools)
        settings = {name: tokenizer.guard(value) for name, value in settings.items()}
        if tokenizer.tools is None:
            messages = told_tools.in_words(messages, tokenizer.calls)
        elif tokenizer.format is not None:
            messages = turns.fit_turns(messages, tokenizer.format, told)
        if tools and in_words:
            write = partial(_told, tokenizer, told_tools.instructions(told, calls))
        else:
            write = partial(_rendered, tokenizer, told)
        given: list[dict[str, Any]] = []

        def write_noted(those: list[dict[str, Any]]) -> str:
            given[:] = those
            return write(settings, those)

        text, changes = adapted(messages, write_noted)
    except ValueError as error:
        raise invalid(f"{error}.", "messages") from None
    only = partial(write, settings | {"begin_answer": False, "go_on": False})
    told_so = bool(tools) and in_words
    return Conversation(text, tools, forced, calls, told_so, ignored, changes, given, only)


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


def _told(
    tokenizer: Tokenizer, told: str, settings: dict[str, Any], messages: list[dict[str, Any]]
) -> str:
    """The text of *messages* with what is *told* of tools: in the system message, or in the user's
    where the template takes no system message. Raises `ValueError`."""
    try:
        return tokenizer.render(told_tools.with_system(messages, told), **settings)
    except ValueError:
        return tokenizer.render(told_tools.with_user(messages, told), **settings)


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

"""A conversation with a model that is served: its history, one answer at a time, and its files.

A file is JSON to go on from, or Markdown to read. The JSON has the messages in OpenAI's form, so
that other programs can use it. A file that is read may come from anybody: its size, its form and
its numbers are checked before any of it is used.

An answer that is stopped half-way stays in the history as far as it came, as both sides have seen
it. A question that got no answer at all does not stay; it can be asked again (`ChatSession.again`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import attrs
from pydantic import ValidationError
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import read_file, replace_file

from sealring.dialects.schema import MAX_MESSAGES, ChatOptions
from sealring.local.client import (
    CHAT,
    HeadClient,
    Pieces,
    Report,
    StreamedAnswer,
    encodable,
    stream,
)


@attrs.define
class ChatSession:
    """One conversation over *http*, whose server is at *url*. *settings* go into each request.

    *unanswered* is the latest question if nothing came back. *answer* is the latest answer, also
    one that failed.
    """

    http: HeadClient
    url: str
    model: str
    settings: dict[str, Any] = attrs.field(factory=dict)
    system: str = ""
    history: list[dict[str, str]] = attrs.field(factory=list)
    unanswered: str = ""
    answer: StreamedAnswer = attrs.field(factory=StreamedAnswer)

    def clear(self) -> None:
        """Forget what has been said, but for the system prompt."""
        self.history.clear()
        self.unanswered = ""

    def undo(self) -> str:
        """Forget the latest question with what was answered; that question, empty if there is
        none."""
        if question := self.unanswered:
            self.unanswered = ""
            return question
        while self.history:
            message = self.history.pop()
            if message["role"] == "user":
                return message["content"]
        return ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation in OpenAI's form, with the system prompt."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return [*opening, *self.history]

    def ask(self, text: str, report: Report) -> Pieces:
        """The pieces of the answer to *text*; *report* hears what is waited for. Closing the
        iterator stops the answer. Raises `OperationError` when the server does not answer."""
        question = {"role": "user", "content": encodable(text)}
        body = {"model": self.model, "messages": [*self.messages, question], **self.settings}
        self.answer = answer = StreamedAnswer()
        self.unanswered = question["content"]
        try:
            yield from stream(self.http, self.url, CHAT, body, answer, report)
        finally:
            if answer.content:
                self.history += [question, {"role": "assistant", "content": answer.content}]
                self.unanswered = ""


MAX_SAVED: Final = 8 << 20
"""Bytes of a conversation in a file: as many as a request may have."""

MODE: Final = 0o600

SETTINGS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "max_tokens": "max_completion_tokens",
    "seed": "seed",
    "stop": "stop",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""What a person may set, and the field of a request that it is."""

_FORM: Final = "Give a file that /save wrote: a JSON object with 'messages'."
_ROLES: Final = ("user", "assistant")


def checked(name: str, value: Any) -> Any:
    """*value* for the setting *name*. Raises `UserError` that says what it may be."""
    if name not in SETTINGS:
        raise UserError(f"there is no setting '{name}'", f"There are: {', '.join(SETTINGS)}.")
    field = SETTINGS[name]
    try:
        options = ChatOptions.model_validate({"model": "any", field: value})
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise UserError(f"{name} cannot be {value!r:.80}: {why}", f"/set {name} VALUE") from None
    return getattr(options, field)


def save(session: ChatSession, path: Path, *, replace: bool) -> None:
    """Write the conversation to *path*: as Markdown if its name ends so, else as JSON. It is this
    user's to read alone. Raises `UserError`, also for a file that is there, unless *replace*."""
    if path.exists() and not replace:
        raise UserError(f"{path} is there already", f"To replace it: /save! {path}")
    text = _markdown(session) if path.suffix.lower() in (".md", ".markdown") else _json(session)
    try:
        replace_file(path, encodable(text).encode(), MODE)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", "Name a file in a folder that is yours."
        ) from None


def load(session: ChatSession, path: Path) -> str:
    """Have *session* go on from the conversation in *path*. Returns the model that it was with.
    Raises `UserError`; then nothing has changed."""
    try:
        data, _ = read_file(path, MAX_SAVED)
        saved = json.loads(data)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", _FORM) from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not JSON", _FORM) from None
    loaded = _read(saved, path)
    session.clear()
    session.system, session.history, session.settings = (
        loaded.system,
        loaded.history,
        loaded.settings,
    )
    return loaded.model


@attrs.frozen
class _Saved:
    model: str
    system: str
    history: list[dict[str, str]]
    settings: dict[str, Any]


def _read(saved: Any, path: Path) -> _Saved:
    fields = saved if isinstance(saved, dict) else {}
    messages = fields.get("messages")
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
        raise UserError(f"{path} holds no conversation of {MAX_MESSAGES} messages at most", _FORM)
    system, history = "", []
    for number, message in enumerate(messages):
        known = message if isinstance(message, dict) else {}
        role, content = known.get("role"), known.get("content")
        if not isinstance(content, str) or role not in (*_ROLES, "system"):
            raise UserError(f"message {number + 1} of {path} is not one of a chat", _FORM)
        if role != "system":
            history.append({"role": str(role), "content": encodable(content)})
        elif number == 0:
            system = encodable(content)
        else:
            raise UserError(f"message {number + 1} of {path} is a second system prompt", _FORM)
    given = fields.get("settings", {})
    settings = {
        SETTINGS[name]: checked(name, value)
        for name, value in (given.items() if isinstance(given, dict) else ())
        if name in SETTINGS
    }
    return _Saved(str(fields.get("model", "")), system, history, settings)


def settings_of(session: ChatSession) -> dict[str, Any]:
    """The settings of *session* by the names that a person knows."""
    return {name: session.settings[f] for name, f in SETTINGS.items() if f in session.settings}


def _json(session: ChatSession) -> str:
    saved = {
        "model": session.model,
        "settings": settings_of(session),
        "messages": session.messages,
    }
    return json.dumps(saved, indent=2, ensure_ascii=False) + "\n"


def _markdown(session: ChatSession) -> str:
    names = {
        "system": "System",
        "user": "Question",
        "assistant": f"Answer ({session.model})",
    }
    parts = [f"## {names[each['role']]}\n\n{each['content'].strip()}" for each in session.messages]
    return "\n\n".join([f"# Chat with {session.model}", *parts]) + "\n"

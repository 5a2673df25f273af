"""`sealring chat`: a conversation with a person, or with lines of standard input.

Ctrl-C stops an answer. At the prompt it empties the line; twice in a row in an empty one leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from json import loads
from pathlib import Path
from typing import Final

import attrs
from sealring_trio.errors import OperationError, UserError

from sealring.cli.options import (
    NO_KEY,
    Access,
    Positive,
    Temperature,
    head_at,
    note_without_key,
)
from sealring.cli.speaking import speaker
from sealring.files.models import NO_TEMPLATE
from sealring.local import client
from sealring.local.chat_session import SETTINGS, ChatSession, checked, load, save, settings_of
from sealring.local.client import machines
from sealring.output import print_error, reporter, visible

QUOTES: Final = '"""'
"""Around a text of several lines."""

KEYS: Final = f"""\
Alt-Enter goes on with another line; {QUOTES} does so until the next {QUOTES}. Ctrl-R
searches what you have typed. Ctrl-C stops an answer, Ctrl-D leaves."""

_LEAVING: Final = ("/quit", "/exit", "/bye")


def chat(
    *,
    url: str | None = None,
    access: Access = NO_KEY,
    model: str | None = None,
    system: str = "",
    temperature: Temperature | None = None,
    max_tokens: Positive | None = None,
    plain: bool = False,
    no_history: bool = False,
) -> int:
    """Talk to a model that is served, in the terminal.

    The conversation so far goes with each question, and the ring reads in
    only what is new of it. Answers are streamed, and their Markdown is laid
    out; Ctrl-C stops one. Lines that begin with / are commands: /help shows
    them. What you type is kept for the next time, in a file that only you
    can read; Ctrl-R searches it.

        sealring chat
        sealring chat --url http://desk:7480 --system "Be brief."

    Without a terminal each line of standard input is a question, and so is
    what stands between lines of triple quotes:

        printf 'Hello.\\nAnd again.\\n' | sealring chat

    Next: the same model from any client of OpenAI's, with URL/v1 as its base.
    For one question without a conversation: sealring run

    Parameters
    ----------
    url
        The head's address; http://127.0.0.1:7480 if left out. With commas,
        several machines of one ring: with an API key, answers go on at the next
        if one is gone.
    model
        Which model, where several are served; the only one if left out.
    system
        The system prompt: what the model reads first.
    temperature
        0 always takes the likeliest token; higher is more varied.
    max_tokens
        The most tokens of an answer.
    plain
        Show answers as they are written, without colours. NO_COLOR of the
        environment does the same.
    no_history
        Keep nothing of what you type.
    """
    base = head_at(url)
    chosen = {"temperature": temperature, "max_completion_tokens": max_tokens}
    settings = {name: value for name, value in chosen.items() if value is not None}
    with access.client(base) as http:
        note_without_key(http)
        card = client.model_at(http, base, model or "", reporter())
        if card.get("chat_template") is False:
            print(f"sealring: {NO_TEMPLATE}", file=sys.stderr)
        talk = ChatSession(http, base, card["id"], settings, system)
        begin(Chat(talk, plain), keep=not no_history)
    return 0


@attrs.define
class Chat:
    """A conversation on standard output, and what its commands do."""

    talk: ChatSession
    plain: bool = False
    person: bool = True  # who asks is at a terminal
    answers: int = 0
    _own: set[Path] = attrs.field(factory=set)

    def take(self, text: str) -> bool:
        """Do what *text* says, or have it answered. True to go on. Raises `UserError`."""
        line, quoted = unquoted(text)
        word, _, rest = line.partition(" ")
        if not line:
            return True
        if quoted or not word.startswith("/") or (word not in COMMANDS and "\n" in line):
            self.answer(line)
        elif word in _LEAVING:
            return False
        elif word in COMMANDS:
            COMMANDS[word].do(self, rest.strip())
        else:
            print(
                f"There is no command {visible(word)}. /help shows them; what is between {QUOTES} "
                "is no command."
            )
        return True

    def answer(self, question: str) -> None:
        """Have *question* answered, and print the answer. Ctrl-C stops it, if a person asks."""
        out, note = speaker(self.plain), ""
        pieces = self.talk.ask(question, out.wait)
        try:
            for kind, piece in pieces:
                out.say(kind, piece)
            note = self.talk.answer.summary(machines(self.talk.http)) if sys.stdout.isatty() else ""
            self.answers += 1
        except KeyboardInterrupt:
            note = "stopped"
            if not self.person:
                raise
        except OperationError as error:
            if self.person:
                kept = "The conversation is kept: /retry asks again."
                raise OperationError(error.what, f"{error.advice} {kept}") from None
            raise
        finally:
            pieces.close()
            out.end(note)

    def help(self, _: str) -> None:
        """List the commands."""
        for name, command in COMMANDS.items():
            if command.what:
                print(f"{f'{name} {command.takes}':<22}{command.what}")
        print(f"{'/quit':<22}leave")
        print(KEYS)

    def clear(self, _: str) -> None:
        """Forget the conversation."""
        self.talk.clear()
        print("(forgotten)")

    def system(self, text: str) -> None:
        """Begin again with another system prompt."""
        self.talk.clear()
        self.talk.system, _ = unquoted(text)
        print("(begun again, with a system prompt)" if text else "(begun again)")

    def undo(self, _: str) -> None:
        """Forget the latest question and its answer."""
        question = self.talk.undo()
        first = question.split("\n")[0]
        print(f"(forgotten: {visible(first):.60})" if question else "(nothing to forget)")

    def retry(self, _: str) -> None:
        """Ask the latest question again."""
        if question := self.talk.undo():
            self.answer(question)
        else:
            print("(nothing has been asked)")

    def set(self, text: str) -> None:
        """Change a setting, or show them."""
        name, _, value = text.partition(" ")
        if not name:
            settings = settings_of(self.talk)
            for each in SETTINGS:
                print(f"{each:<20}{visible(str(settings.get(each, '-')))}")
            print("(-: what the head takes by itself; /set NAME alone goes back to that)")
            return
        if not value.strip():
            checked(name, None)
            self.talk.settings.pop(SETTINGS[name], None)
            print(f"({name} is what the head takes by itself)")
            return
        self.talk.settings[SETTINGS[name]] = checked(name, _value(value.strip()))
        print(f"({name} is {visible(value.strip())})")

    def save(self, text: str) -> None:
        """Write the conversation to a file."""
        self._save(text, replace=False)

    def save_over(self, text: str) -> None:
        """Write the conversation over a file."""
        self._save(text, replace=True)

    def _save(self, text: str, *, replace: bool) -> None:
        path = _path(text)
        save(self.talk, path, replace=replace or path in self._own)
        self._own.add(path)
        print(f"(saved: {visible(str(path))})")

    def load(self, text: str) -> None:
        """Go on from a file."""
        path = _path(text)
        model = load(self.talk, path)
        other = f"; it was with {model}" if model not in ("", self.talk.model) else ""
        print(f"({len(self.talk.history)} messages{visible(other)})")

    def image(self, _: str) -> None:
        """Say that no image can be given."""
        print("(not sent: this head takes text alone, so the model would not see the image)")

    def stats(self, _: str) -> None:
        """Show what the conversation cost."""
        talk = self.talk
        tokens = talk.answer.prompt_tokens
        facts = [
            ("model", f"{talk.model} at {talk.url}"),
            ("machines", ", ".join(machines(talk.http)) or "unknown: the head does not answer"),
            ("messages", f"{len(talk.history)}; answered in this session: {self.answers}"),
            ("latest answer", self._latest()),
            (
                "its prompt",
                f"{tokens} tokens, {talk.answer.known_tokens} of them known" if tokens else "-",
            ),
        ]
        for name, fact in facts:
            print(f"{name:<16}{visible(fact)}")

    def _latest(self) -> str:
        answer = self.talk.answer
        if not answer.finish:
            return "-"
        return (
            f"{answer.tokens} tokens, {answer.tokens_per_s:.1f} tokens/s, ended by {answer.finish}"
        )


@attrs.frozen
class Command:
    """What a command takes and is for, and what does it. One without words is not listed."""

    do: Callable[[Chat, str], None]
    takes: str = ""
    what: str = ""


COMMANDS: Final[Mapping[str, Command]] = {
    "/help": Command(Chat.help, "", "this"),
    "/system": Command(Chat.system, "TEXT", "begin again, with TEXT as system prompt, or none"),
    "/clear": Command(Chat.clear, "", "forget what has been said"),
    "/reset": Command(Chat.clear),
    "/undo": Command(Chat.undo, "", "forget the latest question and its answer"),
    "/retry": Command(Chat.retry, "", "ask the latest question again"),
    "/set": Command(Chat.set, "NAME VALUE", "temperature 0.7, say; /set alone shows all"),
    "/save": Command(Chat.save, "FILE", "keep the conversation: as JSON, or NAME.md to read"),
    "/save!": Command(Chat.save_over),
    "/load": Command(Chat.load, "FILE", "go on from a JSON file"),
    "/image": Command(Chat.image),
    "/stats": Command(Chat.stats, "", "what it cost, and which machines have the model"),
}


def _path(text: str) -> Path:
    if not text:
        raise UserError("a file is missing", "/save FILE, or /load FILE")
    try:
        return Path(text).expanduser()
    except RuntimeError:  # a user that is not there
        return Path(text)


def _value(text: str) -> object:
    """*text* as a number, a list or a text."""
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return text


def begin(chat: Chat, *, keep: bool) -> None:
    """Converse with whoever is at standard input. What a person types is kept between sessions if
    *keep*."""
    chat.person = sys.stdin.isatty()
    if not chat.person:
        _take_lines(chat)
        return
    from sealring.cli.line_editor import history_file  # noqa: PLC0415 - see `_converse`

    _converse(chat, history_file() if keep else None)


def _take_lines(chat: Chat) -> None:
    """Each line of standard input is a question or a command, and so is each block. The first that
    fails ends it."""
    for text in joined(sys.stdin):
        if not chat.take(text):
            break


def _converse(chat: Chat, history: Path | None) -> None:
    """Ask a person, until they leave. What they type is kept in *history*, if there is one."""
    # These take a third of a second to import, which only a person at a terminal has a use for.
    from prompt_toolkit.history import InMemoryHistory  # noqa: PLC0415

    from sealring.cli.line_editor import LineEditor, open_history  # noqa: PLC0415

    kept, fault = (InMemoryHistory(), "") if history is None else open_history(history)
    if fault:
        print(f"sealring: what you type is not kept: {visible(fault)}", file=sys.stderr)
    editor = LineEditor(kept, [*COMMANDS, *_LEAVING], is_open)
    print(
        f"{visible(chat.talk.model)} at {chat.talk.url}. /help shows the commands, Ctrl-D leaves."
    )
    asked = False  # whether Ctrl-C was the last thing
    while True:
        print()
        try:
            text = editor.read()
            asked = False
            if not chat.take(text):
                return
        except EOFError:
            return
        except KeyboardInterrupt:
            if asked:
                return
            asked = True
            print("(Ctrl-C again, Ctrl-D or /quit leaves)")
        except UserError as error:
            print_error(error)


def is_open(text: str) -> bool:
    """Whether *text* begins a block that has not ended."""
    begun = text.lstrip()
    return begun.startswith(QUOTES) and not begun[len(QUOTES) :].rstrip().endswith(QUOTES)


def unquoted(text: str) -> tuple[str, bool]:
    """*text* without space around it, or what is in it if it is a block, and whether it is one."""
    text = text.strip()
    if text.startswith(QUOTES) and not is_open(text):
        return text.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n"), True
    return text, False


def joined(lines: Iterable[str]) -> Iterator[str]:
    """*lines*, of which those of a block are one. A block that never ends is what came of it."""
    begun = ""
    for line in lines:
        begun += line
        if not is_open(begun):
            yield begun
            begun = ""
    if begun:
        yield f"{begun.rstrip()}\n{QUOTES}"

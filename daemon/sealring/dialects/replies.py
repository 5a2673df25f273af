"""What clients see of an answer: from pieces of text to what they add, for every kind of API.

`AnswerText` splits the text into reasoning, content and tool calls, as it comes. A `Choice`, which
knows no API, makes a `Delta` of what is new. A `Shape` of each API keeps that, and makes of it the
events of a stream or the whole body. Both forms come from one source, so they cannot differ.
"""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import attrs
from pydantic_core import from_json, to_json
from sealring_model.text import readers
from sealring_model.text.detokenizer import Finder
from sealring_model.text.formats import CallFormat
from sealring_model.text.readers import (
    CallEnd,
    CallPart,
    CallStart,
    Content,
    Functions,
    Reading,
    Reasoning,
)
from sealring_model.text.tokens import ParsedCall, ToolFormat
from sealring_protocol.codec.local_messages import Scores
from sealring_protocol.control.requests import FinishReason, RequestDone, TokenOut

from sealring.dialects.errors import ApiError

if TYPE_CHECKING:  # text workers import this module, and have no node
    from sealring.generation.generation import TextPiece
    from sealring.generation.trace import Trace


@attrs.frozen
class CallText:
    """*text* between the marks of a tool call. If it is no call, it is *otherwise*."""

    text: str
    otherwise: Content | Reasoning


Part = Reasoning | Content | CallText | CallStart | CallPart | CallEnd

MAX_CALL: Final = 256 << 10
"""Most characters of a tool call that is parsed whole; a longer one is content. Memory: four bytes
for each."""


_AT_ONCE: Final = 4096
"""Characters that are looked at at once: at each mark, what is left of them is copied."""

SCORED_AT_ONCE: Final = 16
"""Tokens with log probabilities in one delta: as many as `Stream.take` gives at once."""


class _Place(enum.Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


class AnswerText:
    """The parts of one answer's text.

    A model puts its reasoning between two marks, and tool calls between others. Marks are found
    wherever the pieces cut them (`stop_strings`), in time linear in the text. All is passed on at
    once: a call's name when the model has written it, its arguments as they are written (the
    readers of `sealring_model.text.readers`). Calls in a format of mlx-lm's are passed on whole,
    when the closing mark is there, to be parsed by mlx-lm's code in a text worker.

    A call is one wherever it is written, within open reasoning too; what comes after it there is
    reasoning, up to the mark that closes it. Blank space after a mark belongs to the format, not to
    the content, and is left out.

    *think* are the marks of the reasoning, empty for none. *tools* is how calls of *functions* are
    written, for a request that may make some. The answer begins within the *reasoning*, or within
    a call (*calling*), if the prompt ended there. With *whole* it is in channels, which that
    format's reader reads.
    """

    def __init__(
        self,
        think: tuple[str, str] = ("", ""),
        tools: ToolFormat | None = None,
        functions: Functions | None = None,
        *,
        reasoning: bool = False,
        calling: bool = False,
        whole: CallFormat | None = None,
    ) -> None:
        self._think = think
        self._tools = tools
        self._functions = functions or {}
        self._place = _Place.REASONING if reasoning else _Place.CONTENT
        self._around = self._place  # of a call
        self._mark = ""  # which opened the call
        self._call: list[str] = []  # what a call of mlx-lm's has so far, but for what is held
        self._called = 0  # characters of it
        self._reading: Reading | None = None  # a call that is read as it comes
        self._trim = reasoning
        self._bare = tools is not None and tools.format is not None and tools.format.bare
        # Where content begins: it may be a call that no mark announces.
        self._begins = self._bare and not (reasoning or calling)
        self._blank = ""  # what it begins with
        self._whole = whole is not None
        if whole is not None and whole.reader is not None:
            opening = whole.start if calling else ""
            self._reading = Reading(whole.reader, self._functions, opening)
        elif calling and tools is not None:
            self._open("")
        self._finder = Finder(self._marks())

    @property
    def thinks(self) -> bool:
        """Whether what comes next is reasoning."""
        if self._whole and self._reading is not None:
            return self._reading.thinks
        return self._place is _Place.REASONING

    @property
    def calls(self) -> bool:
        """Whether what comes next may be of the calls that have begun, or the mark after them."""
        return self._reading is not None

    def add(self, text: str) -> list[Part]:
        """The parts that *text* completes."""
        parts: list[Part] = []
        for at in range(0, len(text), _AT_ONCE):
            parts += self._add(text[at : at + _AT_ONCE])
        return parts

    def _add(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text or self._reading is not None:
            if self._reading is not None:
                parts += self._placed(self._reading.add(text))
                if not self._reading.done:
                    return parts
                text = self._close_reading()
            elif self._begins:
                text = self._beginning(text)
            elif isinstance(found := self._finder.add(text), str):
                return parts + self._outside(found)
            else:
                text = found.after
                parts += self._close(found.before, found.mark)
                self._finder = Finder(self._marks())
        return parts

    def end(self) -> list[Part]:
        """What was held back, when no text follows."""
        parts: list[Part] = []
        while self._reading is not None:  # another call may begin in what was held back
            parts += self._placed(self._reading.end())
            parts += self.add(self._close_reading())
        held, self._blank = self._blank + self._finder.rest(), ""
        if self._place is _Place.CALL:
            return [*parts, self._whole_call(held, closed=False)]
        return parts + self._plain(held)

    def _marks(self) -> tuple[str, ...]:
        """The marks that end the present part, or begin another within it."""
        opening: Sequence[str] = ()
        if self._tools is not None and self._tools.start:
            format = self._tools.format
            opening = (self._tools.start,) if format is None else format.opening
        match self._place:
            case _Place.REASONING:
                return tuple(filter(None, (self._think[1], *opening)))
            case _Place.CALL:
                return (self._tools.end,) if self._tools is not None and self._tools.end else ()
            case _:
                return tuple(filter(None, (self._think[0], *opening)))

    def _close(self, before: str, mark: str) -> list[Part]:
        """The part that ends at *mark*."""
        if self._place is _Place.CALL:
            parts: list[Part] = [self._whole_call(before, closed=True)]
            self._place = self._around
        else:
            parts = self._plain(before)
            if mark == self._think[self._place is _Place.REASONING]:
                thought = self._place is _Place.REASONING
                self._place = _Place.CONTENT if thought else _Place.REASONING
                self._begins = self._bare and thought
            else:
                self._open(mark)
        self._trim = True
        return parts

    def _open(self, mark: str) -> None:
        """A call begins after *mark*."""
        if self._tools is None:
            raise RuntimeError("a call without a format")
        self._around, self._mark = self._place, mark
        format = self._tools.format
        if format is None or format.reader is None:
            self._place = _Place.CALL
        else:
            self._reading = Reading(format.reader, self._functions, mark, format.end)

    def _close_reading(self) -> str:
        """End the reading of a call; what comes after it."""
        if self._reading is None:
            return ""
        text, self._reading = self._reading.after, None
        self._finder = Finder(self._marks())
        return text

    def _placed(self, parts: Sequence[readers.Part]) -> list[Part]:
        """*parts* of a reading, where text that is no call is what is around it."""
        placed: list[Part] = []
        for part in parts:
            if isinstance(part, readers.Text):
                self._trim = False
                placed += self._plain(part.text)
            else:
                self._trim = isinstance(part, CallEnd)
                placed.append(part)
        return placed

    def _beginning(self, text: str) -> str:
        """What of *text*, with which content begins, can be recognised."""
        text = self._blank + text
        begun = text.lstrip()
        if not begun:
            self._blank = text
            return ""
        self._begins, self._blank = False, ""
        if begun.startswith("{"):
            self._open("")
        return text

    def _outside(self, text: str) -> list[Part]:
        return self._within(text) if self._place is _Place.CALL else self._plain(text)

    def _plain(self, text: str) -> list[Part]:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if not text:
            return []
        return [self._kind(text)]

    def _kind(self, text: str) -> Reasoning | Content:
        """*text* as what is around calls."""
        place = self._around if self._place is _Place.CALL else self._place
        return Reasoning(text) if place is _Place.REASONING else Content(text)

    def _within(self, text: str) -> list[Part]:
        """Add *text* to a call of mlx-lm's. One that becomes too long is no call, nor is what
        follows."""
        self._call.append(text)
        self._called += len(text)
        if self._called <= MAX_CALL:
            return []
        call = self._whole_call("", closed=False)
        self._place = self._around
        held, self._finder = self._finder.rest(), Finder(self._marks())
        return [call, *self.add(held)]

    def _whole_call(self, last: str, *, closed: bool) -> CallText | Content | Reasoning:
        """The call of mlx-lm's that ends with *last*."""
        if self._tools is None:
            raise RuntimeError("a call without a format")
        text = "".join((*self._call, last))
        self._call, self._called = [], 0
        otherwise = self._kind(self._mark + text + (self._tools.end if closed else ""))
        return CallText(text, otherwise) if len(text) <= MAX_CALL else otherwise


ReadCall = Callable[[str], Awaitable[list[ParsedCall]]]
"""The tool calls in what a model wrote between the marks of one; none if it is no call."""

Said = Reasoning | Content | CallStart | CallPart | CallEnd
"""What a model says: it thinks, it writes, or it calls a tool, always with an id. Of a call its
arguments follow, part by part, and its end."""


@attrs.frozen
class Finish:
    """Why a choice ends: ``stop``, ``length`` or ``tool_calls``. *stop* is the stop string that it
    ended before, if it did."""

    reason: str
    stop: str = ""


@attrs.frozen
class Delta:
    """What is new in choice *index*: *scores* of its prompt; what was *said*, in order; the
    *tokens* since the last delta, of which the first *thought* are reasoning; in the last delta,
    how the choice ends."""

    index: int
    said: tuple[Said, ...]
    tokens: tuple[TokenOut, ...]
    thought: int = 0
    finish: Finish | None = None
    scores: tuple[Scores, ...] = ()


_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@attrs.define(eq=False)
class Names:
    """Names for parts of one answer: of no other, and the same again from the same *secret*."""

    secret: bytes = attrs.field(factory=lambda: secrets.token_bytes(16), repr=False)
    _count: int = 0

    def next(self) -> str:
        """24 hex digits."""
        self._count += 1
        count = self._count.to_bytes(8, "big")
        return hashlib.blake2b(count, key=self.secret, digest_size=12).hexdigest()

    def of(self, part: int) -> Names:
        """Those of a *part* of the answer, whatever others are given."""
        secret = hashlib.blake2b(b"%d" % part, key=self.secret, digest_size=16).digest()
        return Names(secret)


@attrs.define(eq=False)
class Choice:
    """Choice *index* on its way, whose *text* has tool calls that *read_call* reads. With
    *single_call* it ends after its first tool call. Calls without an id get one of *names*."""

    _index: int
    _text: AnswerText
    _read_call: ReadCall
    _single_call: bool = attrs.field(default=False, kw_only=True)
    _names: Names = attrs.field(factory=Names, kw_only=True)
    _held: list[TokenOut] = attrs.field(factory=list)  # tokens of text that is still held back
    _thought: int = 0  # of them
    _calls: int = 0
    _more: bool = False  # has come after the one call that there may be

    @property
    def complete(self) -> bool:
        """Whether nothing more may come, whatever the model would add: it may have one tool call
        only, and has it up to the mark that closes it."""
        return self._single_call and self._calls > 0 and (self._more or not self._text.calls)

    async def take(self, piece: TextPiece) -> Delta | None:
        """What *piece* adds; None if nothing of it can be given out yet."""
        parts: list[Part] = []
        for text, token in zip_longest(piece.texts, piece.tokens):
            thinks = self._text.thinks
            parts += self._text.add(text or "")
            if token is not None:
                self._held.append(token)
                self._thought += thinks or self._text.thinks  # so its marks count, too
        said = await self._said(parts)
        return self._delta(said, None, piece.scores) if said or piece.scores else None

    async def finish(self, done: RequestDone, stop: str = "") -> Delta:
        """What was held back, and why the choice ends; *stop* is the stop string that ended it."""
        said = await self._said(self._text.end())
        reason = _REASONS[done.reason]
        if self._calls and done.reason is FinishReason.STOP:
            reason = "tool_calls"
        return self._delta(said, Finish(reason, stop))

    def _delta(
        self, said: list[Said], finish: Finish | None, scores: tuple[Scores, ...] = ()
    ) -> Delta:
        tokens, self._held = tuple(self._held), []
        thought, self._thought = self._thought, 0
        return Delta(self._index, tuple(said), tokens, thought, finish, scores)

    async def _said(self, parts: list[Part]) -> list[Said]:
        said: list[Said] = []
        for part in parts:
            if self._single_call and self._calls:
                self._more = True
                break
            match part:
                case CallText(text, otherwise):
                    calls = await self._read_call(text)
                    said += self._calls_of(calls, type(otherwise)) if calls else [otherwise]
                case CallStart():
                    said.append(self._named(part))
                case CallEnd():
                    self._calls += 1
                    said.append(part)
                case _:
                    said.append(part)
        return said

    def _calls_of(self, calls: list[ParsedCall], text: type[Content | Reasoning]) -> list[Said]:
        """*calls* that were read whole. One without a name is *text*."""
        said: list[Said] = []
        for call in calls:
            if not call.name:
                said.append(text(call.arguments))
                continue
            begun = self._named(CallStart(call.name, call.id))
            said += [begun, CallPart(call.arguments), CallEnd()]
            self._calls += 1
            if self._single_call:
                break
        return said

    def _named(self, call: CallStart) -> CallStart:
        return call if call.id else attrs.evolve(call, id=f"call_{self._names.next()}")


TokenBytes = Callable[[int], bytes]
Json = bytes | bytearray
"""A part of a JSON text."""


@attrs.frozen
class About:
    """What every answer says of itself: its *id*, when it was *created* (Unix seconds), the name of
    the *model* and its *fingerprint*. *trace* has the counts so far. Its parts have *names*."""

    id: str
    created: int
    model: str
    fingerprint: str
    trace: Trace
    names: Names = attrs.field(factory=Names, eq=False)


KEEPALIVE: Final = b": keepalive\n\n"


class Shape(ABC):
    """One answer as one API has it. Of a stream `opening` comes first, then an `event` for each
    delta's `add`, then `closing`, or else `failure`."""

    silence: bytes = KEEPALIVE
    """What breaks the silence of a stream. It begins as a comment: no such event is counted, nor
    given again to who comes back."""

    kept: int = 0
    """Bytes that it keeps of what it was given."""

    @abstractmethod
    def opening(self) -> bytes:
        """The events before any text."""

    @abstractmethod
    def add(self, delta: Delta) -> Iterable[Any]:
        """Keep *delta*; the bodies of its events. Each is kept and made when it is taken, so take
        all of them; others may have their turn between two."""

    @abstractmethod
    def event(self, body: Any) -> bytes:
        """The event of *body*."""

    @abstractmethod
    def closing(self, trace: Trace) -> bytes:
        """The events after all deltas. *trace* has the counts."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """The last event of a stream that *error* ends."""

    @abstractmethod
    def whole(self, trace: Trace) -> Iterable[Json]:
        """The answer in one piece, after all deltas: parts to be joined, each of which takes little
        time to make."""


def json_bytes(body: Any) -> bytes:
    """*body* as JSON, as short as it can be. By pydantic, which takes a sixth of the time: the log
    probabilities of long prompts have the event loop for as long."""
    return to_json(body, inf_nan_mode="constants")


def event(body: dict[str, Any]) -> bytes:
    """*body* as a server-sent event, under the name of its type if it has one."""
    name = f"event: {body['type']}\n".encode() if "type" in body else b""
    return name + b"data: " + json_bytes(body) + b"\n\n"


def broken_off(
    path: str, error: ApiError, name: str, number: int, *, resumable: bool = False
) -> bytes:
    """The last event of a stream for *path* that *error* ends before its answer does, which is
    called *name*, and whether a client can come back to that; *number* is the next of a response's
    events. Empty for a stream that is no answer."""
    match path:
        case "/v1/chat/completions" | "/v1/completions":
            return event({"id": name, **error.body(), "resumable": resumable})
        case "/v1/messages":
            more = {"request_id": name, "resumable": resumable}
            return event({**error.anthropic_body(), **more})
        case "/v1/responses":
            said = {"code": error.code, "message": error.message, "param": None}
            more = {"response_id": name, "resumable": resumable}
            return event({"type": "error", "sequence_number": number, **said, **more})
    return b""


def add_json(texts: bytearray, entries: Sequence[Any]) -> None:
    """Add *entries* to *texts*, a list as JSON without its brackets. It has a sixth of the bytes
    that the entries have as objects."""
    if entries:
        texts += (b"," if texts else b"") + json_bytes(entries)[1:-1]


def cut(tokens: tuple[TokenOut, ...]) -> list[tuple[TokenOut, ...]]:
    """*tokens* in parts, at least one, of `SCORED_AT_ONCE` at most if they have log probabilities.
    Text may be held back for thousands of tokens, whose log probabilities would have the event loop
    for seconds."""
    large = any(token.logprobs is not None for token in tokens)
    step = SCORED_AT_ONCE if large else max(1, len(tokens))
    return [tokens[at : at + step] for at in range(0, max(1, len(tokens)), step)]


Likeliest = list[tuple[int, float]]


def scored(tokens: Iterable[TokenOut]) -> Iterator[tuple[int, float, Likeliest]]:
    """Those of *tokens* that have log probabilities, each with its own and the likeliest ones."""
    for token in tokens:
        if (known := token.logprobs) is not None:
            yield token.token, known.chosen, list(zip(known.ids, known.values, strict=True))


def chat_logprobs(
    tokens: Iterable[TokenOut], bytes_of: TokenBytes, most: int
) -> list[dict[str, Any]]:
    """Log probabilities as chat completions have them, one entry for each token, with the likeliest
    ones in its place, at *most* so many."""

    def entry(token: int, value: float) -> dict[str, Any]:
        data = bytes_of(token)
        name = data.decode(errors="replace")
        return {"token": name, "logprob": finite(value), "bytes": list(data)}

    return [
        {**entry(token, chosen), "top_logprobs": [entry(*each) for each in likeliest[:most]]}
        for token, chosen, likeliest in scored(tokens)
    ]


def finite(value: float) -> float:
    """*value*, or -9999 for an infinity or NaN, which JSON lacks and a model that overflows gives.
    OpenAI's servers give the same number for a token that cannot be drawn."""
    return value if value > -9999.0 else -9999.0


_INPUT: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_UNQUOTED: Final = re.compile(
    r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|'
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})+"
)
"""Whole characters of a JSON string."""

_BEGINS: Final = 1024
"""Characters within which a text begins, or is not streamed."""

_UNREAD: Final = re.compile(r'((?:[^"\\]|\\.)*)"', re.DOTALL)
"""The rest of a JSON string that ends."""


@attrs.define(eq=False)
class CallArguments:
    """The arguments of a call as they are streamed. Those of a *custom* tool hold a text, which is
    what it is given."""

    custom: bool = attrs.field(kw_only=True)
    _sent: list[str] = attrs.field(factory=list)
    _rest: str = ""  # of a custom tool's arguments
    _within: bool = False  # the text

    def add(self, text: str) -> str:
        """What is to be sent of more *text*."""
        if not self.custom:
            return text
        self._rest += text
        if not self._within:
            if (begun := _INPUT.match(self._rest)) is None:
                self._rest = self._rest[:_BEGINS]
                return ""
            self._within, self._rest = True, self._rest[begun.end() :]
        if (run := _UNQUOTED.match(self._rest)) is None:
            if self._rest.startswith('"'):
                self._rest = '"'  # what follows the text is none of it
            return ""
        try:
            more = str(from_json(f'"{run[0]}"'))
        except ValueError:
            return ""
        self._rest = self._rest[run.end() :]
        self._sent.append(more)
        return more

    def end(self, arguments: str) -> tuple[str, str]:
        """What is still to be sent of *arguments*, and all that the call is given: what has been
        sent, with that. What cannot be read of a text that ends is passed on as it is."""
        if not self.custom:
            return "", arguments
        if not self._within:
            given = _input(arguments)
            return given, given
        ended = _UNREAD.match(self._rest)
        rest = ended[1] if ended else ""
        return rest, "".join(self._sent) + rest


def _input(arguments: str) -> str:
    """The text that the model gave a custom tool; all that it wrote, if that is not as asked."""
    try:
        given = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return arguments
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments

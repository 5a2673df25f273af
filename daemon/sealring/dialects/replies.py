"""What clients see of an answer: a shape for each API.

A `Choice` says what is new in an answer. A shape keeps it, and makes of it the events of
a stream or the whole body. Both forms come from one source, so they cannot differ.
"""

from __future__ import annotations

import codecs
import enum
import secrets
from abc import ABC, abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, Protocol

import attrs
from pydantic_core import to_json
from sealring_model.text import readers
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
from sealring_trio.node.runtime import AT_ONCE

from sealring.dialects.errors import ApiError
from sealring.dialects.schema import Sampled
from sealring.generation.generation import TextPiece
from sealring.generation.trace import Trace
from sealring.text.stop_strings import Finder

# ---------------------------------------------------------------------- parsing
# Splits the text of an answer into reasoning, content and tool calls, as it comes.
#
# A model puts its reasoning between two marks, and tool calls between others. Marks are found
# wherever the pieces cut them (`stop_strings`), in time linear in the text. All is passed on at
# once: a call's name when the model has written it, its arguments as they are written (the
# readers of `sealring_model.text.readers`). Calls in a format of mlx-lm's are passed on whole,
# when the closing mark is there, to be parsed by mlx-lm's code in a text worker.
#
# A call is one wherever it is written, within open reasoning too; what comes after it there is
# reasoning, up to the mark that closes it. Blank space after a mark belongs to the format, not to
# the content, and is left out.


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


class _Place(enum.Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


class AnswerText:
    """The parts of one answer's text.

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
        """What of *text*, with which content begins, can be told apart."""
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


# ---------------------------------------------------------------------- choices
# One choice of an answer: from pieces of text to what they add to it, for every kind of API.
#
# A choice knows no API. It gives `Delta`s, from which a `replies.Shape` makes what clients see.


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


class Choice:
    """Choice *index* on its way, whose *text* has tool calls that *read_call* reads. With
    *single_call* it ends after its first tool call."""

    def __init__(
        self, index: int, text: AnswerText, read_call: ReadCall, *, single_call: bool = False
    ) -> None:
        self._index = index
        self._text = text
        self._read_call = read_call
        self._single_call = single_call
        self._untold: list[TokenOut] = []  # tokens of text that is still held back
        self._thought = 0  # of them
        self._calls = 0
        self._more = False  # has come after the one call that there may be

    @property
    def complete(self) -> bool:
        """Whether nothing more may come, whatever the model would add: it may have one tool call
        only, and has it up to the mark that closes it."""
        return self._single_call and self._calls > 0 and (self._more or not self._text.calls)

    async def take(self, piece: TextPiece) -> Delta | None:
        """What *piece* adds; None if nothing of it can be told yet."""
        parts: list[Part] = []
        for text, token in zip_longest(piece.texts, piece.tokens):
            thinks = self._text.thinks
            parts += self._text.add(text or "")
            if token is not None:
                self._untold.append(token)
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
        tokens, self._untold = tuple(self._untold), []
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
                    said.append(_named(part))
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
            said += [_named(CallStart(call.name, call.id)), CallPart(call.arguments), CallEnd()]
            self._calls += 1
            if self._single_call:
                break
        return said


def _named(call: CallStart) -> CallStart:
    return call if call.id else attrs.evolve(call, id=f"call_{secrets.token_hex(12)}")


# ---------------------------------------------------------------------- replies


TokenBytes = Callable[[int], bytes]
Json = bytes | bytearray
"""A part of a JSON text."""


@attrs.frozen
class About:
    """What every answer tells of itself: its *id*, when it was *created* (Unix seconds), the name
    of the *model* and its *fingerprint*. *trace* has the counts so far."""

    id: str
    created: int
    model: str
    fingerprint: str
    trace: Trace


class Shape(Protocol):
    """One answer as one API tells it. Of a stream `opening` comes first, then an `event` for each
    delta's `add`, then `closing`, or else `failure`."""

    silence: bytes
    """What breaks the silence of a stream."""

    kept: int
    """Bytes that it keeps of what it was given."""

    def opening(self) -> bytes:
        """The events before any text."""

    def add(self, delta: Delta) -> Iterable[Any]:
        """Keep *delta*; the bodies of its events. Each is kept and made when it is taken, so take
        all of them; others may have their turn between two."""

    def event(self, body: Any) -> bytes:
        """The event of *body*."""

    def closing(self, trace: Trace) -> bytes:
        """The events after all deltas. *trace* has the counts."""

    def failure(self, error: ApiError) -> bytes:
        """The last event of a stream that *error* ends."""

    def whole(self, trace: Trace) -> Iterable[Json]:
        """The answer in one piece, after all deltas: parts to be joined, each of which takes little
        time to make."""


@attrs.frozen
class Envelope:
    """The fields around the choices: the same in every chunk of an answer, but for the counts that
    *asked* may want."""

    about: About
    kind: str
    chunk_kind: str
    asked: Sampled

    def chunk(self, choices: Sequence[dict[str, Any]], counts: Any = None) -> dict[str, Any]:
        """The body of an event, with the token *counts* if usage is asked for."""
        body = self._around(self.chunk_kind, choices)
        if self.asked.wants_usage:
            body["usage"] = counts
        return body

    def whole(
        self, choices: Iterable[Iterable[Json]], counts: Any, beside: Iterable[Json]
    ) -> Iterator[Json]:
        """An answer in one piece, with the token *counts* and then *beside*, fields each of which
        begins with a comma, after its *choices*. All come in parts of JSON: with log probabilities
        they are large."""
        around = self._around(self.kind, ())
        del around["choices"]
        yield json_bytes(around)[:-1] + b',"choices":['
        for at, choice in enumerate(choices):
            yield b"," if at else b""
            yield from choice
        yield b'],"usage":' + json_bytes(counts)
        yield from beside
        yield b"}"

    def _around(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.about.id,
            "object": kind,
            "created": self.about.created,
            "model": self.about.model,
            "system_fingerprint": self.about.fingerprint,
            "choices": list(choices),
        }


def json_bytes(body: Any) -> bytes:
    """*body* as JSON, as short as it can be. By pydantic, which takes a sixth of the time: the log
    probabilities of long prompts have the event loop for as long."""
    return to_json(body, inf_nan_mode="constants")


def cut(tokens: tuple[TokenOut, ...]) -> list[tuple[TokenOut, ...]]:
    """*tokens* in parts, at least one, of `AT_ONCE` tokens at most if they have log probabilities.
    Text may be held back for thousands of tokens, whose log probabilities would have the event loop
    for seconds."""
    large = any(token.logprobs is not None for token in tokens)
    step = AT_ONCE if large else max(1, len(tokens))
    return [tokens[at : at + step] for at in range(0, max(1, len(tokens)), step)]


def add_json(texts: bytearray, entries: Sequence[Any]) -> None:
    """Add *entries* to *texts*, a list as JSON without its brackets. It has a sixth of the bytes
    that the entries have as objects."""
    if entries:
        texts += (b"," if texts else b"") + json_bytes(entries)[1:-1]


def event(body: dict[str, Any]) -> bytes:
    """*body* as a server-sent event."""
    return b"data: " + json_bytes(body) + b"\n\n"


DONE: Final = b"data: [DONE]\n\n"
KEEPALIVE: Final = b": keepalive\n\n"


class ReplyChunks(ABC):
    """A `Shape` of choices in chunks, as chat and text completions have them. One that is streamed
    *keeps* nothing of what it has sent."""

    silence = KEEPALIVE

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self.keeps: Final = not envelope.asked.stream
        self.kept = 0

    @abstractmethod
    def opening_choices(self) -> list[dict[str, Any]]:
        """The choices of the chunks that come first, one each."""

    @abstractmethod
    def choice(self, delta: Delta) -> dict[str, Any]:
        """Keep *delta*; the choice of its chunk."""

    @abstractmethod
    def whole_choices(self) -> Iterator[Iterator[Json]]:
        """The choices in one piece: parts of the JSON of each."""

    def beside(self) -> Iterator[Json]:
        """Fields of an answer in one piece beside its choices, each after a comma."""
        return iter(())

    def opening(self) -> bytes:
        """A chunk for each choice that has something to open with."""
        return b"".join(event(self._envelope.chunk([choice])) for choice in self.opening_choices())

    def add(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """A chunk, and more where its tokens are `cut`."""
        about, asked = self._envelope.about, self._envelope.asked
        for part in _parts(delta):
            counts = usage(about.trace) if asked.counts_in_chunks else None
            yield self._envelope.chunk([self.choice(part)], counts)

    def event(self, body: dict[str, Any]) -> bytes:
        """A chunk as an event."""
        return event(body)

    def closing(self, trace: Trace) -> bytes:
        """The counts if they were asked for, and the end."""
        last = self._envelope.chunk([], usage(trace))
        return (event(last) if self._envelope.asked.wants_usage else b"") + DONE

    def failure(self, error: ApiError) -> bytes:
        """*error* as an event."""
        return event(error.body())

    def whole(self, trace: Trace) -> Iterator[Json]:
        """The body of the answer."""
        return self._envelope.whole(self.whole_choices(), usage(trace), self.beside())


def _parts(delta: Delta) -> Iterator[Delta]:
    """*delta* in parts of few log probabilities. What was said is in the first, and how the choice
    ends in the last."""
    parts = list(zip_longest(cut(delta.tokens), delta.scores))
    said, last = delta.said, len(parts) - 1
    for at, (tokens, scores) in enumerate(parts):
        finish = delta.finish if at == last else None
        told = () if scores is None else (scores,)
        yield Delta(delta.index, said, tokens or (), finish=finish, scores=told)
        said = ()


def usage(trace: Trace) -> dict[str, Any]:
    """The counts of a request that has been answered."""
    return {
        "prompt_tokens": trace.prompt_tokens,
        "completion_tokens": trace.tokens,
        "total_tokens": trace.prompt_tokens + trace.tokens,
        "prompt_tokens_details": {"cached_tokens": trace.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": trace.accepted,
            "rejected_prediction_tokens": trace.rejected,
        },
    }


def chat_logprobs(
    tokens: Iterable[TokenOut], bytes_of: TokenBytes, most: int
) -> list[dict[str, Any]]:
    """Log probabilities as chat completions tell them, one entry for each token, with the likeliest
    ones in its place, at *most* so many."""
    entries = []
    for token in tokens:
        if (told := token.logprobs) is not None:
            best = zip(told.ids[:most], told.values[:most], strict=True)
            entries.append(
                {
                    **_entry(token.token, told.chosen, bytes_of),
                    "top_logprobs": [_entry(other, value, bytes_of) for other, value in best],
                }
            )
    return entries


def _entry(token: int, value: float, bytes_of: TokenBytes) -> dict[str, Any]:
    data = bytes_of(token)
    return {
        "token": data.decode(errors="replace"),
        "logprob": finite(value),
        "bytes": list(data),
    }


def finite(value: float) -> float:
    """*value*, or -9999 for an infinity or NaN, which JSON lacks and a model that overflows gives.
    OpenAI's servers give the same number for a token that cannot be drawn."""
    return value if value > -9999.0 else -9999.0


COLUMNS: Final = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def logprob_columns(rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """The columns that text completions tell log probabilities in. A row has a token's text, its
    log probability, those of the likeliest tokens by their text, and where its text begins."""
    columns: tuple[Sequence[Any], ...] = tuple(zip(*rows, strict=True)) or ((),) * len(COLUMNS)
    return {name: list(values) for name, values in zip(COLUMNS, columns, strict=True)}


class ScoreColumns:
    """Such columns, kept as JSON until they are whole. *size* is how many bytes they have."""

    def __init__(self) -> None:
        self._lists = {name: bytearray() for name in COLUMNS[:-1]}
        self._offsets = array("Q")

    @property
    def size(self) -> int:
        """Bytes that it has."""
        return sum(map(len, self._lists.values())) + len(self._offsets) * self._offsets.itemsize

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Add *columns* at the end."""
        for name, texts in self._lists.items():
            add_json(texts, columns[name])
        self._offsets.extend(columns[COLUMNS[-1]])

    def whole(self, before: ScoreColumns | None = None, begin: int = 0) -> Iterator[Json]:
        """The JSON of all, after the columns *before*, which end at character *begin*."""
        for name, texts in self._lists.items():
            yield b'%b"%b":[' % (b"{" if name == COLUMNS[0] else b"],", name.encode())
            if before is not None:
                first = before._lists[name]
                yield from (first, b"," if first and texts else b"")
            yield texts
        offsets = [] if before is None else before._offsets.tolist()
        offsets += [begin + offset for offset in self._offsets]
        yield b'],"%b":' % COLUMNS[-1].encode() + json_bytes(offsets) + b"}"


class Offsets:
    """Where in a text its tokens begin, in characters. A token within a character begins where that
    does."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.end = 0

    def next(self, data: bytes) -> int:
        """Where the next token begins, which has the bytes *data*."""
        begin = self.end
        self.end += len(self._decoder.decode(data))
        return begin


@attrs.define
class TextScores:
    """Log probabilities as text completions tell them: columns, with each token's offset, and the
    likeliest tokens in its place, at *most* so many."""

    bytes_of: TokenBytes
    most: int
    _offsets: Offsets = attrs.field(factory=Offsets)

    def columns(self, tokens: Iterable[TokenOut]) -> dict[str, list[Any]]:
        """The columns of *tokens*."""
        rows = []
        for token in tokens:
            if (told := token.logprobs) is None:
                continue
            data = self.bytes_of(token.token)
            name = data.decode(errors="replace")
            pairs = zip(told.ids[: self.most], told.values[: self.most], strict=True)
            tops = {self._name(other): finite(value) for other, value in pairs}
            best = {**tops, name: finite(told.chosen)} if tops else {}
            rows.append((name, finite(told.chosen), best, self._offsets.next(data)))
        return logprob_columns(rows)

    def _name(self, token: int) -> str:
        return self.bytes_of(token).decode(errors="replace")

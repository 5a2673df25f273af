"""What clients see of an answer: a shape for each API.

A choice (`choices`) says what is new in an answer. A shape keeps it, and makes of it the events of
a stream or the whole body. Both forms come from one source, so they cannot differ.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, Protocol

import attrs
from pydantic_core import to_json
from sealring_protocol.control.requests import TokenOut
from sealring_trio.node.runtime import AT_ONCE

from sealring.api.choices import Delta
from sealring.api.errors import ApiError
from sealring.api.schema import Sampled
from sealring.daemon.trace import Trace

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


class Chunks(ABC):
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


class Columns:
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

    def whole(self, before: Columns | None = None, begin: int = 0) -> Iterator[Json]:
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
class TextLogprobs:
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

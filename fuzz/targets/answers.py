"""Answers in every format of `sealring_model.text.formats`: thoughts, content and calls.

Input: which format, where the answer begins, where it is cut into pieces, then its text. A byte
that is no text stands for one of the format's marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from sealring.dialects.replies import AnswerText
from sealring_model.text.argument_types import value_kinds
from sealring_model.text.formats import CHANNEL, FORMATS, PLAIN, THOUGHTS, CallFormat
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Elements, joined
from sealring_model.text.tokens import ToolFormat

from fuzz.source import Source

ALL: Final = (*FORMATS, PLAIN)
KINDS: Final = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "unit": {"enum": ["1", 2, None]},
    "object": {"type": "object", "properties": {"n": {"type": "number"}}},
    "list": {"type": "array", "items": {"type": "string"}},
}
TOOLS: Final = [
    {"function": {"name": "f", "parameters": {"type": "object", "properties": KINDS}}},
    {"function": {"name": "g"}},
]
CALL: Final = '{"name": "f", "arguments": {"text": "a", "list": ["b\\n"]}}'
PLACES: Final = 4
"""Where an answer is cut: so many bytes of choice."""


def _words(format: CallFormat) -> list[str]:
    """What answers in *format* are made of."""
    words = [*format.opening, format.end, *format.inner, "<think>", "</think>", CALL, "f", "text"]
    words += [*CHANNEL, " to=functions.f", "<|start|>assistant", "<|channel|>final<|message|>"]
    if isinstance(reader := format.reader, Elements):
        words += [reader.call, reader.named, reader.key, reader.keyed, reader.valued]
        words += [reader.value, reader.over]
    if format.nested:
        space = "]<]minimax[>["
        words += [f'{space}<invoke name="f">', f"{space}</invoke>", f"{space}<text>"]
        words += [f"{space}</text>", f"{space}<object>", f"{space}</object>", f"{space}<item>"]
    return [*filter(None, words), '{"', "{", "}", "[", "]", '"', "\\", "\n", "null", "9" * 20]


def seeds() -> Iterator[bytes]:
    """A call of each format."""
    for number, format in enumerate(ALL):
        words = _words(format)
        for begin in range(4):
            yield bytes([number, begin, 3, 7, 20, 30]) + CALL.encode()
            yield bytes([number, begin, 0, 1, 2, 3, *(0x80 + at for at in range(len(words)))])


def _text(format: CallFormat, data: bytes) -> str:
    words = _words(format)
    known = (chr(byte) if byte < 0x80 else words[(byte - 0x80) % len(words)] for byte in data)
    return "".join(known)


def _parts(format: CallFormat, pieces: list[str], begin: int) -> list[Any]:
    """What an answer in *pieces* is."""
    answer = AnswerText(
        CHANNEL if format.whole else THOUGHTS[-1],
        ToolFormat.of(format),
        value_kinds(TOOLS, nested=format.nested),
        reasoning=begin == 1 and not format.whole,
        calling=begin == 2 or format is PLAIN,
        whole=format if format.whole else None,
    )
    parts = [part for piece in pieces for part in answer.add(piece)]
    return joined(parts + answer.end())


def check(data: bytes) -> None:
    """In any pieces it is the same, and each call has a beginning, arguments and an end."""
    source = Source(data)
    format, begin = source.pick(ALL), source.below(4)
    places = [source.below(256) for _ in range(PLACES)]
    text = _text(format, source.rest())
    cuts = sorted({0, len(text), *(place for place in places if place < len(text))})
    parts = _parts(format, [text], begin)
    assert _parts(format, [text[at:end] for at, end in pairwise(cuts)], begin) == parts
    assert _parts(format, list(text), begin) == parts
    calling, given = False, 0
    for part in parts:
        assert calling == isinstance(part, CallPart | CallEnd)
        match part:
            case CallStart(name):
                assert name in ("f", "g")
                calling, given = True, 0
            case CallPart(more):
                given += len(more)
            case CallEnd():
                assert given
                calling = False
    assert not calling

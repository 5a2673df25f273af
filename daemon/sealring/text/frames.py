"""The frames between a node and its text workers, and how a job can fail.

A frame is a JSON object and bytes: first the sizes of both as big-endian u32s, then both. Large
values (bodies, token ids, tools) travel as the bytes: the node passes them on without looking at
them.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

import attrs
from sealring_protocol.control.requests import TokenIds

# ---------------------------------------------------------------------- parsed
# What a text worker has read in a request: its prompts as token ids, and fields for the node.


ID: Final = "I"
"""The type code of an array of token ids."""

_SIZE: Final = 40
"""Bytes of a token id in a tuple, with the tuple's reference."""

_BRANCHES: Final = 8
"""Branches of a prompt: each may have its cache kept."""


@attrs.frozen
class ParsedRequest:
    """A request as a text worker has read it: the fields that it *told*, the *prompts* and the
    *prediction* (what the answer is likely to contain) as ids, the *grammar* that holds the answer,
    the *bad* token sequences, the *rest*, bytes that the node passes on unread, and the ids that
    are *ends* of this answer beside the model's own. The answer *opens* a text of its own, or goes
    on with the prompt's. *branches* are as `Request` has them."""

    told: Mapping[str, Any]
    prompts: list[TokenIds]
    prediction: TokenIds
    rest: bytes
    ends: frozenset[int] = frozenset()
    grammar: bytes = b""
    bad: tuple[tuple[int, ...], ...] = ()
    opens: bool = False
    branches: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that its token ids take."""
        return _SIZE * sum(map(len, (*self.prompts, self.prediction)))

    @classmethod
    def of(cls, told: Mapping[str, Any], data: bytes) -> ParsedRequest:
        """The request in a worker's answer, whose ``lengths`` are those of the prompts, and
        ``predicted`` that of the prediction after them. Raises `KeyError`, `TypeError` or
        `ValueError` if it is none: a worker may have been taken over."""
        ids = array(ID)
        lengths = [*map(int, told["lengths"]), int(told.get("predicted", 0))]
        ends = list(accumulate(lengths, initial=0))
        size = ends[-1] * ids.itemsize
        if len(ends) == 2 or ends != sorted(ends) or len(data) < size:
            raise ValueError(f"{lengths} are no lengths of {len(data)} bytes of ids")
        ids.frombytes(data[:size])
        *prompts, prediction = [TokenIds(ids[start:end]) for start, end in pairwise(ends)]
        grammar = size + int(told.get("grammar", 0))
        if not size <= grammar <= len(data):
            raise ValueError("a grammar that is not there")
        more = frozenset(map(int, told.get("ends", ())))
        bad = tuple(tuple(map(int, part)) for part in told.get("bad", ()))
        held = data[size:grammar]
        opens = bool(told.get("opens", False))
        branches = tuple(map(int, told.get("branches", ())))[:_BRANCHES]
        return cls(told, prompts, prediction, data[grammar:], more, held, bad, opens, branches)


SIZES: Final = struct.Struct(">II")

MAX_FRAME: Final = 128 << 20
"""Bytes of a frame: a body of 8 MiB whose prompts are echoed, escaped, and its ids."""

READ: Final = "reading the body"
RENDER: Final = "the chat template"
TOKENISE: Final = "making tokens of the prompt"
HOLD: Final = "making the grammar of the answer"
CALL: Final = "reading a tool call"

STAGE_SECONDS: Final[Mapping[str, float]] = {
    READ: 10.0,
    RENDER: 5.0,
    TOKENISE: 60.0,
    HOLD: 10.0,
    CALL: 5.0,
}
"""Seconds of wall clock that each stage of a job may take; a worker has a lower priority than its
node. On one slow core 8 MiB take 1 s to read and 10 s to tokenise, templates and tool calls
milliseconds."""

MEMORY: Final = 3 << 30
"""Bytes of memory that loading may take, and then a job beside what has been loaded. 8 MiB of text
take half of that to tokenise. The worker limits itself where it can, and the node looks."""


class Refused(Exception):
    """The job was done, and the text is refused: *fields* say why (`ApiError`)."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields.get("message", ""))
        self.fields = fields


class Exceeded(Exception):
    """The job exceeded a limit and was ended. The text says which limit, and in what stage."""


class TextQueueFull(Exception):
    """More text waits than `MAX_WAITING` allows."""


class Lost(Exception):
    """The worker ended, for another reason than its job."""


def pack(told: Mapping[str, Any], data: bytes = b"") -> bytes:
    """The frame of *told* and *data*."""
    text = json.dumps(told).encode()
    return SIZES.pack(len(text), len(data)) + text + data

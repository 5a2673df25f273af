"""The frames between a node and its text workers, and how a job can fail.

A frame is a JSON object and bytes: first the sizes of both as big-endian u32s, then both. Large
values (bodies, token ids, tools) travel as the bytes: the node passes them on without looking at
them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

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


class Wrong(Lost):
    """The worker answered what is no answer to its job: it may have been taken over."""


def pack(told: Mapping[str, Any], data: bytes = b"") -> bytes:
    """The frame of *told* and *data*."""
    text = json.dumps(told).encode()
    return SIZES.pack(len(text), len(data)) + text + data

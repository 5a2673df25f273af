"""GET and PIECE: files of the model, from a member that has them."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.wire import Buffer, is_plain
from sealring_protocol.limits import MAX_PIECE

LISTING: Final = ""
"""The name of the listing: which files and tensors the asked node has."""


def is_file_name(name: str) -> bool:
    """True if *name* may be asked for: the listing, or one file's name without a folder."""
    return is_plain(name) and not {"/", "\\"} & set(name) and name not in (".", "..")


@attrs.frozen
class Get:
    """Asks for *length* bytes from *offset* on of the model's file *name*."""

    CODE: ClassVar = MessageCode.GET
    name: str
    offset: int
    length: int

    def __attrs_post_init__(self) -> None:
        rule(is_file_name(self.name), "a file's name has no folder and no hidden character")
        rule(self.length <= MAX_PIECE, f"a GET asks for at most {MAX_PIECE} bytes")


@attrs.frozen
class Piece:
    """Answers the oldest GET that has none: *data*, of a file of *size* bytes. It is what the GET
    asked for, or less where the file ends. With a *reason* there is none, and this is why."""

    CODE: ClassVar = MessageCode.PIECE
    size: int
    data: Buffer = attrs.field(default=b"", repr=False)
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        empty = not self.size and not len(self.data)
        rule(not self.reason or empty, "a PIECE has a reason or data")
        rule(len(self.data) <= self.size, "a PIECE is within its file")

"""The outer frame, and a decoder for a stream in pieces of any size.

A frame is ``version u8 · kind u8 · zero u16 · length u32`` and then *length* bytes of body. A bad
header is refused as soon as its eight bytes are in: a wrong version, an unknown kind, a kind that
the present state does not accept, or a length beyond that kind's limit. So a peer can never make
the decoder hold more than one header and one body that the state allows.

Whole frames within one piece are not copied: their bodies are views of the piece. Only a frame that
spans pieces is assembled, in one buffer of its declared size.
"""

import enum
import struct
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from sealring_protocol.codec.wire import Buffer, layout
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import FRAME_HEADER

VERSION: Final = 1
_OTHER_VERSION: Final = f"frame version {{}}; this is version {VERSION}"
_HTTP: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ", b"OPTIONS ", b"PRI ")
HEADER: Final = layout("FRAME")


class FrameKind(enum.IntEnum):
    """What the body of a frame is."""

    HANDSHAKE = 1
    SEALED = 2
    LOCAL = 3  # between a node and its own engine process; never on a network link


class Frame(NamedTuple):
    """One frame: its kind, its eight header bytes and its body."""

    kind: int
    header: bytes
    body: Buffer


_frame: Final = partial(tuple.__new__, Frame)  # like `Frame(...)`, without a call into Python


def frame_header(kind: FrameKind, length: int) -> bytes:
    """The eight header bytes of a frame whose body has *length* bytes."""
    try:
        return HEADER.pack(VERSION, kind, 0, length)
    except struct.error:
        raise LocalProtocolError(f"a body of {length} bytes does not fit a frame") from None


def _other_protocol(header: bytes) -> str:
    """What a person may have connected to a node's port, or given as one, who sends *header*; empty
    if it is not known."""
    if header.startswith(b"HTTP/"):
        return "an HTTP server answers, and no node: the roster needs the address of a 'listen'"
    if header.startswith((b"\x16\x03", *_HTTP)):
        name = "HTTP" if header.startswith(_HTTP) else "TLS"
        return f"this is {name}, and only nodes speak here: the API is at the head's 'api' address"
    return ""


class FrameDecoder:
    """Splits a stream of bytes into frames.

    *limits* has the kinds that are accepted now, with the longest body of each in bytes. The owner
    replaces it (`set_limits`) when its state changes; a header that is already in is checked again.

    Raises `LimitExceeded` and `RemoteProtocolError`. After either the decoder is dead and raises
    the same error again.
    """

    __slots__ = (
        "_at",
        "_body",
        "_error",
        "_filled",
        "_header",
        "_limits",
        "_more",
        "_piece",
        "_waiting",
    )

    def __init__(self, limits: Mapping[int, int]) -> None:
        self._limits = limits
        self._piece: Buffer = b""
        self._at = 0  # how much of the piece was read
        self._more: list[Buffer] = []  # later pieces, joined when needed
        self._waiting = 0
        self._header = b""
        self._body: bytearray | None = None
        self._filled = 0
        self._error: RemoteProtocolError | None = None

    def set_limits(self, limits: Mapping[int, int]) -> None:
        """Apply *limits* from now on, and to the frame under way."""
        self._limits = limits
        if self._body is not None:
            try:
                self._check(self._header)
            except RemoteProtocolError as error:
                self._die(error)

    @property
    def buffered(self) -> int:
        """Bytes held that are in no frame yet."""
        rest = len(self._piece) - self._at
        return len(self._header) + self._filled + rest + self._waiting

    @property
    def awaited(self) -> int:
        """The length of the body under way, in bytes; 0 between frames."""
        return len(self._body) if self._body is not None else 0

    @property
    def lacking(self) -> int:
        """Bytes of the body under way that have not come; 0 between frames."""
        return len(self._body) - self._filled if self._body is not None else 0

    def receive_data(self, data: Buffer) -> None:
        """Add the next piece of the stream.

        First take the frames of earlier pieces: what they leave is copied, once.
        """
        if self._error is not None:
            return
        if self._at < len(self._piece):
            self._more.append(data)
            self._waiting += len(data)
        else:
            self._piece = data
            self._at = 0

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None when more bytes are needed."""
        if self._error is not None:
            raise self._error
        if self._more:
            self._join()
        piece, at = self._piece, self._at
        if at == len(piece):
            self._piece = b""
            self._at = 0
            return None
        start = at + FRAME_HEADER
        try:
            if self._header or start > len(piece):
                return self._assemble()
            header = bytes(piece[at:start])
            kind, length = self._check(header)
        except RemoteProtocolError as error:
            self._die(error)
            raise
        end = start + length
        if end > len(piece):
            self._at = start
            self._header = header
            self._body = bytearray(length)
            return self._fill(self._body)
        self._at = end
        return _frame((kind, header, memoryview(piece)[start:end]))

    def _die(self, error: RemoteProtocolError) -> None:
        self._error = error
        self._piece = b""
        self._at = 0
        self._more.clear()
        self._waiting = 0
        self._header = b""
        self._body = None
        self._filled = 0

    def _join(self) -> None:
        self._piece = b"".join([memoryview(self._piece)[self._at :], *self._more])
        self._at = 0
        self._more.clear()
        self._waiting = 0

    def _assemble(self) -> Frame | None:
        """Continue a frame that spans pieces."""
        if self._body is None:
            start = self._at + FRAME_HEADER - len(self._header)
            self._header += self._piece[self._at : start]
            self._at = min(start, len(self._piece))
            if len(self._header) < FRAME_HEADER:
                return None
            _, length = self._check(self._header)
            self._body = bytearray(length)
        return self._fill(self._body)

    def _fill(self, body: bytearray) -> Frame | None:
        at, filled = self._at, self._filled
        taken = min(len(self._piece) - at, len(body) - filled)
        body[filled : filled + taken] = memoryview(self._piece)[at : at + taken]
        self._at = at + taken
        self._filled = filled + taken
        if self._filled < len(body):
            return None
        header, self._header, self._body, self._filled = self._header, b"", None, 0
        return _frame((header[1], header, body))

    def _check(self, header: bytes) -> tuple[int, int]:
        version, kind, zero, length = HEADER.unpack(header)
        if version != VERSION:
            raise RemoteProtocolError(_other_protocol(header) or _OTHER_VERSION.format(version))
        if zero:
            raise RemoteProtocolError("the reserved field of a frame header is not zero")
        limit = self._limits.get(kind)
        if limit is None:
            raise RemoteProtocolError(f"a frame of kind {kind} is not taken here")
        if length > limit:
            raise LimitExceeded(f"a frame declares {length} bytes; the limit here is {limit}")
        return kind, length

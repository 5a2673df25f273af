"""Integers and bounded byte strings, of which every sealring/1 encoding is made.

All integers are big-endian and unsigned. A `Reader` reads one buffer from front to back and refuses
a truncated field. `Reader.end` refuses trailing bytes, so every value has exactly one encoding.
Text that is not UTF-8 is refused.

`FIELDS` alone defines the layout of every fixed-size part of what is no message in a sealed frame:
frames, handshake, rosters, tensors. (Messages are in `encoding.SCHEMA`.) The `struct` layouts of
readers and writers are made from it (`layout`), a test compares the specification's tables with it,
and ``spec/sealring-1.json`` gives it to other runtimes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError

U8: Final = struct.Struct(">B")
U16: Final = struct.Struct(">H")
U32: Final = struct.Struct(">I")
U64: Final = struct.Struct(">Q")

Buffer = bytes | bytearray | memoryview


class Reader:
    """Reads fields from one buffer, in order.

    Raises `RemoteProtocolError` if the buffer is too short or a field is malformed, and
    `LimitExceeded` if a declared length exceeds its limit.
    """

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: Buffer, at: int = 0) -> None:
        self._data = memoryview(data)
        self._at = at
        self._end = len(self._data)

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._at

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The fields of *layout*."""
        at = self._at
        self._at = end = at + layout.size
        if end > self._end:
            raise RemoteProtocolError("truncated: a fixed-size field is cut short")
        return layout.unpack_from(self._data, at)

    def u8(self) -> int:
        """One unsigned byte."""
        return int(self.unpack(U8)[0])

    def u16(self) -> int:
        """One unsigned 16-bit integer."""
        return int(self.unpack(U16)[0])

    def u32(self) -> int:
        """One unsigned 32-bit integer."""
        return int(self.unpack(U32)[0])

    def view(self, size: int) -> memoryview:
        """The next *size* bytes, without a copy."""
        at = self._at
        self._at = end = at + size
        if end > self._end:
            raise RemoteProtocolError("truncated: a byte string is cut short")
        return self._data[at:end]

    def fixed(self, size: int) -> bytes:
        """The next *size* bytes."""
        return bytes(self.view(size))

    def vector(self, limit: int) -> bytes:
        """A byte string with a u32 length of at most *limit*."""
        size = self.u32()
        if size > limit:
            raise LimitExceeded(f"a byte string declares {size} bytes; the limit is {limit}")
        return self.fixed(size)

    def text(self, limit: int) -> str:
        """A UTF-8 string with a u16 length of at most *limit* bytes."""
        return self.words(self.u16(), limit)

    def words(self, size: int, limit: int) -> str:
        """A UTF-8 string of *size* bytes, of which there may be *limit*."""
        if size > limit:
            raise LimitExceeded(f"a text declares {size} bytes; the limit is {limit}")
        try:
            return str(self.view(size), "utf-8")
        except UnicodeDecodeError:
            raise RemoteProtocolError("a text is not UTF-8") from None

    def count(self, limit: int) -> int:
        """A u16 number of entries of at most *limit*."""
        size = self.u16()
        if size > limit:
            raise LimitExceeded(f"a list declares {size} entries; the limit is {limit}")
        return size

    def rest(self) -> memoryview:
        """All remaining bytes, without a copy."""
        return self.view(self._end - self._at)

    def end(self) -> None:
        """Raise `RemoteProtocolError` if bytes remain."""
        if self._at != self._end:
            raise RemoteProtocolError(f"{self._end - self._at} trailing bytes")


def vector(data: Buffer, limit: int) -> bytes:
    """*data* with a u32 length before it. Raises `LocalProtocolError` beyond *limit*."""
    if len(data) > limit:
        raise LocalProtocolError(f"{len(data)} bytes do not fit the limit of {limit}")
    return U32.pack(len(data)) + data


def sized(value: bytes, size: int) -> bytes:
    """*value*. Raises `LocalProtocolError` unless it has *size* bytes."""
    if len(value) != size:
        raise LocalProtocolError(f"a field of {size} bytes was given {len(value)}")
    return value


def utf8(value: str) -> bytes:
    """*value* as UTF-8. Raises `LocalProtocolError` if it holds half a surrogate pair, as the names
    of files and hosts that are no UTF-8 do."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("a text cannot be written as UTF-8") from None


def text(value: str, limit: int) -> bytes:
    """*value* as UTF-8 with a u16 length. Raises `LocalProtocolError` beyond *limit* bytes, and for
    what is no UTF-8."""
    data = utf8(value)
    if len(data) > limit:
        raise LocalProtocolError(f"a text of {len(data)} bytes does not fit the limit of {limit}")
    return U16.pack(len(data)) + data


_HIDDEN: Final = frozenset(
    chr(code)
    for first, last in (
        (0x00, 0x1F),
        (0x7F, 0x9F),
        (0xAD, 0xAD),
        (0x61C, 0x61C),
        (0x200B, 0x200F),
        (0x2028, 0x202E),
        (0x2060, 0x206F),
        (0xFEFF, 0xFEFF),
        (0xFFF9, 0xFFFB),
    )
    for code in range(first, last + 1)
)
"""Characters that no text on the wire may have: controls, and those that hide or reorder text.

The list is fixed because what Python calls printable changes with its Unicode version.
"""


def is_plain(value: str) -> bool:
    """True if *value* has no hidden character, so that it can be shown to a person as it is."""
    return _HIDDEN.isdisjoint(value)


def plain(value: str) -> str:
    """*value*. Raises `RemoteProtocolError` if it is not `is_plain`."""
    if not is_plain(value):
        raise RemoteProtocolError("a reason holds unprintable characters")
    return value


def clip(value: str, limit: int) -> str:
    """*value* with hidden characters escaped, cut to at most *limit* bytes of UTF-8 between
    characters."""
    printable = "".join(f"\\u{ord(c):04x}" if c in _HIDDEN else c for c in value)
    return printable.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def pack(layout: struct.Struct, *values: float | bytes) -> bytes:
    """Like `layout.pack`, but raises `LocalProtocolError` for a value out of range."""
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise LocalProtocolError(f"a field does not fit its width: {error}") from None


TYPES: Final[Mapping[str, str]] = {
    "u8": "B",
    "bool": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f64": "d",
}
"""The `struct` letter of each type. ``bytes N`` is N bytes."""

FIELDS: Final[Mapping[str, str]] = {
    "FRAME": "version u8, kind u8, zero u16, length u32",
    "INIT": "code u8, wall_ms u64, suites u32, x_I bytes 32, ek_I bytes 1184, tag bytes 32",
    "RESP": "code u8, suite u8, x_R bytes 32, ct bytes 1088",
    "RESP.claims": "id_R bytes 32, instance u64, serial u64, digest bytes 32, term u64, head u16, "
    "taken bool",
    "FIN": "code u8",
    "FIN.claims": "id_I bytes 32, id_R bytes 32, instance u64, serial u64, digest bytes 32, "
    "term u64, head u16, taken bool, purpose u8, roster u32",
    "JOIN_INIT": "code u8, wall_ms u64, suites u32, x_J bytes 32, ek_J bytes 1184, tag bytes 32",
    "JOIN_RESP": "code u8, suite u8, x_H bytes 32, ct bytes 1088",
    "JOIN_RESP.claims": "coordinator bytes 65, id_H bytes 32, roster u32",
    "JOIN_FIN": "code u8",
    "JOIN_FIN.claims": "public_key bytes 65, id_H bytes 32, build u64, memory u64",
    "ROSTER": "serial u64, issued_ms u64, expires_ms u64, policy u8, members u16",
    "ROSTER.appointment": "spare bytes 65, naming bytes 64, number u64, coordinator bytes 65, "
    "signature bytes 64",
    "ROSTER.member": "public_key bytes 65, trust u8, attestation bytes 32",
    "ROSTER.member_with_rights": "public_key bytes 65, trust u8, rights u8, attestation bytes 32",
    "EVIDENCE": "version u8, kind u8, subject bytes 65, issued_ms u64, expires_ms u64, "
    "attester bytes 65, claims u32",
    "CERTIFICATE": "term u64, head u16, votes u16",
    "CERTIFICATE.vote": "voter u16, signature bytes 64",
    "VOTE": "term u64, head u16",
    "TENSOR": "dtype u8, sealed bool, dimensions u8, zero u8, counter u64",
    "INNER": "cluster bytes 32, instance u64, counter u64, n u64, group u16, boundary u16, "
    "dtype u8, dimensions u8, rows u32",
}
"""The name and type of each field, in order. A list's field has the number of its entries; the
field of a text or byte string has its length. ``NAME.list`` is the layout of one entry."""


def fields(text: str) -> list[tuple[str, str]]:
    """The fields of an entry of `FIELDS`, each with its type."""
    return [(field, kind) for field, _, kind in (e.partition(" ") for e in text.split(", "))]


def layout(name: str, *, but: int = 0) -> struct.Struct:
    """The `struct` layout of the fields under *name*, without the last *but*: a text or byte string
    writes its own length."""
    kinds = [kind for _, kind in fields(FIELDS[name])]
    return struct.Struct(">" + "".join(map(letter, kinds[: len(kinds) - but])))


def letter(kind: str) -> str:
    """The `struct` format of a field of the type *kind*."""
    return f"{kind.removeprefix('bytes ')}s" if kind.startswith("bytes ") else TYPES[kind]

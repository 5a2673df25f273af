"""The kinds of fields that messages are made of: their bytes, their values and their JSON.

A `Fixed` field has its place in the fixed part at the front of a message. Of a `Varying` one the
fixed part has its count, and its entries follow after the fixed part. `encoding.SCHEMA` says which
message has which.

In JSON an integer of 64 bits is a decimal string, bytes are hexadecimal, and a code is its number.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from itertools import repeat, starmap
from math import prod
from typing import Any, Final

from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.wire import (
    Buffer,
    Reader,
    clip,
    layout,
    letter,
    plain,
    sized,
    text,
    utf8,
)
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import (
    AEAD_TAG,
    MAX_ADDRESS,
    MAX_DIMENSIONS,
    MAX_REASON,
    MAX_SEALED_BODY,
    MAX_TENSORS,
    MAX_WORLD,
)

Json = Any
"""Any value that JSON has."""


class Fixed:
    """A number of the fixed part. *type* is its name in the specification."""

    def __init__(self, kind: str) -> None:
        self.type = kind

    def read(self, raw: Any) -> Any:
        """The value of what `struct` has unpacked. Raises `RemoteProtocolError`."""
        return raw

    def write(self, value: Any) -> Any:
        """What `struct` is to pack. Raises `LocalProtocolError`."""
        return value

    def to_json(self, value: Any) -> Json:
        """*value* in JSON."""
        return str(value) if self.type == "u64" else value

    def from_json(self, given: Json) -> Any:
        """The inverse of `to_json`."""
        return int(given) if self.type == "u64" else given


class Flag(Fixed):
    """A boolean."""

    def __init__(self) -> None:
        super().__init__("bool")

    def read(self, raw: Any) -> Any:
        """Raises `RemoteProtocolError` for any number but 0 and 1."""
        if raw > 1:
            raise RemoteProtocolError(f"a boolean is {raw}; it must be 0 or 1")
        return raw == 1


class Code(Fixed):
    """A member of the enumeration *members*, as a u8."""

    def __init__(self, members: type[enum.IntEnum]) -> None:
        super().__init__("u8")
        self.members = members
        self._by_code = {int(member): member for member in members}

    def read(self, raw: Any) -> Any:
        """Raises `RemoteProtocolError` for a number that no member has."""
        member = self._by_code.get(raw)
        if member is None:
            raise RemoteProtocolError(f"unknown {self.members.__name__} {raw}")
        return member

    def to_json(self, value: Any) -> Json:
        """Its number."""
        return int(value)

    def from_json(self, given: Json) -> Any:
        """The member with this number."""
        return self.members(given)


class Bounded(Fixed):
    """A number of at most *most*; *what* says of what."""

    def __init__(self, kind: str, most: int, what: str) -> None:
        super().__init__(kind)
        self.most, self.what = most, what

    def read(self, raw: Any) -> Any:
        """Raises `LimitExceeded`."""
        if raw > self.most:
            raise LimitExceeded(f"{raw} {self.what}; the limit is {self.most}")
        return raw

    def write(self, value: Any) -> Any:
        """Raises `LocalProtocolError` beyond the limit."""
        if value > self.most:
            raise LocalProtocolError(f"{value} {self.what}; the limit is {self.most}")
        return value


class Bytes(Fixed):
    """A byte string of *size* bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"bytes {size}")
        self.size = size

    def write(self, value: Any) -> Any:
        """Raises `LocalProtocolError` for another length."""
        return sized(value, self.size)

    def to_json(self, value: Any) -> Json:
        """Hexadecimal."""
        return bytes(value).hex()

    def from_json(self, given: Json) -> Any:
        """The bytes."""
        return bytes.fromhex(given)


class Varying:
    """A part after the fixed one, of at most *most* entries; *what* says of what.

    *type* is that of its count in the fixed part, empty for what lasts to the end of the message.
    *entry* is the type of one entry in the specification, or the names and types of its fields;
    *layout* is the part of them that is fixed, if it has a layout of its own.
    """

    layout = ""

    def __init__(self, kind: str, entry: str, most: int, what: str) -> None:
        self.type, self.entry, self.most, self.what = kind, entry, most, what

    def check(self, count: int) -> None:
        """Refuse a declared *count* before anything is read. Raises `LimitExceeded`."""
        if count > self.most:
            raise LimitExceeded(f"{count} {self.what}; the limit is {self.most}")

    def counted(self, value: Any) -> tuple[int, list[Buffer]]:
        """The count of *value*, and its bytes in parts. Raises `LocalProtocolError`."""
        count, parts = self.write(value)
        if self.type and count > self.most:
            raise LocalProtocolError(f"{count} {self.what}; the limit is {self.most}")
        return count, parts

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """The count of *value*, and its bytes in parts, whatever the limit."""
        raise NotImplementedError

    def read(self, reader: Reader, count: int) -> Any:
        """The value of *count* entries. Raises `RemoteProtocolError`."""
        raise NotImplementedError

    def to_json(self, value: Any) -> Json:
        """*value* in JSON."""
        raise NotImplementedError

    def from_json(self, given: Json) -> Any:
        """The inverse of `to_json`."""
        raise NotImplementedError


class Blob(Varying):
    """A byte string. One that is read *whole* is a copy; else it is a view of the message."""

    def __init__(self, kind: str, most: int, what: str, *, whole: bool = True) -> None:
        super().__init__(kind, "byte", most, what)
        self.whole = whole

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """The bytes themselves."""
        return len(value), [value]

    def read(self, reader: Reader, count: int) -> Any:
        """The next *count* bytes."""
        return reader.fixed(count) if self.whole else reader.view(count)

    def to_json(self, value: Any) -> Json:
        """Hexadecimal."""
        return bytes(value).hex()

    def from_json(self, given: Json) -> Any:
        """The bytes."""
        return bytes.fromhex(given)


class Rest(Blob):
    """All bytes up to the end of the message."""

    def __init__(self) -> None:
        super().__init__("", 0, "", whole=False)
        self.entry = "rest"

    def read(self, reader: Reader, count: int) -> Any:
        """All that remains."""
        return reader.rest()


class Name(Varying):
    """A text as it is."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__("u16", "byte", most, what)

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """UTF-8. Raises `LocalProtocolError` if it cannot be that."""
        data = utf8(value)
        return len(data), [data]

    def read(self, reader: Reader, count: int) -> Any:
        """Raises `RemoteProtocolError` for what is not UTF-8."""
        return reader.words(count, self.most)

    def to_json(self, value: Any) -> Json:
        """The text."""
        return value

    def from_json(self, given: Json) -> Any:
        """The text."""
        return given


class Words(Name):
    """A text for people. A writer escapes hidden characters and cuts it to its limit; a reader
    refuses hidden characters."""

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """What is left of the text."""
        return super().write(clip(value, self.most))

    def read(self, reader: Reader, count: int) -> Any:
        """Raises `RemoteProtocolError` for hidden characters."""
        return plain(super().read(reader, count))


class Numbers(Varying):
    """A list of the numbers *cell*."""

    def __init__(self, kind: str, cell: Fixed, most: int, what: str) -> None:
        super().__init__(kind, cell.type, most, what)
        self.cell = cell
        self._plain = type(cell) is Fixed  # what `struct` gives is the value
        self._letter = letter(cell.type)
        self._size = struct.calcsize(f">{self._letter}")

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """All in one part."""
        raw = value if self._plain else map(self.cell.write, value)
        return len(value), [struct.pack(f">{len(value)}{self._letter}", *raw)]

    def read(self, reader: Reader, count: int) -> Any:
        """A tuple of them."""
        # The bytes are known to be there before a layout of their number is built.
        data = reader.view(count * self._size)
        raw = struct.unpack(f">{count}{self._letter}", data)
        return raw if self._plain else tuple(map(self.cell.read, raw))

    def to_json(self, value: Any) -> Json:
        """A list."""
        return [self.cell.to_json(each) for each in value]

    def from_json(self, given: Json) -> Any:
        """A tuple."""
        return tuple(self.cell.from_json(each) for each in given)


class Records(Varying):
    """A list of entries with the named *cells*, and after them *words* for people, if that is the
    name of a text.

    *make* joins an entry of its values, and *split* gives them back. In JSON an entry is an object,
    or with *bare* a list.
    """

    def __init__(
        self,
        kind: str,
        cells: dict[str, Fixed],
        most: int,
        what: str,
        make: Callable[..., Any],
        split: Callable[[Any], tuple[Any, ...]],
        *,
        words: str = "",
        bare: bool = False,
    ) -> None:
        self.layout = ", ".join(f"{name} {cell.type}" for name, cell in cells.items())
        entry = f"{self.layout}, {words} text" if words else self.layout
        super().__init__(kind, entry, most, what)
        self.cells = tuple(cells.values())
        self.names = (*cells, words) if words else tuple(cells)
        self.make, self.split, self.words, self.bare = make, split, words, bare
        self._struct = struct.Struct(">" + "".join(letter(cell.type) for cell in self.cells))
        self._plain = not words and all(type(cell) is Fixed for cell in self.cells)

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """All in one part."""
        if self._plain:
            return len(value), [b"".join(starmap(self._struct.pack, map(self.split, value)))]
        return len(value), [b"".join(map(self._entry, value))]

    def _entry(self, entry: Any) -> bytes:
        values = self.split(entry)
        raw = [cell.write(each) for cell, each in zip(self.cells, values, strict=False)]
        tail = text(clip(values[-1], MAX_REASON), MAX_REASON) if self.words else b""
        return self._struct.pack(*raw) + tail

    def read(self, reader: Reader, count: int) -> Any:
        """A tuple of entries."""
        if self._plain:
            data = reader.view(count * self._struct.size)
            return tuple(starmap(self.make, self._struct.iter_unpack(data)))
        return tuple(self._read(reader) for _ in range(count))

    def _read(self, reader: Reader) -> Any:
        raw = reader.unpack(self._struct)
        values = [cell.read(each) for cell, each in zip(self.cells, raw, strict=True)]
        if self.words:
            values.append(plain(reader.text(MAX_REASON)))
        return self.make(*values)

    def to_json(self, value: Any) -> Json:
        """A list of entries."""
        return [self.entry_to_json(entry) for entry in value]

    def from_json(self, given: Json) -> Any:
        """A tuple of entries."""
        return tuple(self.entry_from_json(entry) for entry in given)

    def entry_to_json(self, entry: Any) -> Json:
        """One entry."""
        values = self.split(entry)
        given = [cell.to_json(each) for cell, each in zip(self.cells, values, strict=False)]
        given += values[len(given) :]
        return given if self.bare else dict(zip(self.names, given, strict=True))

    def entry_from_json(self, given: Json) -> Any:
        """The inverse of `entry_to_json`."""
        values = given if self.bare else [given[name] for name in self.names]
        read = [cell.from_json(each) for cell, each in zip(self.cells, values, strict=False)]
        return self.make(*read, *values[len(read) :])


class Columns(Records):
    """A list of pairs whose first and second halves are two lists."""

    def __init__(self, kind: str, cells: dict[str, Fixed], most: int, what: str) -> None:
        super().__init__(kind, cells, most, what, _pair, _pair_of, bare=True)

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """Pair by pair."""
        return super().write(tuple(zip(*value, strict=True)))

    def read(self, reader: Reader, count: int) -> Any:
        """The two lists."""
        return _halves(super().read(reader, count))

    def to_json(self, value: Any) -> Json:
        """Pair by pair."""
        return super().to_json(tuple(zip(*value, strict=True)))

    def from_json(self, given: Json) -> Any:
        """The two lists."""
        return _halves(super().from_json(given))


def _pair(*values: Any) -> tuple[Any, ...]:
    return values


def _pair_of(entry: Any) -> tuple[Any, ...]:
    return tuple(entry)


def _halves(pairs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(zip(*pairs, strict=True)) if pairs else ((), ())


class HeaderFields(Varying):
    """Names and values of at most *most* header fields, of *size* bytes with their lengths."""

    def __init__(self, most: int, size: int) -> None:
        super().__init__("u16", "name string, value string", most, "header fields")
        self.size = size

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """All in one part. Their value has refused what is too long."""
        texts = (part for pair in value for part in pair)
        return len(value), [b"".join(struct.pack(">H", len(each)) + each for each in texts)]

    def read(self, reader: Reader, count: int) -> Any:
        """Pairs. Raises `LimitExceeded` before it reads what is too long."""
        room, texts = self.size, []
        for _ in range(2 * count):
            size = reader.u16()
            room -= 2 + size
            if room < 0:
                raise LimitExceeded(f"too long {self.what}; the limit is {self.size} bytes")
            texts.append(reader.fixed(size))
        return tuple(zip(texts[::2], texts[1::2], strict=True))

    def to_json(self, value: Any) -> Json:
        """Objects."""
        return [{"name": name.hex(), "value": each.hex()} for name, each in value]

    def from_json(self, given: Json) -> Any:
        """Pairs."""
        texts = ((each["name"], each["value"]) for each in given)
        return tuple((bytes.fromhex(name), bytes.fromhex(value)) for name, value in texts)


class Optional(Records):
    """One entry, or none: the count is a boolean."""

    def check(self, count: int) -> None:
        """Raises `RemoteProtocolError` for any count but 0 and 1."""
        FLAG.read(count)

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """Nothing for None."""
        return (0, []) if value is None else super().write((value,))

    def read(self, reader: Reader, count: int) -> Any:
        """The entry, or None."""
        return self._read(reader) if count else None

    def to_json(self, value: Any) -> Json:
        """Null for None."""
        return None if value is None else self.entry_to_json(value)

    def from_json(self, given: Json) -> Any:
        """The entry, or None."""
        return None if given is None else self.entry_from_json(given)


class Sequences(Records):
    """Lists of numbers, one after the other, with a mark on the last number of each."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__("u16", {"token": U32, "last": FLAG}, most, what, _pair, _pair_of)

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """Number by number."""
        return super().write(_marked(value))

    def read(self, reader: Reader, count: int) -> Any:
        """Raises `RemoteProtocolError` if the last list has no end."""
        return _unmarked(super().read(reader, count))

    def to_json(self, value: Any) -> Json:
        """Number by number."""
        return super().to_json(_marked(value))

    def from_json(self, given: Json) -> Any:
        """The lists."""
        return _unmarked(super().from_json(given))


def _marked(sequences: Any) -> tuple[tuple[int, bool], ...]:
    return tuple((each, at == len(ids)) for ids in sequences for at, each in enumerate(ids, 1))


def _unmarked(marked: tuple[tuple[int, bool], ...]) -> tuple[tuple[int, ...], ...]:
    sequences: list[list[int]] = [[]]
    for each, last in marked:
        sequences[-1].append(each)
        if last:
            sequences.append([])
    if sequences[-1]:
        raise RemoteProtocolError("the last sequence has no end")
    return tuple(map(tuple, sequences[:-1]))


class Hosts(Varying):
    """Addresses with their ports."""

    def __init__(self) -> None:
        super().__init__("u16", "host text, port u16", MAX_WORLD, "hosts")

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """All in one part."""
        parts = (text(host, MAX_ADDRESS) + struct.pack(">H", port) for host, port in value)
        return len(value), [b"".join(parts)]

    def read(self, reader: Reader, count: int) -> Any:
        """Pairs."""
        return tuple((reader.text(MAX_ADDRESS), reader.u16()) for _ in range(count))

    def to_json(self, value: Any) -> Json:
        """Objects."""
        return [{"host": host, "port": port} for host, port in value]

    def from_json(self, given: Json) -> Any:
        """Pairs."""
        return tuple((each["host"], each["port"]) for each in given)


# A tensor on the wire has a small header, which determines the length of the data after it:
#
#     dtype u8 · sealed u8 · dimensions u8 · zero u8 · counter u64 · shape u32 each · data
#
# The data is row-major and little-endian, as every machine that computes stores it. Its length is
# not sent, because it follows from the dtype, the shape, and whether it is sealed with a tag.

_TENSOR: Final = layout("TENSOR")
_SHAPES: Final = [struct.Struct(f">{n}I") for n in range(MAX_DIMENSIONS + 1)]
_HEADS: Final = [struct.Struct(f">BBBBQ{n}I") for n in range(MAX_DIMENSIONS + 1)]
_DTYPES: Final = {int(dtype): dtype for dtype in DType}


def encode_tensor(tensor: Tensor) -> list[Buffer]:
    """The header, and the data uncopied. Raises `LocalProtocolError` if they contradict each
    other."""
    dtype, shape, data, sealed = tensor.dtype, tensor.shape, tensor.data, tensor.sealed
    expected = prod(shape) * dtype.width + AEAD_TAG * sealed
    if len(data) != expected:
        raise LocalProtocolError(
            f"a {dtype.name} tensor of shape {shape} takes {expected} bytes, not {len(data)}"
        )
    dimensions = len(shape)
    if dimensions > MAX_DIMENSIONS:
        raise LocalProtocolError(f"{dimensions} dimensions; the limit is {MAX_DIMENSIONS}")
    if tensor.counter and not sealed:
        raise LocalProtocolError("a plain tensor has no counter")
    return [_HEADS[dimensions].pack(dtype, sealed, dimensions, 0, tensor.counter, *shape), data]


def decode_tensor(reader: Reader) -> Tensor:
    """The next tensor; its data is a view of the reader's buffer. Raises `RemoteProtocolError` or
    `LimitExceeded`."""
    code, sealed, dimensions, zero, counter = reader.unpack(_TENSOR)
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise RemoteProtocolError(f"unknown dtype {code}")
    if dimensions > MAX_DIMENSIONS:
        raise LimitExceeded(f"{dimensions} dimensions; the limit is {MAX_DIMENSIONS}")
    if sealed > 1 or zero or (counter and not sealed):
        raise RemoteProtocolError("a tensor header has a field out of range")
    shape = reader.unpack(_SHAPES[dimensions])
    nbytes = prod(shape) * dtype.width
    if nbytes > MAX_SEALED_BODY:
        raise LimitExceeded(f"a tensor declares {nbytes} bytes")
    data = reader.view(nbytes + AEAD_TAG * sealed)
    return Tensor(dtype, shape, data, bool(sealed), counter)


class Tensors(Varying):
    """A few tensors; exactly two with *pair*."""

    def __init__(self, *, pair: bool = False) -> None:
        super().__init__("u8", "tensor", MAX_TENSORS, "tensors")
        self.pair = pair

    def check(self, count: int) -> None:
        """Raises `RemoteProtocolError` for one of a pair."""
        if self.pair and count != 2:
            raise RemoteProtocolError(f"{count} tensors in the place of two")
        super().check(count)

    def write(self, value: Any) -> tuple[int, list[Buffer]]:
        """Each tensor's data is a part of its own, uncopied."""
        return len(value), [part for tensor in value for part in encode_tensor(tensor)]

    def read(self, reader: Reader, count: int) -> Any:
        """Their data are views of the message."""
        return tuple(map(decode_tensor, repeat(reader, count)))

    def to_json(self, value: Any) -> Json:
        """Objects."""
        return [tensor_to_json(tensor) for tensor in value]

    def from_json(self, given: Json) -> Any:
        """A tuple of them."""
        return tuple(map(tensor_from_json, given))


def tensor_to_json(tensor: Tensor) -> dict[str, Json]:
    """A tensor field by field."""
    return {
        "dtype": int(tensor.dtype),
        "sealed": tensor.sealed,
        "counter": U64.to_json(tensor.counter),
        "shape": list(tensor.shape),
        "data": bytes(tensor.data).hex(),
    }


def tensor_from_json(f: dict[str, Json]) -> Tensor:
    """The inverse of `tensor_to_json`."""
    data = bytes.fromhex(f["data"])
    return Tensor(
        DTYPE.from_json(f["dtype"]), tuple(f["shape"]), data, f["sealed"], int(f["counter"])
    )


U8: Final = Fixed("u8")
U16: Final = Fixed("u16")
U32: Final = Fixed("u32")
U64: Final = Fixed("u64")
F64: Final = Fixed("f64")
FLAG: Final = Flag()
DTYPE: Final = Code(DType)

"""Every fixed-size part of what is no message in a sealed frame, field by field: frames, handshake,
rosters, tensors. Messages are in `encoding.SCHEMA`.

`FIELDS` alone defines how these bytes are laid out. The `struct` layouts of readers and writers are
made from it (`layout`), a test compares the specification's tables with it, and
``spec/sealring-1.json`` gives it to other runtimes. All numbers are big-endian, without padding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

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
    "RESP.claims": "id_R bytes 32, instance u64, serial u64, digest bytes 32",
    "FIN": "code u8",
    "FIN.claims": "id_I bytes 32, id_R bytes 32, instance u64, serial u64, digest bytes 32, "
    "purpose u8, roster u32",
    "ROSTER": "serial u64, issued_ms u64, expires_ms u64, policy u8, members u16",
    "ROSTER.member": "public_key bytes 65, trust u8, attestation bytes 32",
    "EVIDENCE": "version u8, kind u8, subject bytes 65, issued_ms u64, expires_ms u64, "
    "attester bytes 65, claims u32",
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

"""The key of a row's draw (section 11.4)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from spec.vectors.model import Vector, u64, valid

GIVEN: Final[Mapping[str, bytes]] = {}


def vectors() -> Iterator[Vector]:
    """Keys, each with one part of its input changed."""
    for name, seed, choice, position in [
        ("zero", 0, 0, 0),
        ("seed", 1, 0, 0),
        ("choice", 0, 1, 0),
        ("position", 0, 0, 1),
        ("largest", 2**64 - 1, 2**16 - 1, 2**64 - 1),
    ]:
        content = struct.pack(">QHQ", seed, choice, position)
        digest = hashlib.blake2b(content, digest_size=8, person=b"sealring/row").digest()
        given = {"seed": u64(seed), "choice": choice, "position": u64(position)}
        output = {"key": list(struct.unpack(">II", digest))}
        yield valid(f"sampling/{name}", "sampling-key", "SA-01", name, given, output)

"""What a vector is, and how a family of them becomes a file.

A vector says what goes in and what must come of it: an output, or the class of the failure and
the SHA-256 of all plaintext that was released before it. Byte strings are hex. Integers that may
pass 32 bits are decimal strings, since not every reader of JSON has them. A string ``@name``
stands for the entry *name* of the file's ``given``, so that a roster is not repeated in fifty
vectors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Final

import attrs
from sealring_protocol.codec.messages import FailureKind
from sealring_protocol.conformance.files import Json, replaced, u64
from sealring_protocol.errors import CloseCode

__all__ = ["FORGED", "LIMIT", "MALFORMED", "Json", "Vector", "refused", "to_text", "u64", "valid"]

MALFORMED: Final = CloseCode.PROTOCOL_ERROR
LIMIT: Final = CloseCode.LIMIT_EXCEEDED
FORGED: Final = CloseCode.AUTHENTICATION_FAILED


@attrs.frozen
class Vector:
    """One vector. *result* is ``valid`` or the class of the failure."""

    id: str
    kind: str
    requirements: tuple[str, ...]
    about: str
    input: Json
    output: Json
    result: str
    released: bytes = b""

    @property
    def faulty(self) -> bool:
        """It must be refused."""
        return self.result != VALID

    def to_json(self) -> Json:
        """The vector as its file has it."""
        told: Json = {
            "id": self.id,
            "kind": self.kind,
            "requirements": list(self.requirements),
            "about": self.about,
            "input": self.input,
            "result": self.result,
        }
        if self.output is not None:
            told["output"] = self.output
        if self.faulty:
            told["released"] = hashlib.sha256(self.released).hexdigest()
        return told


VALID: Final = "valid"


def valid(
    name: str, kind: str, requirements: str, about: str, given: Json, output: Json = None
) -> Vector:
    """A vector that must be taken. *requirements* are separated by spaces."""
    return Vector(name, kind, _ids(requirements), about, given, output, VALID)


def refused(
    name: str,
    kind: str,
    requirements: str,
    about: str,
    given: Json,
    why: CloseCode | FailureKind = MALFORMED,
    *,
    released: bytes = b"",
    output: Json = None,
) -> Vector:
    """A vector that must be refused as *why*, after *released* was given out. A ledger says what
    kind of failure its rank answers with; anything else, the class of a link's failure."""
    ids = _ids(requirements)
    return Vector(name, kind, ids, about, given, output, why.name, released)


def _ids(requirements: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(requirements.split()))


def to_text(vectors: Iterable[Vector], given: Mapping[str, bytes]) -> str:
    """The file of *vectors*, with the byte strings of *given* told once."""
    names = {data.hex(): f"@{name}" for name, data in given.items() if data}
    told = [replaced(vector.to_json(), names) for vector in vectors]
    file = {"given": {name: data.hex() for name, data in given.items()}, "vectors": told}
    return json.dumps(file, indent=1, ensure_ascii=True) + "\n"

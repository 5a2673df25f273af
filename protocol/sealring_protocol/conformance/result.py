"""What comes of running a vector, and how the parts of its input are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from sealring_protocol.codec.frame import Frame
from sealring_protocol.codec.messages import FailureKind
from sealring_protocol.conformance.answers import VALID, Answer, compare
from sealring_protocol.conformance.ends import Given
from sealring_protocol.errors import SealringError, wire_code


@attrs.define
class Result:
    """What came of a vector."""

    output: Any = None
    released: bytes = b""
    error: SealringError | None = None
    answered: FailureKind | None = None
    """What a rank answers instead of failing the link."""

    def compare(self, vector: Given) -> None:
        """Raise `Mismatch` unless this is what *vector* says."""
        compare(self.answer(), vector)

    def answer(self) -> Answer:
        """It as an answer to the vector."""
        result, why = VALID, ""
        if self.error is not None:
            result, why = (self.answered or wire_code(self.error)).name, str(self.error)
        return Answer(result, self.output, hashlib.sha256(self.released).hexdigest(), why)


Kinds = Mapping[str, Callable[[Given, Result], None]]
"""How each kind of vector is run: from its input to what came of it."""


def raw(value: str) -> bytes:
    """The bytes of a hex string."""
    return bytes.fromhex(value)


def plaintext(given: Given) -> bytes:
    """The plaintext of a message, with the zeros that follow it, if any."""
    return raw(given["plaintext"]) + bytes(given.get("zeros", 0))


def frame(data: bytes) -> Frame:
    """*data* as one frame."""
    return Frame(data[1], data[:8], data[8:])

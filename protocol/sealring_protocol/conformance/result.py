"""The result of running a vector, and helpers that read its input."""

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
    """The result of running a vector."""

    output: Any = None
    released: bytes = b""
    error: SealringError | None = None
    answered: FailureKind | None = None
    """The failure that a rank answers with instead of closing the link."""

    def compare(self, vector: Given) -> None:
        """Raise `Mismatch` unless this is the expected result of *vector*."""
        compare(self.answer(), vector)

    def answer(self) -> Answer:
        """The result as an answer to the vector."""
        result, why = VALID, ""
        if self.error is not None:
            result, why = (self.answered or wire_code(self.error)).name, str(self.error)
        return Answer(result, self.output, hashlib.sha256(self.released).hexdigest(), why)


Kinds = Mapping[str, Callable[[Given, Result], None]]
"""By kind: runs a vector's input, and records the result."""


def raw(value: str) -> bytes:
    """The bytes of a hex string."""
    return bytes.fromhex(value)


def plaintext(given: Given) -> bytes:
    """The plaintext of a message, with its trailing zeros, if any."""
    return raw(given["plaintext"]) + bytes(given.get("zeros", 0))


def frame(data: bytes) -> Frame:
    """*data* as one frame."""
    return Frame(data[1], data[:8], data[8:])

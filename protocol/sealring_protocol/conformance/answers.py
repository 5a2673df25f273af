"""The answers of an implementation to the vectors, and their comparison with the expected results.

An implementation in any language can be asked. A question is a line of JSON with a vector's ``id``,
``kind`` and ``input``. Its answer is a line of JSON with

``id``        the vector's
``result``    ``valid``, or the name of the failure's class
``output``    the output, if the vector's kind has one
``released``  the SHA-256 of all plaintext released before a failure; absent if there was none
``why``       the failure in words, for the report
``skip``      instead of all but the id: why the implementation does not support this

spec/vectors/README.md defines the input and the expected output of each kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from sealring_protocol.conformance.ends import Mismatch, must
from sealring_protocol.conformance.files import Json, NoVectors

VALID: Final = "valid"
SKIPPED: Final = ""
_NOTHING: Final = hashlib.sha256().hexdigest()


@attrs.frozen
class Answer:
    """The result of one vector."""

    result: str
    output: Json = None
    released: str = _NOTHING
    why: str = ""
    skip: str = ""


def compare(answer: Answer, vector: Mapping[str, Any]) -> None:
    """Raise `Mismatch` unless *answer* is the expected result of *vector*."""
    if vector["result"] == VALID:
        must(answer.result == VALID, f"it was refused: {answer.why or answer.result}")
    elif answer.result == VALID:
        raise Mismatch("it was taken")
    else:
        must(answer.result == vector["result"], f"it was refused as {answer.result}: {answer.why}")
        must(answer.released == vector["released"], "other plaintext was given out before")
    if "output" in vector:
        must(answer.output == vector["output"], "something else came of it")


def questions(families: Mapping[str, Iterable[Json]]) -> Iterator[str]:
    """One line of JSON for each vector of *families*, without a line end."""
    for vectors in families.values():
        for vector in vectors:
            yield json.dumps({name: vector[name] for name in ("id", "kind", "input")})


def read_answers(lines: Iterable[str]) -> dict[str, Answer]:
    """The answers in *lines*, by the vector's id. Raises `NoVectors` for a malformed or repeated
    answer."""
    answers: dict[str, Answer] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                name, answer = _read(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise NoVectors(
                    f"line {number} of the answers is none: {error}",
                    'An answer is like {"id": "frame/one", "result": "valid", "output": {...}}.',
                ) from None
            if name in answers:
                raise NoVectors(f"line {number} answers {name} again", "Answer each vector once.")
            answers[name] = answer
    return answers


def _read(line: str) -> tuple[str, Answer]:
    said = json.loads(line)
    name = str(said.pop("id"))
    return name, Answer(**({"result": SKIPPED, **said} if said.keys() == {"skip"} else said))

"""Byte strings of the conformance vectors, which every corpus begins with."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sealring_protocol.conformance.files import resolved

import spec.vectors

HERE = Path(spec.vectors.__file__).parent


@functools.cache
def _family(name: str) -> tuple[Any, ...]:
    return tuple(resolved(json.loads((HERE / f"{name}.json").read_text(encoding="ascii"))))


def field(family: str, *names: str) -> Iterator[bytes]:
    """The byte string under *names* in every vector of *family* that has it."""
    for vector in _family(family):
        value: Any = vector
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str):
            yield bytes.fromhex(value)


def vectors(family: str) -> tuple[Any, ...]:
    """Every vector of *family*."""
    return _family(family)

"""The vectors as their files have them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from sealring_protocol.conformance.files import SCHEMA as SCHEMA_NAME
from sealring_protocol.conformance.files import load

import spec.vectors.generate

VECTORS = Path(spec.vectors.generate.__file__).parent
SCHEMA = VECTORS / SCHEMA_NAME
SPEC = VECTORS.parent / "sealring-1.md"


def family(name: str) -> Any:
    """The file of a family."""
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="ascii"))


@functools.cache
def every() -> dict[str, dict[str, Any]]:
    """Every vector by its id, byte strings in full."""
    vectors = [vector for each in load(VECTORS).values() for vector in each]
    by_id = {each["id"]: each for each in vectors}
    assert len(by_id) == len(vectors), "two vectors have the same id"
    return by_id


def of_kinds(*kinds: str) -> list[dict[str, Any]]:
    """The vectors of *kinds*."""
    return [vector for vector in every().values() if vector["kind"] in kinds]

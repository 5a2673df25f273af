"""Vectors as their files have them: finding a folder of them, and reading it.

Byte strings that a family tells once stand in `given`; a string ``@name`` in a vector stands for
one of them, and is replaced when a file is read. The vectors are not part of any package: they are
in the repository, under ``spec/vectors``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sealring_trio.errors import UserError

Json = Any
"""What `json` reads and writes."""

FOLDER: Final = Path("spec", "vectors")
SCHEMA: Final = "schema.json"


def u64(value: int) -> str:
    """An integer that may pass 32 bits."""
    return str(value)


def replaced(value: Json, names: Mapping[str, str]) -> Json:
    """*value* with every string that *names* has replaced, however deep."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [replaced(item, names) for item in value]
    if isinstance(value, dict):
        return {key: replaced(item, names) for key, item in value.items()}
    return value


def resolved(file: Json) -> list[Json]:
    """The vectors of a file, every ``@name`` replaced by what it stands for."""
    names = {f"@{name}": data for name, data in file["given"].items()}
    return [replaced(vector, names) for vector in file["vectors"]]


def find_folder(given: Path | None = None) -> Path:
    """The folder *given*, or that of the repository which holds the working folder or this code.

    Raises `UserError` when there is none.
    """
    if given is not None:
        if not given.is_dir():
            raise UserError(f"{given} is not a folder", "Name the folder that holds the vectors.")
        return given
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for base in (start, *start.parents):
            if (base / FOLDER / SCHEMA).is_file():
                return base / FOLDER
    raise UserError(
        "the vectors are not here: they are in the repository, not in the package",
        f"Run this in a clone of the repository, or name its {FOLDER}.",
    )


def load(folder: Path) -> dict[str, list[Json]]:
    """The vectors of every family in *folder*. Raises `UserError`."""
    paths = [path for path in sorted(folder.glob("*.json")) if path.name != SCHEMA]
    if not paths:
        raise UserError(f"{folder} holds no vectors", "Name the folder that has frames.json.")
    return {path.stem: _family(path) for path in paths}


def _family(path: Path) -> list[Json]:
    try:
        vectors = resolved(json.loads(path.read_text(encoding="ascii")))
        for vector in vectors:
            if not {"id", "kind", "input", "result"} <= vector.keys():
                raise KeyError("a vector lacks one of id, kind, input, result")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is no file of vectors: {error}",
            f"It must follow {SCHEMA}; take it from the repository again.",
        ) from None
    return vectors

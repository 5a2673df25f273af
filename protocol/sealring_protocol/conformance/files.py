"""The files of the vectors: finding their folder, and reading them.

A family's shared byte strings are in `given`. A string ``@name`` in a vector refers to one of them,
and is replaced when the file is read. The repository has the vectors under ``spec/vectors``; an
installed package has them beside this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Json = Any
"""Any value that `json` reads and writes."""

FOLDER: Final = Path("spec", "vectors")
PACKAGED: Final = Path(__file__).parent / "vectors"
SCHEMA: Final = "schema.json"


class NoVectors(Exception):
    """No vectors can be read there. *advice* says what to do."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.advice = advice


def u64(value: int) -> str:
    """An integer that may exceed 32 bits, as a decimal string."""
    return str(value)


def replaced(value: Json, names: Mapping[str, str]) -> Json:
    """*value* with every string in *names* replaced, at any depth."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [replaced(item, names) for item in value]
    if isinstance(value, dict):
        return {key: replaced(item, names) for key, item in value.items()}
    return value


def resolved(file: Json) -> list[Json]:
    """The vectors of a file, with every ``@name`` replaced."""
    names = {f"@{name}": data for name, data in file["given"].items()}
    return [replaced(vector, names) for vector in file["vectors"]]


def find_folder() -> Path:
    """The folder of the vectors: in the repository around the working folder or this code, else in
    the package.

    Raises `NoVectors` if there is none.
    """
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for base in (start, *start.parents):
            if (base / FOLDER / SCHEMA).is_file():
                return base / FOLDER
    if (PACKAGED / SCHEMA).is_file():
        return PACKAGED
    raise NoVectors(
        "the vectors are neither here nor in the package",
        f"Install sealring-protocol again, or name the {FOLDER} of a clone of the repository.",
    )


def load(*places: Path) -> dict[str, list[Json]]:
    """The vectors of every family in *places*, which are folders or files of one family each.

    Raises `NoVectors`.
    """
    families: dict[str, list[Json]] = {}
    for path in (path for place in places for path in _files(place)):
        if path.stem in families:
            raise NoVectors(f"{path} is a second file of the family {path.stem}", "Name one.")
        families[path.stem] = _family(path)
    return families


def chosen(families: dict[str, list[Json]], names: Sequence[str]) -> dict[str, list[Json]]:
    """The *families* with the given *names*, or all if there are no names. Raises `NoVectors` for
    an unknown name."""
    unknown = sorted(set(names) - families.keys())
    if unknown:
        raise NoVectors(f"no family {', '.join(unknown)}", f"There are: {', '.join(families)}.")
    return {name: vectors for name, vectors in families.items() if not names or name in names}


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise NoVectors(f"{place} is not a folder", "Name the folder that holds the vectors.")
    paths = [path for path in sorted(place.glob("*.json")) if path.name != SCHEMA]
    if not paths:
        raise NoVectors(f"{place} holds no vectors", "Name the folder that has frames.json.")
    return paths


def _family(path: Path) -> list[Json]:
    try:
        vectors = resolved(json.loads(path.read_text(encoding="ascii")))
        for vector in vectors:
            if not {"id", "kind", "input", "result"} <= vector.keys():
                raise KeyError("a vector lacks one of id, kind, input, result")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoVectors(
            f"{path} is no file of vectors: {error}",
            f"It must follow {SCHEMA}; take it from the package or the repository again.",
        ) from None
    return vectors

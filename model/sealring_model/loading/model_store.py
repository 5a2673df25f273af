"""Where models from the hub are kept: a folder for each model and commit.

    STORE/OWNER--NAME/COMMIT        the model (`partial_model`)
    STORE/OWNER--NAME/refs/main     the commit that "main" was when this machine first asked

STORE is ``$SEALRING_MODELS``, or ``sealring/models`` in the user's cache folder. Rank and node find
the same commit on every start, since the hub is not asked again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sealring_model.errors import LoadError
from sealring_model.loading.weights import open_file, write_whole

VARIABLE: Final = "SEALRING_MODELS"
_REFS: Final = "refs"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")


def store() -> Path:
    """The folder of all models. It may not exist."""
    if named := os.environ.get(VARIABLE, ""):
        return Path(named).expanduser().absolute()
    home = os.environ.get("HOME", "") or "~"
    default = "Library/Caches" if sys.platform == "darwin" else ".cache"
    cache = os.environ.get("XDG_CACHE_HOME", "") or str(Path(home, default))
    return Path(cache, "sealring", "models").expanduser().absolute()


def split_id(model: str) -> tuple[str, str]:
    """The hub id and the revision of *model*, "owner/name" or "owner/name@revision". Without one
    it is "main".

    Raises `LoadError` if it is none.
    """
    name, at, revision = model.partition("@")
    parts = name.split("/")
    if len(parts) != 2 or not all(_PART.fullmatch(p) and ".." not in p for p in parts):
        raise LoadError(f"there is no folder {model}, and it is no hub id (owner/name)")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise LoadError(f"{revision!r} cannot be a revision of {name}")
    return name, revision if at else "main"


def folder_of(model: str, commit: str) -> Path:
    """Where the hub's *model* is kept, as it is at *commit*."""
    return _folder(model) / commit


def known_commit(model: str, revision: str) -> str | None:
    """The commit that *revision* of *model* was when this machine asked; None if it never did."""
    if _COMMIT.fullmatch(revision):
        return revision
    return _read_ref(_ref(model, revision))


def remember_commit(model: str, revision: str, commit: str) -> None:
    """Keep that *revision* of *model* is *commit*. Raises `OSError` if it cannot be kept."""
    if _read_ref(_ref(model, revision)) == commit:
        return  # the disk may be full
    write_whole(_ref(model, revision), commit.encode("ascii") + b"\n")


def stored_models() -> Iterator[tuple[str, Path]]:
    """Every model in the store: its hub id and folder, sorted."""
    for model in sorted(store().glob("*--*")):
        for folder in inside(model):
            if _COMMIT.fullmatch(folder.name) and folder.is_dir():
                yield model.name.replace("--", "/", 1), folder


def refs_of(folder: Path) -> list[str]:
    """The revisions whose commit is that of the stored model in *folder*."""
    refs = inside(folder.parent / _REFS)
    return [ref.name.replace("--", "/") for ref in refs if _read_ref(ref) == folder.name]


def inside(folder: Path) -> list[Path]:
    """What is in *folder*, sorted; nothing if it cannot be looked into."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def stored_name(folder: Path) -> str | None:
    """The hub id of the model in *folder*, if that is of the store."""
    if _COMMIT.fullmatch(folder.name) and folder.parents[1] == store().resolve():
        return folder.parent.name.replace("--", "/", 1)
    return None


def _read_ref(file: Path) -> str | None:
    try:
        with open_file(file) as stream:
            found = stream.read(64).decode("ascii").strip()
    except (LoadError, OSError, ValueError):
        return None
    return found if _COMMIT.fullmatch(found) else None


def _folder(model: str) -> Path:
    return store() / model.replace("/", "--")


def _ref(model: str, revision: str) -> Path:
    return _folder(model) / _REFS / revision.replace("/", "--")

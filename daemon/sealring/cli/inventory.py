"""Which models are on this machine: in the store, in the hub's cache, and the one that ships."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import attrs
from sealring_model import tiny
from sealring_model.errors import LoadError
from sealring_model.loading import model_store
from sealring_model.loading.model_folder import ModelInfo, describe
from sealring_model.loading.partial_model import PartialModel
from sealring_model.loading.weights import ENDS, owner

Place = Literal["store", "hub cache", "shipped"]


@attrs.frozen
class FoundModel:
    """One model. Sizes are bytes: *disk* is what it takes, *size* what all its weights are.

    *layers* are the ranges (last excluded) whose weights are here, and *ends* says whether
    embedding, norm and output head are. *trouble* says why it cannot be used, or
    not be fetched; else it is "".
    """

    name: str
    revision: str
    commit: str
    place: Place
    folder: Path
    disk: int
    size: int
    count: int
    layers: tuple[tuple[int, int], ...]
    ends: bool
    trouble: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether a rank could have any layers of it."""
        return not self.trouble and self.ends and self.layers == ((0, self.count),)


def found_models() -> Iterator[FoundModel]:
    """Every model of this machine that has a name."""
    yield _found("tiny", "", "", "shipped", tiny.path())
    for name, folder in model_store.stored_models():
        refs = ", ".join(model_store.refs_of(folder))
        yield _found(name, refs, folder.name, "store", folder)
    yield from _cached()


def _cached() -> Iterator[FoundModel]:
    """Those in the hub's cache."""
    from huggingface_hub import scan_cache_dir  # noqa: PLC0415 - 0.2 s
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415

    try:
        cache = scan_cache_dir()
    except (CacheNotFound, ValueError, OSError):  # it is not there, no folder, or another's
        return
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        for found in repo.revisions if repo.repo_type == "model" else ():
            refs = ", ".join(sorted(found.refs))
            folder = Path(found.snapshot_path)
            if any(folder.glob("model*.safetensors")):
                yield _found(repo.repo_id, refs, found.commit_hash, "hub cache", folder)


def _found(name: str, revision: str, commit: str, place: Place, folder: Path) -> FoundModel:
    disk = _disk(folder)
    try:
        info = describe(folder)
        partial = PartialModel.open(folder)
        layers, ends = _here(info, partial)
    except LoadError as error:
        return FoundModel(
            name, revision, commit, place, folder, disk, 0, 0, (), ends=False, trouble=str(error)
        )
    fault = partial.fault if partial is not None else None
    size = sum(entry.size for entry in info.entries.values())
    trouble = f"fetching stopped: {fault.text}" if fault is not None and fault.permanent else ""
    count = len(info.layers)
    return FoundModel(
        name, revision, commit, place, folder, disk, size, count, layers, ends, trouble
    )


def _here(
    info: ModelInfo, partial: PartialModel | None
) -> tuple[tuple[tuple[int, int], ...], bool]:
    """The layers whose weights are here, as ranges, and whether the ends are."""
    count = len(info.layers)
    missing = partial.missing(info.entries) if partial is not None else []
    lacking = {owner(name, count) for name in missing}
    bounds = [-1, *sorted(layer for layer in lacking if layer >= 0), count]
    ranges = tuple((one + 1, other) for one, other in pairwise(bounds) if one + 1 < other)
    return ranges, ENDS not in lacking


def _disk(folder: Path) -> int:
    """Bytes of disk that *folder* takes; holes take none, and links what they lead to."""
    return sum(512 * f.stat().st_blocks for f in model_store.inside(folder) if f.is_file())

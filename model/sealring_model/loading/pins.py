"""Short hashes that tell the weights of one model from those of another with the same headers.

The model digest covers names, types and shapes, and so two fine-tunings of one model share it. A
pin is of what they differ in. It reads a sample of the weights, at most 64 pieces of 4 KiB of each
layer, so it takes a fraction of a second where hashing all would take as long as loading. Two
models of other weights have other pins unless all that differs lies outside of the sample; a
manifest (see `weights`) has no such gap.

Format: the specification, 8.15.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.partial_model import PartialModel
from sealring_model.loading.weights import ENDS, TensorEntry, open_file, owner

_Thing = TypeVar("_Thing")

_PIECE: Final = 4096
_PIECES: Final = 64
"""Pieces of one part, at most."""

_OF_TENSOR: Final = 4
"""Pieces of one tensor, at most."""

_ZEROS: Final = 0.3
"""The share of a layer's matrices that may be zeros. A layer that was added to a model and is not
trained yet (LLaMA Pro) has two of seven; of a file that was not fetched whole it is half or all."""

_NUMBER: Final = re.compile("[0-9]+")
"""Tensors whose names differ in numbers alone are of one kind, as those of experts are."""

_SHA256: Final = re.compile("[0-9a-f]{64}")


def pins_of(info: ModelInfo) -> tuple[int, ...]:
    """The pins of *info*'s model: of its files, its ends, and each layer. A pin is 0 if it cannot
    be told: of a model that is here in part, those of other layers, unless its source told them.

    Raises `LoadError` if a file cannot be read.
    """
    count = len(info.layers)
    partial = PartialModel.open(info.folder)
    parts: dict[int, list[TensorEntry]] = {part: [] for part in (ENDS, *range(count))}
    for name in sorted(info.entries):
        parts.get(owner(name, count), []).append(info.entries[name])
    if partial is None:
        files = _files_pin(info.hub_hashes)
        return files, *(_part_pin(found, info) for found in parts.values())
    files = _files_pin({name: file.sha256 for name, file in partial.origin.files.items()})
    told = partial.origin.pins if len(partial.origin.pins) == count + 2 else (0,) * (count + 2)
    here = (not partial.missing([entry.name for entry in found]) for found in parts.values())
    return files or told[0], *(
        _part_pin(found, info) if complete else pin
        for found, complete, pin in zip(parts.values(), here, told[1:], strict=True)
    )


def _files_pin(hashes: Mapping[str, str]) -> int:
    """The pin of the SHA-256 of each file; 0 if one is not known."""
    if not all(map(_SHA256.fullmatch, hashes.values())):
        return 0
    lines = (f"{name} {hashes[name]}\n".encode() for name in sorted(hashes))
    return _pin([b"sealring files 1\n", *lines])


def _part_pin(entries: Sequence[TensorEntry], info: ModelInfo) -> int:
    """The pin of the sample of *entries*, which are ordered by name. Raises `LoadError` if too many
    matrices are zeros in all of their sample, unless the user vouches for the weights."""
    chosen = _chosen(entries)
    content = [b"sealring sample 1\n"]
    matrices, zeros = 0, []
    for entry in chosen:
        count = max(1, min(_OF_TENSOR, _PIECES // len(chosen)))
        content.append(f"{entry.name}\n".encode())
        pieces = list(_read(entry, _places(entry.size, count)))
        content += pieces
        if len(entry.shape) > 1 and entry.size:
            matrices += 1
            if not any(piece.strip(b"\0") for piece in pieces):
                zeros.append(entry)
    if len(zeros) > _ZEROS * matrices and not info.trusted:
        first = zeros[0]
        raise LoadError(
            f"{first.name} in {first.file} is nothing but zeros, and so are {len(zeros)} of "
            f"{matrices} matrices of its layer: a part of the file is missing",
            f"fetch {first.file.name} again, or say trust_weights = true if it is so on purpose",
        )
    return _pin(content)


def _chosen(entries: Sequence[TensorEntry]) -> Sequence[TensorEntry]:
    """*entries*, or if they are many equally many of each kind: the weights of attention, which a
    fine-tuning changes, are few beside those of experts."""
    if len(entries) <= _PIECES:
        return entries
    kinds: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        kinds.setdefault(_NUMBER.sub("0", entry.name), []).append(entry)
    some = _spread([kinds[kind] for kind in sorted(kinds)], _PIECES)
    each = _PIECES // len(some)
    found = [entry for alike in some for entry in _spread(alike, each)]
    return sorted(found, key=lambda entry: entry.name)


def _spread(things: Sequence[_Thing], most: int) -> Sequence[_Thing]:
    """*things*, or *most* of them in even steps."""
    count = len(things)
    return things if count <= most else [things[at * count // most] for at in range(most)]


def _places(size: int, count: int) -> list[int]:
    """Where *count* pieces of a tensor of *size* bytes begin: evenly from its first byte to its
    last, or one piece if it has no more."""
    last = max(0, size - _PIECE)
    if count == 1 or not last:
        return [0]
    return [at * last // (count - 1) for at in range(count)]


def _read(entry: TensorEntry, places: Iterable[int]) -> Iterable[bytes]:
    with open_file(entry.file) as stream:
        for place in places:
            size = min(_PIECE, entry.size - place)
            try:
                piece = os.pread(stream.fileno(), size, entry.offset + place)
            except OSError as error:
                raise LoadError(f"cannot read {entry.file}: {error.strerror}") from None
            if len(piece) < size:
                raise LoadError(f"{entry.file} ends within tensor {entry.name}")
            yield piece


def _pin(content: Iterable[bytes]) -> int:
    """The first 8 bytes of the SHA-256 of *content*, as a number that is not 0."""
    hashed = hashlib.sha256()
    for part in content:
        hashed.update(part)
    return int.from_bytes(hashed.digest()[:8]) or 1

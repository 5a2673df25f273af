"""Safetensors on disk: headers, which layer a tensor belongs to, and the manifest.

A checkpoint is a folder of ``model*.safetensors`` files. Their headers give every tensor's name,
dtype, shape and place without reading any data, and the names say which layer a tensor belongs to.

The manifest is ``sealring.json`` in the model's folder: ``{"version": 1, "tensors": {name:
SHA-256 of the tensor's data, in hexadecimal}}``. Dtypes and shapes are pinned by the model digest,
which covers the headers.

Format: https://huggingface.co/docs/safetensors (8 bytes of little-endian header length, a JSON
header, then the data).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs

from sealring_model.errors import LoadError
from sealring_model.loading.foreign_json import (
    HEADER,
    HEADERS,
    ForeignFault,
    bound_of,
    check_foreign,
    parse_foreign,
    values_in,
)

MANIFEST: Final = "sealring.json"
INDEX: Final = "model.safetensors.index.json"
MAX_HEADER: Final = bound_of(HEADER)[0]
"""Bytes of a safetensors header, at most. The format's own limit is 100 MB."""

_MAX_DIMENSION: Final = 2**31 - 1
"""The largest that MLX supports."""

_MAX_DIMENSIONS: Final = 64
"""Dimensions of a tensor. To multiply millions of them takes hours."""

WIDTHS: Final = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
}
"""Bytes per element of the dtypes that MLX reads."""

_POINTER: Final = b"version https://git-lfs."
"""How a file begins that Git LFS has in place of a large one, which it has not fetched."""

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_FOREIGN: Final = re.compile(r"(?:^|\.)(?:vision|visual|audio|multi_modal|mtp|mm_)")
ENDS: Final = -1
FOREIGN: Final = -2
_PIECE: Final = 4 * 1024 * 1024
_SAMPLES: Final = 256
"""Tensors of two files that are compared, at most."""

_SAMPLE: Final = 4096
"""Bytes of each of them."""

_NAMED: Final = 3
"""Files that a fault names, at most."""


@attrs.frozen
class TensorEntry:
    """One tensor of a checkpoint: *size* bytes at *offset* of *file*."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    size: int


def owner(name: str, layers: int) -> int:
    """The layer that tensor *name* belongs to; `ENDS` for embedding, norm and head; `FOREIGN` for
    what a language model of *layers* layers does not use."""
    if _FOREIGN.search(name):
        return FOREIGN
    match = _LAYER.search(name)
    if match is None:
        return ENDS
    digits = match[1].lstrip("0") or "0"
    known = len(digits) <= len(str(layers)) and int(digits) < layers
    return int(digits) if known else FOREIGN


def tensors_of(names: Iterable[str], layers: int, first: int, last: int) -> dict[int, list[str]]:
    """Of the tensors *names* of a model of *layers* layers, those that the rank with the layers
    *first* to *last* (excluded) reads: by layer, and those of `ENDS` if *first* is 0."""
    found: dict[int, list[str]] = {layer: [] for layer in range(first, last)}
    if first == 0:
        found[ENDS] = []
    for name in names:
        found.get(owner(name, layers), []).append(name)
    return found


def read_entries(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of the checkpoint in *folder*, by name, from the headers alone.

    Raises `LoadError` if there are no weights, some are missing or there twice, or a header does
    not fit its file.
    """
    return read_weights(folder)[0]


def read_weights(folder: Path) -> tuple[dict[str, TensorEntry], list[str]]:
    """As `read_entries`, and what is odd about the files, in words for people."""
    files = sorted(folder.glob("model*.safetensors"))
    places = _read_index(folder)
    found: dict[str, TensorEntry] = {}
    twice: dict[tuple[Path, Path], list[tuple[TensorEntry, TensorEntry]]] = {}
    size, values = bound_of(HEADERS)
    for file in files:
        text = _read_header(file)
        size, values = size - len(text), values - values_in(text)
        if size < 0 or values < 0:
            raise LoadError(f"the headers of the weights in {folder} have too many values")
        for entry in _entries(file, text):
            other = found.setdefault(entry.name, entry)
            if other is not entry:
                twice.setdefault((other.file, file), []).append((other, entry))
    if clashes := [pairs[0] for pairs in twice.values() if not _are_alike(pairs)]:
        raise _given_twice(clashes, set(places.values()))
    notes = [
        f"{second.name} has the same tensors as {first.name}; one of them can go"
        for first, second in twice
    ]
    if missing := _missing(places, {file.name for file in files}, found):
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise LoadError(
            f"the model in {folder} is incomplete: {min(missing)}{more} missing, which {INDEX} "
            "names",
            "fetch it again",
        )
    if not files:
        raise LoadError(f"no model*.safetensors in {folder}")
    if stale := sorted(set(places.values()) - {file.name for file in files}):
        notes.append(f"{INDEX} names files that are not there, such as {stale[0]}, and is not used")
    return dict(sorted(found.items())), notes


def _read_index(folder: Path) -> dict[str, str]:
    index = folder / INDEX
    if not index.exists():
        return {}
    places = read_json(index).get("weight_map", {})
    if not isinstance(places, dict) or not all(isinstance(n, str) for n in places.values()):
        raise LoadError(f"{index} has no map of tensors to files")
    return places


def _missing(places: Mapping[str, str], present: set[str], found: Collection[str]) -> set[str]:
    """The files of the index that are missing. An index that names none of the files which are
    *present* is that of other files, and a file whose tensors are *found* elsewhere, or that a
    language model does not use, is not missed: mlx-lm loads what is there."""
    named = set(places.values())
    if named <= present or (present and not named & present):
        return set()
    lacking = {
        place for name, place in places.items() if name not in found and not _FOREIGN.search(name)
    }
    return lacking - present


def _are_alike(pairs: Sequence[tuple[TensorEntry, TensorEntry]]) -> bool:
    """Whether tensors that are in two files are the same, as far as a sample shows. Zeros show
    nothing: a file that is still fetched has them where its tensors are to come."""
    step = -(-len(pairs) // _SAMPLES)
    same = all((one.dtype, one.shape) == (other.dtype, other.shape) for one, other in pairs)
    pieces = [(_middle(one), _middle(other)) for one, other in pairs[::step]] if same else []
    return any(any(one) for one, _ in pieces) and all(one == other for one, other in pieces)


def _middle(entry: TensorEntry) -> bytes:
    size = min(_SAMPLE, entry.size)
    with open_file(entry.file) as stream:
        return os.pread(stream.fileno(), size, entry.offset + (entry.size - size) // 2)


def _given_twice(clashes: Sequence[tuple[TensorEntry, TensorEntry]], named: set[str]) -> LoadError:
    """What to say of tensors that are in two files each, with other values. *named* are the files
    of the index."""
    one, other = clashes[0]
    files = {entry.file.name for pair in clashes for entry in pair}
    kept = files & named if files - named else set()
    strays = sorted(files - (kept or {"model.safetensors"}))
    moved = "one of the two"
    if len(strays) < len(files):
        moved = ", ".join(strays[:_NAMED]) + (" and their like" if len(strays) > _NAMED else "")
    return LoadError(
        f"the weights are there twice: {one.name} is in {one.file.name} and in {other.file.name}, "
        "with other values, and mlx-lm would take the one or the other",
        f"move {moved} out of the folder, for every model*.safetensors in it counts",
    )


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in *file*. Raises `LoadError` if there is none."""
    text = _read_bounded(file)
    try:
        value = parse_foreign(file.name, text)
    except ForeignFault as error:
        raise LoadError(f"{file} cannot be used: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{file} does not hold a JSON object")
    return value


def check_json(file: Path) -> None:
    """Raise `LoadError` if *file*, which a library is to parse, has more than its kind may have."""
    try:
        check_foreign(file.name, _read_bounded(file))
    except ForeignFault as error:
        raise LoadError(f"{file} cannot be used: {error}") from None


def check_size(file: Path, most: int) -> None:
    """Raise `LoadError` if *file*, which a library is to read, is no file of *most* bytes."""
    with open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
    if size > most:
        raise LoadError(f"{file} cannot be used: it has {size:,} bytes, and {most:,} are the most")


def _read_bounded(file: Path) -> bytes:
    """What is in *file*, or one byte more than its kind may have. Raises `LoadError`."""
    with open_file(file) as stream:
        # As much as is asked for is allocated at once.
        size = os.fstat(stream.fileno()).st_size
        text = stream.read(min(size, bound_of(file.name)[0]) + 1)
    refuse_pointer(file, text)
    return text


def open_file(file: Path) -> BufferedReader:
    """*file*, open for reading. Raises `LoadError` if it cannot be read or is no regular file: a
    device has no end, and a pipe may never begin."""
    try:
        stream = open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")  # noqa: SIM115
    except OSError as error:
        raise LoadError(f"cannot read {file}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise LoadError(f"{file} is no regular file")
    return stream


def refuse_pointer(file: Path, start: bytes) -> None:
    """Raise `LoadError` if *file*, which begins with *start*, is what Git LFS has in its place."""
    if start.startswith(_POINTER):
        raise LoadError(
            f"{file} has not been fetched: it is a pointer of Git LFS; run `git lfs pull` in "
            f"{file.parent}"
        )


def _read_header(file: Path) -> bytes:
    with open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER + 1
        if start == _POINTER[:8]:
            refuse_pointer(file, start + stream.read(len(_POINTER)))
        if length > min(MAX_HEADER, size - 8):
            raise LoadError(f"{file} is no safetensors file, or is cut short")
        return stream.read(length)


def _entries(file: Path, text: bytes) -> list[TensorEntry]:
    size, base = file.stat().st_size, 8 + len(text)
    try:
        header = parse_foreign(HEADER, text)
        header.pop("__metadata__", None)
        found = [_entry(file, name, fields, base, size) for name, fields in header.items()]
    except ForeignFault as error:
        raise LoadError(f"the header of {file} cannot be used: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LoadError(f"the header of {file} is malformed") from None
    # Many large tensors in one place would be hashed one by one, and fetched for each other.
    found.sort(key=lambda entry: (entry.offset, entry.size))
    for one, other in pairwise(found):
        if one.offset + one.size > other.offset:
            raise LoadError(f"tensors {one.name} and {other.name} of {file} overlap")
    return found


def _entry(
    file: Path, name: str, fields: Mapping[str, Any], base: int, file_size: int
) -> TensorEntry:
    begin, end = fields["data_offsets"]
    shape = tuple(fields["shape"])
    dtype = fields["dtype"]
    places = type(begin) is int and type(end) is int
    if (
        len(shape) > _MAX_DIMENSIONS
        or not places
        or not all(type(n) is int and 0 <= n <= _MAX_DIMENSION for n in shape)
    ):
        raise LoadError(f"tensor {name} of {file} has a shape or a place that cannot be")
    if dtype not in WIDTHS:
        raise LoadError(f"tensor {name} has dtype {dtype}, which MLX does not read")
    size = WIDTHS[dtype]
    for n in shape:
        size *= n
    if end - begin != size or begin < 0:
        raise LoadError(f"tensor {name} of {file} does not fit its shape")
    if base + end > file_size:
        raise LoadError(f"{file} is cut short: tensor {name} goes beyond its end")
    return TensorEntry(name, dtype, shape, file, base + begin, size)


def read_manifest(folder: Path) -> dict[str, str] | None:
    """The hashes in the manifest in *folder*, by tensor; None if there is no manifest."""
    file = folder / MANIFEST
    if not file.exists():
        return None
    value = read_json(file)
    tensors = value.get("tensors")
    if value.get("version") != 1 or not isinstance(tensors, dict):
        raise LoadError(f"{file} is not a manifest of version 1")
    for name, digest in tensors.items():
        if not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
            raise LoadError(f"the manifest's hash of tensor {name} is malformed")
    return tensors


def write_manifest(folder: Path) -> Path:
    """Hash every tensor of the checkpoint in *folder*, and write its manifest. The manifest's
    path."""
    buffer = memoryview(bytearray(_PIECE))
    tensors = {name: hash_tensor(entry, buffer) for name, entry in read_entries(folder).items()}
    file = folder / MANIFEST
    text = json.dumps({"version": 1, "tensors": tensors}, indent=1)
    write_whole(file, text.encode("utf-8") + b"\n")
    return file


def write_whole(file: Path, content: bytes) -> None:
    """Write *content* to *file*, which appears whole or not at all. Raises `OSError`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # A new file of a random name: a link of a known name might lead out of the folder.
    handle, partial = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(handle, 0o644)
            os.fsync(handle)
        Path(partial).replace(file)
    except OSError:
        Path(partial).unlink(missing_ok=True)
        raise


def check_manifest(entries: Mapping[str, TensorEntry], manifest: Mapping[str, str]) -> None:
    """Raise `LoadError` if one of *entries* is not what the *manifest* says. Reads all of them."""
    buffer = memoryview(bytearray(_PIECE))
    for name, entry in entries.items():
        if hash_tensor(entry, buffer) != manifest.get(name):
            raise LoadError(f"tensor {name} does not match the manifest ({MANIFEST})")


def hash_tensor(entry: TensorEntry, buffer: memoryview) -> str:
    """The SHA-256 of *entry*'s data, in hexadecimal. Raises `LoadError` if the file ends too
    early."""
    content, remaining = hashlib.sha256(), entry.size
    with entry.file.open("rb", buffering=0) as stream:
        stream.seek(entry.offset)
        while remaining:
            count = stream.readinto(buffer[:remaining])
            if not count:
                raise LoadError(f"{entry.file} ends within tensor {entry.name}")
            content.update(buffer[:count])
            remaining -= count
    return content.hexdigest()


def header_lines(entries: Iterable[TensorEntry]) -> list[list[Any]]:
    """What the model digest covers of *entries*: name, dtype and shape of each, sorted by name."""
    return [[e.name, e.dtype, list(e.shape)] for e in sorted(entries, key=lambda e: e.name)]

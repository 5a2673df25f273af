"""Safetensors on disk: headers, ownership by layer, the manifest, and reading that counts.

A checkpoint is a folder of ``model*.safetensors`` files. Their headers give every tensor's name,
dtype, shape and place without reading any data, and the names say which layer a tensor belongs
to. A rank reads the byte ranges of its own tensors, each once, straight into the memory that MLX
will compute from, and hashes those very bytes when there is a manifest: what is verified is what
is used, whatever happens to the file in between.

The manifest is ``sealring.json`` in the model's folder: ``{"version": 1, "tensors": {name:
SHA-256 of the tensor's data, in hexadecimal}}``. Dtypes and shapes are pinned by the model
digest, which takes the headers in.

Format: https://huggingface.co/docs/safetensors (8 bytes of little-endian header length, a JSON
header, then the data).
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from sealring_model.errors import LoadError

MANIFEST: Final = "sealring.json"
MAX_HEADER: Final = 100 * 1024 * 1024
"""Bytes of a safetensors header; the format's own limit."""

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

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_FOREIGN: Final = re.compile(r"(?:^|\.)(?:vision|visual|audio|multi_modal|mtp|mm_)")
ENDS: Final = -1
FOREIGN: Final = -2
_PIECE: Final = 4 * 1024 * 1024


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
    """The layer that tensor *name* belongs to, `ENDS` for embedding, norm and head, or
    `FOREIGN` for what a language model of *layers* layers does not use."""
    if _FOREIGN.search(name):
        return FOREIGN
    match = _LAYER.search(name)
    if match is None:
        return ENDS
    layer = int(match[1])
    return layer if layer < layers else FOREIGN


def read_entries(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of the checkpoint in *folder*, by name, from the headers alone.

    Raises `LoadError` when there are no weights, a file of the index is missing, or a header
    does not fit its file.
    """
    files = sorted(folder.glob("model*.safetensors"))
    _check_index(folder, {file.name for file in files})
    if not files:
        raise LoadError(f"no model*.safetensors in {folder}")
    entries: dict[str, TensorEntry] = {}
    for file in files:
        for entry in _read_header(file):
            if entry.name in entries:
                raise LoadError(f"tensor {entry.name} is in two files of {folder}")
            entries[entry.name] = entry
    return dict(sorted(entries.items()))


def _check_index(folder: Path, present: set[str]) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    wanted = read_json(index).get("weight_map", {})
    missing = sorted(set(wanted.values()) - present)
    if missing:
        raise LoadError(f"the model in {folder} is incomplete: {missing[0]} is missing")


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in *file*. Raises `LoadError` when it is none."""
    try:
        value = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise LoadError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise LoadError(f"{file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{file} does not hold a JSON object")
    return value


def _read_header(file: Path) -> list[TensorEntry]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER + 1
        if length > min(MAX_HEADER, size - 8):
            raise LoadError(f"{file} is no safetensors file, or is cut short")
        text = stream.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return [_entry(file, name, fields, 8 + length, size) for name, fields in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LoadError(f"the header of {file} is malformed") from None


def _entry(
    file: Path, name: str, fields: Mapping[str, Any], base: int, file_size: int
) -> TensorEntry:
    begin, end = fields["data_offsets"]
    shape = tuple(int(n) for n in fields["shape"])
    dtype = fields["dtype"]
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
    """The hashes of the manifest in *folder*, by tensor, or None when there is none."""
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
    """Hash every tensor of the checkpoint in *folder* and write its manifest; its path."""
    tensors = {}
    buffer = memoryview(bytearray(_PIECE))
    for entry in read_entries(folder).values():
        content = hashlib.sha256()
        for piece in read_pieces(entry, buffer):
            content.update(piece)
        tensors[entry.name] = content.hexdigest()
    file = folder / MANIFEST
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"version": 1, "tensors": tensors}, indent=1) + "\n", "utf-8")
    partial.replace(file)
    return file


def read_pieces(entry: TensorEntry, memory: memoryview) -> Iterator[memoryview]:
    """Read *entry*'s data into *memory*, from its front again when it is full, and yield each
    piece while it is there. Raises `LoadError` if the file ends too early."""
    left, at = entry.size, 0
    with entry.file.open("rb", buffering=0) as stream:
        stream.seek(entry.offset)
        while left:
            piece = memory[at : at + min(left, _PIECE)]
            count = stream.readinto(piece)
            if not count:
                raise LoadError(f"{entry.file} ends within tensor {entry.name}")
            yield piece[:count]
            left -= count
            at = (at + count) % len(memory)


def header_lines(entries: Iterable[TensorEntry]) -> list[list[Any]]:
    """What the model digest says of *entries*: name, dtype and shape of each, by name."""
    return [[e.name, e.dtype, list(e.shape)] for e in sorted(entries, key=lambda e: e.name)]

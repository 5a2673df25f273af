"""Reads and verifies the tensors of one rank, layer by layer.

mlx-lm builds a model from arrays that are read when they are evaluated. `WeightReader.placeholders`
keeps those of this rank. Every other tensor becomes a placeholder that costs nothing, and that no
layer of this rank may depend on: its value is not a number, which the first run would show.

`WeightReader.read` then goes through the layers. It reads a layer's tensors, verifies them (it
hashes the memory that the weights are made from), evaluates what the model makes of them, one
parameter at a time, and lets the rest go. A tensor that is a parameter as it is goes as soon as it
has been copied, others once their layer is done. So a load never holds more than the rank's
weights, the tensors of one layer, and what comes between for one parameter.

Files of which the hub's hash is known are held to it meanwhile (`_held_to`). That hash is of a
whole file, and a rank reads the tensors of its own layers. So a rank hashes each file from which it
reads anything, in threads, while it reads. That costs about a second of a core for each GB, and
where two ranks share a file each reads all of it.

Of a model that is being fetched (`model_store`), nothing is read until all tensors of this rank
are here. What is read is then verified against the hashes of what came. A tensor that has changed
on the disk since is given up, and fetched again.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import hmac
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import mlx.core as mx
from mlx import nn
from sealring_protocol.words import STILL_FETCHED, part_here

from sealring_model.errors import LoadError, NotHereError, ReadError
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import open_file, owner, tensors_of
from sealring_model.stage.device import memory_of

_BUFFER: Final = 4 * 1024 * 1024

_THREADS: Final = 4
"""Threads, at most: a disk gives some 5 GB/s, and a core hashes one or two of them."""


class WeightReader:
    """Reads the tensors of layers *first* to *last* (excluded), and of the ends if *first* is 0.
    *bytes_read* is how much that was.

    Raises `NotHereError` if some of them have not been fetched yet, and `LoadError` if they cannot
    be.
    """

    def __init__(self, info: ModelInfo, first: int, last: int) -> None:
        self._info: Final = info
        self._owned: Final = tensors_of(info.entries, len(info.layers), first, last)
        self._partial: Final = PartialModel.open(info.folder)
        if self._partial is not None:
            check_here(self._partial, [name for names in self._owned.values() for name in names])
        self._unread: dict[str, mx.array] = {}
        self.bytes_read = 0

    def placeholders(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """*weights*, which are not evaluated, with a placeholder for each of another rank."""
        owned = {name for names in self._owned.values() for name in names}
        self._unread = {name: lazy for name, lazy in weights.items() if name in owned}
        return {**placeholders(weights), **self._unread}

    def read(self, model: nn.Module) -> None:
        """Read the weights of *model*, which was built from `placeholders`.

        Raises `LoadError` if a tensor does not match the manifest, or a file is not the hub's, and
        `ReadError` if a file ends too early.
        """
        with _held_to(self._expected()):
            self._read_all(model)

    def not_a_number(self) -> str:
        """The first tensor of this rank with a value that is not finite; empty if there is none.
        Reads all of them again."""
        entries = [self._info.entries[name] for names in self._owned.values() for name in names]
        for file in sorted({entry.file for entry in entries}):
            arrays: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
            for entry in entries:
                array = arrays.get(entry.name) if entry.file == file else None
                if array is None or not mx.issubdtype(array.dtype, mx.floating):
                    continue
                if not mx.isfinite(array).all().item():
                    return entry.name
        return ""

    def _expected(self) -> dict[Path, str]:
        """The hub's hash of each file of which something is read, where it is known. A manifest,
        and what was fetched, have a hash of each tensor instead."""
        info = self._info
        if info.trusted or info.manifest is not None or self._partial is not None:
            return {}
        files = {info.entries[name].file for names in self._owned.values() for name in names}
        return {file: info.hub_hashes[file.name] for file in files if info.hub_hashes[file.name]}

    def _read_all(self, model: nn.Module) -> None:
        modules: dict[int, list[nn.Module]] = {}
        for path, module in model.named_modules():
            modules.setdefault(owner(f"{path}.", len(self._info.layers)), []).append(module)
        for layer, names in self._owned.items():
            self._read(names)
            name_of = {id(self._unread[name]): name for name in names}
            for module in modules.get(layer, ()):
                copied = [name_of[id(value)] for value in module.values() if id(value) in name_of]
                for kept in _own_copies(module):
                    mx.eval(kept)
                for name in copied:  # which two modules may share
                    self._unread.pop(name, None)
            for name in names:
                self._unread.pop(name, None)
            _give_back()

    def _read(self, names: Sequence[str]) -> None:
        try:
            mx.eval([self._unread[name] for name in names])
        except RuntimeError as error:  # MLX's, for a file that has become shorter
            raise ReadError(f"reading the weights failed: {error}") from None
        for name in names:
            self.bytes_read += self._info.entries[name].size
            if self._info.manifest is not None or self._partial is not None:
                self._verify(name, self._unread[name])

    def _verify(self, name: str, tensor: mx.array) -> None:
        content = memory_of(tensor).cast("B") if tensor.nbytes else b""
        found = hashlib.sha256(content).hexdigest()
        manifest, partial = self._info.manifest, self._partial
        if partial is not None and not hmac.compare_digest(partial.hashes[name], found):
            partial.drop([name])
            raise NotHereError(
                f"tensor {name} on the disk is not what was fetched; it is fetched again"
            )
        if manifest is not None and not hmac.compare_digest(manifest.get(name, ""), found):
            raise LoadError(f"tensor {name} does not match the manifest")


def check_here(partial: PartialModel, names: Sequence[str]) -> None:
    """Raise `NotHereError` unless the tensors *names* of *partial* are all here, or `LoadError` if
    they cannot be fetched."""
    if not partial.missing(names):
        return
    size = sum(partial.entries[name].size for name in names)
    # What changes from try to try stands after the ";": the rest is logged once.
    here = f"{part_here(partial.bytes_here(names), size)} are here"
    fault = partial.fault
    if fault is not None and fault.permanent:
        raise LoadError(
            f"its layers cannot be fetched: {fault.text}. Start this node again once that is "
            f"mended; {here}"
        )
    if fault is not None:
        raise NotHereError(f"its layers are held up on their way: {fault.text}; {here}")
    raise NotHereError(f"its {STILL_FETCHED}; {here}")


def placeholders(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """A placeholder for each of *weights*, which are not evaluated."""
    return {name: _absent(lazy) for name, lazy in weights.items()}


def _absent(lazy: mx.array) -> mx.array:
    """A placeholder for a tensor of another rank: like *lazy*, and never evaluated."""
    if mx.issubdtype(lazy.dtype, mx.floating):
        return mx.full(lazy.shape, float("nan"), lazy.dtype)
    return mx.zeros(lazy.shape, lazy.dtype)


def _own_copies(module: nn.Module) -> list[mx.array]:
    """*module*'s own parameters, each made to hold no more memory than it needs."""
    names = [
        name
        for name, value in module.items()
        if isinstance(value, mx.array) and not name.startswith("_")
    ]
    for name in names:
        module[name] = mx.contiguous(module[name])
    return [module[name] for name in names]


def _give_back() -> None:
    """Give back the memory of what was read and is not needed any more. Linux's C library keeps
    it otherwise."""
    mx.clear_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def _held_to(files: Mapping[Path, str]) -> Iterator[None]:
    """Within the block *files* are hashed in threads. At its end raises `LoadError` if one has not
    its expected hash, and `ReadError` if it cannot be read."""
    stop = threading.Event()
    threads = min(_THREADS, max(1, (os.cpu_count() or 1) // 2), max(1, len(files)))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="hash")
    try:
        found = {file: pool.submit(_hash, file, stop) for file in files}
        yield
        for file, hashed in found.items():
            if not hmac.compare_digest(hashed.result(), files[file]):
                raise LoadError(
                    f"{file} is not the file that the hub has: its SHA-256 is "
                    f"{hashed.result()[:12]}..., the hub's {files[file][:12]}...; remove it and "
                    "fetch the model again, or say trust_weights = true"
                )
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _hash(file: Path, stop: threading.Event) -> str:
    """The SHA-256 of *file*, in hexadecimal; of a part of it once *stop* is set."""
    hashed = hashlib.sha256()
    buffer = memoryview(bytearray(_BUFFER))
    with open_file(file) as stream:
        while not stop.is_set():
            try:
                size = stream.raw.readinto(buffer)
            except OSError as error:
                raise ReadError(f"cannot read {file}: {error.strerror}") from None
            if not size:
                break
            hashed.update(buffer[:size])
    return hashed.hexdigest()

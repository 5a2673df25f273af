"""Checks files of weights against the SHA-256 that the hub has of them.

The hub's own tools keep these hashes. In its cache a file is a link to one that is named by its
hash. In a folder of `hf download --local-dir` a text file beside it has the hash.

A hash of the hub is of a whole file, and a rank reads the tensors of its own layers. So a rank
hashes each file from which it reads anything, in threads, while it reads. That costs about a second
of a core for each GB, and where two ranks share a file each reads all of it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sealring_model.errors import LoadError, ReadError
from sealring_model.loading.weights import open_file

_SHA256: Final = re.compile("[0-9a-f]{64}")
_TOLD: Final = Path(".cache", "huggingface", "download")
"""Where `hf download --local-dir` keeps, for each file, its commit, its hash and a time: a line
each."""

_MAX_TOLD: Final = 4096
_BUFFER: Final = 4 * 1024 * 1024
_THREADS: Final = 4
"""Threads, at most: a disk gives some 5 GB/s, and a core hashes one or two of them."""


def hub_hashes(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each of *files* in hex by its name, as the hub tells it; "" if unknown."""
    return {file.name: _of_link(file) or _of_note(file) for file in files}


def _of_link(file: Path) -> str:
    return _plain(Path(os.path.realpath(file)).name) if file.is_symlink() else ""


def _of_note(file: Path) -> str:
    note = file.parent / _TOLD / f"{file.name}.metadata"
    try:
        with open_file(note) as stream:
            lines = stream.read(_MAX_TOLD).decode("ascii", "replace").splitlines()
        _commit, told, when = lines[:3]
        # A file that was written again after its download is no longer the hub's.
        return _plain(told) if float(when) > file.stat().st_mtime - 1 else ""
    except (LoadError, OSError, ValueError):
        return ""


def _plain(text: str) -> str:
    return text if _SHA256.fullmatch(text) else ""


class FileCheck:
    """Hashes *files* in threads while the context is open, to compare them with their expected
    hashes."""

    def __init__(self, files: Mapping[Path, str]) -> None:
        self._files: Final = files
        self._stop: Final = threading.Event()
        threads = min(_THREADS, max(1, (os.cpu_count() or 1) // 2), max(1, len(files)))
        self._pool: Final = ThreadPoolExecutor(threads, thread_name_prefix="hash")
        self._found: dict[Path, Future[str]] = {}

    def __enter__(self) -> Self:
        self._found = {file: self._pool.submit(self._hash, file) for file in self._files}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def finish(self) -> None:
        """Wait for every hash. Raises `LoadError` if a file is not the hub's, and `ReadError` if it
        cannot be read."""
        for file, found in self._found.items():
            if not hmac.compare_digest(found.result(), self._files[file]):
                raise LoadError(
                    f"{file} is not the file that the hub has: its SHA-256 is "
                    f"{found.result()[:12]}..., the hub's {self._files[file][:12]}...; remove it "
                    "and fetch the model again, or say trust_weights = true"
                )

    def _hash(self, file: Path) -> str:
        hashed = hashlib.sha256()
        buffer = memoryview(bytearray(_BUFFER))
        with open_file(file) as stream:
            while not self._stop.is_set():
                try:
                    size = stream.raw.readinto(buffer)
                except OSError as error:
                    raise ReadError(f"cannot read {file}: {error.strerror}") from None
                if not size:
                    break
                hashed.update(buffer[:size])
        return hashed.hexdigest()

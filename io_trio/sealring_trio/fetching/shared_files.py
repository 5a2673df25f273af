"""What a node gives other members of its model's folder, and nothing else.

The names come from a member that may be hostile. So a name is looked up among those of the needed
files, and never made into a path by itself. A link out of the folder is not followed, except as the
hub's cache makes them, into its own ``blobs``. Of a weight file whose tensors are not all here
(`model_store`), the header and those tensors are given.

Files are read in a worker thread (`SharedFiles`), one piece at a time for all links together. So
the event loop is held up by the sealing of one piece, some 0.05 ms for 256 KiB; and a member that
never reads its answers costs a piece or two of memory (`Giving`).
"""

from __future__ import annotations

import bisect
import errno
import json
import os
import stat
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from sealring_model.errors import LoadError
from sealring_model.loading.foreign_json import MEMBER_LISTING, bound_of
from sealring_model.loading.model_folder import describe, pins_of
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import TensorEntry, read_entries, read_manifest
from sealring_protocol.codec.messages import LISTING, Get, Piece
from sealring_protocol.events import WeightsAsked

from sealring_trio.fetching.source import is_shared, is_weights

LISTING_SECONDS: Final = 5.0
"""Seconds for which a listing counts in any case. To make one reads every header."""

MAX_LISTING: Final = bound_of(MEMBER_LISTING)[0]
"""Bytes of a listing."""


class NotShared(Exception):
    """Why a piece is not given, in words for the other member."""


@attrs.define
class _Listing:
    made: float
    of: list[tuple[str, int, int]]  # the files that it was made of
    content: bytes


class SharedFiles:
    """The files of the model in *folder* for other members. *clock* gives monotonic seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._listing: _Listing | None = None
        self._partial: PartialModel | None = None
        self._in_order: dict[str, list[TensorEntry]] = {}  # of a partial model, by file

    def answer(self, get: Get) -> Piece:
        """What to answer *get*: the piece, or why there is none."""
        try:
            if get.name == LISTING:
                content = self._list(fresh=get.offset == 0)
                return Piece(len(content), content[get.offset : get.offset + get.length])
            return self._read(get)
        except NotShared as error:
            return Piece(0, b"", str(error))
        except LoadError:
            return Piece(0, b"", "the model there cannot be read")
        except OSError as error:
            return Piece(0, b"", f"{get.name} cannot be read: {error.strerror}")

    # ---------------------------------------------------------------- reading

    def _read(self, get: Get) -> Piece:
        with open(self._open(get.name), "rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = max(0, min(get.length, size - get.offset))
            if not length:
                return Piece(size)
            if is_weights(get.name):
                self._check_here(get.name, get.offset, get.offset + length, stream.fileno())
            data = bytearray()
            while len(data) < length:
                more = os.pread(stream.fileno(), length - len(data), get.offset + len(data))
                if not more:
                    raise NotShared(f"{get.name} has become shorter")
                data += more
        return Piece(size, data)

    def _open(self, name: str) -> int:
        """A descriptor of the file *name*. Raises `NotShared` and `OSError`."""
        if not is_shared(name) or name not in os.listdir(self._folder):
            raise NotShared(f"the model there has no file {name} for other members")
        path = Path(os.path.realpath(self._folder / name))
        # In one of these folders itself: what is below it could be another one a moment later.
        if path.parent not in self._roots():
            raise NotShared(f"{name} is a link out of the model's folder there")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise NotShared(f"{name} is no regular file there")
        return handle

    def _roots(self) -> list[Path]:
        """The folders in which the model's files may be."""
        folder = Path(os.path.realpath(self._folder))
        roots = [folder]
        hub = folder.parents[1] if folder.parent.name == "snapshots" else folder
        if hub.name.startswith("models--"):  # of the hub's cache, which links into its blobs
            roots.append(hub / "blobs")
        return roots

    def _check_here(self, file: str, begin: int, end: int, handle: int) -> None:
        """Raise `NotShared` unless the bytes *begin* to *end* of the weights *file* are here."""
        partial = self._fresh_partial()
        if partial is None:
            return
        start = os.pread(handle, 8, 0)
        at = max(begin, 8 + int.from_bytes(start, "little"))
        entries = self._in_order.get(file, [])
        first = max(0, bisect.bisect_right(entries, at, key=lambda entry: entry.offset) - 1)
        for entry in entries[first:]:
            if entry.offset > at or at >= end:
                break
            if entry.name in partial.hashes:
                at = max(at, entry.offset + entry.size)
        if at < end:
            raise NotShared(f"that part of {file} is not there yet")

    def _fresh_partial(self) -> PartialModel | None:
        """The record of what is here, if the model is here in part."""
        if self._partial is None:
            self._partial = PartialModel.open(self._folder)
            found = self._partial.entries.values() if self._partial else ()
            for entry in sorted(found, key=lambda entry: (entry.offset, entry.size)):
                self._in_order.setdefault(entry.file.name, []).append(entry)
        else:
            self._partial.refresh()
        return self._partial

    # ---------------------------------------------------------------- listing

    def _list(self, *, fresh: bool) -> bytes:
        """The listing. One that is read in parts stays the same until it is begun again."""
        now, old = self._clock(), self._listing
        if old is not None and (not fresh or now - old.made <= LISTING_SECONDS):
            return old.content
        found = self._signature()
        if old is None or old.of != found:
            old = _Listing(now, found, self._make_listing())
        self._listing = attrs.evolve(old, made=now)
        return old.content

    def _signature(self) -> list[tuple[str, int, int]]:
        """Names, sizes and times of the folder's files, which change when what is here does."""
        with os.scandir(self._folder) as files:
            found = [(file.name, file.stat()) for file in files if file.is_file()]
        return sorted((name, status.st_size, status.st_mtime_ns) for name, status in found)

    def _make_listing(self) -> bytes:
        sizes = {}
        for name in sorted(filter(is_shared, os.listdir(self._folder))):
            try:
                handle = self._open(name)
            except (NotShared, OSError) as error:
                if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                    raise
                continue
            sizes[name] = os.fstat(handle).st_size
            os.close(handle)
        pins = pins_of(describe(self._folder, trusted=True))
        value: dict[str, Any] = {
            "files": sizes,
            "pins": [str(pin) for pin in pins],
            "tensors": self._tensors(),
        }
        content = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
        if len(content) > MAX_LISTING:
            raise NotShared("the model there has more tensors than a listing can name")
        return content

    def _tensors(self) -> dict[str, str]:
        partial = self._fresh_partial()
        if partial is not None:
            return dict(partial.hashes)
        manifest = read_manifest(self._folder) or {}
        return {name: manifest.get(name, "") for name in read_entries(self._folder)}


class Giving:
    """Gives files of the model in *folder* to whoever asks, without getting in the way of steps.

    *spawn* runs a task until the node stops; *give* sends the answer to the oldest question of a
    connection, and returns when it has left. Each connection that asks has one task, which takes
    the next question then.
    """

    def __init__(
        self,
        folder: Path,
        spawn: Callable[..., None],
        give: Callable[[int, Piece], Awaitable[None]],
    ) -> None:
        self._files = SharedFiles(folder)
        self._spawn = spawn
        self._give = give
        self._one = trio.CapacityLimiter(1)
        self._asked: dict[int, deque[Get]] = {}  # by connection; at most `MAX_GETS` each

    def asked(self, event: WeightsAsked) -> None:
        """A member asks."""
        if event.link not in self._asked:
            self._asked[event.link] = deque()
            self._spawn(self._answer, event.link)
        self._asked[event.link].append(event.get)

    def over(self, link: int) -> None:
        """Connection *link* is gone."""
        if link in self._asked:
            self._asked[link].clear()

    async def _answer(self, link: int) -> None:
        """Answer what is asked on connection *link* until nothing is."""
        asked = self._asked[link]
        try:
            while asked:
                await self._give(link, await self._read(asked.popleft()))
        finally:
            del self._asked[link]

    async def _read(self, get: Get) -> Piece:
        try:
            # A disk that hangs (a share over the network, say) must not keep the node from ending.
            return await trio.to_thread.run_sync(
                self._files.answer, get, limiter=self._one, abandon_on_cancel=True
            )
        except RuntimeError:
            return Piece(0, b"", "the system there gives no thread to read it")

"""Fetches tensors of a model from the hub, into the place where they belong.

What is missing is cut into pieces, and several connections take one after the other. Worker threads
read and write; the event loop keeps what is here. A connection that breaks goes on where it was.
A tensor that has come is hashed on the disk; if there is a manifest it must have that hash. A file
that is complete must have the hash that the hub tells. What is wrong is fetched once more.

Whoever reads the folder meanwhile, such as the engine, is told by `PartialModel.fault` what holds
the rest up.
"""

from __future__ import annotations

import logging
import math
import os
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio
from sealring_model.errors import LoadError
from sealring_model.loading.model_store import PartialModel, Range, clear_fault, is_partial
from sealring_model.loading.weights import TensorEntry, read_manifest, tensors_of
from sealring_protocol.codec.messages import Bootstrap
from sealring_protocol.control.deadlines import Backoff
from sealring_protocol.words import part_here

from sealring_trio.fetching.hub import FetchFault, Hub, fault_of

# ---------------------------------------------------------------------- progress
# How far fetching is: bytes, speed, time left.


_WINDOW: Final = 10.0
"""Seconds over which the speed is taken."""


class FetchProgress:
    """How far fetching *total* bytes is, of which *here* were here before. `came` tells of more."""

    def __init__(self, total: int, here: int) -> None:
        self.total = total
        self.here = here
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), here)])

    def came(self, here: int) -> None:
        """Now *here* bytes are here."""
        now = time.monotonic()
        self.here = here
        self._marks.append((now, here))
        while len(self._marks) > 2 and self._marks[1][0] < now - _WINDOW:
            self._marks.popleft()

    @property
    def speed(self) -> float:
        """Bytes per second of late."""
        (before, had), (now, has) = self._marks[0], self._marks[-1]
        return max(0, has - had) / (now - before) if now > before else 0.0

    @property
    def text(self) -> str:
        """This for people."""
        here = part_here(self.here, self.total)
        if not (speed := self.speed):
            return here
        left = (self.total - self.here) / speed
        return f"{here}, {speed / 1e6:.1f} MB/s, {_told_time(left)} left"


def _told_time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# ---------------------------------------------------------------------- pieces
# Cuts what is still to come into pieces: the ranges that are asked for, one request each.


PIECE: Final = 32 * 1024 * 1024
"""Bytes of a piece, at most."""

KEEP_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a piece after which they are on the disk and kept, at most. So much of each piece under
way is fetched again after a kill."""

LOST: Final = 0.01
"""Share of what is fetched that a kill may cost."""

SLACK: Final = 0.01
"""Share of a range that may be bytes of other tensors between the wanted ones: a further request
would cost a round trip."""


@attrs.define
class FileRange:
    """Bytes *begin* to *end* (excluded) of *file*; those before *at* have come."""

    file: str
    begin: int
    end: int
    at: int = attrs.Factory(lambda self: self.begin, takes_self=True)


def keep_bytes_of(size: int, most: int, at_once: int = 1) -> int:
    """Bytes after which what has come is kept, of *size* bytes that come in *at_once* pieces at a
    time: *most*, or less so that a kill costs no more than its share."""
    return min(most, int(size * LOST) // at_once)


def cut(gaps: Mapping[str, Sequence[Range]]) -> list[FileRange]:
    """The pieces of *gaps*, the ranges to come of each file, in order."""
    return [
        FileRange(file, start, min(start + PIECE, end))
        for file, ranges in gaps.items()
        for begin, end in _joined(ranges)
        for start in range(begin, end, PIECE)
    ]


def _joined(ranges: Sequence[Range]) -> Iterator[Range]:
    """*ranges* of one file, with those joined that are close."""
    if not ranges:
        return
    begin, end = ranges[0]
    wanted = end - begin
    for start, stop in ranges[1:]:
        whole = stop - begin
        if whole - (wanted + stop - start) <= SLACK * whole:
            wanted += stop - start
        else:
            yield begin, end
            begin, wanted = start, stop - start
        end = stop
    yield begin, end


log = logging.getLogger("sealring.fetch")

CONNECTIONS: Final = 6
"""Connections at once."""

HASHERS: Final = 2
_LONGEST_PAUSE: Final = 30.0
_QUIET: Final = 10.0
"""Seconds without a byte after which readers are told what holds the rest up."""

_LOOK: Final = 1.0
"""Seconds between two looks at how far it is."""

_TRIES: Final = 2
"""Times that a tensor or a file is fetched before it is said to be wrong."""

T = TypeVar("T")

Tell = Callable[[FetchProgress], None]
"""Told each second how far it is."""


async def fetch(
    model: PartialModel, names: Sequence[str], hub: Hub, tell: Tell, *, patience: float = math.inf
) -> None:
    """Fetch of *model* the tensors *names* from *hub*. Returns when all of them are here.

    Waits while another process fetches into the same folder. Raises `FetchFault` for what is
    permanent, and when no byte has come for *patience* seconds.
    """
    waiting = WaitForOther(model, names, tell)
    while True:
        try:
            with model.lock() as ours:
                if ours:
                    await _Fetch(model, names, hub, tell, patience).run()
                    return
        except (LoadError, OSError) as error:
            raise fault_of(error) from None
        if await waiting.look():
            return


class WaitForOther:
    """Waits while another process fetches into the folder of *model*, and says so."""

    def __init__(self, model: PartialModel, names: Sequence[str], tell: Tell) -> None:
        self._model: Final = model
        self._names: Final = names
        self._tell: Final = tell
        self._progress: FetchProgress | None = None

    async def look(self) -> bool:
        """Whether the tensors *names* are all here. If not, waits for a moment."""
        model, names = self._model, self._names
        model.refresh()
        if not model.missing(names):
            return True
        if self._progress is None:
            log.warning("another process fetches into %s; waiting for it", model.folder)
            size = sum(model.entries[name].size for name in names)
            self._progress = FetchProgress(size, model.bytes_here(names))
        self._progress.came(model.bytes_here(names))
        self._tell(self._progress)
        await trio.sleep(_LOOK)
        return False


class _Fetch:
    """One process fetches *names* of *model*."""

    def __init__(
        self, model: PartialModel, names: Sequence[str], hub: Hub, tell: Tell, patience: float
    ) -> None:
        self._model: Final = model
        self._names: Final = names
        self._hub: Final = hub
        self._tell: Final = tell
        self._patience: Final = patience
        self._manifest: Final = read_manifest(model.folder) or {}
        self._by_file: Final = _by_file(model, names)
        size = sum(model.entries[name].size for name in names)
        self._keep_bytes: Final = keep_bytes_of(size, KEEP_BYTES, CONNECTIONS)
        self._connections: Final = trio.CapacityLimiter(CONNECTIONS)
        self._hashers: Final = trio.CapacityLimiter(HASHERS)
        self._tries: Final[Counter[str]] = Counter()
        self._pieces: list[FileRange] = []
        self._waiting: deque[FileRange] = deque()
        self._hashing: set[str] = set()
        self._fault: FetchFault | None = None
        self._not_before = -math.inf  # the hub wants no request before that
        self._heard = 0.0  # when the last bytes came
        self._held_up = False

    async def run(self) -> None:
        """Fetch until all is here."""
        self._model.clear_fault()
        try:
            while True:
                for name in await self._survey(lambda: self._model.finished(self._names)):
                    await self._settle(self._model.entries[name])
                gaps = await self._survey(
                    lambda: self._model.gaps(self._model.missing(self._names))
                )
                if gaps:
                    log.info("%s", check_room(self._model, total(gaps)))
                    await self._bring_all(cut(gaps))
                elif not await self._files_verified() and not self._model.missing(self._names):
                    return
        except (FetchFault, LoadError, OSError) as error:
            fault = fault_of(error)
            self._model.set_fault(fault.text, permanent=fault.permanent)
            raise

    async def _survey(self, look: Callable[[], T]) -> T:
        """What *look* finds, in a thread: models have up to a hundred thousand tensors. Nothing
        else uses the record meanwhile."""
        return await trio.to_thread.run_sync(look, limiter=self._hashers)

    # ------------------------------------------------------------ connections

    async def _bring_all(self, pieces: list[FileRange]) -> None:
        """Fetch *pieces*, and keep the tensors that become complete."""
        self._pieces, self._waiting = pieces, deque(pieces)
        self._heard = trio.current_time()
        size = sum(self._model.entries[name].size for name in self._names)
        here = await self._survey(lambda: self._model.bytes_here(self._names))
        progress = FetchProgress(size, here)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look, progress, progress.here)
            async with trio.open_nursery() as workers:
                for _ in range(min(CONNECTIONS, len(pieces))):
                    workers.start_soon(self._work, nursery.cancel_scope)
            self._came(progress, progress.here)
            nursery.cancel_scope.cancel()
        if self._fault is not None:
            raise self._fault

    async def _work(self, scope: trio.CancelScope) -> None:
        try:
            while self._waiting:
                piece = self._waiting.popleft()
                await self._bring(piece)
                for entry in self._touched(piece):
                    await self._settle(entry)
        except (FetchFault, LoadError, OSError) as error:
            self._fault = fault_of(error)
            scope.cancel()

    async def _bring(self, piece: FileRange) -> None:
        backoff = Backoff(_LONGEST_PAUSE)
        while True:
            await trio.sleep_until(max(self._not_before, trio.current_time()))
            before = piece.at
            try:
                await trio.to_thread.run_sync(
                    self._read, piece, abandon_on_cancel=True, limiter=self._connections
                )
            except FetchFault as fault:
                if fault.permanent:
                    raise
                if piece.at > before:
                    backoff.reset()
                await self._wait(fault, backoff)
            else:
                return

    async def _wait(self, fault: FetchFault, backoff: Backoff) -> None:
        """Wait after a *fault* that may pass. The time that a server asked for is for all."""
        now = trio.current_time()
        if max(now - self._heard, fault.wait or 0.0) > self._patience:
            raise fault
        pause = backoff.next() if fault.wait is None else fault.wait
        if not self._held_up and now + pause - self._heard > _QUIET:
            self._held_up = True
            log.warning("%s is held up: %s", self._model.origin.model, fault.text)
            self._model.set_fault(fault.text, permanent=False)
        if fault.wait:
            self._not_before = max(self._not_before, now + pause)
        await trio.sleep(pause)

    def _read(self, piece: FileRange) -> None:
        """Read *piece* from the hub and write it. In a worker thread."""
        kept = piece.at

        def keep() -> None:
            nonlocal kept
            if piece.at > kept:
                self._model.sync(piece.file)
                trio.from_thread.run_sync(self._keep, piece.file, kept, piece.at)
                kept = piece.at

        def take(data: bytes) -> None:
            trio.from_thread.check_cancelled()
            self._model.write(piece.file, piece.at, data)
            piece.at += len(data)
            if piece.at - kept >= self._keep_bytes:
                keep()

        try:
            self._hub.read(self._model.origin, piece.file, piece.at, piece.end, take)
        finally:
            keep()

    def _keep(self, file: str, begin: int, end: int) -> None:
        self._heard = trio.current_time()
        self._model.wrote(file, begin, end)
        if self._held_up:
            self._held_up = False
            self._model.clear_fault()

    async def _look(self, progress: FetchProgress, before: int) -> None:
        while True:
            self._came(progress, before)
            await trio.sleep(_LOOK)

    def _came(self, progress: FetchProgress, before: int) -> None:
        come = sum(piece.at - piece.begin for piece in self._pieces)
        progress.came(min(before + come, progress.total))
        self._tell(progress)

    # ------------------------------------------------------------------- hashes

    def _touched(self, piece: FileRange) -> Iterator[TensorEntry]:
        """The wanted tensors that *piece* has bytes of."""
        entries = self._by_file.get(piece.file, [])
        at = bisect_left(entries, piece.begin, key=lambda e: e.offset + e.size)
        while at < len(entries) and entries[at].offset < piece.end:
            yield entries[at]
            at += 1

    async def _settle(self, entry: TensorEntry) -> None:
        """Hash *entry*'s tensor if all of it has come, and keep or drop it."""
        name = entry.name
        if name in self._hashing or not self._model.finished([name]):
            return
        self._hashing.add(name)
        try:
            found = await trio.to_thread.run_sync(
                self._model.digest_of, name, limiter=self._hashers
            )
        finally:
            self._hashing.discard(name)
        expected = self._manifest.get(name, found)
        if found == expected:
            self._model.keep(name, found)
            return
        self._model.drop([name])
        self._wrong(f"tensor {name} of {self._model.origin.model}", "the model's manifest")

    async def _files_verified(self) -> bool:
        """Verify the files that are complete. Returns whether one was wrong: it is to be fetched
        again."""
        for file, told in self._model.origin.files.items():
            if not told.sha256 or file in self._model.verified or not self._model.is_whole(file):
                continue
            found = await trio.to_thread.run_sync(
                self._model.digest_of_file, file, limiter=self._hashers
            )
            if found == told.sha256:
                self._model.keep_file(file)
                continue
            self._model.drop(n for n, e in self._model.entries.items() if e.file.name == file)
            self._wrong(f"{file} of {self._model.origin.model}", "the hub")
            return True
        return False

    def _wrong(self, what: str, by: str) -> None:
        """*what* has another hash than *by* says. Raises `FetchFault` the second time."""
        self._tries[what] += 1
        text = f"{what} came with wrong bytes: its SHA-256 is not the one of {by}"
        if self._tries[what] >= _TRIES:
            raise FetchFault(f"{text}, {_TRIES} times", permanent=True)
        log.warning("%s; fetching it once more", text)


def check_room(model: PartialModel, size: int) -> str:
    """Say how many bytes of disk *size* bytes more of *model* need, and how many are free. Raises
    `FetchFault` if they do not fit."""
    status = os.statvfs(model.folder)
    free = status.f_bavail * status.f_frsize
    told = (
        f"{size / 1e9:.2f} GB of {model.origin.model} are to come, and {free / 1e9:.2f} GB are "
        f"free in {model.folder}"
    )
    if size > free:
        raise FetchFault(
            f"{told}; make room, or name another folder in SEALRING_MODELS", permanent=True
        )
    return told


def total(gaps: Mapping[str, Sequence[Range]]) -> int:
    """Bytes of *gaps*, the ranges of each file."""
    return sum(end - begin for ranges in gaps.values() for begin, end in ranges)


def _by_file(model: PartialModel, names: Sequence[str]) -> dict[str, list[TensorEntry]]:
    """The tensors *names* by their file, in its order."""
    found: dict[str, list[TensorEntry]] = {}
    for entry in sorted((model.entries[name] for name in names), key=lambda e: e.offset):
        found.setdefault(entry.file.name, []).append(entry)
    return found


# ---------------------------------------------------------------------- rank fetch
# Fetches what this node's rank owns of its model.
#
# Which layers that are is known with each BOOTSTRAP. Fetching goes on when the epoch ends, as it
# does every few seconds while a rank lacks its weights; the next BOOTSTRAP with the same layers
# finds it under way. Other layers take its place. The engine reads what is here and what holds
# the rest up from the folder, and refuses its layers with that until they are complete.


LOG_SECONDS: Final = 10.0
"""Seconds between two lines of the log that say how far it is."""


Source = Callable[[PartialModel, Sequence[str], Tell], Awaitable[None]]
"""Fetches tensors of a model, by name, and tells how far it is. Raises `FetchFault`."""


class RankFetch:
    """Fetches the layers of one node's rank into *folder*, by *source*. The model has *layers*
    layers. Does nothing for a model that was not fetched by sealring. *report* is told each second
    how many bytes are here, and of how many; 0 of 0 at the end."""

    def __init__(
        self, folder: Path, layers: int, source: Source, report: Callable[[int, int], None]
    ) -> None:
        self._folder: Final = folder
        self._layers: Final = layers
        self._source: Final = source
        self._report: Final = report
        self._wanted: tuple[int, int] | None = None
        self._changed = trio.Event()
        self._scope: trio.CancelScope | None = None  # of what is fetched now
        self._told = 0.0

    def placed(self, order: Bootstrap) -> None:
        """The own engine is about to get *order*."""
        wanted = order.bounds[order.rank], order.bounds[order.rank + 1]
        if wanted == self._wanted and self._scope is not None:
            return
        if not is_partial(self._folder):
            return
        clear_fault(self._folder)  # the engine must not refuse for that of an earlier try
        self._wanted = wanted
        if self._scope is not None:
            self._scope.cancel()
        self._changed.set()

    async def run(self) -> None:
        """Fetch what is wanted, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            with trio.CancelScope() as self._scope:
                await self._fetch()
            self._scope = None

    async def _fetch(self) -> None:
        first, last = self._wanted or (0, 0)
        span = f"layers {first} to {last - 1}"
        try:
            model, names = await trio.to_thread.run_sync(self._owned, first, last)
            if model is None or not model.missing(names):
                return
            log.info("fetching %s of %s", span, model.origin.model)
            await self._source(model, names, self._tell)
        except (FetchFault, LoadError) as fault:
            log.log(logging.ERROR, "%s cannot be fetched: %s", span, fault)
        else:
            log.info("%s of %s are here", span, model.origin.model)
        finally:
            self._report(0, 0)

    def _owned(self, first: int, last: int) -> tuple[PartialModel | None, list[str]]:
        """The model, and the names of its tensors of layers *first* to *last* (excluded)."""
        model = PartialModel.open(self._folder)
        if model is None:
            return None, []
        owned = tensors_of(model.entries, self._layers, first, last).values()
        return model, [name for layer in owned for name in layer]

    def _tell(self, progress: FetchProgress) -> None:
        self._report(progress.here, progress.total)
        now = trio.current_time()
        if now - self._told >= LOG_SECONDS:
            self._told = now
            log.info("fetching: %s", progress.text)

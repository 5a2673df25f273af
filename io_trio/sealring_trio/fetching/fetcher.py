"""Fetches tensors of a model from a source, into the place where they belong.

What is missing is cut into pieces, which wait in one queue. Each connection is a worker thread that
asks a holder of the source (`_Session`): it takes one piece after the other and writes what comes.
The event loop keeps the record of what is here. Bytes count when they are on the disk, so a kill
costs those of the last moments, and a connection that breaks goes on where it was.

A tensor that has come is hashed on the disk. It must have the hash of the manifest or, where the
model has none, the one that its holder has; a file that is complete, the hash of the hub.
What is wrong is dropped. The hub, whose bytes pass through others, is asked for it once more. A
member is named, and the next one is asked; but not blamed for what it completed and another began.

Whoever reads the folder meanwhile, such as the engine, finds in `PartialModel.fault` what holds the
rest up.
"""

from __future__ import annotations

import logging
import math
import os
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio
from sealring_model.errors import LoadError
from sealring_model.loading.model_store import PartialModel, Range, clear_fault, is_partial
from sealring_model.loading.weights import TensorEntry, read_manifest, tensors_of
from sealring_protocol.codec.messages import Bootstrap
from sealring_protocol.codec.wire import clip
from sealring_protocol.control.deadlines import Backoff
from sealring_protocol.words import part_here

from sealring_trio.fetching.source import (
    MAX_SAID,
    NO_HOLDER,
    FetchFault,
    Holder,
    Source,
    SourceReader,
    fault_of,
)

log = logging.getLogger("sealring.fetch")

PIECE: Final = 32 * 1024 * 1024
"""Bytes of a piece, at most."""

KEEP_BYTES: Final = 16 * 1024 * 1024
"""Bytes after which what has come is on the disk and kept, at most, over all connections. So much
is fetched again after a kill."""

LOST: Final = 0.01
"""Share of what is fetched that a kill may cost."""

SLACK: Final = 0.01
"""Share of a range that may be bytes of other tensors between the wanted ones: a further request
would cost a round trip."""

HASHERS: Final = 2

WRONG_SECONDS: Final = 600.0
"""Seconds for which a member is not asked again for a tensor that it gave wrongly."""

MAX_WRONG: Final = 3
"""Wrong tensors after which the next member is asked for the rest."""

_MAX_NAME: Final = 120
"""Bytes of a tensor's name, for people."""

_WINDOW: Final = 10.0
"""Seconds over which the speed is taken."""

_LONGEST_PAUSE: Final = 30.0
_QUIET: Final = 10.0
"""Seconds without a byte of a lone holder after which readers learn what holds the rest up: its
connections break now and then."""

_LOOK: Final = 1.0
"""Seconds between two looks at how far it is."""

_TRIES: Final = 2
"""Times that a tensor or a file of a lone holder is fetched before it is said to be wrong."""

_EARLIER: Final = b"earlier"
"""In place of a holder's id: what was here before."""

T = TypeVar("T")


class FetchProgress:
    """How far fetching *total* bytes is, of which *here* were here before."""

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
        return f"{here}, {speed / 1e6:.1f} MB/s, {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


Report = Callable[[FetchProgress], None]
"""Called each second with how far it is."""


async def fetch(
    model: PartialModel,
    names: Sequence[str],
    source: Source,
    report: Report,
    *,
    patience: float = math.inf,
) -> None:
    """Fetch of *model* the tensors *names* from *source*. Returns when all of them are here.

    Waits while another process fetches into the same folder. Raises `FetchFault` for what is
    permanent, and when no byte has come for *patience* seconds.
    """
    others: FetchProgress | None = None
    while True:
        try:
            with model.lock() as ours:
                if ours:
                    await _Fetch(model, names, source, report, patience).run()
                    return
            model.refresh()
        except (LoadError, OSError) as error:
            raise fault_of(error) from None
        if not model.missing(names):
            return
        here = model.bytes_here(names)
        if others is None:
            log.warning("another process fetches into %s; waiting for it", model.folder)
            others = FetchProgress(sum(model.entries[name].size for name in names), here)
        others.came(here)
        report(others)
        await trio.sleep(_LOOK)


@attrs.define(eq=False)
class FileRange:
    """A piece: bytes *begin* to *end* (excluded) of *file*, with bytes of the wanted *tensors*.
    Those before *at* have come. An empty one is of a tensor that is here, and not hashed yet."""

    file: str
    begin: int
    end: int
    tensors: Sequence[TensorEntry] = ()
    at: int = attrs.Factory(lambda self: self.begin, takes_self=True)


HasSome = Callable[[str, int, int], bool]
"""Whether any byte of a file's range is here."""


def cut(gaps: Mapping[str, Sequence[Range]], has_some: HasSome) -> list[FileRange]:
    """The pieces of *gaps*, the ranges to come of each file, in order. Nothing that is here comes
    again: it may have been verified."""
    return [
        FileRange(file, start, min(start + PIECE, end))
        for file, ranges in gaps.items()
        for begin, end in _joined(ranges, partial(has_some, file))
        for start in range(begin, end, PIECE)
    ]


def _joined(ranges: Sequence[Range], has_some: Callable[[int, int], bool]) -> Iterator[Range]:
    """*ranges* of one file, in order, with those joined that have little between them, of which
    nothing is here."""
    if not ranges:
        return
    begin, end = ranges[0]
    wanted = end - begin
    for start, stop in ranges[1:]:
        whole = stop - begin
        if whole - (wanted + stop - start) <= SLACK * whole and not has_some(end, start):
            wanted += stop - start
        else:
            yield begin, end
            begin, wanted = start, stop - start
        end = stop
    yield begin, end


class _Fetch:
    """One process fetches *names* of *model*. Its methods are for the event loop."""

    def __init__(
        self,
        model: PartialModel,
        names: Sequence[str],
        source: Source,
        report: Report,
        patience: float,
    ) -> None:
        self.model: Final = model
        self.source: Final = source
        self._names: Final = names
        self._report: Final = report
        self._patience: Final = patience
        self._manifest: Final = read_manifest(model.folder) or {}
        self._by_file: Final = _by_file(model, names)
        self._size: Final = sum(model.entries[name].size for name in names)
        kept = min(KEEP_BYTES, int(self._size * LOST))
        self.keep_bytes: Final = kept // source.connections
        self._connections: Final = trio.CapacityLimiter(source.connections)
        self._hashers: Final = trio.CapacityLimiter(HASHERS)
        self._pieces: list[FileRange] = []
        self._waiting: deque[FileRange] = deque()
        self._before = 0  # bytes that were here when the pieces were cut
        self._hashing: set[str] = set()
        self._givers: dict[str, set[bytes]] = {}  # who gave bytes of a tensor
        self._wrong: Final[Counter[str]] = Counter()  # of a lone holder: how often it was wrong
        self._blamed: Final[dict[tuple[bytes, str], tuple[float, str]]] = {}
        # Until when a holder is not asked for a tensor, and what is said of that, if anything.
        self._scope = trio.CancelScope()
        self._fault: FetchFault | None = None
        self._not_before = -math.inf  # the hub wants no request before that
        self._heard = 0.0  # when the last bytes came
        self._held_up = ""  # by what, as readers find it

    async def run(self) -> None:
        """Fetch until all is here."""
        self.model.clear_fault()
        try:
            while True:
                missing = await self._survey(lambda: self.model.missing(self._names))
                if missing:
                    await self._bring(missing)
                elif await self._files_verified():
                    break
        except (FetchFault, LoadError, OSError) as error:
            fault = fault_of(error)
            self.model.set_fault(fault.text, permanent=fault.permanent)
            raise fault from None
        self.model.clear_fault()

    async def _survey(self, look: Callable[[], T]) -> T:
        """What *look* finds, in a thread: models have up to a hundred thousand tensors. Nothing
        else uses the record meanwhile."""
        return await trio.to_thread.run_sync(look, limiter=self._hashers)

    async def _bring(self, missing: Sequence[str]) -> None:
        """Fetch the tensors *missing*, and keep them."""
        self._pieces = await self._survey(lambda: self._cut(missing))
        self._waiting = deque(self._pieces)
        self._before = await self._survey(lambda: self.model.bytes_here(self._names))
        log.info("%s", await self._survey(lambda: check_room(self.model, missing)))
        self._heard = trio.current_time()
        progress = FetchProgress(self._size, self._before)
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self._look, progress)
            async with trio.open_nursery() as workers:
                for _ in self._pieces[: self.source.connections]:
                    workers.start_soon(self._work)
            self._show(progress)
            nursery.cancel_scope.cancel()
        if self._fault is not None:
            raise self._fault

    def _cut(self, missing: Sequence[str]) -> list[FileRange]:
        """The pieces of the tensors *missing*: of one tensor each, where a holder may have that
        alone."""
        model, found = self.model, []
        for names in [missing] if self.source.lone else [[name] for name in missing]:
            for piece in cut(model.gaps(names), model.has_some):
                piece.tensors = self._touched(piece)
                found.append(piece)
            for entry in map(model.entries.__getitem__, model.finished(names)):
                found.append(FileRange(entry.file.name, entry.offset, entry.offset, [entry]))
            if not self.source.lone and model.bytes_here(names):
                self._givers[names[0]] = {_EARLIER}
        return sorted(found, key=lambda piece: (piece.file, piece.begin))

    def _touched(self, piece: FileRange) -> list[TensorEntry]:
        """The wanted tensors that *piece* has bytes of."""
        entries = self._by_file.get(piece.file, [])
        first = last = bisect_right(entries, piece.begin, key=lambda e: e.offset + e.size)
        while last < len(entries) and entries[last].offset < piece.end:
            last += 1
        return entries[first:last]

    # ------------------------------------------------------------ connections

    async def _work(self) -> None:
        """One connection: ask one holder after the other, round after round, while pieces wait."""
        backoff = Backoff(_LONGEST_PAUSE)
        try:
            while self._waiting:
                await trio.sleep_until(max(self._not_before, trio.current_time()))
                holders = list(self.source.holders())
                faults = [] if holders else [FetchFault(NO_HOLDER)]
                for holder in holders:
                    try:
                        await self._ask(holder, backoff)
                    except FetchFault as fault:
                        if fault.permanent:
                            raise
                        faults.append(fault)
                    if not self._waiting:
                        return
                await self._wait(faults, backoff)
        except (FetchFault, LoadError, OSError) as error:
            self._give_up(error)

    def _give_up(self, error: FetchFault | LoadError | OSError) -> None:
        self._fault = fault_of(error)
        self._scope.cancel()

    async def _wait(self, faults: Sequence[FetchFault], backoff: Backoff) -> None:
        """Wait after a round that left pieces, for *faults* that may pass. The time that a server
        asked for is for all connections."""
        now = trio.current_time()
        left = {entry.name for piece in self._waiting for entry in piece.tensors}
        wrong = [
            why
            for (_, name), (until, why) in self._blamed.items()
            if name in left and until > now and why
        ]
        text = clip("; ".join([*wrong, *map(str, faults)]), MAX_SAID)
        if not text:
            return  # what waits was wrong, and it is nobody's fault yet
        asked = max((fault.wait for fault in faults if fault.wait is not None), default=None)
        if max(now - self._heard, asked or 0.0) > self._patience:
            raise FetchFault(text, wait=asked)
        pause = backoff.next() if asked is None else asked
        quiet = _QUIET if self.source.lone else 0.0
        if text != self._held_up and now + pause - self._heard > quiet:
            self._held_up = text
            log.warning("%s is held up: %s", self.model.origin.model, text)
            self.model.set_fault(text, permanent=False)
        if asked:
            self._not_before = max(self._not_before, now + pause)
        await trio.sleep(pause)

    async def _ask(self, holder: Holder, backoff: Backoff) -> None:
        """Ask *holder* for the pieces that it may have, and wait until what came is hashed; bytes
        that come reset *backoff*. Raises `FetchFault` if it gives nothing more."""
        if not any(self._may_ask(holder, piece) for piece in self._waiting):
            return
        failed: FetchFault | LoadError | OSError | None = None
        async with trio.open_nursery() as hashing:
            session = _Session(self, holder, backoff, hashing)
            try:
                await trio.to_thread.run_sync(
                    session.run, abandon_on_cancel=True, limiter=self._connections
                )
            except (FetchFault, LoadError, OSError) as error:  # a nursery would wrap it
                failed = error
        if failed is not None:
            raise failed

    def _may_ask(self, holder: Holder, piece: FileRange) -> bool:
        """Whether *holder* may be asked for *piece*: it gave nothing of it wrongly of late."""
        return not any(
            self._blamed.get((holder.id, entry.name), (-math.inf, ""))[0] > trio.current_time()
            for entry in piece.tensors
        )

    def compare(self, session: _Session) -> None:
        """Compare what the holder of *session* says that it has with what is missing. Raises
        `FetchFault` if it has nothing of that."""
        holder, hashes = session.holder, session.hashes
        wanted = [p.tensors[0] for p in self._waiting if self._may_ask(holder, p)]
        held = {entry.name for entry in wanted if entry.name in hashes}
        if not held:
            raise FetchFault(f"{holder.name} has none of what is missing")
        for name in held:
            if hashes[name] and hashes[name] != self._manifest.get(name, hashes[name]):
                self._blame(holder, name, "the manifest says")

    def next(self, session: _Session) -> FileRange | None:
        """The piece that *session* is to fetch now; None if there is none. Raises `FetchFault` if
        its holder has given too many wrongly."""
        if session.wrong >= MAX_WRONG:
            raise FetchFault(f"{session.holder.name} gives one wrong tensor after another")
        if trio.current_time() < self._not_before:
            return None
        for _ in range(len(self._waiting)):
            piece = self._waiting.popleft()
            held = self.source.lone or piece.tensors[0].name in session.hashes
            if held and self._may_ask(session.holder, piece):
                return piece
            self._waiting.append(piece)
        return None

    def record(
        self,
        session: _Session,
        came: Sequence[tuple[str, int, int]],
        pieces: Sequence[FileRange],
    ) -> None:
        """Record that the bytes *came* are on the disk, which *session* has brought; they are of
        *pieces*. Those that are not complete wait again. Raises `LoadError` and `OSError`."""
        for file, begin, end in came:
            self.model.wrote(file, begin, end)
        if came:
            self._heard = trio.current_time()
            session.backoff.reset()
            if self._held_up:
                self._held_up = ""
                self.model.clear_fault()
        for entry in (e for piece in pieces if piece.at > piece.begin for e in piece.tensors):
            self._givers.setdefault(entry.name, set()).add(session.holder.id)
        whole = [piece for piece in pieces if piece.at == piece.end]
        session.hashing.start_soon(self._settle, session, whole)

    def put_back(self, piece: FileRange) -> None:
        """*piece* has not come, or not all of it: it is the next to be asked for."""
        self._waiting.appendleft(piece)

    async def _look(self, progress: FetchProgress) -> None:
        while True:
            self._show(progress)
            await trio.sleep(_LOOK)

    def _show(self, progress: FetchProgress) -> None:
        come = sum(piece.at - piece.begin for piece in self._pieces)
        progress.came(min(self._before + come, progress.total))
        self._report(progress)

    # ------------------------------------------------------------------ hashes

    async def _settle(self, session: _Session, pieces: Sequence[FileRange]) -> None:
        """Hash the tensors of *pieces* of which all has come, and keep or drop them."""
        try:
            for entry in (entry for piece in pieces for entry in piece.tensors):
                if entry.name not in self._hashing and self.model.finished([entry.name]):
                    self._hashing.add(entry.name)
                    try:
                        await self._settle_one(session, entry)
                    finally:
                        self._hashing.discard(entry.name)
        except (FetchFault, LoadError, OSError) as error:
            self._give_up(error)

    async def _settle_one(self, session: _Session, entry: TensorEntry) -> None:
        name = entry.name
        found = await trio.to_thread.run_sync(self.model.digest_of, name, limiter=self._hashers)
        if found == (self._manifest.get(name) or session.hashes.get(name) or found):
            self.model.keep(name, found)
            return
        givers = self._givers.pop(name, set())
        self.model.drop([name])
        self._before -= entry.size
        again = self._cut([name])
        self._pieces += again
        self._waiting += again
        if self.source.lone:
            self._count_wrong(f"tensor {name} of {self.model.origin.model}", "the model's manifest")
        elif givers != {session.holder.id}:
            log.warning("what was here of tensor %s was wrong", clip(name, _MAX_NAME))
            # Whose bytes were wrong is not known. Who only began it is left alone with it for a
            # while, and without a word, so that another gives it whole.
            for began in givers - {session.holder.id, _EARLIER}:
                self._blamed[began, name] = trio.current_time() + WRONG_SECONDS, ""
        elif session.wrong < MAX_WRONG:
            session.wrong += 1
            holder = session.holder
            by = "the manifest says" if name in self._manifest else f"{holder.name} itself says"
            self._blame(holder, name, by)

    def _blame(self, holder: Holder, name: str, by: str) -> None:
        """Tensor *name* of the member *holder* is not what *by* says."""
        text = (
            f"tensor {clip(name, _MAX_NAME)} of {holder.name} is not what {by}: its copy is "
            f"damaged, or was changed; fetch the model again on {holder.name}, or have another "
            "member hold it"
        )
        log.error("%s", text)
        for other, of in list(self._blamed):
            if of == name and not self._blamed[other, of][1]:
                del self._blamed[other, of]  # it may have been right
        self._blamed[holder.id, name] = trio.current_time() + WRONG_SECONDS, text

    def _count_wrong(self, what: str, by: str) -> None:
        """*what* has another hash than *by* says. Raises `FetchFault` the second time."""
        self._wrong[what] += 1
        text = f"{what} came with wrong bytes: its SHA-256 is not the one of {by}"
        if self._wrong[what] >= _TRIES:
            raise FetchFault(f"{text}, {_TRIES} times", permanent=True)
        log.warning("%s; fetching it once more", text)

    async def _files_verified(self) -> bool:
        """Verify the files that are complete. Returns whether all have the hub's hash; one that has
        not is to be fetched again."""
        model = self.model
        for file, known in model.origin.files.items():
            if not known.sha256 or file in model.verified or not model.is_whole(file):
                continue
            found = await trio.to_thread.run_sync(model.digest_of_file, file, limiter=self._hashers)
            if found != known.sha256:
                model.drop(n for n, e in model.entries.items() if e.file.name == file)
                self._count_wrong(f"{file} of {model.origin.model}", "the hub")
                return False
            model.keep_file(file)
        return True


class _Session:
    """One *holder* is asked for pieces of *fetch*, in a worker thread of trio's. What comes resets
    *backoff*, and is hashed by tasks of *hashing*."""

    def __init__(
        self, fetch: _Fetch, holder: Holder, backoff: Backoff, hashing: trio.Nursery
    ) -> None:
        self.holder: Final = holder
        self.backoff: Final = backoff
        self.hashing: Final = hashing
        self.hashes: dict[str, str] = {}
        """By tensor, as the holder says; "" where it does not know one. A lone holder says none."""
        self.wrong = 0
        """Tensors that it gave wrongly."""
        self._fetch: Final = fetch
        self._came: list[tuple[str, int, int]] = []  # not kept yet
        self._pieces: list[FileRange] = []  # whose bytes these are
        self._unkept = 0

    def run(self) -> None:
        """Fetch pieces until there are no more for this holder. Raises `FetchFault`."""
        call, fetch = trio.from_thread.run_sync, self._fetch
        with self.holder.connect(trio.from_thread.check_cancelled) as reader:
            if not fetch.source.lone:
                origin = fetch.model.origin
                self.hashes = reader.list(origin.model, origin.revision).tensors
                call(fetch.compare, self)
            try:
                while (piece := call(fetch.next, self)) is not None:
                    self._read(reader, piece)
            finally:
                self._keep()

    def _read(self, reader: SourceReader, piece: FileRange) -> None:
        model = self._fetch.model
        self._pieces.append(piece)

        def take(data: bytes) -> None:
            trio.from_thread.check_cancelled()
            model.write(piece.file, piece.at, data)
            self._came.append((piece.file, piece.at, piece.at + len(data)))
            piece.at += len(data)
            self._unkept += len(data)
            if self._unkept >= self._fetch.keep_bytes:
                self._keep()
                self._pieces.append(piece)

        try:
            reader.read(model.origin, piece.file, piece.at, piece.end, take)
        except BaseException:
            trio.from_thread.run_sync(self._fetch.put_back, piece)
            raise

    def _keep(self) -> None:
        """Have on the disk what has come, and record that it is here."""
        came = _touching(self._came)
        pieces = list(dict.fromkeys(self._pieces))
        self._came, self._pieces, self._unkept = [], [], 0
        for file in dict.fromkeys(file for file, _, _ in came):
            self._fetch.model.sync(file)
        trio.from_thread.run_sync(self._fetch.record, self, came, pieces)


def _touching(ranges: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """*ranges* of files with those joined that touch."""
    found: list[tuple[str, int, int]] = []
    for file, begin, end in ranges:
        if found and found[-1][0] == file and found[-1][2] == begin:
            found[-1] = file, found[-1][1], end
        else:
            found.append((file, begin, end))
    return found


def check_room(model: PartialModel, names: Iterable[str]) -> str:
    """Say how many bytes of disk the tensors *names* of *model* still need, and how many are free.
    Raises `FetchFault` if they do not fit."""
    ranges = (each for found in model.gaps(names).values() for each in found)
    size = sum(end - begin for begin, end in ranges)
    status = os.statvfs(model.folder)
    free = status.f_bavail * status.f_frsize
    text = (
        f"{size / 1e9:.2f} GB of {model.origin.model} are to come, and {free / 1e9:.2f} GB are "
        f"free in {model.folder}"
    )
    if size > free:
        raise FetchFault(
            f"{text}; make room, or name another folder in SEALRING_MODELS", permanent=True
        )
    return text


def _by_file(model: PartialModel, names: Sequence[str]) -> dict[str, list[TensorEntry]]:
    """The tensors *names* by their file, in its order."""
    found: dict[str, list[TensorEntry]] = {}
    for entry in sorted((model.entries[name] for name in names), key=lambda e: e.offset):
        found.setdefault(entry.file.name, []).append(entry)
    return found


LOG_SECONDS: Final = 10.0
"""Seconds between two lines of the log that say how far it is."""


class RankFetch:
    """Fetches what a node's rank owns of its model.

    Which layers that are is known with each BOOTSTRAP. Fetching goes on when the epoch ends, as it
    does every few seconds while a rank lacks its weights; the next BOOTSTRAP with the same layers
    finds it under way. Other layers take its place. The engine reads what is here and what holds
    the rest up from the folder, and refuses its layers with that until they are complete.
    """

    def __init__(
        self, folder: Path, layers: int, source: Source, report: Callable[[int, int], None]
    ) -> None:
        """Fetch into *folder* from *source* of a model of *layers* layers; nothing if sealring did
        not fetch that. *report* is called each second with the bytes that are here, and of how
        many; with 0 of 0 at the end."""
        self._folder: Final = folder
        self._layers: Final = layers
        self._source: Final = source
        self._report: Final = report
        self._wanted: tuple[int, int] | None = None
        self._changed = trio.Event()
        self._scope: trio.CancelScope | None = None  # of what is fetched now
        self._logged = 0.0

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
            await fetch(model, names, self._source, self._show)
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

    def _show(self, progress: FetchProgress) -> None:
        self._report(progress.here, progress.total)
        now = trio.current_time()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.info("fetching: %s", progress.text)

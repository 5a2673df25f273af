"""Fetches tensors of a model from other members, into the place where they belong.

The members are asked in turn, the head first, each on one link, for what it has of what is missing.
A worker thread reads the link, hashes and writes; the event loop keeps what is here. Bytes count
when they are on the disk, so a kill costs those of the last moments.

A tensor must have the manifest's hash, or where the model has no manifest the one that its holder
tells. One that has not is dropped and named, and the next member is asked for it. That member is
not asked for it again for a while. Where some of its bytes were here before, it is first asked for
all of them: who began a tensor wrongly must not have another blamed who completes it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import attrs
import trio
from sealring_model.errors import LoadError
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import TensorEntry, read_manifest
from sealring_protocol.codec.messages import Get
from sealring_protocol.codec.wire import clip
from sealring_protocol.control.deadlines import Backoff
from sealring_protocol.security.roster import Member

from sealring_trio.fetching.fetcher import (
    FetchProgress,
    Tell,
    WaitForOther,
    check_room,
    keep_bytes_of,
)
from sealring_trio.fetching.hub import fault_of
from sealring_trio.weights.asking import MAX_TOLD, AskFault, AskingLink, Members, listing_of, pieces

log = logging.getLogger("sealring.fetch")

KEEP_BYTES: Final = 16 * 1024 * 1024
"""Bytes after which what has come is on the disk and kept, at most. So much is fetched again
after a kill."""

WRONG_SECONDS: Final = 600.0
"""Seconds for which a member is not asked again for a tensor that it gave wrongly."""

MAX_NAMED: Final = 120
"""Bytes of a tensor's name, for people."""

MAX_WRONG: Final = 3
"""Wrong tensors after which the next member is asked for the rest."""

_LONGEST_PAUSE: Final = 30.0
_LOOK: Final = 1.0
_BUFFER: Final = 1 << 22


async def bring(model: PartialModel, names: Sequence[str], members: Members, tell: Tell) -> None:
    """Fetch of *model* the tensors *names* from *members*. Returns when all of them are here.

    Waits while another process fetches into the same folder. What holds it up is told by
    `PartialModel.fault`. Raises `FetchFault` if the disk is full, say.
    """
    waiting = WaitForOther(model, names, tell)
    while True:
        try:
            with model.lock() as ours:
                if ours:
                    await _Bringing(model, names, members).run(tell)
                    return
        except (OSError, LoadError) as error:
            fault = fault_of(error)
            model.set_fault(fault.text, permanent=True)
            raise fault from None
        if await waiting.look():
            return


class _Bringing:
    """One process fetches *names* of *model*."""

    def __init__(self, model: PartialModel, names: Sequence[str], members: Members) -> None:
        self._model: Final = model
        self._names: Final = names
        self._members: Final = members
        self._manifest: Final = read_manifest(model.folder) or {}
        self._wrong: Final[dict[tuple[bytes, str], tuple[float, str]]] = {}  # until when, why
        self._come = 0  # bytes

    async def run(self, tell: Tell) -> None:
        """Fetch until all is here."""
        model, names = self._model, self._names
        model.clear_fault()
        check_room(model, sum(e - b for gaps in model.gaps(names).values() for b, e in gaps))
        progress = FetchProgress(sum(model.entries[n].size for n in names), model.bytes_here(names))
        failed: OSError | LoadError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look, progress, progress.here, tell)
            try:
                await self._ask_until_here()
            except (OSError, LoadError) as error:  # of the disk; a nursery would wrap it
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        model.clear_fault()

    async def _ask_until_here(self) -> None:
        """Ask the members round after round, and tell what holds the rest up."""
        backoff, told = Backoff(_LONGEST_PAUSE), ""
        while True:
            before = len(self._model.hashes)
            faults = await self._round()
            if not self._model.missing(self._names):
                return
            if len(self._model.hashes) > before:
                backoff.reset()
            why = clip("; ".join(faults) or "the roster has no other member", MAX_TOLD)
            if why != told:
                told = why
                log.warning("%s is held up: %s", self._model.origin.model, why)
            self._model.set_fault(why, permanent=False)
            await trio.sleep(backoff.next())

    async def _round(self) -> list[str]:
        """Ask each member once. What those said that could not give everything."""
        faults: list[str] = []
        for member in self._members.others():
            wanted, given_wrongly = self._wanted(member)
            if not wanted:
                faults[:0] = given_wrongly
                continue
            asking = _Asking(self._model, wanted, self._manifest, self._came)
            try:
                await trio.to_thread.run_sync(
                    asking.run, self._members, member, abandon_on_cancel=True
                )
            except AskFault as fault:
                faults.append(str(fault))
            for name, text in asking.wrong.items():
                self._wrong[member.id, name] = trio.current_time() + WRONG_SECONDS, text
                log.error("%s", text)
            faults[:0] = asking.wrong.values()
            if not self._model.missing(self._names):
                return []
        return faults

    def _wanted(self, member: Member) -> tuple[list[TensorEntry], list[str]]:
        """What to ask *member* for, in the order of the files; and why not for the rest."""
        wanted, reasons = [], []
        for name in self._model.missing(self._names):
            until, text = self._wrong.get((member.id, name), (-math.inf, ""))
            if until <= trio.current_time():
                wanted.append(self._model.entries[name])
            else:
                reasons.append(text)
        return sorted(wanted, key=lambda entry: (entry.file.name, entry.offset)), reasons

    def _came(self, count: int) -> None:
        self._come += count

    async def _look(self, progress: FetchProgress, before: int, tell: Tell) -> None:
        while True:
            progress.came(min(before + self._come, progress.total))
            tell(progress)
            await trio.sleep(_LOOK)


@attrs.define
class _Tensor:
    """A tensor that comes: *hashed* are its first *at* bytes, counted in its file. *was_begun* if
    some of them were here before."""

    entry: TensorEntry
    at: int
    hashed: hashlib._Hash = attrs.field(factory=hashlib.sha256)
    was_begun: bool = False


class _Asking:
    """One member is asked for the tensors *wanted*; in a worker thread of trio's. *came* is told of
    each number of bytes. *wrong* has a text for each tensor that was not what it should be."""

    def __init__(
        self,
        model: PartialModel,
        wanted: list[TensorEntry],
        manifest: dict[str, str],
        came: Callable[[int], None],
    ) -> None:
        self.wrong: Final[dict[str, str]] = {}
        self._model: Final = model
        self._wanted: Final = wanted
        self._manifest: Final = manifest
        self._came: Final = came
        self._told: dict[str, str] = {}  # the member's own hashes
        self._written: list[tuple[str, int, int]] = []  # ranges that are not kept yet
        self._finished: list[tuple[str, str]] = []
        self._unkept = 0
        self._keep_bytes: Final = keep_bytes_of(sum(entry.size for entry in wanted), KEEP_BYTES)

    def run(self, members: Members, member: Member) -> None:
        """Fetch what *member* has. Raises `AskFault`, also if it has nothing."""
        with members.link(member, trio.from_thread.check_cancelled) as link:
            self._told = listing_of(link).tensors
            held = [entry for entry in self._wanted if entry.name in self._told]
            if not held:
                raise AskFault(f"{member.name} has none of what is missing")
            try:
                for entry in held:
                    if self._disagrees(link, entry):
                        continue
                    self._fetch(link, entry)
            finally:
                self._keep()

    def _disagrees(self, link: AskingLink, entry: TensorEntry) -> bool:
        """Whether the member itself says that its tensor is not the manifest's."""
        told, expected = self._told[entry.name], self._manifest.get(entry.name, "")
        if not told or not expected or told == expected:
            return False
        self._is_wrong(link, entry, "the manifest says")
        return True

    def _fetch(self, link: AskingLink, entry: TensorEntry) -> None:
        """Fetch what is missing of one tensor, and look whether it is the right one."""
        tensor = _Tensor(entry, entry.offset)
        for get, piece in link.read(self._gets(entry)):
            self._catch_up(link, tensor, get.offset)
            tensor.hashed.update(piece.data)
            tensor.at = get.offset + len(piece.data)
            self._model.write(get.name, get.offset, memoryview(piece.data))
            self._written.append((get.name, get.offset, tensor.at))
            self._came(len(piece.data))
            self._unkept += len(piece.data)
            if self._unkept >= self._keep_bytes:
                self._keep()
        self._catch_up(link, tensor, entry.offset + entry.size)
        self._judge(link, tensor)

    def _gets(self, entry: TensorEntry) -> Iterator[Get]:
        for file, gaps in self._model.gaps([entry.name]).items():
            for begin, end in gaps:
                yield from pieces(file, begin, end)

    def _catch_up(self, link: AskingLink, tensor: _Tensor, until: int) -> None:
        """Hash what an earlier try has left on the disk, up to *until*."""
        if tensor.at >= until:
            return
        tensor.was_begun = True
        with tensor.entry.file.open("rb", buffering=0) as stream:
            while tensor.at < until:
                data = os.pread(stream.fileno(), min(_BUFFER, until - tensor.at), tensor.at)
                if not data:
                    raise OSError(5, "it has become shorter", str(tensor.entry.file))
                tensor.hashed.update(data)
                tensor.at += len(data)
                link.stay()

    def _judge(self, link: AskingLink, tensor: _Tensor) -> None:
        name, found = tensor.entry.name, tensor.hashed.hexdigest()
        expected = self._manifest.get(name) or self._told[name] or found
        if found == expected:
            self._finished.append((name, found))
            return
        self._keep()
        trio.from_thread.run_sync(self._model.drop, [name])
        self._came(-tensor.entry.size)
        if tensor.was_begun:
            log.warning("what was here of tensor %s was wrong", clip(name, MAX_NAMED))
            self._fetch(link, tensor.entry)
            return
        by = "the manifest says" if name in self._manifest else f"{link.name} itself says"
        self._is_wrong(link, tensor.entry, by)
        if len(self.wrong) >= MAX_WRONG:
            raise AskFault(f"{link.name} gives one wrong tensor after another")

    def _is_wrong(self, link: AskingLink, entry: TensorEntry, by: str) -> None:
        name = clip(entry.name, MAX_NAMED)  # a member told it
        self.wrong[entry.name] = (
            f"tensor {name} of {link.name} is not what {by}: its copy is damaged, or was "
            f"changed; fetch the model again on {link.name}, or have another member hold it"
        )

    def _keep(self) -> None:
        """Have on the disk what has come, and keep that it is here."""
        written, self._written = _joined(self._written), []
        finished, self._finished = self._finished, []
        self._unkept = 0
        for file in dict.fromkeys(file for file, _, _ in written):
            self._model.sync(file)
        trio.from_thread.run_sync(partial(self._note, written, finished))

    def _note(self, written: list[tuple[str, int, int]], finished: list[tuple[str, str]]) -> None:
        for file, begin, end in written:
            self._model.wrote(file, begin, end)
        for name, digest in finished:
            self._model.keep(name, digest)


def _joined(ranges: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """*ranges* with those joined that touch."""
    found: list[tuple[str, int, int]] = []
    for file, begin, end in sorted(ranges):
        if found and found[-1][0] == file and found[-1][2] == begin:
            found[-1] = file, found[-1][1], end
        else:
            found.append((file, begin, end))
    return found

"""The node's text workers: processes that render, tokenise and parse, within limits.

`text_worker` is what one of them runs. `run` gives a worker a job, and returns its result. A job
that exceeds its memory or the time of its stage is killed with its worker, and its caller gets
the stage; another worker starts. A job whose caller leaves has `GRACE` seconds to finish, so that
not every client that leaves costs a worker. A worker that ends while it has no job is replaced, and
no job is lost.

There are at most `WORKERS`. The second starts when a job finds the first one busy, and stays. At
most one of them works on large texts, so short ones always get through. Each owner has one job done
at a time: an owner whose texts take a worker to its limits delays its own, and large ones of
others by one job.

Memory: a worker has as much as the tokenizer takes (90 MB with the model that ships with sealring,
and some 200 MB with a vocabulary of 150,000), and `frames.MEMORY` for a job.

Only a worker loads the tokenizer, for others wrote the model's folder. The first that has loaded it
within `frames.LOAD_MEMORY` and `LOAD_SECONDS` sends what the node needs to know of its tokens.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import attrs
import psutil  # type: ignore[import-untyped]
import trio
from sealring_model.text.detokenizer import Vocabulary
from sealring_protocol.codec.wire import clip
from sealring_trio.engine.supervisor import EngineCommand
from sealring_trio.errors import OperationError
from sealring_trio.processes.interpreter import signal_name

from sealring.text.frames import (
    LOAD_MEMORY,
    LOAD_SECONDS,
    MAX_FRAME,
    MEMORY,
    SIZES,
    STAGE_SECONDS,
    Exceeded,
    Lost,
    Refused,
    TextQueueFull,
    Unloadable,
    Wrong,
    checked,
    checked_error,
    is_small,
    pack,
)

PART: Final = 0.5
"""The part of the budget that one owner may take; the rest stays for all others."""


class SharedBudget:
    """A budget of *room* bytes for all owners together, of which each may take `PART`."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._taken = 0
        self._of_owner: Counter[str] = Counter()

    def take(self, owner: str, size: int) -> bool:
        """Give *owner* *size* bytes more. False, and nothing changes, if that exceeds the
        budget."""
        own = self._of_owner[owner] + size
        if self._taken + size > self._room or own > self._room * PART:
            return False
        self._of_owner[owner] = own
        self._taken += size
        return True

    def left_of(self, owner: str) -> int:
        """The bytes that *owner* may still take of its part, as far as others leave them."""
        return int(self._room * PART) - self._of_owner[owner]

    def give_back(self, owner: str, size: int) -> None:
        """Take back *size* bytes that *owner* was given."""
        self._of_owner[owner] -= size
        self._taken -= size
        if not self._of_owner[owner]:
            del self._of_owner[owner]


log = logging.getLogger("sealring")

WORKERS: Final = 2
LARGE: Final = 256 << 10
"""Bytes from which a job counts as large."""

MAX_WAITING: Final = 64 << 20
"""Most bytes of all jobs that wait or are being done, of which one owner's may be half."""

MODULE: Final = "sealring.text_worker"
RETIRED: Final = 512 << 20
"""Bytes by which a worker may have grown after a large job. One that has grown more is replaced."""

START_SECONDS: Final = 120.0
ACCEPT_SECONDS: Final = 10.0
"""Seconds for a worker to read a job from its socket."""

GRACE: Final = 2.0
"""Seconds that a job may go on when its caller has left."""

LOADING: Final = "loading the model's tokenizer"

_SAID: Final = 1000
"""Bytes of what a worker says of itself that are passed on."""

Check = Callable[[Mapping[str, Any]], object]
"""Raises `ValueError` for fields that are no answer."""

LOOK: Final = 0.1
"""Seconds between looks at the memory of a worker that has a job."""


class TextWorkers:
    """The text workers of the model in *folder*, which have *seconds* of processor time to load its
    tokenizer. Jobs wait until `serve` runs."""

    def __init__(self, folder: Path, seconds: int = LOAD_SECONDS) -> None:
        self._command = EngineCommand(
            MODULE,
            ("--model", str(folder), "--seconds", str(seconds)),
            {"TOKENIZERS_PARALLELISM": "false"},
            alone=True,
        )
        self._vocabulary: Vocabulary | None = None
        self.unloadable: str = ""
        """Why no worker will ever start; empty if one has, or may."""
        self._nursery: trio.Nursery | None = None
        self._idle: list[_Worker] = []
        self._living = 0  # those that start, too
        self._starting = 0
        self._fault = ""  # why the latest start failed
        self._changed = trio.Event()
        self._places = trio.Semaphore(WORKERS)
        self._large = trio.Semaphore(WORKERS - 1)
        self._turns: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._waiting = SharedBudget(MAX_WAITING)
        self._ended: list[subprocess.Popen[bytes]] = []

    @property
    def loading(self) -> bool:
        """Whether no worker has loaded the tokenizer yet, and one may."""
        return self._vocabulary is None and not self.unloadable

    async def vocabulary(self) -> Vocabulary:
        """What the node knows of the model's tokens, from the first worker that has loaded them.
        Raises `OperationError`."""
        while self._vocabulary is None:
            async with self._places:
                self._give_back(await self._take(), 0)
        return self._vocabulary

    async def serve(self) -> None:
        """Start workers as jobs need them, until cancelled; the first starts at once."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._start()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            for worker in self._idle:
                self._end(worker)
            self._idle.clear()
            for process in self._ended:
                process.wait()  # which is short: they are killed

    async def run(
        self,
        job: str,
        about: Mapping[str, Any],
        data: bytes = b"",
        owner: str = "",
        check: Check = lambda _: None,
    ) -> tuple[dict[str, Any], bytes]:
        """The result of *job* with *about* and *data*, for *owner*, which passes `frames.checked`
        and *check*. Raises `Refused`, `Exceeded`, `TextQueueFull`, `Lost`, or `OperationError` if
        no worker starts."""
        if not self._waiting.take(owner, len(data)):
            raise TextQueueFull
        turn = self._turns.setdefault(owner, trio.Lock())  # which lasts while a job waits for it
        large = self._large if len(data) >= LARGE else contextlib.nullcontext()
        try:
            async with turn, large, self._places:
                worker = await self._take()
                try:
                    return await worker.ask(job, pack({"job": job, **about}, data), check)
                finally:
                    self._give_back(worker, len(data))
        finally:
            self._waiting.give_back(owner, len(data))

    async def _take(self) -> _Worker:
        """An idle worker. Raises `OperationError`. A start costs seconds of a core, so no second
        start begins while one is under way: its worker may serve both jobs."""
        started = self._nursery is None
        while True:
            if self.unloadable:
                raise OperationError(self.unloadable, "Fetch the model again.")
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                log.warning("a text worker has ended while it had no job; another takes its place")
                self._replace(worker)
            if self._living < WORKERS and not self._starting and not started:
                self._start()
                started = True
            await self._changed.wait()
            if not (self._living or self._idle or self.unloadable):
                raise OperationError(self._fault, "The log says more.")

    def _give_back(self, worker: _Worker, size: int) -> None:
        alive = worker.usable and self._nursery is not None
        if alive and (size < LARGE or worker.memory() < worker.loaded + RETIRED):
            self._idle.append(worker)
            self._ring()
            return
        self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        self._end(worker)
        self._living -= 1
        self._start()

    def _start(self) -> None:
        if self._nursery is not None:
            self._living += 1
            self._starting += 1
            self._nursery.start_soon(self._bring_up)

    async def _bring_up(self) -> None:
        worker = None
        try:
            worker = _Worker.start(self._command)
            vocabulary = await worker.ready()
            self._vocabulary = self._vocabulary or vocabulary
            self._idle.append(worker)
        except (OSError, RuntimeError, ImportError, Lost, Unloadable) as error:
            self._fault = f"no text worker starts: {error}"
            if isinstance(error, Unloadable) and self._vocabulary is None:
                self.unloadable = str(error)
            log.warning("%s", self._fault)
            self._living -= 1
            if worker is not None:
                self._end(worker)
        except trio.Cancelled:
            if worker is not None:
                self._end(worker)
            raise
        finally:
            self._starting -= 1
        self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _end(self, worker: _Worker) -> None:
        """Kill *worker*. To wait for it would take as long as its memory takes to be freed."""
        self._ended = [process for process in self._ended if process.poll() is None]
        self._ended.append(worker.end())
        if self._nursery is None:
            worker.process.wait()


@attrs.define(eq=False)
class _Worker:
    """One process. It is *usable* while it has no job and is alive."""

    process: subprocess.Popen[bytes]
    stream: trio.SocketStream
    usable: bool = False
    loaded: int = 0  # bytes of memory that it took before its first job
    _held: bytearray = attrs.field(factory=bytearray)

    @classmethod
    def start(cls, command: EngineCommand) -> _Worker:
        """A new one. Raises `OSError`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                process = command.start(theirs.fileno())
            except OSError:
                ours.close()
                raise
        return cls(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)))

    async def ready(self) -> Vocabulary:
        """Wait until it has loaded the tokenizer. What it knows of the tokens. Raises `Lost` or
        `Unloadable`."""
        try:
            with trio.fail_after(START_SECONDS):  # of a machine that has no time for it
                fields, data = await self._frame(LOADING, float("inf"))
        except trio.TooSlowError:
            raise Lost(f"{LOADING} took longer than {START_SECONDS:.0f} s") from None
        except Exceeded as error:
            raise Unloadable(str(error)) from None
        if isinstance(failed := fields.get("failed"), str):
            raise Unloadable(clip(failed[:_SAID], _SAID))
        if not isinstance(ready := fields.get("ready"), dict):
            raise Lost("the text worker said what is no message")
        try:
            vocabulary = Vocabulary.unpacked(ready, data)
        except ValueError as error:
            raise Lost(f"the text worker said nothing of its tokens: {error}") from None
        self.usable = True
        self.loaded = self.memory()
        return vocabulary

    async def ask(self, job: str, frame: bytes, check: Check) -> tuple[dict[str, Any], bytes]:
        """Its answer to *job* in *frame*, which passes *check*. Raises `Refused`, `Exceeded` or
        `Lost`."""
        self.usable = False
        if self._held:
            raise Lost("the text worker said more than it was asked")
        try:
            fields, data = await self._converse(frame)
        except trio.Cancelled:
            with trio.CancelScope(shield=True), trio.move_on_after(GRACE):
                await self._finish_abandoned_job()
            raise
        try:
            answer = _answer(job, fields, data, check)
        except (KeyError, TypeError, ValueError) as error:
            why = " ".join(str(error).split())
            log.warning("a text worker is ended: it answered what is no answer (%.300s)", why)
            raise Wrong("a text worker gave an answer that is none, and was ended") from None
        self.usable = True
        if isinstance(answer, Refused):
            raise answer
        return answer, data

    async def _converse(self, frame: bytes) -> tuple[dict[str, Any], bytes]:
        stage, began = "reading the job", trio.current_time()
        try:
            with trio.CancelScope(shield=True), trio.fail_after(ACCEPT_SECONDS):
                await self.stream.send_all(frame)  # half a job would spoil the next one
        except trio.TooSlowError:
            raise Lost("it does not read") from None
        except trio.BrokenResourceError:
            raise self._death(stage) from None
        limit, stages = ACCEPT_SECONDS, dict(STAGE_SECONDS)
        while True:
            fields, data = await self._frame(stage, began + limit)
            if "stage" not in fields:
                return fields, data
            stage, began = str(fields["stage"]), trio.current_time()
            if stage not in stages:
                raise Lost("the text worker began a stage that was not next")
            limit = stages.pop(stage)  # once a job, or it would never end

    async def _finish_abandoned_job(self) -> None:
        """Let the job of a caller who has left finish."""
        with contextlib.suppress(Lost, Exceeded):
            fields: dict[str, Any] = {"stage": ""}
            while "stage" in fields:
                fields, _ = await self._frame("", float("inf"))
            self.usable = True

    async def _frame(self, stage: str, until: float) -> tuple[dict[str, Any], bytes]:
        """The next frame, which must have come by *until*. Raises `Exceeded` or `Lost`."""
        began = trio.current_time()
        held = self._held
        while True:
            if len(held) >= SIZES.size:
                text, data = SIZES.unpack_from(held)
                end = SIZES.size + text + data
                if end > MAX_FRAME:
                    raise Lost("it said more than it may")
                if len(held) >= end:
                    fields = _read(held[SIZES.size : SIZES.size + text])
                    rest = bytes(memoryview(held)[SIZES.size + text : end])
                    del held[:end]
                    return fields, rest
            with trio.move_on_after(LOOK) as look:
                try:
                    part = await self.stream.receive_some(1 << 20)
                except trio.BrokenResourceError:
                    part = b""
                if not part:
                    raise self._death(stage)
                held += part
            if trio.current_time() >= until:  # also where a part has come: the rest may never
                raise Exceeded(f"{stage} took longer than {until - began:.2g} s")
            if look.cancelled_caught and self.memory() > self.loaded + self._most:
                raise self._exceeded(stage)

    @property
    def _most(self) -> int:
        """Bytes that it may take beside what it has loaded."""
        return MEMORY if self.loaded else LOAD_MEMORY

    def _exceeded(self, stage: str) -> Exceeded:
        return Exceeded(f"{stage} took more than {self._most >> 30} GiB of memory")

    def memory(self) -> int:
        """Bytes of memory that it uses; 0 if it is gone."""
        try:
            return int(psutil.Process(self.process.pid).memory_info().rss)
        except (psutil.Error, OSError):
            return 0

    def _death(self, stage: str) -> Exceeded | Lost:
        """Why its stream has ended, as the error to raise."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(0.05)  # it is ending, and has said so
        if code is not None and code == -signal.SIGABRT:  # what an allocation that fails does
            return self._exceeded(stage)
        if code is not None and code == -signal.SIGXCPU:
            return Exceeded(f"{stage} took more processor time than it may")
        how = "ended" if code is None or code >= 0 else signal_name(-code)
        return Lost(f"the text worker was lost ({how}); it was at {stage}")

    def end(self) -> subprocess.Popen[bytes]:
        """Kill it; the process, which is to be waited for."""
        self.usable = False
        self.process.kill()
        self.stream.socket.close()
        return self.process


def _read(text: bytearray) -> dict[str, Any]:
    """The object in *text*. Raises `Lost`: a worker that was taken over says anything."""
    try:
        fields = json.loads(text) if is_small(text) else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Lost("the text worker said what is no message")
    return fields


def _answer(
    job: str, fields: Mapping[str, Any], data: bytes, check: Check
) -> dict[str, Any] | Refused:
    """The result of *job*. Raises `KeyError`, `TypeError` or `ValueError` if *fields* and *data*
    are none."""
    refused, done = fields.get("refused"), fields.get("done")
    if isinstance(refused, dict):
        checked_error(refused)
        return Refused(refused)
    if not isinstance(done, dict):
        raise ValueError("it has no result")  # noqa: TRY004  said by a worker, not a caller
    checked(job, done, data)
    check(done)
    return done

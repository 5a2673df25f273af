"""A draft model: finding it before anything starts, and having it guess tokens for a head's rows.

It runs in a process of its own (`sealring_model.draft.main`), which gets rows and their tokens as
they come, and gives guesses, which the node may use (`Node.guess`). Nobody waits for it: it gives
way to the engine, what it sends late is left aside, and a ring without it draws the same tokens. If
it dies it is started again a few times, and then done without.

It follows a few rows at a time. With more of them the stages of a ring are busy anyway.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from sealring_model.draft.frames import DraftFrame, DraftFrameKind, FrameReader, pack
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.deadlines import Backoff
from sealring_protocol.control.requests import Request

from sealring_trio.engine.supervisor import EngineCommand, bury
from sealring_trio.errors import UserError
from sealring_trio.fetching.hub import Hub
from sealring_trio.files.models import find_model, find_whole_model, model_name
from sealring_trio.net.pump import Wire
from sealring_trio.node.runtime import Runtime
from sealring_trio.processes.interpreter import child_environment, run_module, signal_name

log = logging.getLogger("sealring.draft")

MODULE: Final = "sealring_model.draft.main"
_LAUNCHER: Final = "sealring_trio.processes.launcher"

_SECONDS: Final = 60.0
"""Seconds that it may take to build a draft model without its weights; it takes half a second."""

OPTION: Final = "--draft"
"""Where commands have a draft model named."""

ROWS: Final = 4
"""Rows that are followed at once, at most."""

MAX_UNTAKEN: Final = 16 << 20
"""Bytes that the process may leave untaken. One that leaves more is ended."""

LIVES: Final = 3
"""Processes that are started, at most, if each dies."""

LONGEST_PAUSE: Final = 30.0

LOOK: Final = 0.5
"""Seconds between looks at whether the engine is back, which knows the width of the logits."""


@attrs.frozen
class DraftModel:
    """A draft model: its *folder*, what it is called, and the bytes of *memory* that it takes."""

    folder: Path
    name: str
    memory: int


def find_draft(draft: str, model: Path, named: str, hub: Hub | None = None) -> DraftModel:
    """The model *draft*, all of which is here then, which is to guess the tokens of the one in the
    folder *model*. *named* says where a person named it. Raises `UserError`, also when it cannot
    guess; if their vocabularies differ, no weights are fetched."""
    found = _measured(_found(draft, named, hub), model)
    find_whole_model(draft, hub)
    return found


def plan_draft(draft: str, model: Path) -> DraftModel:
    """As `find_draft`, without its weights."""
    return _measured(_found(draft, OPTION, None), model)


def _found(draft: str, named: str, hub: Hub | None) -> Path:
    if not draft:
        raise UserError(
            f"{named} names no draft model", "Give a folder or a hub id, or leave it out."
        )
    return find_model(draft, hub, draft=named)


def _measured(folder: Path, model: Path) -> DraftModel:
    """The draft model in *folder*. Raises `UserError` if it cannot be built, or its vocabulary is
    not that of the one in the folder *model*."""
    try:
        done = subprocess.run(
            [
                *run_module(_LAUNCHER, "--alone", MODULE),
                *("--model", str(folder), "--for", str(model)),
            ],
            check=False,
            env=child_environment(),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _cannot_guess(
            folder, model, f"it could not be built within {_SECONDS:g} seconds"
        ) from None
    code, sizes = done.returncode, done.stdout.split()
    if code or not sizes:
        ended = f"{signal_name(-code)} killed" if code < 0 else f"code {code} ended"
        said = done.stderr.strip().splitlines() or [f"{ended} the process that built it"]
        raise _cannot_guess(folder, model, said[-1])
    return DraftModel(folder, model_name(folder), int(sizes[-1]))


def _cannot_guess(folder: Path, model: Path, why: str) -> UserError:
    return UserError(
        f"{model_name(folder)} cannot guess the tokens of {model_name(model)}: {why}",
        "Take a draft model of the same family, or none.",
    )


@attrs.frozen
class _Followed:
    """A row that is followed: its *request*, and its tokens so far."""

    request: Request
    tokens: list[int]


class Drafts:
    """The draft *model*, which guesses for *runtime*'s node while that is the head."""

    def __init__(self, runtime: Runtime, model: DraftModel) -> None:
        self._runtime: Final = runtime
        self._model: Final = model
        self._rows: Final[dict[int, _Followed]] = {}
        self._wire: Wire | None = None  # to a process that has loaded its model
        self._process: subprocess.Popen[bytes] | None = None
        self._fault = ""
        self._stopped = ""  # why it must be ended
        self._given_up = False
        runtime.drafts = self

    def describe(self) -> dict[str, Any]:
        """What `status` shows of it."""
        state = "starting" if self._wire is None else "guessing"
        return {
            "model": self._model.name,
            "state": "given up" if self._given_up else state,
            "fault": self._fault,
        }

    def describe_here(self) -> dict[str, Any]:
        """As `describe`, with what concerns this machine alone."""
        return {
            **self.describe(),
            "folder": str(self._model.folder),
            "pid": 0 if self._process is None else self._process.pid,
        }

    # ------------------------------------------------------------- the head's rows

    def begin(self, uid: int, request: Request) -> None:
        """Row *uid* has been submitted, as *request*."""
        if len(self._rows) < ROWS and not self._given_up:
            self._rows[uid] = _Followed(request, [*request.prompt, *request.drawn])
            self._send_open(uid)

    def token(self, uid: int, position: int, token: int) -> None:
        """Row *uid* has *token* at *position*."""
        row = self._rows.get(uid)
        if row is not None and position == len(row.tokens):
            row.tokens.append(token)
            self._send(DraftFrame(DraftFrameKind.TOKENS, uid, position, (token,)))

    def over(self, uid: int) -> None:
        """Row *uid* is over."""
        if self._rows.pop(uid, None) is not None:
            self._send(DraftFrame(DraftFrameKind.CLOSE, uid))

    # ---------------------------------------------------------------- the process

    async def run(self) -> None:
        """Keep the process alive, until cancelled or until it has died too often."""
        backoff = Backoff(LONGEST_PAUSE)
        await self._runtime.informed.wait()
        for left in reversed(range(LIVES)):
            # It is there at once, but for an engine that is being replaced at this moment.
            while (info := self._runtime.node.engine_info) is None:  # noqa: ASYNC110
                await trio.sleep(LOOK)
            try:
                self._fault = await self._one_life(info.vocabulary)
            except OSError as error:
                self._fault = f"it could not be started ({error.strerror})"
            then = "it is started again" if left else "the ring goes on without it"
            log.warning("the draft model %s: %s; %s", self._model.name, self._fault, then)
            if left:
                await trio.sleep(backoff.next())
        self._given_up = True
        self._rows.clear()

    async def _one_life(self, vocabulary: int) -> str:
        """Start the process, and take its guesses, below *vocabulary*, until it ends. Returns why
        it did. Raises `OSError` if it cannot be started."""
        arguments = ("--model", str(self._model.folder), "--vocabulary", str(vocabulary))
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                command = EngineCommand(MODULE, arguments, way="--give-way-to-all", alone=True)
                process = command.start(theirs.fileno())
            except OSError:
                ours.close()
                raise
        self._process, self._stopped = process, ""
        wire = Wire(ours, lambda: None)
        fault = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write, wire)
                fault = await self._read(wire, vocabulary)
                nursery.cancel_scope.cancel()
        finally:
            self._wire = None
            wire.close()
            status = await bury(process, 0.0 if fault else 1.0)
            self._process = None
        return fault or status

    async def _read(self, wire: Wire, vocabulary: int) -> str:
        """Take what the process says, until it ends. Returns why it must be ended, if it must."""
        reader = FrameReader(rows=False)
        with contextlib.suppress(OSError):  # how it ended is what its exit says
            try:
                while data := await wire.receive():
                    for frame in reader.read(data):
                        self._hear(wire, frame, vocabulary)
            except ValueError as error:
                return f"it said what is no guess: {error}"
        return self._stopped

    def _hear(self, wire: Wire, frame: DraftFrame, vocabulary: int) -> None:
        """The process said *frame*. Raises `ValueError` for what it may not say."""
        if frame.kind is DraftFrameKind.READY and self._wire is None:
            log.info("the draft model %s guesses tokens", self._model.name)
            self._wire, self._fault = wire, ""
            for uid in self._rows:
                self._send_open(uid)
        elif frame.kind is not DraftFrameKind.GUESS or self._wire is None:
            raise ValueError(frame.kind.name)
        elif max(frame.ids, default=0) >= vocabulary:
            raise ValueError(f"token {max(frame.ids)} of {vocabulary}")
        elif frame.uid in self._rows and self._runtime.node.rank == 0:
            self._runtime.enter(self._runtime.node.guess, frame.uid, frame.position, frame.ids)

    def _send_open(self, uid: int) -> None:
        row = self._rows[uid]
        sampling = row.request.sampling
        history = tuple(row.tokens) if sampling.penalised else ()
        generated = len(row.tokens) - len(row.request.prompt) if history else 0
        opened: Row = attrs.evolve(sampling, uid=uid, history=history, generated=generated)
        self._send(DraftFrame(DraftFrameKind.OPEN, uid, 0, row.tokens, opened))

    def _send(self, frame: DraftFrame) -> None:
        wire = self._wire
        if wire is None:
            return
        if wire.unsent > MAX_UNTAKEN and self._process is not None:
            self._wire, self._stopped = None, "it left untaken what it was sent"
            self._process.kill()  # which ends the stream
            return
        with contextlib.suppress(OSError):  # it is dead, or dying; `_read` sees that
            wire.send(pack(frame))


async def _write(wire: Wire) -> None:
    with contextlib.suppress(OSError):  # the reader sees the end
        await wire.write()

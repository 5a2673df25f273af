"""A ring of executors in one process, and a head that writes its steps.

Messages between them go through their encodings, as they would on a link.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
from sealring_model.engine.executor import Executor
from sealring_model.engine.hidden_io import InFlight, PlainActivations, SealedActivations
from sealring_model.loading.assemble import LoadedStage, load_stage
from sealring_model.loading.model_folder import ModelInfo, describe
from sealring_model.sampling.constraints import Matchers
from sealring_model.sampling.rows import RowParams
from sealring_model.stage.device import DeviceIO
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.local_messages import HopKey, Logprobs, RowOver, Scores
from sealring_protocol.codec.messages import (
    NO_WORK,
    Backend,
    Bootstrap,
    Decode,
    Epoch,
    Join,
    KeptCache,
    Open,
    Prefill,
    Row,
    Save,
    Step,
    StepDone,
    TakeBack,
)
from sealring_protocol.control.epoch.ledger import Ledger

SAMPLING = (
    {},
    {"seed": 11, "temperature": 0.8, "top_k": 40},
    {"seed": 12, "temperature": 0.4, "repetition": 1.4, "frequency": 0.3, "bias": ((7, 2.0),)},
)
"""Ways to sample, for rows of random schedules."""

EPOCH = Epoch(77, 1)
CLUSTER = b"c" * 32
_STAGES: dict[tuple, LoadedStage] = {}


def stage_of(folder: Path, first: int, last: int) -> LoadedStage:
    """A loaded stage, kept for later tests: stages have no state of their own."""
    key = (folder, first, last)
    if key not in _STAGES:
        _STAGES[key] = load_stage(describe(folder), first, last)
    return _STAGES[key]


def bounds_for(layers: int, world: int) -> tuple[int, ...]:
    return tuple(layers * rank // world for rank in range(world + 1))


def place_of(info: ModelInfo, bounds: tuple[int, ...], rank: int, seal: bool = False) -> Bootstrap:
    return Bootstrap(EPOCH, Backend.PIPELINE, rank, seal, 1000, info.digest, bounds)


def travelled(message):
    return decode_local(b"".join(encode(message)))


def hop_keys(rank: int, world: int) -> list[HopKey]:
    """The keys of the two hops of *rank*: hop r leaves rank r."""
    return [
        HopKey(True, 1, CLUSTER, bytes([rank]) * 32),
        HopKey(False, 1, CLUSTER, bytes([(rank - 1) % world]) * 32),
    ]


class StepFailed(Exception):
    pass


class Author:
    """Writes gap-free steps with the right digests."""

    def __init__(self, epoch: Epoch = EPOCH, kept: Sequence[KeptCache] = ()) -> None:
        self.epoch = epoch
        self.ledger = Ledger(kept)
        self.n = 0

    def write(self, **fields) -> Step:
        self.n += 1
        step = Step(self.epoch, self.n, bytes(16), **fields)
        self.ledger.apply(step)
        return attrs.evolve(step, digest=self.ledger.digest(self.n))


class Ring:
    """Executors for consecutive stages of one model, and the head's side of serving rows."""

    def __init__(
        self,
        folder: Path,
        bounds: Sequence[int] | None = None,
        *,
        seal: bool = False,
        limit: int = 1 << 40,
        idle: Callable[[], int] = lambda: 0,
        early_fill: Callable[[], bool] = lambda: False,
        device_io: Callable[[], DeviceIO] = DeviceIO,
        matchers: Matchers | None = None,
    ) -> None:
        """*idle* gives how many graphs a rank works ahead while it waits for its next message.
        *early_fill* tells whether the device is given that message's hidden states early. Each rank
        has its own *device_io*."""
        info = describe(folder)
        self.bounds = tuple(bounds or (0, len(info.layers)))
        world = len(self.bounds) - 1
        self.author = Author()
        self.params = RowParams(matchers)
        self.folder, self.limit = folder, limit
        self.places = [place_of(info, self.bounds, rank, seal) for rank in range(world)]
        self.activations = []
        self.device_io = [device_io() for _ in range(world)]
        for rank in range(world):
            self.activations.append(SealedActivations() if seal else PlainActivations())
            if seal:
                for key in hop_keys(rank, world):
                    self.activations[rank].set_key(key)
        self.executors = [self._executor(rank) for rank in range(world)]
        self.idle = idle
        self.early_fill = early_fill
        self.uids = iter(range(1, 1 << 30))
        self.last: dict[int, int] = {}
        self.text: dict[int, list[int]] = {}
        self.told: dict[int, list[Logprobs | Scores]] = {}
        self.over: dict[int, list[RowOver]] = {}

    def _executor(self, rank: int, kept: dict[int, list] | None = None) -> Executor:
        return Executor(
            stage_of(self.folder, self.bounds[rank], self.bounds[rank + 1]),
            self.places[rank],
            self.params if rank == 0 else RowParams(),
            self.activations[rank],
            self.limit,
            device_io=self.device_io[rank],
            kept=kept,
        )

    def next_epoch(self, kept: Sequence[KeptCache]) -> None:
        """Another epoch begins, with what is *kept* of this one. Raises `LedgerError` if a rank
        cannot keep it."""
        epoch = Epoch(EPOCH.instance, self.author.epoch.counter + 1)
        self.places = [attrs.evolve(place, epoch=epoch, kept=tuple(kept)) for place in self.places]
        for rank, before in enumerate(self.executors):
            before.end()
            self.executors[rank] = self._executor(rank, before.keep(self.places[rank]))
        self.author = Author(epoch, kept)

    # ------------------------------------------------------------- one step

    def step(self, **fields) -> StepDone:
        """Send one step round the ring; its answer. Raises `StepFailed`."""
        return self.send(self.author.write(**fields))

    def send(self, step: Step) -> StepDone:
        message = step
        for executor in self.executors:
            message = self._done(executor, executor.launch, message)
        if len(self.executors) > 1 and message.tensors:
            message = self._done(self.executors[0], self.executors[0].close, message)
        return message

    def _done(self, executor: Executor, launch: Callable, message):
        message = travelled(message)
        if self.early_fill():
            executor.fill_early(message)
            self._idle(executor)
        return self._finished(executor, launch(message))

    def _finished(self, executor: Executor, in_flight: InFlight):
        message = travelled(executor.finish(in_flight))
        self._idle(executor)
        if message.failed:
            raise StepFailed(message.failed)
        for told in map(travelled, in_flight.pending_answer.preface()):
            kept = self.over if isinstance(told, RowOver) else self.told
            kept.setdefault(told.uid, []).append(told)
        return message

    def _idle(self, executor: Executor) -> None:
        for _ in range(self.idle()):
            executor.work_ahead()

    # -------------------------------------------------------------- rows

    def announce(self, uid: int, tokens: Sequence[int], generated: int = 0, **sampling) -> None:
        """Say how a row is sampled that has *tokens*, the last *generated* of them its own."""
        row = Row(uid, **sampling)
        if row.remembers:
            row = attrs.evolve(row, history=tuple(tokens), generated=generated)
        self.params.add(travelled(row))

    def admit(
        self, prompt: list[int], *, chunk: int = 1 << 20, generated: int = 0, **sampling
    ) -> int:
        """Read a prompt, that ends with *generated* tokens of the row's own, and leave the row
        ready to join; its uid."""
        uid = next(self.uids)
        self.announce(uid, prompt, generated, **sampling)
        self.step(open=(Open(uid),))
        self.read(uid, prompt[:-1], 0, chunk)
        self.last[uid] = prompt[-1]
        self.text[uid] = []
        return uid

    def open_from(
        self, handle: int, keep: int, tokens: list[int], generated: int = 0, **sampling
    ) -> int:
        """Begin a row of *tokens* with *keep* of a snapshot, read the rest, and leave it ready to
        join; its uid."""
        uid = next(self.uids)
        self.announce(uid, tokens, generated, **sampling)
        self.step(open=(Open(uid, handle, keep),))
        self.read(uid, tokens[keep:-1], keep)
        self.last[uid], self.text[uid] = tokens[-1], []
        return uid

    def read(self, uid: int, tokens: list[int], position: int, chunk: int = 1 << 20) -> None:
        for at in range(0, len(tokens), chunk):
            part = tokens[at : at + chunk]
            self.step(work=Prefill(uid, position + at, len(part)), ids=tuple(part))

    def score(self, tokens: list[int], chunks: Sequence[int], **sampling) -> list[Scores]:
        """What is told of *tokens*, a prompt that is read in *chunks* and then dropped."""
        uid = next(self.uids)
        self.announce(uid, tokens, **sampling)
        self.step(open=(Open(uid),))
        position = 0
        for count in chunks:
            ids = tuple(tokens[position : position + count + 1])
            self.step(work=Prefill(uid, position, count, scored=True), ids=ids)
            position += count
        assert position == len(tokens) - 1
        self.step(drop=(uid,))
        return self.told.pop(uid, [])

    def decode(self, batch: int = 0, *, join: Sequence[int] = (), evict: Sequence[int] = ()):
        """One token for every row of *batch*, after evictions and joins."""
        done = self.step(
            evict=tuple(evict),
            join=tuple(Join(uid, batch) for uid in join),
            ids=tuple(self.last[uid] for uid in join),
            work=Decode(batch),
        )
        for uid, token in zip(self.author.ledger.groups[batch], done.ids, strict=True):
            self.text[uid].append(token)
            self.last[uid] = token
        return done.ids

    def decode_ahead(self, guesses: Sequence[int], back: int = 0) -> int:
        """Take *back* so many tokens of the only row, and read *guesses* after its last one.
        Returns how many of them were wrong."""
        ((uid, *_),) = self.author.ledger.groups.values()
        done = self.step(
            back=(TakeBack(uid, back),) if back else (),
            ids=tuple(guesses),
            work=Decode(0, len(guesses), len(guesses)),
        )
        self.text[uid] += done.ids
        return len(guesses) + 1 - len(done.ids)

    def evict(self, *uids: int) -> None:
        self.step(evict=uids, work=NO_WORK)

    def save(self, uid: int, *, evict: Sequence[int] = ()) -> int:
        """Keep row *uid* as a snapshot, and evict rows in the same step; its handle."""
        handle = next(self.uids)
        self.step(save=(Save(uid, handle),), evict=tuple(evict))
        return handle

    def generate(self, prompt: list[int], count: int, *, chunk: int = 1 << 20, **sampling):
        """The text of one row alone."""
        uid = self.admit(prompt, chunk=chunk, **sampling)
        self.decode(join=[uid])
        for _ in range(count - 1):
            self.decode()
        self.evict(uid)
        return self.text[uid]

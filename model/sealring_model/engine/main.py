"""The engine: the child process that loads and computes, driven by its node over a socketpair.

    python -m sealring_model.engine.main --fd N --model FOLDER [--adapter FOLDER]
        [--memory-limit BYTES] [--beside BYTES] [--trust-weights]

It says what the model is (ENGINE_INFO) before it loads anything, takes its place in an epoch from
each BOOTSTRAP, and then answers every step once, in order. MLX can hang, abort, or take a second to
import; in a process of its own none of that touches a link.

A GROUP without hosts makes it load one member's shard of each weight from then on. Once loaded, it
waits for a GROUP with hosts, joins that collective, and says GROUPED and READY. From then on a
member is a rank like any other; but all members must get the same messages in the same order, for
each waits for the others within a step (see `executor`). A process joins one collective at most.

The main thread computes (MLX's streams belong to threads). The channel's thread reads. The thread
of `answers` waits for the device, seals and sends. So a step is launched as soon as it comes, while
the device works on the one before, and an answer leaves as soon as it is ready, whatever is being
launched. Meanwhile the likely next graph is built, and launched where the device can wait for its
input (see `lookahead`). The channel's thread then gives the device that input, and another thread
builds during launches (see `lookahead`).

An error in a step or in loading is answered with a `Failure`. The process ends when its channel
closes, and ignores SIGINT, which is for the node.
"""

from __future__ import annotations

import argparse
import gc
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

try:
    import mlx.core as mx
except ImportError as no_mlx:  # or what it needs of this machine's device is missing
    from sealring_model.engine.without_mlx import end_without_mlx

    end_without_mlx(no_mlx)
from sealring_protocol.codec.local_messages import Group, Grouped, HopKey, Loaded, LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Backend,
    Bootstrap,
    CannotServe,
    FailureKind,
    Ping,
    Pong,
    Progress,
    Ready,
    Row,
    Step,
    StepDone,
)

from sealring_model.channel import Channel, ChannelBroken, ChannelClosed
from sealring_model.engine.collective import check_backend, join, medians
from sealring_model.engine.executor import Executor
from sealring_model.engine.hidden_io import InFlight, PlainActivations, SealedActivations
from sealring_model.errors import (
    FORWARD_ERRORS,
    CollectiveError,
    LedgerError,
    LoadError,
    ModelError,
    error_text,
    failure_of_loading,
)
from sealring_model.loading.assemble import LoadedStage, TpShard, load_shard, load_stage
from sealring_model.loading.model_folder import ModelInfo, describe, find
from sealring_model.loading.structure import describe_engine, structure_of
from sealring_model.machine import (
    PROCESSORS,
    end_with_thread,
    keep_kernels_private,
    limit_beside,
    memory_budget,
    set_switch_interval,
)
from sealring_model.sampling.constraints import Matchers
from sealring_model.sampling.rows import RowParams
from sealring_model.stage import attention
from sealring_model.stage.device import (
    LaunchSettings,
    best_device_io,
    is_device_shared,
    release_device_memory,
    use_one_arena,
)

M = TypeVar("M", Step, StepDone)

_MAX_IN_FLIGHT: Final = 2
"""Steps launched and not answered, at most: one that the device works on, and the next."""

_POLL_FROM_PROCESSORS: Final = 8
"""Processors from which on one thread may busy-poll for the next message."""

_MEMBER_EXIT_GRACE: Final = 0.3
"""Seconds that a member has to end once its node is gone. It may be waiting for a peer."""


class EngineLoop:
    """One model on one rank, through any number of epochs."""

    def __init__(self, channel: Channel, info: ModelInfo, budget: int) -> None:
        self._channel: Final = channel
        self._info: Final = info
        self._memory_budget: Final = budget
        self._activations: Final = SealedActivations()
        self._matchers: Final = Matchers(info.folder, info.vocabulary, channel.send)
        self._params: Final = RowParams(self._matchers)
        self._answers: Final = Answers(channel)
        self._launch_settings: Final = LaunchSettings()
        self._loaded: LoadedStage | TpShard | None = None
        self._order: Group | None = None
        self._joined = False
        self._executor: Executor | None = None
        self._place: Bootstrap | None = None
        self._received = 0
        self._compute_us = 0
        self._room = 0  # bytes for caches, when there were none

    def run(self) -> None:
        """Serve until the channel closes."""
        info, budget = self._info, self._memory_budget
        self._channel.send(describe_engine(info, structure_of(info), budget))
        try:
            while True:
                self._work_ahead()
                message = self._channel.receive(busy_poll=self._should_poll)
                if message is not None:
                    self._handle(message)
        finally:
            if self._executor is not None:
                self._executor.end()
            self._answers.finish()

    @property
    def _should_poll(self) -> bool:
        """Whether the device waits for the next message, and no thread here has anything to do."""
        executor = self._executor
        if executor is None or not executor.launches_ahead:
            return False
        return executor.device_waits and self._answers.is_idle

    def _work_ahead(self) -> None:
        """Build and launch ahead until a message comes or nothing is left to do."""
        executor = self._executor
        while executor is not None and self._channel.is_empty():
            if executor.launches_ahead and executor.device_waits:
                self._channel.intercept_next(self._fill_early)
            if not (executor.launches_ahead or self._answers.is_idle) or not executor.work_ahead():
                return

    def _fill_early(self, message: LocalMessage) -> None:
        """Runs in the reader thread: *message* has come, and everything before it is done."""
        executor = self._executor
        if executor and isinstance(message, Step | StepDone) and self._of_this_epoch(message):
            executor.fill_early(message)

    def _handle(self, message: LocalMessage) -> None:
        self._channel.raise_if_ended()
        match message:
            case Step():
                self._received += 1
                if self._executor is not None and self._of_this_epoch(message):
                    self._launch(self._executor, self._executor.launch, message)
            case StepDone():
                if self._executor is not None and self._of_this_epoch(message):
                    self._launch(self._executor, self._executor.close, message)
            case Ping(echo=echo):
                self._channel.send(Pong(echo, self._progress()))
            case Row():
                self._params.add(message)
            case HopKey():
                self._set_hop_key(message)
            case Bootstrap():
                self._bootstrap(message)
            case Group():
                self._handle_order(message)
            case _:
                raise ChannelBroken(f"a node does not send {type(message).__name__}")

    def _set_hop_key(self, key: HopKey) -> None:
        # What was launched before this key leaves under the key before.
        self._answers.drain()
        try:
            self._activations.set_key(key)
        except ValueError:
            raise ChannelBroken(f"suite {key.suite} is not known here") from None

    def _launch(self, executor: Executor, launch: Callable[[M, int], InFlight], message: M) -> None:
        arrived = self._channel.arrived
        self._answers.reserve()
        self._answers.put(executor, launch(message, arrived))

    def _of_this_epoch(self, message: Step | StepDone) -> bool:
        """Whether *message* is of this process's epoch. Others are ignored."""
        return self._place is not None and message.epoch == self._place.epoch

    def _progress(self) -> Progress:
        executor = self._executor
        return Progress(
            steps_received=self._received,
            steps_answered=self._answers.count,
            compute_us=self._compute_us + (executor.compute_us if executor else 0),
            seal_us=(self._activations.sealing_ns + self._activations.opening_ns) // 1000,
            rows=executor.live_rows if executor else 0,
            memory=mx.get_active_memory(),
            cache=executor.cache_bytes if executor else 0,
        )

    # ---------------------------------------------------------------- bootstrap

    def _bootstrap(self, place: Bootstrap) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.end()
        self._answers.drain()
        if executor is not None:
            self._compute_us += executor.compute_us
        self._place = place
        self._params.new_epoch(place.epoch)
        try:
            kept = _kept(executor, place)
            executor = None  # its other caches are freed before anything is loaded
            self._check_bootstrap(place)
            first, last = place.bounds[place.rank], place.bounds[place.rank + 1]
            loaded = self._load(first, last)
        except (OSError, *FORWARD_ERRORS) as error:
            self._send_refusal(error, failure_of_loading(error))
            return
        if isinstance(loaded, LoadedStage):
            self._start_epoch(place, loaded, kept)

    def _start_epoch(
        self, place: Bootstrap, loaded: LoadedStage, kept: dict[int, list[Any]] | None = None
    ) -> None:
        reports_logprobs = self._order is None or self._order.rank == 0
        seal = self._activations if place.inner_seal else PlainActivations()
        # A member of a collective never waits on a guess: the others would wait with it.
        fits = self._launch_settings.fits(loaded.last - loaded.first)
        device_waits = self._order is None and fits and not is_device_shared()
        self._executor = Executor(
            loaded,
            place,
            self._params,
            seal,
            self._memory_budget,
            device_io=best_device_io(loaded.dtype, wait=device_waits),
            reports_logprobs=reports_logprobs,
            kept=kept,
        )
        if place.rank == 0:  # where tokens are drawn
            self._matchers.load()
        launches = self._executor.launches_ahead
        self._channel.busy_polls = launches and PROCESSORS >= _POLL_FROM_PROCESSORS
        set_switch_interval(short=launches)
        self._channel.send(self._ready(place, loaded))

    def _send_refusal(self, error: Exception, kind: FailureKind) -> None:
        epoch = self._place.epoch if self._place else NO_EPOCH
        self._channel.send(CannotServe(epoch, kind, error_text(error)))

    def _check_bootstrap(self, place: Bootstrap) -> None:
        if self._joined and not self._keeps_layers(place):
            raise CollectiveError("this process was in a group; it must be replaced by another")
        if place.backend is not Backend.PIPELINE:
            raise LoadError(f"this engine does not do {place.backend.name}")
        if self._order is not None:
            check_backend(self._order)
        if place.model != self._info.digest:
            raise LoadError("the ring's model is not this one: their digests differ")
        if place.bounds[-1] != len(self._info.layers):
            raise LoadError(
                f"the ring splits {place.bounds[-1]} layers; the model has {len(self._info.layers)}"
            )

    def _keeps_layers(self, place: Bootstrap) -> bool:
        """Whether *place* has this member's layers: its collective may serve another epoch."""
        loaded = self._loaded
        mine = place.bounds[place.rank], place.bounds[place.rank + 1]
        return isinstance(loaded, LoadedStage) and (loaded.first, loaded.last) == mine

    def _load(self, first: int, last: int) -> LoadedStage | TpShard:
        """Layers *first* to *last*, or this member's shard of them. Says LOADED once the weights
        are read: what a stage does then, its first run, may take as long again."""
        if self._loaded is not None and (self._loaded.first, self._loaded.last) == (first, last):
            self._channel.send(Loaded(0, self._loaded.held, 0))
            return self._loaded
        self._loaded = None
        gc.collect()
        mx.clear_cache()
        release_device_memory()
        order = self._order
        self._launch_settings.choose(
            nccl=order is not None and order.backend is Backend.NCCL,
            layers=(last - first) % len(self._info.layers),
        )
        attention.install()  # launches something, so after `choose`
        if order is None:
            self._loaded = load_stage(self._info, first, last, self._channel.send)
            return self._loaded
        self._loaded = load_shard(
            self._info, first, last, order.rank, order.size, self._channel.send
        )
        return self._loaded

    def _handle_order(self, order: Group) -> None:
        self._answers.drain()
        try:
            if order.hosts:
                self._join(order)
            else:
                self._set_shard(order)
        except (OSError, *FORWARD_ERRORS) as error:
            kind = error.KIND if isinstance(error, ModelError) else FailureKind.GROUP
            self._send_refusal(error, kind)

    def _set_shard(self, order: Group) -> None:
        """Load the shard that *order* names from now on. The shard of one member is the whole."""
        before, self._order = self._order, order if order.size > 1 else None
        if _shard_key(before) != _shard_key(self._order):
            self._loaded = None

    def _join(self, order: Group) -> None:
        if self._joined:
            raise CollectiveError("this process was in a group; it must be replaced by another")
        shard, place = self._loaded, self._place
        if (
            place is None
            or not isinstance(shard, TpShard)
            or _shard_key(order) != _shard_key(self._order)
        ):
            raise CollectiveError("this process has no share of this group's to join with")
        self._joined = True
        self._channel.exit_grace = _MEMBER_EXIT_GRACE
        collective = join(order)
        loaded = shard.join(collective)
        self._loaded = loaded
        sum_us, token_us = medians(collective, loaded)
        self._channel.send(Grouped(order.size, sum_us, token_us))
        self._start_epoch(place, loaded)

    def _ready(self, place: Bootstrap, loaded: LoadedStage) -> Ready:
        if not place.kept:  # what is kept has room already
            self._room = max(0, self._memory_budget - mx.get_active_memory())
        return Ready(
            epoch=place.epoch,
            first=loaded.first,
            last=loaded.last,
            trimmable=loaded.trimmable,
            room=self._room,
            cost=loaded.cost,
        )


class Answers:
    """A thread that waits for the device and sends answers, in the order of launching, while the
    compute thread launches on. Call from the compute thread only.

    Launching does not always return at once. Once MLX has a certain number of operations queued,
    the next launch waits until the device has worked some off (seen on the CPU back end, at about a
    hundred). A thread that both launched and answered would send a step's result only when most of
    the next step is done, and the rank that waits for it would idle.

    Sealing and sending need the GIL. So graphs that are not needed yet are built (see `lookahead`)
    only once every answer is out, and this thread then wakes the compute thread. Where graphs are
    launched ahead as well there is no time to wait for that; but a decode is launched ahead only
    once the decode before it is done, so this thread wakes the compute thread after each answer.

    MLX lets any thread wait for an array that is being computed, but two threads must not use one
    meanwhile. The arrays of an `InFlight` are for this thread alone, and it builds no graph.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel: Final = channel
        self._queue: Final[queue.Queue[tuple[Executor, InFlight] | None]] = queue.Queue()
        self._slots: Final = threading.Semaphore(_MAX_IN_FLIGHT)
        self._thread: Final = threading.Thread(target=self._run, name="answers", daemon=True)
        self.count = 0
        self._thread.start()

    def reserve(self) -> None:
        """Wait until one more step may be launched; call `put` next."""
        self._slots.acquire()

    def put(self, executor: Executor, in_flight: InFlight) -> None:
        """Send the answer to *in_flight*, of *executor*, once it is done."""
        self._queue.put((executor, in_flight))

    @property
    def is_idle(self) -> bool:
        """Every answer is out."""
        return not self._queue.unfinished_tasks

    def drain(self) -> None:
        """Wait until every answer is out."""
        self._queue.join()

    def finish(self) -> None:
        """Wait until every answer is out, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            works_ahead, launches_ahead = job[0].works_ahead, job[0].launches_ahead
            try:
                self._answer(*job)
            except ChannelClosed as error:
                self._channel.end(error)
            finally:
                # Before those who wait go on: the job holds an executor, and that holds a model.
                del job
                self._slots.release()
                self._queue.task_done()
            if works_ahead and (launches_ahead or self.is_idle):
                self._channel.wake()

    def _answer(self, executor: Executor, in_flight: InFlight) -> None:
        answer = executor.finish(in_flight)
        self.count += 1
        if not answer.failed:
            for message in in_flight.pending_answer.preface():
                self._channel.send(message)
        self._channel.send(answer)


def _kept(executor: Executor | None, place: Bootstrap) -> dict[int, list[Any]]:
    """What *executor*, of the epoch before, keeps for *place*. Raises `LedgerError` if it is not
    all there."""
    if not place.kept:
        return {}
    if executor is None:
        raise LedgerError("this process has no caches")
    return executor.keep(place)


def _shard_key(order: Group | None) -> tuple[Backend, int, int] | None:
    return None if order is None else (order.backend, order.rank, order.size)


def serve(sock: socket.socket, options: argparse.Namespace, memory_limit: int) -> int:
    """Be the engine of *options*, for the node at *sock*, until that closes. An exit
    status."""
    channel = Channel(sock)
    channel.open()
    try:
        described = describe(find(options.model), options.adapter, trusted=options.trust_weights)
        info = attrs.evolve(described, narrow=options.narrow_hops)
        budget = memory_budget(memory_limit)
        if memory_limit:
            mx.set_memory_limit(memory_limit)
        EngineLoop(channel, info, budget).run()
    except LoadError as error:
        channel.send(CannotServe(NO_EPOCH, error.KIND, error_text(error)))
        print(f"sealring engine: {error}", file=sys.stderr)
        return 2
    except ChannelBroken as error:
        print(f"sealring engine: {error}", file=sys.stderr)
        return 2
    except ChannelClosed:
        return 0
    finally:
        mx.clear_streams()
        channel.finish()
    return 0


def main() -> int:
    """The command of the child process."""
    parser = argparse.ArgumentParser(prog="sealring_model.engine.main")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--trust-weights", action="store_true")
    parser.add_argument("--narrow-hops", action="store_true")  # F32 between ranks as BF16
    parser.add_argument("--memory-limit", type=int, default=0)
    parser.add_argument("--beside", type=int, default=0)  # bytes that a draft model takes
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = end_with_thread
    use_one_arena()
    set_switch_interval()
    keep_kernels_private()
    sock = socket.socket(fileno=options.fd)
    return serve(sock, options, limit_beside(options.beside, options.memory_limit))


if __name__ == "__main__":
    sys.exit(main())

"""Look-ahead: a rank builds, and where the device can wait launches, its next graph early.

Building a stage's graph in Python takes about a quarter of the time that the stage spends on a
token. It needs the shape of the hidden states and not their values. A rank of a pipeline is idle
while the hidden states travel, so it builds then, on an inlet that is filled when they arrive (see
`stage/device.py`). It builds:

- on rank 0, the closing pass of a decode whose hidden states are on their way round the ring: norm,
  output head and sampling. They are sure to come back;
- on any rank, once no closing pass is left to build, the next decode of a batch, on the guess that
  no row joins or leaves before it. Where the guess fails the graph is dropped, and the step is
  built when it comes.

A graph writes to forks of the caches, so it changes nothing before it is launched. A fork shares
its arrays with the cache that it was made from; that cache is let go before the launch, so that MLX
writes in place.

Where inlets wait, the next graph is also *launched* ahead. Launching takes about another half of
the stage's time for a token. One graph at a time waits in the device; on rank 0 the decode that
follows a closing pass is launched behind it. A waiting graph blocks the device. So when any other
message comes first, the inlet is released and the result is dropped. A dropped graph of one token
of each row has written it behind the last one; the caches must be trimmable, and that token is
dropped and written again. A failed guess costs the device one decode, so some decodes after it are
not launched ahead.

A decode is launched ahead only once the decode before it is done. Until then MLX holds the caches
that the device reads, and the new graph would write to copies, for as many layers as are not done
yet: each launch would be another CUDA graph, which may have to be made. To make a CUDA graph, or to
load a kernel for the first time, CUDA waits for the whole device. For the same reason what the
device has not done before is not launched ahead (see `Steadiness`).

A decode whose hidden states come before it was launched is launched before the device is given
them. A decode of one token on rank 0 waits for no input, so it gets a *gate*, which is opened once
all of it is launched. Without that the device finishes the beginning of a graph while the rest is
being launched. MLX then reuses the freed memory, sees another graph, and the launch takes up to
twice as long, possibly longer than until the next decode comes: a rank that was late once stayed
late.

How many tokens a row has when a step comes depends on how many guesses of the step before were
right. So where inlets wait, the graph of a decode that reads guesses is *unplaced*: it takes the
place of its first token as an array, with its input, which is hidden states, and on rank 0 ids.
Until the arrays of the caches grow it has one shape: keys and values are written at that place in
the whole arrays, all of these are attended to, and a mask hides what stands behind each token.
mlx-lm does much the same for the rows of a batch, whose offsets are an array, too. Such a graph
need not be dropped when guesses are taken back. It has as many tokens as any decode of this epoch
so far, and takes fewer, too. If it was launched and is not wanted, it is given a place behind all
tokens of the row, and what it writes there is written over later. The place is given as its
distance from the last one that there is room for, so that zeros mean that.

Launching takes most of the time that a rank needs for a step. Another thread builds the next graph
meanwhile (`GraphBuilder`).

A rank alone needs none of this: it launches a step while the device works on the one before. And it
works only for models whose forwards are *blind*: their graphs depend on shapes alone. A forward
that looks at values would see what an inlet holds before it is filled.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any, Final, TypeAlias
from weakref import WeakMethod

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import Decode, Step, StepDone
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.control.epoch.ledger import Change
from sealring_protocol.control.scheduler.rows import GUESSES_AHEAD
from sealring_protocol.errors import SealringError

from sealring_model.errors import FORWARD_ERRORS
from sealring_model.sampling.rows import SampledTokens, SamplerState
from sealring_model.stage.caches import CacheStore
from sealring_model.stage.device import DeviceIO, Inlet, Outlet
from sealring_model.stage.outline import Axis, HopTensor
from sealring_model.stage.stage import Stage

_READ: Final = 3
"""Tokens that the row of a trial has read."""

_TRIED: Final = 2
"""Tokens of the forward that is tried."""

_USUAL: Final = tuple(1 + size for size in GUESSES_AHEAD)
"""Tokens of steps that read guesses."""

_TOLERANCE: Final = 0.05
"""By which outputs of a trial may differ, relative to the largest: where a mask is an array,
another kernel may attend, which adds up in another order."""

_PLACE_BYTES: Final = 4

_AFTER: Final = 3
"""Decodes of a batch with the same rows after which the next graph has nothing new to CUDA."""

_AHEAD_AFTER: Final = 1
"""The same of decodes, and of closing passes, of as many tokens of one row."""

_SKIP_AFTER_CHANGE: Final = 4
"""Decodes that are not launched ahead in the beginning, and after each step that is more than a
decode: membership changes come in clusters."""

_SKIP_AFTER_TIMEOUT: Final = 2
"""Decodes that are not launched ahead after the device gave up waiting. The number doubles with
each timeout in a row, for the other ranks may be slower than the timeout."""

_MAX_SKIP: Final = 4096
"""Cap on that doubling."""

_Job: TypeAlias = Callable[[], None]
_jobs: Final[queue.SimpleQueue[_Job]] = queue.SimpleQueue()
_starting: Final = threading.Lock()
_started: Final = threading.Event()


class Lookahead:
    """The graphs that one rank has built or launched ahead.

    *build*, a method of this object's owner, calls `build` here to build one more graph. With
    *launches_ahead* the rank may launch graphs that wait; another thread then calls *build*
    meanwhile.
    """

    def __init__(
        self,
        caches: CacheStore,
        device_io: DeviceIO,
        build: Callable[[], bool],
        *,
        launches_ahead: bool,
    ) -> None:
        self._caches: Final = caches
        self._device_io: Final = device_io
        self._build: Final = WeakMethod(build)
        self._launches_ahead: Final = launches_ahead
        self._graph_builder: Final = GraphBuilder() if launches_ahead else None
        # Batches whose next decode is not built, in the order of their last decodes, and how many
        # tokens of a row it is to read.
        self._to_build: Final[dict[int, int]] = {}
        self.steadiness: Final = Steadiness()
        self._last: Final[dict[int, int]] = {}  # by batch, the last decode's step
        self._decodes: Final[dict[int, BuiltDecode]] = {}  # by batch
        self._closings: Final[dict[int, BuiltClosing]] = {}  # by step
        self.held: BuiltDecode | BuiltClosing | None = None
        """The graph that the device waits in, as far as is known. It does nothing else meanwhile.
        Another thread may read this."""
        self._skip = _SKIP_AFTER_CHANGE  # decodes that are not launched ahead
        self._next_skip = _SKIP_AFTER_TIMEOUT

    # ------------------------------------------------------------- what comes

    def ledger_changes(self, change: Change, decodes: int | None) -> None:
        """A step has come that makes *change* to the ledger and decodes batch *decodes*, or none.
        Drops what *change* makes useless, and what the device waits in unless that is this decode.
        Call it before the caches change."""
        touched = {save.group for save in change.saved if save.group is not None}
        touched.update(change.regroup)
        plain = decodes is not None and change == Change(change.taken_back)
        for back in change.taken_back:
            built = self._decodes.get(back.group)
            if built is None or built.unplaced is None:
                self.drop_decode(back.group)
        if not plain:
            self._skip = max(self._skip, _SKIP_AFTER_CHANGE)
        expected = None if decodes is None else self._decodes.get(decodes)
        if not plain or expected is None or not expected.launched:
            self._drop_held(_SKIP_AFTER_CHANGE)
        elif expected.unplaced is not None and expected is not self.held:
            self._drop_held(_SKIP_AFTER_CHANGE)  # a closing pass before it
        for batch in touched:
            self._drop_decode(batch)
            self._to_build.pop(batch, None)
            self.steadiness.rows_change(batch)

    def drop_decode(self, batch: int) -> None:
        """Drop what was built or launched of the next decode of *batch*: it reads other tokens. The
        device is to do another at once, so it must not wait in a closing pass either. The row is
        likely to go on reading such tokens, so its next steps are launched ahead."""
        held = self.held
        if held is not None and (held.batch == batch or isinstance(held, BuiltClosing)):
            self._drop_held(0)
        self._drop_decode(batch)
        self._to_build.pop(batch, None)

    def decode_issued(self, due: Due, n: int, built: BuiltDecode | None) -> None:
        """Step *n* was *due*, and is under way, by *built* if that was built ahead. The next decode
        is likely to have the same rows."""
        self._skip = max(0, self._skip - 1)
        self.steadiness.decoded(due, built)
        self._to_build[due.batch] = self.steadiness.tokens_for(due)
        self._last[due.batch] = n

    def take_decode(
        self, due: Due, build_decode: Callable[[int, int], BuiltDecode]
    ) -> BuiltDecode | None:
        """The decode that is *due*, launched on what it is given.

        None if it was not built ahead, or the device did not wait long enough. Where the device can
        wait, *build_decode* builds it now if need be. Gives each graph once.
        """
        batch, built = due.batch, self._decodes.get(due.batch)
        if built is not None and not built.takes(due):
            self.drop_decode(batch)
        self._to_build.pop(batch, None)
        tokens = self.steadiness.tokens_for(due)
        waits = self._is_free and self.steadiness.has_seen(batch, tokens)
        # One of several tokens is another graph than the step itself, so it does not wait at first.
        if batch not in self._decodes and self._launches_ahead and (waits or tokens > 1):
            # The step itself fails with this error, if it occurs again.
            with contextlib.suppress(SealringError, *FORWARD_ERRORS):
                self._decodes[batch] = build_decode(batch, tokens)
        built = self._decodes.get(batch)
        if built is None or not self._fill_and_launch(built, built.contents(due)):
            return None
        if built.unplaced is not None:
            self._caches.lengthen(batch, due.tokens)
        return self._decodes.pop(batch)

    def take_closing(self, n: int, received: Buffer, tokens: int = 1) -> BuiltClosing | None:
        """The same of the closing pass of step *n*, on the *received* hidden states of *tokens*
        tokens of each row."""
        self.steadiness.closed(tokens)
        built = self._closings.get(n)
        if built is not self.held:
            self._drop_held(_SKIP_AFTER_CHANGE)
        if built is None or not self._fill_and_launch(built, received):
            return None
        return self._closings.pop(n)

    def waits_for(
        self, message: Step | StepDone, next_step: int
    ) -> BuiltDecode | BuiltClosing | None:
        """The graph that the device waits in, if *message* brings its input, and it may be filled
        early; *next_step* is due. For any thread."""
        held = self.held
        if held is None or message.failed:
            return None
        if isinstance(message, StepDone):
            return held if isinstance(held, BuiltClosing) and held.n == message.n else None
        plain = message.n == next_step and not message.changes
        match message.work:
            case Decode(held.batch, _, 0) if plain and isinstance(held, BuiltDecode):
                return held if held.unplaced is None else None
        return None

    def fill_early(self, held: BuiltDecode | BuiltClosing, contents: Buffer) -> bool:
        """Give *held*, a graph that `waits_for` gave, its input before the message has its turn.
        False if the device no longer waits. For any thread."""
        in_time = held.inlet is not None and held.inlet.fill(contents)
        if in_time:
            self._held_behind(held)
        return in_time

    def end(self) -> None:
        """Release the device and wait for what was launched: nothing of it will be asked for. The
        caches have no token of it."""
        self.held = None
        for built in self._built:
            with contextlib.suppress(*FORWARD_ERRORS):
                let_go(built)
        for batch in list(self._decodes):
            with contextlib.suppress(SealringError, *FORWARD_ERRORS):
                self._drop_decode(batch)
        with contextlib.suppress(*FORWARD_ERRORS):
            if self._launches_ahead:  # what was taken may still read the memory of its inlet
                mx.synchronize()

    # ---------------------------------------------------------- in the meantime

    def build(
        self,
        awaiting_logits: Mapping[int, SamplerState],
        build_closing: Callable[[SamplerState], tuple[Inlet, SampledTokens]],
        build_decode: Callable[[int, int], BuiltDecode],
    ) -> bool:
        """Build one graph; False if there is none to build.

        *build_closing* builds the closing pass of a step among *awaiting_logits* that is sure,
        *build_decode* the next decode of a batch, which may follow such a pass, with so many tokens
        of each row. Raises what they raise, and then nothing has changed.
        """
        for n in sorted(awaiting_logits.keys() - self._closings.keys()):
            if (state := awaiting_logits[n]).is_sure:
                tokens = 1 + len(state.guesses)
                self._closings[n] = BuiltClosing(n, state.batch, tokens, *build_closing(state))
                return True
        if not self._to_build:
            return False
        # What a plain decode reads is drawn by the closing pass before it.
        undrawn = {of.batch for n, of in awaiting_logits.items() if n not in self._closings}
        for batch, tokens in self._to_build.items():
            if tokens > 1 or batch not in undrawn:
                self._decodes[batch] = build_decode(batch, tokens)
                del self._to_build[batch]
                return True
        return False

    def launch(self, answered: int, awaiting_logits: Collection[int] = ()) -> bool:
        """Launch one graph ahead; False if there is none that may be. The device has done all steps
        up to number *answered*; the closing passes of *awaiting_logits* are still to come."""
        if not self._launches_ahead or self._skip:
            return False
        ready = [
            built
            for built in self._built
            if not built.launched
            and self.steadiness.knows(built)
            and self._last.get(built.batch, 0) <= answered
        ]
        # Batches whose tokens are still to be sampled.
        unsampled = {closing.batch for closing in self._closings.values() if not closing.launched}
        held = self.held
        for built in ready:
            follows = held is None or held.batch == built.batch
            if built.inlet is None and built.batch not in unsampled and follows:
                self._launch(built)
                return True
        # On rank 0 a decode with an inlet waits behind all closing passes that are still to come.
        drawn = all(n in self._closings and self._closings[n].launched for n in awaiting_logits)
        for built in ready:
            is_decode = isinstance(built, BuiltDecode)
            follows = isinstance(held, BuiltClosing) and held.batch == built.batch and is_decode
            if built.inlet is not None and (held is None or follows) and (drawn or not is_decode):
                self.held = held or built
                self._launch(built, waits=True)
                return True
        return False

    @property
    def _is_free(self) -> bool:
        """Whether the device may wait in what is launched now."""
        return self._launches_ahead and not self._skip and self.held is None

    @property
    def _built(self) -> list[BuiltDecode | BuiltClosing]:
        return [*self._closings.values(), *self._decodes.values()]

    def _launch(
        self,
        built: BuiltDecode | BuiltClosing,
        received: Buffer | None = None,
        *,
        waits: bool = False,
        at_gate: bool = False,
    ) -> None:
        """Launch *built*, then fill its inlet with *received*. If it *waits*, the device may come
        to wait at the inlet. With *at_gate* a decode that has a gate waits there, too, until all of
        it is launched."""
        built.launched = True
        if waits and built.inlet is not None:
            built.inlet.starts_waiting()
        if isinstance(built, BuiltClosing):
            self._start(built, received)
            return
        if built.unplaced is not None:
            self._caches.copy_lengths(built.batch, built.slots)
        self._caches.replace(built.batch, built.slots)
        if built.gate is None:
            self._launch_and_build(lambda: self._start(built, received))
        else:
            self._launch_gated(built, built.gate, at_gate)

    def _launch_gated(self, decode: BuiltDecode, gate: Inlet, at_gate: bool) -> None:
        opens = bytes(gate.dtype.width)
        if at_gate:
            gate.starts_waiting()
        else:
            gate.fill(opens)

        def start() -> None:
            try:
                self._start(decode, None)
            finally:
                gate.fill(opens)  # a second time does no harm

        self._launch_and_build(start)
        if not gate.fill(opens):
            self._back_off()
        elif at_gate:
            self._next_skip = _SKIP_AFTER_TIMEOUT

    def _start(self, built: BuiltDecode | BuiltClosing, received: Buffer | None) -> None:
        self._device_io.start(*built.arrays())
        if built.inlet is not None and received is not None:
            built.inlet.fill(received)

    def _launch_and_build(self, start: Callable[[], None]) -> None:
        """Call *start*, and let the other thread build meanwhile."""
        build = self._build()
        if self._graph_builder is None or build is None:
            start()
        else:
            self._graph_builder.launch(start, build)

    def _fill_and_launch(self, built: BuiltDecode | BuiltClosing, received: Buffer | None) -> bool:
        """Give *built* its input, and launch it if need be. False, with its result dropped, if the
        device gave up waiting."""
        may_wait = self._is_free and self.steadiness.knows(built)
        if received is not None and not built.launched and may_wait:
            self.held = built
            self._launch(built, received, waits=True)
        if built.inlet is None or received is None or built.inlet.fill(received):
            if built is self.held:
                self.held = self._held_behind(built)
                self._next_skip = _SKIP_AFTER_TIMEOUT
            if not built.launched:
                self._launch(built, at_gate=may_wait)
            return True
        self._drop_held(0)
        self._back_off()
        return False

    def _held_behind(self, built: BuiltDecode | BuiltClosing) -> BuiltDecode | None:
        """The decode that the device waits in once it is done with *built*."""
        decode = self._decodes.get(built.batch)
        if decode is None or decode is built or decode.unplaced is None or not decode.launched:
            return None
        if decode.inlet is not None:
            decode.inlet.starts_waiting()  # not when it was launched
        return decode

    def _back_off(self) -> None:
        """The device gave up waiting: launch some decodes later."""
        self._skip = max(self._skip, self._next_skip)
        self._next_skip = min(2 * self._next_skip, _MAX_SKIP)

    def _drop_held(self, skip: int) -> None:
        """Release the device if it waits, and drop that graph; skip *skip* launches ahead."""
        held, self.held = self.held, None
        if held is None:
            return
        let_go(held)
        if isinstance(held, BuiltClosing):
            del self._closings[held.n]
        self._drop_decode(held.batch)
        self._skip = max(self._skip, skip)

    def _drop_decode(self, batch: int) -> None:
        """Drop the next decode of *batch*, and build it again later."""
        built = self._decodes.pop(batch, None)
        if built is not None:
            self._to_build[batch] = built.tokens
            let_go(built)
            if built.launched and built.unplaced is None:
                self._caches.drop_last_tokens(batch)


@attrs.frozen
class Due:
    """A decode that is due: of *batch*, *tokens* tokens of each row. *given* is what its layers
    take: opened hidden states, on rank 0 ids, uint32 in this machine's order.

    It is *plain* if it reads one token of each row, and on rank 0 the one drawn last; then *given*
    may be None there. It may be *unplaced* if it has one row, of which it reads from *place* on.
    With *guesses* the next one is likely to have some, too.
    """

    batch: int
    tokens: int
    given: Buffer | None
    plain: bool
    unplaced: bool
    place: int
    guesses: bool


@attrs.define(eq=False)
class BuiltDecode:
    """The graph of the next decode of *batch*: from *inlet*, on a later rank, to *outlet* and to
    *slots*, its caches afterwards. On rank 0 it may wait for *gate*, an inlet of one element whose
    value nobody reads.

    It reads one token of every row, on rank 0 the one drawn last. If it is *unplaced*, it reads
    several of one row. Then its inlet on rank 0 takes their ids, and *slots* are written without a
    change of their lengths.
    """

    batch: int
    inlet: Inlet | None
    gate: Inlet | None
    slots: list[Any]
    outlet: Outlet
    unplaced: Unplaced | None = None
    launched: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of each row that it reads."""
        return 1 if self.unplaced is None else self.unplaced.tokens

    @property
    def is_new(self) -> bool:
        """Whether the device surely has not seen such a graph."""
        return self.unplaced is not None and self.unplaced.grew

    def takes(self, due: Due) -> bool:
        """Whether it computes what is *due*."""
        return due.plain if self.unplaced is None else self.unplaced.takes(due)

    def contents(self, due: Due) -> Buffer | None:
        """What its inlet takes for what is *due*; None if it has none."""
        if self.inlet is None or due.given is None:
            return None
        if self.unplaced is None:
            return due.given
        return self.unplaced.contents(self.inlet, due.given, due.place)

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (self.outlet.ready,)


@attrs.define(eq=False)
class BuiltClosing:
    """The graph of the closing pass of step *n* on rank 0: what is *sampled* from the hidden states
    that *inlet* is filled with, of *tokens* tokens of each row."""

    n: int
    batch: int
    tokens: int
    inlet: Inlet
    sampled: SampledTokens
    launched: bool = False

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (*self.sampled.arrays, *self.sampled.changed)


def let_go(built: BuiltDecode | BuiltClosing) -> None:
    """Have the device go on without the input of *built*, if it may wait for that, and wait for it:
    it still reads the memory of its arrays."""
    if built.launched:
        if built.inlet is not None:
            built.inlet.release()
        mx.eval(*built.arrays())


class Steadiness:
    """The decodes and closing passes of one rank so far: what its device has done often enough that
    it will do the like of it at once.

    CUDA waits for the whole device to do what it has not done before, so the device must not wait
    in such a graph. It sees other graphs when the rows of a batch change, and for another number of
    tokens of a row. (Those whose caches grow are known as they are built: `BuiltDecode.is_new`.)

    So a decode of guesses gets a graph of as many tokens as any had in this epoch, and never one of
    fewer again. That costs little: on an H100 16 layers of 8B take 3.7 ms for 5 tokens and 4.2 ms
    for 17. To change to another graph means to drop the one that the device waits in: 10 ms and
    more.
    """

    def __init__(self) -> None:
        self._plain: Final[Counter[int]] = Counter()  # by batch, since its rows changed
        self._unplaced: Final[Counter[int]] = Counter()  # by tokens
        self._closings: Final[Counter[int]] = Counter()  # by tokens
        self.most_tokens = 1
        """The most tokens of a row that a decode has read."""

    def rows_change(self, batch: int) -> None:
        """The next decodes of *batch* have other rows."""
        self._plain.pop(batch, None)

    def tokens_for(self, due: Due) -> int:
        """How many tokens a graph is to have for what is *due*, and for others like it."""
        return max(self.most_tokens, due.tokens) if due.unplaced and due.guesses else 1

    def decoded(self, due: Due, built: BuiltDecode | None) -> None:
        """What was *due* is under way, by the graph *built* ahead if there was one."""
        self.most_tokens = max(self.most_tokens, due.tokens)
        if built is not None and built.unplaced is not None:
            self._unplaced[built.tokens] += 1
        elif self.tokens_for(due) == 1:
            self._plain[due.batch] += 1

    def closed(self, tokens: int) -> None:
        """A closing pass of *tokens* tokens of each row is under way."""
        self._closings[tokens] += 1

    def has_seen(self, batch: int, tokens: int) -> bool:
        """Whether a decode of *batch* with *tokens* of each row has nothing new to the device."""
        if tokens > 1:
            return self._unplaced[tokens] >= _AHEAD_AFTER
        return self._plain[batch] >= _AFTER

    def knows(self, built: BuiltDecode | BuiltClosing) -> bool:
        """Whether the graph *built* has nothing new to the device."""
        if isinstance(built, BuiltDecode):
            return not built.is_new and self.has_seen(built.batch, built.tokens)
        if built.tokens > 1:
            return self._closings[built.tokens] >= _AHEAD_AFTER
        return self.has_seen(built.batch, 1)


class GraphBuilder:
    """Lets a second thread build graphs on the streams of the thread that makes this, while that
    launches.

    MLX launches in C++ for milliseconds without the GIL; graphs are built in Python. So two
    processors can do both at once. Where processors are slow or shared, a step then takes as long
    as the longer of the two instead of their sum.

    MLX evaluates a graph on the thread that owns its stream, but any thread may build for that
    stream, even on an array that is being evaluated: building holds the array and looks at its
    shape only. (The exception is an array that is one of several outputs of an operation. No launch
    leaves such an array to be built on.)

    A process has one such thread, and it never ends. MLX keeps compiled functions for each thread,
    which take a while to make, and frees them when the thread ends. At the exit of the process
    Python may be gone by then, and the process would abort.
    """

    def __init__(self) -> None:
        self._streams: Final = {mx.default_stream(d) for d in (mx.cpu, mx.default_device())}
        self._launching = False

    def launch(self, call: Callable[[], None], build: Callable[[], bool]) -> None:
        """Call *call*. Meanwhile the other thread calls *build* again and again, until it returns
        False or *call* returns.

        *build* does not run before or after. What either raises is raised here; if both do, what
        *call* raises. Where the system has no thread to give, only *call* is called.
        """
        if not _has_thread():
            call()
            return
        self._launching = True
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        _jobs.put(lambda: ended.put(self._build(build)))
        try:
            call()
        finally:
            self._launching = False
            failed = ended.get()
        if failed is not None:
            raise failed

    def _build(self, build: Callable[[], bool]) -> BaseException | None:
        try:
            for stream in self._streams:
                mx.set_default_stream(stream)
            while self._launching and build():
                pass
        except BaseException as error:  # noqa: BLE001
            return error
        return None


def _has_thread() -> bool:
    """Start the thread, if it is not there. False if the system has none to give."""
    with _starting:
        if not _started.is_set():
            try:
                threading.Thread(target=_work, name="graph-builder", daemon=True).start()
            except RuntimeError:
                return False
            _started.set()
    return True


def _work() -> None:
    while True:
        _jobs.get()()


@attrs.frozen
class Unplaced:
    """What a graph has that gets its place in its only row with its input.

    It has *tokens* tokens. It takes fewer, too: the last of its tokens are then of no use.
    *last_place* is the last at which so many can be written. If arrays *grew* for that, the device
    has not seen such a graph.
    """

    tokens: int
    last_place: int
    grew: bool

    def takes(self, due: Due) -> bool:
        """Whether it computes what is *due*. A place behind the last one cannot come, for a graph
        is dropped when another decode of its row comes first. It is refused all the same: the
        device would write to other memory."""
        return due.unplaced and due.tokens <= self.tokens and due.place <= self.last_place

    def contents(self, inlet: Inlet, given: Buffer, place: int) -> Buffer:
        """What *inlet*, made by `unplaced_inlet`, takes for the input *given* at *place*."""
        size = prod(inlet.shape) * inlet.dtype.width
        filler = bytes(size - len(given) - _PLACE_BYTES)
        distance = (self.last_place - place).to_bytes(_PLACE_BYTES, sys.byteorder)
        return b"".join((given, filler, distance))


def unplaced_inlet(
    device_io: DeviceIO, dtype: DType, shape: Sequence[int]
) -> tuple[Inlet, mx.array, mx.array]:
    """An inlet for an input of *dtype* and *shape* and its place: the inlet, the input, and the
    distance of its place from the last one, int32 ``(1,)``."""
    size = prod(shape)
    inlet = device_io.inlet(dtype, (size + _PLACE_BYTES // dtype.width,))
    return inlet, inlet.array[:size].reshape(shape), inlet.array[size:].view(mx.int32)


def can_run_unplaced(stage: Stage) -> bool:
    """Whether *stage* computes the same when its place is an array, and never looks at the value.
    Tries it, also with as many tokens as steps usually read: a GPU takes up to a second for what it
    has not done before."""
    slots = stage.new_caches()
    place, inputs = mx.array([_READ], mx.int32), _inputs(stage, _TRIED)

    def placed(*given: mx.array) -> list[mx.array]:
        return [*stage.run(given, slots), *_written(slots)]

    def placed_late(place: mx.array, *given: mx.array) -> list[mx.array]:
        return [*run_unplaced(stage, given, slots, place), *_written(slots)]

    try:
        mx.eval(stage.run(_inputs(stage, _READ), slots))
        if not are_plain(slots) or not all(map(_has_tokens_first, (*stage.hop_in, *stage.hop_out))):
            return False
        make_room(slots, _TRIED)
        before = [(cache.keys, cache.values) for cache in slots]
        found = mx.compile(placed_late)(place, *inputs)  # refuses a look at values
        for cache, (keys, values) in zip(slots, before, strict=True):
            cache.keys, cache.values = keys, values
        pairs = zip(found, placed(*inputs), strict=True)
        if not all(_is_close(*pair) for pair in pairs):
            return False
        for tokens in _USUAL:
            make_room(slots, tokens)
            mx.eval(run_unplaced(stage, _inputs(stage, tokens), slots, place))
    except FORWARD_ERRORS:
        return False
    return True


def run_unplaced(
    stage: Stage, inputs: Sequence[mx.array], slots: Sequence[Any], place: mx.array
) -> tuple[mx.array, ...]:
    """What *stage* gives for *inputs* of one row that begin at *place*, int32 ``(1,)``. *slots*
    have room; they are written without a change of their lengths."""
    return stage.run(inputs, [_UnplacedCache(cache, place) for cache in slots])


def make_room(slots: Sequence[Any], tokens: int) -> tuple[int, bool]:
    """Give *slots* room for *tokens* more. Returns the last place that these can be written at,
    which is behind all that the row has, and whether arrays had to grow."""
    grew = False
    for cache in slots:
        lacking = cache.offset + tokens - cache.keys.shape[2]
        if lacking > 0:
            grew = True
            _grow(cache, -(-lacking // cache.step) * cache.step)
    return min(cache.keys.shape[2] for cache in slots) - tokens, grew


def are_plain(slots: Sequence[Any]) -> bool:
    """Whether *slots* are mlx-lm's plain caches, and have tokens: this can be done with them."""
    return all(type(cache).__name__ == "KVCache" and not cache.empty() for cache in slots)


class _UnplacedCache:
    """In place of *cache*, an mlx-lm ``KVCache``, in one forward whose first token is at *place*,
    int32 ``(1,)``. The forward leaves its keys and values in *cache*, whose length stays."""

    def __init__(self, cache: Any, place: mx.array) -> None:
        self._cache: Final = cache
        self.offset = place

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write *keys* and *values* ``(1, heads, tokens, width)``; all there are, with room."""
        cache = self._cache
        cache.keys = mx.slice_update(cache.keys, keys, self.offset, axes=(2,))
        cache.values = mx.slice_update(cache.values, values, self.offset, axes=(2,))
        self.offset = self.offset + keys.shape[2]
        return cache.keys, cache.values

    def make_mask(
        self, tokens: int, return_array: bool = True, window_size: int | None = None
    ) -> mx.array:
        """Which keys each of *tokens* tokens sees, bool ``(tokens, keys with room)``. It is an
        array whatever *return_array* asks for."""
        own = (self.offset + mx.arange(tokens))[:, None]
        keys = mx.arange(self._cache.keys.shape[2])
        seen = keys <= own
        return seen if window_size is None else seen & (keys > own - window_size)


def _grow(cache: Any, more: int) -> None:
    for name in ("keys", "values"):
        array = getattr(cache, name)
        _, heads, _, width = array.shape
        room = mx.zeros((1, heads, more, width), array.dtype)
        setattr(cache, name, mx.concatenate([array, room], axis=2))


def _inputs(stage: Stage, tokens: int) -> list[mx.array]:
    """Inputs of *tokens* tokens that differ, so that it matters which of them a token sees."""
    if stage.hop_in:
        return stage.dummy_inputs(1, tokens)
    return [mx.arange(1, tokens + 1, dtype=mx.uint32)[None]]


def _has_tokens_first(tensor: HopTensor) -> bool:
    """Whether the first tokens of a row come first in *tensor*."""
    return tensor.spec.dims[:2] == (Axis.ROWS, Axis.TOKENS)


def _written(slots: Sequence[Any]) -> list[mx.array]:
    """What the trial wrote to *slots*."""
    own = slice(_READ, _READ + _TRIED)
    return [array[..., own, :] for cache in slots for array in (cache.keys, cache.values)]


def _is_close(found: mx.array, expected: mx.array) -> bool:
    difference, largest = mx.abs(found - expected).max(), mx.abs(expected).max()
    return bool((difference <= _TOLERANCE * largest).item())

"""What comes next on a rank of a pipeline, done before its input is there.

Of the time that a stage spends on a token, a quarter or so goes into building the graph in Python:
nothing that needs the hidden states, only their shape. While they are under way a rank has nothing
to do. So it builds then, on an inlet that is filled when they come (see `device_io`):

- on rank 0, the end of a decode whose hidden states are away: norm, output head and draw. They are
  sure to come;
- on any rank, once that is done, the next decode of a group, as if no row were to join or to leave
  before. Where that turns out wrong the graph is dropped, and the step is built when it comes.

Caches take part as forks: what a graph does to them shows once it is launched. They share their
arrays with the caches that they are forks of, and these go before that, for MLX to write in place.

Where inlets wait, what comes next is *launched* as well, which takes another half of that time:
one thing that waits, and on rank 0 the decode that follows such an end. The device then does
nothing else; so whatever else comes first has it go on, and what it makes is dropped. Written on a
guess is then one token behind the last one of each row of the group, in caches that can be cut:
so it is cut off, and written again. Guesses that fail cost the device a decode, so after one some
decodes are left to themselves.

The decode before must be done by then. As long as the device works on it MLX holds the caches that
it reads, and what is launched writes to copies: of as many layers as are not done yet, so that each
launch is another CUDA graph, and that one may have to be made. To make one, as to load a kernel
that was never used, CUDA waits for the whole device; hence the first decodes of a group are not
launched ahead either.

A decode whose hidden states are there before it is launched is launched, too, before the device is
told of them; one of rank 0, which waits for none, beside a *gate* that is opened then. To launch it
while the device is done with its beginning took up to twice as long, which could be longer than
until the next one came: a rank that was late once stayed so. MLX tells graphs apart by who uses
whose memory again, and so what the device is done with by then makes for other graphs. What does
not depend on a gate and is in the same graph may be worked on; nothing is done before it is open.

Most of the time that a rank needs for a step it is launching, and beside that another thread builds
(`graph_builder`): so what is launched next is there when the launch is done.

A rank alone has no use for any of this: it launches a step while the device works on the one
before. And it is only for models whose forwards are *blind*, that is, never look at a value to
decide what to do: such a one would see what an inlet has before it is filled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakMethod

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import Decode, Step, StepDone
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.control.epoch.ledger import Change
from sealring_protocol.errors import SealringError

from sealring_model.errors import FORWARD_ERRORS
from sealring_model.lookahead.device_io import DeviceIO, Inlet, Outlet
from sealring_model.lookahead.graph_builder import GraphBuilder
from sealring_model.sampling.sampler_state import Sampled, SamplerState
from sealring_model.stage.caches import CacheStore

_SKIP_AFTER_CHANGE: Final = 4
"""Decodes that are not launched ahead at first, nor after a step that is more than a decode: where
rows come and go, the next such step is soon to come."""
_SKIP_AFTER_TIMEOUT: Final = 4
"""And after one that the device did not wait for long enough. Each time that this comes again at
once there are twice as many: the other ranks may be slower than that."""
_MAX_SKIP: Final = 4096
_STEADY_AFTER: Final = 3
"""The decode of a group, since its rows changed, after which nothing about the next is new."""


@attrs.define(eq=False)
class BuiltDecode:
    """The next decode of a *batch*, once *inlet* is filled, if there is one: what goes out, and
    the caches after it. Without one there may be a *gate*, an inlet of one element that nobody
    looks at."""

    batch: int
    inlet: Inlet | None
    gate: Inlet | None
    slots: list[Any]
    outlet: Outlet
    launched: bool = False

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (self.outlet.ready,)


@attrs.define(eq=False)
class BuiltClosing:
    """The end of a decode on rank 0: what is *sampled* once *inlet* is filled."""

    n: int
    batch: int
    inlet: Inlet
    sampled: Sampled
    launched: bool = False

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (*self.sampled.arrays, *self.sampled.changed)


class Lookahead:
    """What one rank has done ahead. *launches_ahead* if it may launch what waits; *build*, which calls
    `build`, is then called beside that, in another thread."""

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
        self._build: Final = WeakMethod(build)  # whose owner has this
        self._launches_ahead: Final = launches_ahead
        self._graph_builder: Final = GraphBuilder() if launches_ahead else None
        self._to_build: Final[dict[int, None]] = {}  # groups, in the order of their last decodes
        self._recent: Final[
            dict[int, tuple[int, int]]
        ] = {}  # by group: decodes, the last one's step
        self._decodings: Final[dict[int, BuiltDecode]] = {}
        self._closings: Final[dict[int, BuiltClosing]] = {}
        self.held: BuiltDecode | BuiltClosing | None = None
        """What the device waits in, as far as is known, and so does nothing else. Another thread
        may look at it."""
        self._skip = _SKIP_AFTER_CHANGE  # decodes that are not launched
        self._next_skip = _SKIP_AFTER_TIMEOUT

    # ------------------------------------------------------------- what comes

    def ledger_changes(self, change: Change, decoding: int | None) -> None:
        """A step that changes the ledger so has come, before the caches are changed; it is a
        decode of group *decoding*, or none. What was done on the ledger as it was is of no use."""
        touched = {save.group for save in change.saved if save.group is not None}
        touched.update(change.regroup)
        plain = decoding is not None and change == Change()
        if not plain:
            self._skip = max(self._skip, _SKIP_AFTER_CHANGE)
        expected = None if decoding is None else self._decodings.get(decoding)
        if not plain or expected is None or not expected.launched:
            self._drop_held(_SKIP_AFTER_CHANGE)
        for batch in touched:
            self._drop_decode(batch)
            self._to_build.pop(batch, None)
            self._recent.pop(batch, None)

    def decode_issued(self, batch: int, n: int) -> None:
        """*batch* has been given a decode, step *n*, and the next is likely to be like it."""
        self._to_build[batch] = None
        self._skip = max(0, self._skip - 1)
        self._recent[batch] = self._recent.get(batch, (0, 0))[0] + 1, n

    def take_decode(
        self, batch: int, contents: Buffer | None, decode: Callable[[int], BuiltDecode]
    ) -> BuiltDecode | None:
        """The next decode of *batch*, launched, on *contents* of its inlet if there is one; if it
        was built, or is better built by *decode* now, and not too late. Not given again."""
        self._to_build.pop(batch, None)
        if batch not in self._decodings and self._may_wait(batch):
            with contextlib.suppress(SealringError, *FORWARD_ERRORS):  # if it is still so, it tells
                self._decodings[batch] = decode(batch)
        decoding = self._decodings.get(batch)
        if decoding is None or not self._fill_and_launch(decoding, contents):
            return None
        return self._decodings.pop(batch)

    def take_closing(self, n: int, contents: Buffer) -> BuiltClosing | None:
        """The end of step *n*, as `decoding` gives a decode."""
        closing = self._closings.get(n)
        if closing is not self.held:
            self._drop_held(_SKIP_AFTER_CHANGE)
        if closing is None or not self._fill_and_launch(closing, contents):
            return None
        return self._closings.pop(n)

    def waits_for(self, message: Step | StepDone, due: int) -> BuiltDecode | BuiltClosing | None:
        """What the device waits in, if *message* is what it waits for; the step that comes next is
        the one that is *due*."""
        held = self.held
        if held is None or message.failed:
            return None
        if isinstance(message, StepDone):
            return held if isinstance(held, BuiltClosing) and held.n == message.n else None
        usual = message.n == due and not message.changes and message.work == Decode(held.batch)
        return held if usual and isinstance(held, BuiltDecode) else None

    def end(self) -> None:
        """Nothing of this will be asked for, and the device waits for nothing."""
        self.held = None
        with contextlib.suppress(*FORWARD_ERRORS):
            for built in self._built:
                self._await_device(built)

    # ---------------------------------------------------------- in the meantime

    def build(
        self,
        awaiting_logits: Mapping[int, SamplerState],
        close: Callable[[SamplerState], tuple[Inlet, Sampled]],
        decode: Callable[[int], BuiltDecode],
    ) -> bool:
        """Build one thing that is to come; whether there was any. *close* makes the end of a step
        that is *awaiting_logits*, *decode* the next decode of a group, which may follow such an end. What they
        raise is raised, and changes nothing."""
        n = next((n for n in awaiting_logits if n not in self._closings), None)
        if n is not None:
            self._closings[n] = BuiltClosing(
                n, awaiting_logits[n].batch, *close(awaiting_logits[n])
            )
            return True
        batch = next(iter(self._to_build), None)
        if batch is None:
            return False
        self._decodings[batch] = decode(batch)
        del self._to_build[batch]
        return True

    def launch(self, done: int) -> bool:
        """Launch one thing that was built; whether there was any that may be. Steps up to *done*
        are, on the device."""
        if not self._launches_ahead or self._skip:
            return False
        ready = [
            built
            for built in self._built
            if not built.launched
            and self._is_steady(built.batch)
            and self._is_answered(built.batch, done)
        ]
        waiting = {closing.batch for closing in self._closings.values() if not closing.launched}
        held = self.held
        for built in ready:
            follows = held is None or held.batch == built.batch
            if built.inlet is None and built.batch not in waiting and follows:
                self._launch(built)
                return True
        if held is not None:
            return False
        for built in ready:
            if built.inlet is not None:
                self.held = built
                self._launch(built)
                return True
        return False

    def _may_wait(self, batch: int) -> bool:
        """Whether something of *batch* that was not launched may be, for the device to wait in."""
        return (
            self._launches_ahead and not self._skip and self.held is None and self._is_steady(batch)
        )

    def _is_steady(self, batch: int) -> bool:
        decodes, _ = self._recent.get(batch, (0, 0))
        return decodes >= _STEADY_AFTER

    def _is_answered(self, batch: int, done: int) -> bool:
        _, last = self._recent.get(batch, (0, 0))
        return last <= done

    # ------------------------------------------------------------------ inside

    @property
    def _built(self) -> list[BuiltDecode | BuiltClosing]:
        return [*self._closings.values(), *self._decodings.values()]

    def _launch(
        self,
        built: BuiltDecode | BuiltClosing,
        contents: Buffer | None = None,
        *,
        due: bool = False,
    ) -> None:
        """What has *contents* goes on with them once it is launched."""
        built.launched = True
        if built is self.held and built.inlet is not None:
            built.inlet.mark_launched()
        if isinstance(built, BuiltClosing):
            self._start(built, contents)
            return
        self._caches.replace(built.batch, built.slots)
        if built.gate is None:
            self._launch_and_build(lambda: self._start(built, contents))
        else:
            self._launch_gated(built, built.gate, due)

    def _launch_gated(self, decoding: BuiltDecode, gate: Inlet, due: bool) -> None:
        """What is *due* begins once all of it is launched, all else at once."""
        anything = bytes(gate.dtype.width)
        if due:
            gate.mark_launched()
        else:
            gate.fill(anything)

        def start() -> None:
            try:
                self._start(decoding, None)
            finally:
                gate.fill(anything)  # which does no harm

        self._launch_and_build(start)
        if not gate.fill(anything):
            self._back_off()
        elif due:
            self._next_skip = _SKIP_AFTER_TIMEOUT

    def _start(self, built: BuiltDecode | BuiltClosing, contents: Buffer | None) -> None:
        self._device_io.start(*built.arrays())
        if built.inlet is not None and contents is not None:
            built.inlet.fill(contents)

    def _launch_and_build(self, start: Callable[[], None]) -> None:
        build = self._build()
        if self._graph_builder is None or build is None:
            start()
        else:
            self._graph_builder.launch(start, build)

    def _fill_and_launch(self, built: BuiltDecode | BuiltClosing, contents: Buffer | None) -> bool:
        """Whether *built*, launched by now, goes on with *contents*."""
        if contents is not None and not built.launched and self._may_wait(built.batch):
            self.held = built
            self._launch(built, contents)
        if built.inlet is None or contents is None or built.inlet.fill(contents):
            if built is self.held:
                self.held = None
                self._next_skip = _SKIP_AFTER_TIMEOUT
            if not built.launched:
                self._launch(built, due=self._may_wait(built.batch))
            return True
        self._drop_held(0)
        self._back_off()
        return False

    def _back_off(self) -> None:
        """The device did not wait for long enough: some decodes will not be launched."""
        self._skip = max(self._skip, self._next_skip)
        self._next_skip = min(2 * self._next_skip, _MAX_SKIP)

    def _drop_held(self, skip: int) -> None:
        """The device waits for nothing any more, and *skip* decodes will not be launched."""
        held, self.held = self.held, None
        if held is None:
            return
        self._await_device(held)
        if isinstance(held, BuiltClosing):
            del self._closings[held.n]
        self._drop_decode(held.batch)
        self._skip = max(self._skip, skip)

    def _await_device(self, built: BuiltDecode | BuiltClosing) -> None:
        """Nobody wants *built* any more. What the device works on is not let go before it is done:
        MLX would give its memory to others who may look at it too soon."""
        if built.launched:
            if built.inlet is not None:
                built.inlet.release()
            mx.eval(*built.arrays())

    def _drop_decode(self, batch: int) -> None:
        """The next decode of *batch* was none, and will be built again."""
        decoding = self._decodings.pop(batch, None)
        if decoding is not None:
            self._to_build[batch] = None
            self._await_device(decoding)
            if decoding.launched:
                self._caches.drop_last_tokens(batch)

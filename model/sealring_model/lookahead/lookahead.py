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
from sealring_model.lookahead.graph_builder import Beside
from sealring_model.sampling.sampler_state import Drawing, Drawn
from sealring_model.stage.caches import CacheStore

_UNUSUAL: Final = 4
"""Decodes that are not launched ahead at first, nor after a step that is more than a decode: where
rows come and go, the next such step is soon to come."""
_LATE: Final = 4
"""And after one that the device did not wait for long enough. Each time that this comes again at
once there are twice as many: the other ranks may be slower than that."""
_LATEST: Final = 4096
_USUAL: Final = 3
"""The decode of a group, since its rows changed, after which nothing about the next is new."""


@attrs.define(eq=False)
class Decoding:
    """The next decode of a *group*, once *inlet* is filled, if there is one: what goes out, and
    the caches after it. Without one there may be a *gate*, an inlet of one element that nobody
    looks at."""

    group: int
    inlet: Inlet | None
    gate: Inlet | None
    slots: list[Any]
    outlet: Outlet
    launched: bool = False

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (self.outlet.ready,)


@attrs.define(eq=False)
class Closing:
    """The end of a decode on rank 0: what is *drawn* once *inlet* is filled."""

    n: int
    group: int
    inlet: Inlet
    drawn: Drawn
    launched: bool = False

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (*self.drawn.arrays, *self.drawn.changed)


class Ahead:
    """What one rank has done ahead. *launches* if it may launch what waits; *build*, which calls
    `build`, is then called beside that, in another thread."""

    def __init__(
        self, caches: CacheStore, device_io: DeviceIO, build: Callable[[], bool], *, launches: bool
    ) -> None:
        self._caches: Final = caches
        self._device_io: Final = device_io
        self._build: Final = WeakMethod(build)  # whose owner has this
        self._launches: Final = launches
        self._beside: Final = Beside() if launches else None
        self._likely: Final[dict[int, None]] = {}  # groups, in the order of their last decodes
        self._runs: Final[dict[int, tuple[int, int]]] = {}  # by group: decodes, the last one's step
        self._decodings: Final[dict[int, Decoding]] = {}
        self._closings: Final[dict[int, Closing]] = {}
        self.held: Decoding | Closing | None = None
        """What the device waits in, as far as is known, and so does nothing else. Another thread
        may look at it."""
        self._left = _UNUSUAL  # decodes that are not launched
        self._penalty = _LATE

    # ------------------------------------------------------------- what comes

    def change(self, change: Change, decoding: int | None) -> None:
        """A step that changes the ledger so has come, before the caches are changed; it is a
        decode of group *decoding*, or none. What was done on the ledger as it was is of no use."""
        touched = {save.group for save in change.saved if save.group is not None}
        touched.update(change.regroup)
        plain = decoding is not None and change == Change()
        if not plain:
            self._left = max(self._left, _UNUSUAL)
        expected = None if decoding is None else self._decodings.get(decoding)
        if not plain or expected is None or not expected.launched:
            self._give_up(_UNUSUAL)
        for group in touched:
            self._forget(group)
            self._likely.pop(group, None)
            self._runs.pop(group, None)

    def decoded(self, group: int, n: int) -> None:
        """*group* has been given a decode, step *n*, and the next is likely to be like it."""
        self._likely[group] = None
        self._left = max(0, self._left - 1)
        self._runs[group] = self._runs.get(group, (0, 0))[0] + 1, n

    def decoding(
        self, group: int, contents: Buffer | None, decode: Callable[[int], Decoding]
    ) -> Decoding | None:
        """The next decode of *group*, launched, on *contents* of its inlet if there is one; if it
        was built, or is better built by *decode* now, and not too late. Not given again."""
        self._likely.pop(group, None)
        if group not in self._decodings and self._may_hold(group):
            with contextlib.suppress(SealringError, *FORWARD_ERRORS):  # if it is still so, it tells
                self._decodings[group] = decode(group)
        decoding = self._decodings.get(group)
        if decoding is None or not self._goes_on(decoding, contents):
            return None
        return self._decodings.pop(group)

    def closing(self, n: int, contents: Buffer) -> Closing | None:
        """The end of step *n*, as `decoding` gives a decode."""
        closing = self._closings.get(n)
        if closing is not self.held:
            self._give_up(_UNUSUAL)
        if closing is None or not self._goes_on(closing, contents):
            return None
        return self._closings.pop(n)

    def awaits(self, message: Step | StepDone, due: int) -> Decoding | Closing | None:
        """What the device waits in, if *message* is what it waits for; the step that comes next is
        the one that is *due*."""
        held = self.held
        if held is None or message.failed:
            return None
        if isinstance(message, StepDone):
            return held if isinstance(held, Closing) and held.n == message.n else None
        usual = message.n == due and not message.changes and message.work == Decode(held.group)
        return held if usual and isinstance(held, Decoding) else None

    def end(self) -> None:
        """Nothing of this will be asked for, and the device waits for nothing."""
        self.held = None
        with contextlib.suppress(*FORWARD_ERRORS):
            for built in self._built:
                self._finish(built)

    # ---------------------------------------------------------- in the meantime

    def build(
        self,
        away: Mapping[int, Drawing],
        close: Callable[[Drawing], tuple[Inlet, Drawn]],
        decode: Callable[[int], Decoding],
    ) -> bool:
        """Build one thing that is to come; whether there was any. *close* makes the end of a step
        that is *away*, *decode* the next decode of a group, which may follow such an end. What they
        raise is raised, and changes nothing."""
        n = next((n for n in away if n not in self._closings), None)
        if n is not None:
            self._closings[n] = Closing(n, away[n].group, *close(away[n]))
            return True
        group = next(iter(self._likely), None)
        if group is None:
            return False
        self._decodings[group] = decode(group)
        del self._likely[group]
        return True

    def launch(self, done: int) -> bool:
        """Launch one thing that was built; whether there was any that may be. Steps up to *done*
        are, on the device."""
        if not self._launches or self._left:
            return False
        ready = [
            built
            for built in self._built
            if not built.launched
            and self._is_usual(built.group)
            and self._is_done(built.group, done)
        ]
        waiting = {closing.group for closing in self._closings.values() if not closing.launched}
        held = self.held
        for built in ready:
            follows = held is None or held.group == built.group
            if built.inlet is None and built.group not in waiting and follows:
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

    def _may_hold(self, group: int) -> bool:
        """Whether something of *group* that was not launched may be, for the device to wait in."""
        return self._launches and not self._left and self.held is None and self._is_usual(group)

    def _is_usual(self, group: int) -> bool:
        decodes, _ = self._runs.get(group, (0, 0))
        return decodes >= _USUAL

    def _is_done(self, group: int, done: int) -> bool:
        _, last = self._runs.get(group, (0, 0))
        return last <= done

    # ------------------------------------------------------------------ inside

    @property
    def _built(self) -> list[Decoding | Closing]:
        return [*self._closings.values(), *self._decodings.values()]

    def _launch(
        self, built: Decoding | Closing, contents: Buffer | None = None, *, due: bool = False
    ) -> None:
        """What has *contents* goes on with them once it is launched."""
        built.launched = True
        if built is self.held and built.inlet is not None:
            built.inlet.mark_launched()
        if isinstance(built, Closing):
            self._start(built, contents)
            return
        self._caches.put(built.group, built.slots)
        if built.gate is None:
            self._with_builds(lambda: self._start(built, contents))
        else:
            self._launch_gated(built, built.gate, due)

    def _launch_gated(self, decoding: Decoding, gate: Inlet, due: bool) -> None:
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

        self._with_builds(start)
        if not gate.fill(anything):
            self._leave()
        elif due:
            self._penalty = _LATE

    def _start(self, built: Decoding | Closing, contents: Buffer | None) -> None:
        self._device_io.start(*built.arrays())
        if built.inlet is not None and contents is not None:
            built.inlet.fill(contents)

    def _with_builds(self, start: Callable[[], None]) -> None:
        build = self._build()
        if self._beside is None or build is None:
            start()
        else:
            self._beside.launch(start, build)

    def _goes_on(self, built: Decoding | Closing, contents: Buffer | None) -> bool:
        """Whether *built*, launched by now, goes on with *contents*."""
        if contents is not None and not built.launched and self._may_hold(built.group):
            self.held = built
            self._launch(built, contents)
        if built.inlet is None or contents is None or built.inlet.fill(contents):
            if built is self.held:
                self.held = None
                self._penalty = _LATE
            if not built.launched:
                self._launch(built, due=self._may_hold(built.group))
            return True
        self._give_up(0)
        self._leave()
        return False

    def _leave(self) -> None:
        """The device did not wait for long enough: some decodes will not be launched."""
        self._left = max(self._left, self._penalty)
        self._penalty = min(2 * self._penalty, _LATEST)

    def _give_up(self, leave: int) -> None:
        """The device waits for nothing any more, and *leave* decodes will not be launched."""
        held, self.held = self.held, None
        if held is None:
            return
        self._finish(held)
        if isinstance(held, Closing):
            del self._closings[held.n]
        self._forget(held.group)
        self._left = max(self._left, leave)

    def _finish(self, built: Decoding | Closing) -> None:
        """Nobody wants *built* any more. What the device works on is not let go before it is done:
        MLX would give its memory to others who may look at it too soon."""
        if built.launched:
            if built.inlet is not None:
                built.inlet.release()
            mx.eval(*built.arrays())

    def _forget(self, group: int) -> None:
        """The next decode of *group* was none, and will be built again."""
        decoding = self._decodings.pop(group, None)
        if decoding is not None:
            self._likely[group] = None
            self._finish(decoding)
            if decoding.launched:
                self._caches.cut(group)

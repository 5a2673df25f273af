"""What comes next on a rank of a pipeline, built before its input is there.

Of the time that a stage spends on a token, a quarter or so goes into building the graph in Python:
nothing that needs the hidden states, only their shape. While they are under way a rank has nothing
to do. So it builds then, on an `Inlet` that is filled when they come:

- on rank 0, the end of a decode whose hidden states are away: norm, output head and draw. They are
  sure to come;
- on any rank, once that is done, the next decode of a group, as if no row were to join or to leave
  before. Where that turns out wrong the graph is dropped, and the step is built when it comes.

Nothing is evaluated on a guess, so one that fails costs time that nobody needed. Caches take part
as forks: what a graph does to them shows once it is used. They share their arrays with the caches
that they are forks of, and these go before anything is evaluated, for MLX to write in place.

A rank alone has no use for this: it launches a step while the device works on the one before. And
it is only for models whose forwards are *blind*, that is, never look at a value to decide what to
do: such a one would see what an inlet has before it is filled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import mlx.core as mx
from sealring_protocol.control.ledger import Change

from sealring_model.drawing import Drawing, Drawn
from sealring_model.tensors import Inlet


@attrs.frozen(eq=False)
class Decoding:
    """The next decode of a group: *outputs* of its layers, once *inlet* is filled, if there is one,
    and the caches after it."""

    inlet: Inlet | None
    slots: list[Any]
    outputs: mx.array


@attrs.frozen(eq=False)
class Closing:
    """The end of a decode on rank 0: what is *drawn* once *inlet* is filled."""

    inlet: Inlet
    drawn: Drawn


class Ahead:
    """What one rank has built ahead."""

    def __init__(self) -> None:
        self._likely: dict[int, None] = {}  # groups, in the order of their last decodes
        self._decodings: dict[int, Decoding] = {}
        self._closings: dict[int, Closing] = {}

    def change(self, change: Change) -> None:
        """The ledger has changed: what was built on it as it was is of no use."""
        touched = {save.group for save in change.saved if save.group is not None}
        for group in touched.union(change.regroup):
            self._decodings.pop(group, None)
            self._likely.pop(group, None)

    def decoded(self, group: int) -> None:
        """*group* has been given a decode, and the next is likely to be like it."""
        self._likely[group] = None

    def build(
        self,
        away: Mapping[int, Drawing],
        close: Callable[[Drawing], Closing],
        decode: Callable[[int], Decoding],
    ) -> bool:
        """Build one thing that is to come; whether there was any. *close* makes the end of a step
        that is *away*, *decode* the next decode of a group, which may follow such an end. What they
        raise is raised, and changes nothing."""
        n = next((n for n in away if n not in self._closings), None)
        if n is not None:
            self._closings[n] = close(away[n])
            return True
        group = next(iter(self._likely), None)
        if group is None:
            return False
        self._decodings[group] = decode(group)
        del self._likely[group]
        return True

    def decoding(self, group: int) -> Decoding | None:
        """The next decode of *group*, if it was built; not given again."""
        self._likely.pop(group, None)
        return self._decodings.pop(group, None)

    def closing(self, n: int) -> Closing | None:
        """The end of step *n*, if it was built; not given again."""
        return self._closings.pop(n, None)

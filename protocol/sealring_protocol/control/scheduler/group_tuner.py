"""How many groups in flight pay: measured stage times against the time on the way.

A group's step works on one rank at a time, so with as many groups as ranks every stage has one;
and while a step is on its way between ranks another group can have its place. More would only
split batches that are better whole.
"""

from __future__ import annotations

from typing import Final

from sealring_protocol.control.effects import StepTiming

_WEIGHT: Final = 1 / 16
"""Of the newest step in the running means."""

_STEPS: Final = 32
"""Decodes to see before the first word, and between words."""


class GroupTuner:
    """Running means over the decode steps of a ring of *world* ranks."""

    def __init__(self, world: int) -> None:
        self._world: Final = world
        self._stage = 0.0
        self._way = 0.0
        self._seen = 0

    def groups(self, timing: StepTiming) -> int | None:
        """How many groups pay, as far as decodes up to *timing* tell; now and then."""
        stages = [spent.compute_us for spent in timing.spent]
        if not stages:
            return None
        weight = max(_WEIGHT, 1 / (self._seen + 1))
        stages[0] += timing.closing.compute_us
        self._stage += weight * (max(stages) - self._stage)
        self._way += weight * (timing.away_us / self._world - self._way)
        self._seen += 1
        if self._seen % _STEPS:
            return None
        return self._world + round(self._world * self._way / max(self._stage, 1.0))

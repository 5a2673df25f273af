"""Chooses the number of groups in flight from measured stage and network times.

A group's step occupies one rank at a time, so as many groups as ranks keep every stage busy. While
a step is on the network between ranks, another group can use the rank. More groups than that would
only split batches.
"""

from __future__ import annotations

from typing import Final

from sealring_protocol.control.effects import StepTiming

_WEIGHT: Final = 1 / 16
"""The newest step's weight in the running means."""

_STEPS: Final = 32
"""Decode steps before the first recommendation, and between two."""


class GroupTuner:
    """Running means over the decode steps of a ring of *world* ranks."""

    def __init__(self, world: int) -> None:
        self._world: Final = world
        self._stage = 0.0
        self._way = 0.0
        self._seen = 0

    def groups(self, timing: StepTiming) -> int | None:
        """The recommended number of groups after *timing*, once every `_STEPS` decodes; else
        None."""
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

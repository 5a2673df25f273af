"""The leader of one epoch of tensor parallelism, against a model of the specification's rules.

Input: how many ranks, then one byte for each command and its choices. The ranks answer what they
owe, or lie; links are lost, engines fail, and draining takes too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs
from sealring_protocol.codec.messages import Epoch, Failure, FailureKind, Step, StepDone
from sealring_protocol.control.epoch.pipeline import Answered
from sealring_protocol.control.epoch.tensor import TensorLeader
from sealring_protocol.errors import RemoteProtocolError

from fuzz.expect import raised
from fuzz.source import Source

EPOCH: Final = Epoch(7, 2)
DRAWN: Final = ((3,), (3,), (3,), (4,), (), (3, 3))
"""Answers to a step; most ranks draw the same."""


def seeds() -> Iterator[bytes]:
    """Honest rings of two to four, each command in them, and a mixture."""
    for world in range(3):
        yield bytes([world]) + bytes([0, 1, 0, 0, 1, 1, 0, 1, 2, 0]) * 6
        for command in range(6):
            yield bytes([world, 0, 0, 1, 1, 0, command, 1, 0, 0, 1, 2, 0, 4, 1, 1, 0])
    yield bytes(range(256))


@attrs.define
class Model:
    """Section 11.9, in few words."""

    world: int
    owed: dict[int, dict[int, tuple[int, ...]]] = attrs.field(factory=dict)
    blamed: list[int] = attrs.field(factory=list)
    over: list[tuple[int, tuple[int, ...]]] = attrs.field(factory=list)
    failed: list[int] | None = None

    def answer(self, rank: int, n: int, ids: tuple[int, ...], *, fails: bool) -> bool:
        """Whether that may be said; after the end anything may."""
        if self.failed is not None:
            return True
        if next((n for n, told in self.owed.items() if rank not in told), None) != n:
            return False
        self.owed[n][rank] = ids
        if fails:
            self.blamed.append(rank)
        if not self.blamed:
            self._finish()
        if self.blamed and all(len(told) == self.world for told in self.owed.values()):
            self.end()
        return True

    def _finish(self) -> None:
        for n, told in list(self.owed.items()):
            if len(told) < self.world:
                return
            others = [rank for rank in range(self.world) if told[rank] != told[0]]
            if others:
                self.blamed.append(others[0])
                return
            self.over.append((n, told[0]))
            del self.owed[n]

    def end(self) -> None:
        """Whatever is under way has failed."""
        self.failed = list(self.owed)
        self.owed.clear()


def check(data: bytes) -> None:
    """Commands, and after each what the model has."""
    source = Source(data)
    world = 2 + source.below(3)
    leader, model = TensorLeader(EPOCH, world), Model(world)
    over: list[tuple[int, tuple[int, ...]]] = []
    failed: list[int] = []
    n = 0
    while not source.empty:
        actions: list[Any] = []
        match source.below(6):
            case 0 if leader.open and leader.outstanding < 3:
                n += 1
                model.owed[n] = {}
                leader.begin(Step(EPOCH, n, bytes(16)))
            case 1 | 2:
                actions = _answer(source, leader, model, n)
            case 3:
                lost = Failure(source.below(world), source.pick(tuple(FailureKind)), "lost")
                if model.failed is None:
                    model.end()
                actions = leader.lost(lost)
            case 4:
                if model.blamed and model.failed is None:
                    model.end()
                actions = leader.drained()
            case _:
                assert leader.open == (not model.blamed and model.failed is None)
        for action in actions:
            assert isinstance(action, Answered)
            if action.failed is None:
                over.append((action.n, action.ids))
            else:
                failed.append(action.n)
        assert over == model.over
        assert sorted(failed) == sorted(model.failed or [])
        assert leader.outstanding == len(model.owed)
    assert sorted([*(n for n, _ in over), *failed, *model.owed]) == list(range(1, n + 1))


def _answer(source: Source, leader: TensorLeader, model: Model, last: int) -> list[Any]:
    """A rank answers what it owes next, or another step."""
    rank, ids, how = source.below(model.world), source.pick(DRAWN), source.below(8)
    owed = next((n for n, told in model.owed.items() if rank not in told), last)
    n = owed + (source.below(3) - 1 if how == 1 else 0)
    failure = Failure(source.below(4), FailureKind.ENGINE_ERROR, "no") if how == 2 else None
    done = StepDone(EPOCH, n, () if failure else ids, failed=failure)
    if rank == 0 and next((n for n, told in model.owed.items() if 0 not in told), None) != n:
        return []  # an engine of one's own that answers out of order is for `tensor`
    may = model.answer(rank, n, ids, fails=failure is not None)
    actions: list[Any] = []
    error = raised(lambda: actions.extend(leader.done(rank, done) if rank else leader.output(done)))
    assert (error is None) == may
    assert may or isinstance(error, RemoteProtocolError)
    return actions

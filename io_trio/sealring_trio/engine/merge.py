"""Merges the messages of a group's members into those of one engine.

All members get the same messages in the same order, so all answer in the same order. A message is
held until every member has sent its own. The answers to a step must be equal: members that use the
same sums draw the same tokens, and if they do not, none of them can be trusted. The tensors, log
probabilities, scores and fingerprints of the first member are used. No member may be more than
`MAX_AHEAD` messages ahead of another.

Counts of bytes are added up. Of times, the slowest member's counts. Of room, the smallest counts,
times the number of members, because each needs the same share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import attrs
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Grouped,
    Loaded,
    LocalMessage,
    Logprobs,
    RowOver,
    RowReady,
    Scores,
)
from sealring_protocol.codec.messages import (
    CacheCost,
    CannotServe,
    Checked,
    Pong,
    Progress,
    Ready,
    Step,
    StepDone,
)
from sealring_protocol.codec.wire import clip
from sealring_protocol.limits import MAX_REASON, MAX_ROWS, MAX_STEPS_WAITING

_LANES: Final[dict[type, int]] = {
    Step: 0,
    StepDone: 0,
    CannotServe: 0,
    Ready: 0,
    EngineInfo: 1,
    Loaded: 2,
    Grouped: 3,
    Pong: 4,
    RowReady: 5,
}
"""Messages of one lane come in one order; those of different lanes may overtake each other."""

_U64: Final = (1 << 64) - 1

MAX_AHEAD: Final = 2 * MAX_STEPS_WAITING
"""Messages of one lane that a member may be before another: more than a node leaves unanswered.
Memory: of the first member's, whose tensors are kept, up to so many tensors of a step."""


class GroupBroken(Exception):
    """The members cannot go on as one engine. *answer*, if any, is the answer to the oldest step
    that has none."""

    def __init__(self, reason: str, answer: LocalMessage | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


class Merger:
    """Merges the messages of *size* members."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lanes: list[list[deque[LocalMessage]]] = [
            [deque() for _ in range(size)] for _ in range(max(_LANES.values()) + 1)
        ]
        # Of a member's state the latest is enough, however long another is busy.
        self._lanes[_LANES[Pong]] = [deque(maxlen=1) for _ in range(size)]

    def add(self, member: int, message: LocalMessage) -> LocalMessage | None:
        """*member* sent *message*. Returns the merged message if it was the last to send it.

        Raises `GroupBroken` when they contradict each other, or one of them has failed.
        """
        if isinstance(message, Logprobs | Scores | RowOver | Checked):
            return None if member else message
        number = _LANES.get(type(message))
        if number is None:
            raise GroupBroken(f"an engine does not say {type(message).__name__}")
        lane = self._lanes[number]
        first = not lane[member]
        if isinstance(message, CannotServe):
            told = self._told(member, message.reason)
            raise GroupBroken(told, attrs.evolve(message, reason=_cut(told)) if first else None)
        if isinstance(message, Step | StepDone):
            if message.failed is not None:
                told = self._told(member, message.failed.message)
                failed = attrs.evolve(message.failed, message=_cut(told))
                raise GroupBroken(told, attrs.evolve(message, failed=failed) if first else None)
            if member:
                message = attrs.evolve(message, tensors=())
        most = MAX_ROWS if isinstance(message, RowReady) else MAX_AHEAD
        if len(lane[member]) >= most:
            raise GroupBroken(f"member {member} of {self._size} says more than it was asked")
        lane[member].append(message)
        if not all(lane):
            return None
        return _merge([said.popleft() for said in lane])

    def _told(self, member: int, message: str) -> str:
        return f"member {member} of {self._size}: {message}"


def _cut(told: str) -> str:
    return clip(told, MAX_REASON)


def _merge(said: list[LocalMessage]) -> LocalMessage:
    first = said[0]
    if any(type(other) is not type(first) for other in said):
        raise GroupBroken("its members answered one question in different ways")
    match first:
        case Step() | StepDone():
            return _answer(first, said)
        case Ready():
            return _ready(first, [m for m in said if isinstance(m, Ready)])
        case EngineInfo():
            return _info(first, [m for m in said if isinstance(m, EngineInfo)])
        case Loaded():
            loaded = [m for m in said if isinstance(m, Loaded)]
            return Loaded(
                _sum(m.read for m in loaded),
                _sum(m.held for m in loaded),
                max(m.load_us for m in loaded),
            )
        case Grouped():
            grouped = [m for m in said if isinstance(m, Grouped)]
            return Grouped(
                first.size, max(m.sum_us for m in grouped), max(m.token_us for m in grouped)
            )
        case Pong():
            return Pong(first.echo, _progress([m.progress for m in said if isinstance(m, Pong)]))
        case RowReady():
            return _row_ready(first, [m for m in said if isinstance(m, RowReady)])
        case _:
            raise GroupBroken(f"an engine does not say {type(first).__name__}")


def _answer(first: Step | StepDone, said: list[LocalMessage]) -> LocalMessage:
    for member, other in enumerate(said):
        same = isinstance(other, Step | StepDone) and (other.epoch, other.n, other.ids) == (
            first.epoch,
            first.n,
            first.ids,
        )
        if not same:
            raise GroupBroken(f"members 0 and {member} did not answer step {first.n} alike")
    return first


def _ready(first: Ready, said: list[Ready]) -> Ready:
    if any(attrs.evolve(m, room=first.room, cost=first.cost) != first for m in said):
        raise GroupBroken("its members did not load the same thing")
    windows = [m.cost.windows for m in said]
    cost = CacheCost(
        _sum(m.cost.fixed for m in said),
        _sum(m.cost.per_token for m in said),
        tuple(
            (same[0][0], _sum(per_token for _, per_token in same))
            for same in zip(*windows, strict=False)
        ),
    )
    return attrs.evolve(first, room=_room([m.room for m in said]), cost=cost)


def _row_ready(first: RowReady, said: list[RowReady]) -> RowReady:
    if any((m.epoch, m.uid) != (first.epoch, first.uid) for m in said):
        raise GroupBroken("its members did not prepare the same row")
    return max(said, key=lambda m: bool(m.reason))


def _info(first: EngineInfo, said: list[EngineInfo]) -> EngineInfo:
    if any(attrs.evolve(m, room=first.room) != first for m in said):
        raise GroupBroken("its members do not find the same model")
    return attrs.evolve(first, room=_room([m.room for m in said]))


def _progress(said: list[Progress]) -> Progress:
    return Progress(
        steps_received=min(p.steps_received for p in said),
        steps_answered=min(p.steps_answered for p in said),
        compute_us=max(p.compute_us for p in said),
        seal_us=max(p.seal_us for p in said),
        rows=said[0].rows,
        memory=_sum(p.memory for p in said),
        cache=_sum(p.cache for p in said),
    )


def _room(rooms: list[int]) -> int:
    return _sum([min(rooms)] * len(rooms))


def _sum(counts: Iterable[int]) -> int:
    """All *counts* together, or what a message has room for."""
    return min(sum(counts), _U64)

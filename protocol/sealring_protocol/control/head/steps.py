"""The head's steps: planned, sent, answered or lost. Every token passes through this part.

`head.Head` builds on it and starts the epochs. This module holds what pipelines and tensor
parallelism share: one scheduler, one machine that says where a step goes and when it is over (a
`HeadPipeline` or a `TensorLeader`), and the deadlines of expected answers.
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.codec.messages import (
    NO_LOGPROBS,
    Decode,
    Failure,
    FailureKind,
    Row,
    Spent,
    Step,
    StepDone,
    Work,
)
from sealring_protocol.control.effects import (
    Effect,
    Level,
    Note,
    Send,
    StepTiming,
    ToEngine,
)
from sealring_protocol.control.epoch import pipeline
from sealring_protocol.control.epoch.deadlines import ENGINE, ROUND, AnswerDeadline
from sealring_protocol.control.epoch.tensor import StepDeadline, StepDeadlineRule, TensorLeader
from sealring_protocol.control.head.backoff import EpochBackoff
from sealring_protocol.control.scheduler.group_tuner import GroupTuner
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.limits import PING_TIMEOUT
from sealring_protocol.security.roles import Purpose

DRAIN_SECONDS: Final = 0.25
"""Seconds for which the leader of tensor parallelism collects answers after the first failure."""


class HeadSteps:
    """The steps of rank 0 of *world*. If *tuned*, the number of groups follows measured times.
    *patience* is how many seconds a peer may be silent; it raises the deadlines of tensor
    parallelism."""

    def __init__(self, world: int, *, tuned: bool, patience: float = PING_TIMEOUT) -> None:
        self._world = world
        self.scheduler: Scheduler | None = None
        self._backoff = EpochBackoff()
        self._machine: pipeline.HeadPipeline | TensorLeader | None = None
        self._answer_deadline = AnswerDeadline(ENGINE)
        self._rounds = AnswerDeadline(ROUND)
        self._step_deadline = StepDeadline(StepDeadlineRule.of(patience))
        self._drain_ends: float | None = None
        self._flights: dict[int, tuple[float, Work, tuple[int, ...]]] = {}  # when sent, work, rows
        self._tuner = GroupTuner(world) if tuned else None
        self._logprobs: dict[tuple[int, int], Logprobs] = {}  # by (step, uid), for its answer
        self.may_plan = False
        """A further step may fit. The caller then calls `plan_steps`, after it has carried out the
        effects so far."""

    def _end_epoch(self, now: float) -> list[Effect]:
        """The epoch is over and its steps are settled: go on to the next epoch."""
        raise NotImplementedError

    def _fails(self, failed: Failure) -> bool:
        """Record *failed* as why the ring does not serve. False if it was recorded before, so that
        it is not logged again."""
        raise NotImplementedError

    @property
    def parallel(self) -> bool:
        """True if the ring runs in tensor parallelism."""
        return isinstance(self._machine, TensorLeader)

    def starved(self, rank: int, seconds: float, now: float) -> None:
        """The engine of *rank* starved for *seconds* more: extend the deadlines that depend on
        it."""
        if rank == 0 or self.parallel:  # the engines of a collective wait for the slowest
            self._answer_deadline.starved(seconds, now)
        if rank > 0:
            self._rounds.starved(seconds, now)
        self._step_deadline.starved(seconds, now)

    def _forget_steps(self) -> None:
        """Forget every step under way."""
        self._machine = None
        self._flights.clear()
        self._logprobs.clear()
        self._rounds.clear()
        self._step_deadline.clear()
        self._drain_ends = None
        if self.scheduler is not None:
            self.scheduler.abandon()

    # ------------------------------------------------------------- outwards

    def plan_steps(self, now: float) -> list[Effect]:
        """Plan and begin steps while there is work and credit for it."""
        self.may_plan = False
        effects: list[Effect] = []
        while self._machine is not None and self._machine.open and self.scheduler is not None:
            planned = self.scheduler.plan(now)
            effects += self.scheduler.ended()
            if planned is None:
                break
            for row in planned.rows:
                effects += self._announce(row)
            n, work = planned.step.n, planned.step.work
            self._flights[n] = (now, work, self.scheduler.uids(n))
            effects += planned.opened
            effects += self._act(self._machine.begin(planned.step), now)
        return effects

    def _announce(self, row: Row) -> list[Effect]:
        """Send *row*, its sampling settings, to every engine that draws tokens."""
        effects: list[Effect] = [ToEngine(row)]
        if isinstance(self._machine, TensorLeader):
            plain = attrs.evolve(row, logprobs=NO_LOGPROBS)
            effects += [Send(rank, Purpose.CONTROL, plain) for rank in range(1, self._world)]
        return effects

    def _act(self, actions: list[pipeline.Action], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for action in actions:
            match action:
                case pipeline.ToEngine(message):
                    self._answer_deadline.owe(now)
                    effects.append(ToEngine(message))
                    if isinstance(message, StepDone) and self.scheduler is not None:
                        self.scheduler.returned(message.n)
                        self.may_plan = True
                case pipeline.ToNext(message):
                    self._rounds.owe(now)
                    effects.append(Send(1, Purpose.STEP, message))
                case pipeline.ToRanks(step):
                    self._step_deadline.owe(step, len(self._flights[step.n][2]), now)
                    ranks = range(1, self._world)
                    effects += [Send(rank, Purpose.CONTROL, step) for rank in ranks]
                case pipeline.Answered(failed=None):
                    self._step_deadline.answered(now)
                    effects += self._answered(action, now)
                case pipeline.Answered():
                    return effects + self._carry_out(actions) + self._end_epoch(now)
        if isinstance(self._machine, TensorLeader) and self._machine.draining:
            self._drain_ends = self._drain_ends or now + DRAIN_SECONDS
        return effects

    # -------------------------------------------------------------- inwards

    def _engine_answered(self, message: Step | StepDone, now: float) -> list[Effect]:
        """The head's engine returned *message* of this epoch."""
        if self._machine is None:
            return []
        return self._act(self._machine.output(self._checked(message)), now)

    def _checked(self, message: Step | StepDone) -> Step | StepDone:
        """*message* of the head's engine, or a failure in its place if it has the wrong number of
        tokens."""
        if self.scheduler is None or not isinstance(message, StepDone) or message.failed:
            return message
        expected = self.scheduler.expects(message.n)
        if len(message.ids) == expected:
            return message
        text = f"the engine answered step {message.n} with {len(message.ids)} of {expected} tokens"
        return StepDone(message.epoch, message.n, failed=Failure(0, FailureKind.ENGINE_ERROR, text))

    def _answered(self, action: pipeline.Answered, now: float) -> list[Effect]:
        assert self.scheduler is not None  # noqa: S101  a step was planned
        self._backoff.progressed()
        effects = self._timing(action, now)
        effects += self.scheduler.answered(action.n, action.ids, now, self._told_of(action.n))
        return effects + self.plan_steps(now)

    def _timing(self, action: pipeline.Answered, now: float) -> list[Effect]:
        sent, work, uids = self._flights.pop(action.n)
        total = int((now - sent) * 1e6)
        spent, rest = action.spent[: self._world], action.spent[self._world :]
        closing = rest[0] if rest else Spent()
        parallel = isinstance(self._machine, TensorLeader)
        timing = StepTiming(action.n, work, uids, total, spent, closing, parallel)
        if self._tuner is not None and isinstance(work, Decode) and not parallel:
            groups = self._tuner.groups(timing)
            if groups is not None and self.scheduler is not None:
                self.scheduler.tune(groups)
        return [timing]

    def _told_of(self, n: int) -> dict[int, Logprobs]:
        """Take the log probabilities that belong to the answer to step *n*, by row."""
        if not self._logprobs:
            return {}
        return {uid: self._logprobs.pop((n, uid)) for m, uid in list(self._logprobs) if m == n}

    # ------------------------------------------------------------- failures

    def _carry_out(self, actions: list[pipeline.Action]) -> list[Effect]:
        """Settle every step under way. The first failed one of *actions* is the one at fault."""
        failures = [a for a in actions if isinstance(a, pipeline.Answered) and a.failed]
        if not failures or self.scheduler is None:
            return []
        first = failures[0]
        assert first.failed is not None  # noqa: S101  filtered above
        note = Note(
            Level.WARNING,
            f"step {first.n} failed on rank {first.failed.rank} "
            f"({first.failed.kind.name.lower()}): {first.failed.message}",
        )
        known = self.scheduler.learnt
        effects: list[Effect] = [note, *self.scheduler.failed(first.n, first.failed)]
        return [*effects, *self._learnt_since(known)]

    def _learnt_since(self, known: dict[int, int]) -> list[Effect]:
        """Note the ranks whose memory limit differs from *known*."""
        learnt = self.scheduler.learnt if self.scheduler is not None else {}
        texts = [
            f"memory of rank {rank} ran out: several requests together are given "
            f"{room >> 10} KiB of caches there at most now"
            for rank, room in learnt.items()
            if known.get(rank) != room
        ]
        return [Note(Level.WARNING, text) for text in texts]

    def _lost(self, failed: Failure, now: float) -> list[Effect]:
        """The epoch cannot go on: settle the steps under way, then try the next epoch."""
        effects = [] if self._machine is None else self._carry_out(self._machine.lost(failed))
        self._fails(failed)
        return effects + self._end_epoch(now)

    def _late(self) -> Failure:
        """The failure that names the ranks whose answers to tensor parallelism's oldest step are
        overdue."""
        machine = self._machine
        late = machine.late if isinstance(machine, TensorLeader) else []
        names = ", ".join(f"rank {rank}" for rank in late)
        reason = (
            f"{names} did not answer within the deadline of a step{self._step_deadline.extended}"
        )
        return Failure(late[0] if late else 0, FailureKind.DEADLINE, reason)

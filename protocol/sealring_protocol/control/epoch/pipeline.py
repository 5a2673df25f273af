"""One epoch of a pipeline, as the head and as every other rank see it.

A step enters at the head's engine, goes down the chain with a hidden state, and comes back as one
STEP_DONE from the last rank. The head's engine then draws the tokens. Each step is answered exactly
once. A rank that cannot do a step passes it on marked `failed`, so that the answer still comes.
That rank is then broken and fails every further step of the epoch the same way. Step numbers have
no gaps, and messages of other epochs never reach these machines.

Both machines are pure functions of their inputs: each call returns the actions to take, in order.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

import attrs

from sealring_protocol.codec.messages import (
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Prefill,
    Row,
    Spent,
    Step,
    StepDone,
)
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import (
    ENTRY_WEIGHT,
    HISTORY_WEIGHT,
    MAX_IDS,
    MAX_ROWS,
    MAX_STEPS_WAITING,
    MAX_WEIGHT_WAITING,
)
from sealring_protocol.table import Machine, Table


@attrs.frozen
class ToOwnEngine:
    """Have this rank's engine work on *message*."""

    message: Step | StepDone


@attrs.frozen
class ToNext:
    """Send *message* to the next rank, or from the last rank to the head."""

    message: Step | StepDone


@attrs.frozen
class ToRanks:
    """Send *message* to every rank but the head."""

    message: Step


@attrs.frozen
class Answered:
    """Step *n* is over: with token *ids*, or with *failed*. *spent* has the time of each pass: the
    head's first, the other ranks', and, where tokens were drawn, the head's second."""

    n: int
    ids: tuple[int, ...]
    spent: tuple[Spent, ...]
    failed: Failure | None


Action = ToOwnEngine | ToNext | ToRanks | Answered


def weight(message: Step | StepDone | Row) -> int:
    """The memory, in bytes, that *message* may take while it waits; see
    `limits.MAX_WEIGHT_WAITING`."""
    if isinstance(message, Row):
        entries = 1 + len(message.bias) + len(message.ends) + sum(map(len, message.bad))
        history = HISTORY_WEIGHT * len(message.history)
        return ENTRY_WEIGHT * entries + history + len(message.grammar)
    entries = len(message.ids)
    if isinstance(message, Step):
        changes = (
            message.back,
            message.save,
            message.evict,
            message.drop,
            message.open,
            message.join,
        )
        entries += sum(map(len, changes))
    size = ENTRY_WEIGHT * entries
    for tensor in message.tensors:
        size += len(tensor.data)
    return size


def check_spent(message: Step | StepDone, ranks: int) -> None:
    """Raise `RemoteProtocolError` if *message* has the times of more than *ranks* ranks: the next
    rank needs room to append its own."""
    if len(message.spent) > ranks:
        raise RemoteProtocolError(
            f"step {message.n} has the times of {len(message.spent)} ranks, of {ranks} at most"
        )


class PipelineState(enum.Enum):
    """Whether this rank can still work in this epoch."""

    RUNNING = "running"
    BROKEN = "broken"


class PipelineEvent(enum.Enum):
    """What reaches a rank's pipeline."""

    STEP = "step"
    OUTPUT = "output"
    FAILURE = "failure"


PIPELINE_TABLE: Final[Table[PipelineState, PipelineEvent]] = {
    (PipelineState.RUNNING, PipelineEvent.STEP): PipelineState.RUNNING,
    (PipelineState.RUNNING, PipelineEvent.OUTPUT): PipelineState.RUNNING,
    (PipelineState.RUNNING, PipelineEvent.FAILURE): PipelineState.BROKEN,
    (PipelineState.BROKEN, PipelineEvent.STEP): PipelineState.BROKEN,
    (PipelineState.BROKEN, PipelineEvent.OUTPUT): PipelineState.BROKEN,
    (PipelineState.BROKEN, PipelineEvent.FAILURE): PipelineState.BROKEN,
}


@attrs.define
class _Announced:
    """The ROWs that came since the last step."""

    rows: int = 0
    ids: int = 0  # in their histories
    weight: int = 0

    def add(self, row: Row) -> None:
        """Count *row*. Raises `LimitExceeded` beyond what one step may open."""
        self.rows += 1
        self.ids += len(row.history)
        self.weight += weight(row)
        if self.rows > MAX_ROWS or self.ids > MAX_IDS:
            raise LimitExceeded("more rows, or longer ones, are announced than a step may open")


class FollowerPipeline:
    """A rank after the head: steps come from the previous rank and go to the next. The *last* rank,
    and every rank of tensor parallelism, answers them."""

    def __init__(self, epoch: Epoch, rank: int, *, last: bool) -> None:
        self.epoch = epoch
        self._rank = rank
        self._last = last
        self._state = Machine(PIPELINE_TABLE, PipelineState.RUNNING)
        self._next_n = 1
        self._working: deque[Step] = deque()  # given to the engine, not yet answered
        self._weights: deque[int] = deque()  # of each step in `_working`, with the ROWs before it
        self._weight = 0  # of all waiting steps and ROWs
        self._announced = _Announced()
        self._failure: Failure | None = None

    def announce(self, row: Row) -> bool:
        """The head sent the sampling settings of *row*. False if this rank is broken, so that the
        engine must not get it. Raises `LimitExceeded` if too many ROWs, or too heavy ones, would
        wait."""
        self._announced.add(row)
        if self._state.state is PipelineState.BROKEN:
            return False
        self._weight += weight(row)
        if self._weight > MAX_WEIGHT_WAITING:
            raise LimitExceeded(f"rows and steps of {self._weight} bytes wait")
        return True

    def step(self, step: Step) -> list[Action]:
        """The previous rank sent *step* of this epoch.

        Raises `RemoteProtocolError` on a gap in the numbers, on a failure attributed to a rank that
        is not before this one, or on times of more ranks than precede it. Raises `LimitExceeded` if
        too many steps would wait.
        """
        if step.n != self._next_n:
            raise RemoteProtocolError(f"step {step.n} came; step {self._next_n} was next")
        if step.failed is not None and not 0 < step.failed.rank < self._rank:
            raise RemoteProtocolError("a failure that is no earlier rank's came down the chain")
        check_spent(step, self._rank)
        self._next_n += 1
        announced, self._announced = self._announced, _Announced()
        if step.failed is not None and self._failure is None:
            self._failure = step.failed
        if self._state.fire(PipelineEvent.STEP) is PipelineState.BROKEN:
            return [self._fail(step)]
        if step.failed is not None:
            # Earlier steps are still in the engine: answer them first, in order.
            return [*self._break(), self._fail(step)]
        heavy = weight(step)
        self._weight += heavy
        self._weights.append(heavy + announced.weight)
        if len(self._working) >= MAX_STEPS_WAITING or self._weight > MAX_WEIGHT_WAITING:
            raise LimitExceeded(
                f"step {step.n} came while {len(self._working)} waited, of {self._weight} bytes "
                "with it"
            )
        self._working.append(step)
        return [ToOwnEngine(step)]

    def output(self, message: Step | StepDone) -> list[Action]:
        """The engine returned *message* of this epoch."""
        if self._state.fire(PipelineEvent.OUTPUT) is PipelineState.BROKEN:
            return []
        step = self._working[0] if self._working else None
        if step is None or message.n != step.n or isinstance(message, StepDone) != self._last:
            return self.failure(FailureKind.ENGINE_ERROR, "the engine answered out of order")
        if message.failed is not None:
            return self.failure(message.failed.kind, message.failed.message)
        self._working.popleft()
        self._weight -= self._weights.popleft()
        return [ToNext(message)]

    def failure(self, kind: FailureKind, message: str) -> list[Action]:
        """This rank cannot go on: its engine failed, hung or died, or its next hop is lost."""
        if self._failure is None:
            self._failure = Failure(self._rank, kind, message)
        return self._break()

    def _break(self) -> list[Action]:
        self._state.fire(PipelineEvent.FAILURE)
        actions: list[Action] = [self._fail(step) for step in self._working]
        self._working.clear()
        self._weights.clear()
        self._weight = 0
        return actions

    def _fail(self, step: Step) -> Action:
        if self._last:
            return ToNext(StepDone(step.epoch, step.n, failed=self._failure))
        return ToNext(attrs.evolve(step, ids=(), tensors=(), failed=self._failure))


class HeadPipeline:
    """The head: steps go to its own engine and down the chain; answers come back in order.

    The hidden states of a decode of a guess wait until `decide` says whether the guess was right.
    Only then are tokens drawn from them. Those that come after them wait behind them: the engine
    opens hidden states in the order in which they were sealed. They do not wait long, for what
    `decide` waits for has come before.
    """

    def __init__(self, epoch: Epoch, world: int) -> None:
        self.epoch = epoch
        self._alone = world == 1
        self._last = world - 1
        self._state = Machine(PIPELINE_TABLE, PipelineState.RUNNING)
        self._engine: deque[int] = deque()  # first pass: embedding and own layers
        self._chain: deque[int] = deque()  # sent down the chain, not yet answered
        self._return: set[int] = set()  # steps from which hidden states come back
        self._closing: deque[int] = deque()  # second pass: norm, output head, sampler or scores
        self._weights: dict[int, int] = {}  # of each answer in `_closing` or `_held`, by step
        self._undecided: set[int] = set()  # decodes of guesses
        self._wrong: set[int] = set()  # decodes of wrong guesses that have not come back
        self._held: dict[int, StepDone] = {}  # answers to undecided ones, and what came after

    @property
    def open(self) -> bool:
        """Steps may begin."""
        return self._state.state is PipelineState.RUNNING

    @property
    def outstanding(self) -> int:
        """Steps not yet answered."""
        waiting = (self._engine, self._chain, self._held, self._closing)
        return sum(map(len, waiting))

    def begin(self, step: Step) -> list[Action]:
        """Start *step*, the next by number."""
        if self._state.fire(PipelineEvent.STEP) is PipelineState.BROKEN:
            return []
        self._engine.append(step.n)
        match step.work:
            case Decode() as work:
                self._return.add(step.n)
                if work.on_guess:
                    self._undecided.add(step.n)
            case Prefill(scored=True):
                self._return.add(step.n)
        return [ToOwnEngine(step)]

    def output(self, message: Step | StepDone) -> list[Action]:
        """This rank's engine returned *message* of this epoch."""
        if self._state.fire(PipelineEvent.OUTPUT) is PipelineState.BROKEN:
            return []
        if (failed := message.failed) is not None:
            if failed.kind is FailureKind.INTEGRITY and message.n in self._weights:
                failed = attrs.evolve(failed, rank=self._last)  # it sealed these states
            return self.failure(message.n, failed)
        if isinstance(message, Step) and not self._alone and self._takes(self._engine, message.n):
            self._chain.append(message.n)
            return [ToNext(message)]
        if isinstance(message, StepDone):
            if self._alone and self._takes(self._engine, message.n):
                return [Answered(message.n, message.ids, message.spent, None)]
            if self._takes(self._closing, message.n):
                del self._weights[message.n]
                return [Answered(message.n, message.ids, message.spent, None)]
        out_of_order = Failure(0, FailureKind.ENGINE_ERROR, "the engine answered out of order")
        return self.failure(message.n, out_of_order)

    def done(self, rank: int, message: StepDone) -> list[Action]:
        """*rank* answered with *message* of this epoch.

        Raises `RemoteProtocolError` unless the last rank answers the oldest step on the chain, or
        if the answer has the times of too many ranks. Raises `LimitExceeded` if too many hidden
        states would wait for the head's engine. In both cases the step still waits for its answer.
        """
        if self._state.fire(PipelineEvent.OUTPUT) is PipelineState.BROKEN:
            return []
        n = message.n
        if rank != self._last or not self._chain or self._chain[0] != n:
            raise RemoteProtocolError(f"an answer to step {n}, which waits for none")
        check_spent(message, self._last + 1)
        heavy = weight(message)
        if sum(self._weights.values()) + heavy > MAX_WEIGHT_WAITING:
            raise LimitExceeded(f"the answer to step {n} is one too many, or too large")
        self._chain.popleft()
        failed = message.failed or self._fault_of(message)
        if failed is not None:
            return self.failure(n, failed)
        if not message.tensors:
            return [Answered(n, (), message.spent, None)]
        self._return.discard(n)
        if n in self._wrong:
            self._wrong.remove(n)
            return [Answered(n, (), message.spent, None)]
        self._weights[n] = heavy
        self._held[n] = message
        return self._close()

    def decide(self, n: int, *, right: bool) -> list[Action]:
        """The guess that step *n* reads was *right*, or was not: then it is answered without a
        token."""
        self._undecided.discard(n)
        if self._state.state is PipelineState.BROKEN:
            return []
        if right:
            return self._close()
        held = self._held.pop(n, None)
        if held is None:
            self._wrong.add(n)
            return []
        del self._weights[n]
        # The answer last: whoever hears it may decide on others, whose hidden states come later.
        return [*self._close(), Answered(n, (), held.spent, None)]

    def _close(self) -> list[Action]:
        """Have the engine draw from the hidden states that have come, up to undecided ones."""
        actions: list[Action] = []
        for n, message in list(self._held.items()):
            if n in self._undecided:
                break
            del self._held[n]
            self._closing.append(n)
            actions.append(ToOwnEngine(message))
        return actions

    def _fault_of(self, answer: StepDone) -> Failure | None:
        """The failure if *answer* of the last rank has token ids, or has or lacks hidden states
        wrongly; else None."""
        if answer.ids:
            text = f"step {answer.n} was answered with token ids, which the head draws"
        elif bool(answer.tensors) != (answer.n in self._return):
            which = "with" if answer.tensors else "without"
            text = f"step {answer.n} was answered {which} hidden states"
        else:
            return None
        return Failure(self._last, FailureKind.INTEGRITY, text)

    def failure(self, n: int, failed: Failure) -> list[Action]:
        """Step *n* failed, and every later one with it: answer all of them now."""
        self._state.fire(PipelineEvent.FAILURE)
        rest = {*self._closing, *self._held, *self._chain, *self._engine}
        self._held.clear()
        self._closing.clear()
        self._chain.clear()
        self._engine.clear()
        later = Failure(failed.rank, FailureKind.LINK_LOST, f"after step {n}: {failed.message}")
        first: list[Action] = [Answered(n, (), (), failed)]
        return first + [Answered(other, (), (), later) for other in sorted(rest - {n})]

    def lost(self, failed: Failure) -> list[Action]:
        """A rank or its link is gone: answer every step under way with *failed*."""
        oldest = [*self._closing, *self._held, *self._chain, *self._engine]
        if not oldest:
            self._state.fire(PipelineEvent.FAILURE)
            return []
        return self.failure(min(oldest), failed)

    @staticmethod
    def _takes(queue: deque[int], n: int) -> bool:
        if not queue or queue[0] != n:
            return False
        queue.popleft()
        return True

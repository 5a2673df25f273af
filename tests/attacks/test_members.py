"""A member whose key is good and whose messages are valid, and who sends far too many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import attrs
import pytest
from sealring_protocol.codec.local_messages import Grouped, Loaded
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CacheCost,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Ready,
    Row,
    Save,
    Step,
    StepDone,
    TakeBack,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.effects import Effect, Level, Note, ToEngine
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.control.epoch.pipeline import (
    FollowerPipeline,
    weight,
)
from sealring_protocol.control.head.head import Head, HeadConfig
from sealring_protocol.control.requests import Request, SchedulerConfig
from sealring_protocol.control.scheduler import running_rows
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.errors import LimitExceeded
from sealring_protocol.limits import (
    ENTRY_WEIGHT,
    MAX_BIAS,
    MAX_IDS,
    MAX_ROW_WEIGHT,
    MAX_ROWS,
    MAX_STEPS_WAITING,
    MAX_WEIGHT_WAITING,
    ORDERS_PER_SECOND,
    PRESENTATIONS_PER_SECOND,
)
from sealring_protocol.links.logs import AT_ONCE, Notes
from sealring_protocol.security.roles import Purpose

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import info

MODEL = b"m" * 32
EPOCH = Epoch(7, 1)
PIPELINE = Bootstrap(EPOCH, Backend.PIPELINE, 1, False, 1000, MODEL, (0, 2, 4, 6))
HOSTS = (("", 0),) * 3
PREPARE = Bootstrap(EPOCH, Backend.RING, 1, False, 1000, MODEL, (0, 6), HOSTS)
JOIN = attrs.evolve(PREPARE, hosts=(("a", 4001), ("b", 4002), ("c", 4003)))
HELLO = Hello(MODEL, 6, DType.U32, 1, 1 << 30)


def ready(first: int, last: int) -> Ready:
    return Ready(EPOCH, first, last, True, 1 << 30, CacheCost(0, 0))


MANY = 3_000


def rank() -> Follower:
    """Rank 1 of 3, in no epoch."""
    made = Follower(FollowerConfig(1, ("n0", "n1", "n2"), inner_seal=False))
    made.engine_message(info(splits=3), 0.0)
    made.link_up(0, Purpose.CONTROL, 0.0)
    return made


def ordered() -> tuple[Follower, Purpose]:
    """It has its order, and loads."""
    made = rank()
    made.message(0, Purpose.CONTROL, PIPELINE, 0.0)
    return made, Purpose.STEP


def in_pipeline() -> tuple[Follower, Purpose]:
    """It serves an epoch of a pipeline."""
    made, purpose = ordered()
    made.link_up(2, Purpose.STEP, 0.0)
    made.engine_message(ready(2, 4), 0.0)
    return made, purpose


def in_collective() -> tuple[Follower, Purpose]:
    """It serves an epoch of tensor parallelism."""
    made = rank()
    made.message(0, Purpose.CONTROL, PREPARE, 0.0)
    made.engine_message(Loaded(1, 1, 1), 0.0)
    made.collective_prepared(EPOCH, 4002, 4009, 0.0)
    made.link_up(2, Purpose.TUNNEL, 0.0)
    made.message(0, Purpose.CONTROL, JOIN, 0.0)
    made.engine_message(Grouped(3, 1, 1), 0.0)
    made.engine_message(ready(0, 6), 0.0)
    return made, Purpose.CONTROL


STATES = (ordered, in_pipeline, in_collective)
State = Callable[[], tuple[Follower, Purpose]]


def steps(**what: object) -> Iterable[Step]:
    return (Step(EPOCH, n, bytes(16), **what) for n in range(1, MANY))  # type: ignore[arg-type]


def taken(state: State, flood: Iterable[Step]) -> int:
    """How many steps of *flood* a rank takes before it refuses one."""
    made, purpose = state()
    for count, step in enumerate(flood):
        try:
            effects: list[Effect] = made.message(0, purpose, step, 0.0)
        except LimitExceeded:
            return count
        assert made.standing().plan is not None
        assert any(isinstance(each, ToEngine) for each in effects)
    raise AssertionError("it takes all of them")


@pytest.mark.parametrize("state", STATES)
def test_so_many_steps_wait_for_an_engine_and_no_more(state: State) -> None:
    assert taken(state, steps(work=Decode(0))) == MAX_STEPS_WAITING


HEAVY = {
    "tensors": {"tensors": (Tensor(DType.F32, (1 << 20,), bytes(1 << 22)),)},
    "ids": {"ids": (7,) * (1 << 15)},
    "saves": {"save": (Save(1, 2),) * 4096},
    "backs": {"back": (TakeBack(1, 1),) * 4096},
    "evicts": {"evict": (1,) * 4096, "drop": (1,) * 4096},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", HEAVY)
def test_steps_that_wait_weigh_so_much_and_no_more(state: State, name: str) -> None:
    flood = steps(**HEAVY[name])
    each = weight(Step(EPOCH, 1, bytes(16), **HEAVY[name]))  # type: ignore[arg-type]
    assert taken(state, flood) == MAX_WEIGHT_WAITING // each


def test_an_answered_step_makes_room_to_the_byte() -> None:
    most = Step(EPOCH, 1, bytes(16), ids=(7,) * (MAX_WEIGHT_WAITING // ENTRY_WEIGHT))
    machine = FollowerPipeline(EPOCH, 2, last=True)
    for n in (1, 2, 3):
        machine.step(attrs.evolve(most, n=n))
        machine.output(StepDone(EPOCH, n))
    machine.step(attrs.evolve(most, n=4))
    with pytest.raises(LimitExceeded):
        machine.step(Step(EPOCH, 5, bytes(16), evict=(1,)))


@pytest.mark.parametrize("state", STATES)
def test_steps_that_are_answered_at_once_may_be_many(state: State) -> None:
    made, purpose = state()
    made.engine_lost("it was killed", 0.0)
    for step in steps():
        assert not any(
            isinstance(effect, ToEngine) for effect in made.message(0, purpose, step, 0.0)
        )


def test_rows_are_announced_as_a_step_may_open_them() -> None:
    made, control = in_collective()
    for uid in range(1, MAX_ROWS + 1):
        made.message(0, control, Row(uid), 0.0)
    with pytest.raises(LimitExceeded):
        made.message(0, control, Row(9), 0.0)
    made, control = in_collective()
    made.message(0, control, Row(1, history=(7,) * MAX_IDS), 0.0)
    made.message(0, control, Row(2), 0.0)
    with pytest.raises(LimitExceeded):
        made.message(0, control, Row(3, history=(7,)), 0.0)
    made, control = in_collective()
    for n in (1, 2, 3):
        made.message(0, control, Row(n, history=(7,) * MAX_IDS), 0.0)
        made.message(0, control, Step(EPOCH, n, bytes(16)), 0.0)


LONG = Row(1, history=(7,) * MAX_IDS)
BIASED = Row(1, bias=((7, 1.0),) * MAX_BIAS)


@pytest.mark.parametrize(("row", "each"), [(LONG, 1), (BIASED, 40)])
def test_rows_weigh_with_the_steps_that_wait(row: Row, each: int) -> None:
    """Else 128 steps bring 512 MiB of histories with them."""
    steps = (Step(EPOCH, n, bytes(16)) for n in range(1, MAX_STEPS_WAITING))
    assert rows_taken([row] * each + [step] for step in steps) == MAX_WEIGHT_WAITING // weight(row)
    made, control = in_collective()
    for n in range(1, 40):  # more than that, where they are answered
        for _ in range(each):
            made.message(0, control, row, 0.0)
        made.message(0, control, Step(EPOCH, n, bytes(16)), 0.0)
        made.engine_message(StepDone(EPOCH, n), 0.0)


def rows_taken(flood: Iterable[list[Row | Step]]) -> int:
    """How many rows of *flood* a rank takes before it refuses one."""
    made, control = in_collective()
    count = 0
    for message in chain.from_iterable(flood):
        try:
            made.message(0, control, message, 0.0)
        except LimitExceeded:
            return count
        count += isinstance(message, Row)
    raise AssertionError("it takes all of them")


def test_rows_that_come_before_any_step_weigh_too() -> None:
    assert rows_taken([[BIASED] * MAX_ROWS]) == MAX_WEIGHT_WAITING // weight(BIASED)


def test_a_rank_that_is_broken_passes_no_rows_on() -> None:
    """Its steps are answered at once, so nothing would bound them."""
    made, control = in_collective()
    made.message(0, control, Step(EPOCH, 1, bytes(16)), 0.0)
    failed = Failure(1, FailureKind.ENGINE_ERROR, "it could not")
    made.engine_message(StepDone(EPOCH, 1, failed=failed), 0.0)
    for n in range(2, 40):
        assert not made.message(0, control, LONG, 0.0)
        made.message(0, control, Step(EPOCH, n, bytes(16)), 0.0)


def test_a_head_opens_no_heavier_rows_in_one_step_than_it_counts_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_rows, "_READING", 128)
    scheduler = Scheduler(SchedulerConfig(groups=8, rows=64), 1 << 20)
    scheduler.begin(EPOCH)
    machine = FollowerPipeline(EPOCH, 1, last=True)
    for turn in range(200):
        sampling = Row(0, repetition=1.1, bias=BIASED.bias)
        scheduler.submit(Request((5,) * 5000, 5, sampling=sampling, owner=str(turn)))
    opened = 0
    while (planned := scheduler.plan(0.0)) is not None:
        assert sum(map(weight, planned.rows)) <= MAX_ROW_WEIGHT
        for row in planned.rows:
            machine.announce(row)
            opened += 1
        machine.step(planned.step)
    assert opened > 50


def test_orders_have_a_budget() -> None:
    made = rank()
    for counter in range(1, ORDERS_PER_SECOND + 1):
        order = attrs.evolve(PIPELINE, epoch=Epoch(7, counter))
        made.message(0, Purpose.CONTROL, order, 0.0)
    later = attrs.evolve(PIPELINE, epoch=Epoch(7, 99))
    with pytest.raises(LimitExceeded):
        made.message(0, Purpose.CONTROL, later, 0.0)
    made.message(0, Purpose.CONTROL, later, 1.0)


def test_a_rank_that_presents_itself_again_and_again_uses_up_no_others_budget() -> None:
    head = Head(HeadConfig(7, ("n0", "n1", "n2"), inner_seal=False))
    for _ in range(PRESENTATIONS_PER_SECOND):
        head.message(1, Purpose.CONTROL, HELLO, 0.0)
    for _ in range(100):
        with pytest.raises(LimitExceeded):
            head.message(1, Purpose.CONTROL, HELLO, 0.0)
    for _ in range(PRESENTATIONS_PER_SECOND):
        head.message(2, Purpose.CONTROL, HELLO, 0.0)
    head.message(1, Purpose.CONTROL, HELLO, 1.0)


# ------------------------------------------------- what an honest head never does


@pytest.mark.parametrize(
    ("hidden_bytes", "chunk"), [(4, 512), (1 << 15, 511), (1 << 20, 15), (1 << 23, 1)]
)
def test_a_head_never_has_more_under_way_than_a_rank_takes(hidden_bytes: int, chunk: int) -> None:
    """Nobody answers, and clients come and go: each leaves something to drop."""
    config = SchedulerConfig(groups=64, rows=256, chunk=chunk, hidden_bytes=hidden_bytes)
    scheduler = Scheduler(config, 1 << 20)
    scheduler.begin(EPOCH)
    machine = FollowerPipeline(EPOCH, 1, last=False)
    begun = 0
    for turn in range(300):
        uid = scheduler.submit(Request((5,) * 2000, 5, owner=str(turn)))
        while (planned := scheduler.plan(0.0)) is not None:
            work = planned.step.work
            tokens = getattr(work, "count", len(scheduler.uids(planned.step.n)))
            tensor = Tensor(DType.U32, (tokens * hidden_bytes // 4,), bytes(tokens * hidden_bytes))
            machine.step(attrs.evolve(planned.step, tensors=(tensor,)))
            begun += 1
        scheduler.cancel(uid)
    assert begun > 1
    assert begun == MAX_STEPS_WAITING or hidden_bytes > 4


def test_a_head_opens_no_longer_histories_in_one_step_than_may_be_told() -> None:
    scheduler = Scheduler(SchedulerConfig(groups=8), 1 << 20)
    scheduler.begin(EPOCH)
    sampling = Row(0, repetition=1.1)
    for _ in range(4):
        scheduler.submit(Request((5,) * (MAX_IDS - 9), 5, sampling=sampling))
    opened = 0
    for _ in range(3):
        planned = scheduler.plan(0.0)
        if planned is not None:
            opened += len(planned.rows)
            assert sum(len(row.history) for row in planned.rows) <= MAX_IDS
    assert opened >= 2


# ------------------------------------------------------------------- the log


def test_a_member_that_comes_and_goes_fills_no_log() -> None:
    cluster = Cluster(2, 1)
    for _ in range(100):
        cluster.run_until(lambda: cluster.ready)
        cluster.crash(cluster.hosts["host1"])
        cluster.notes.clear()
        cluster.boot(1)
    assert cluster.lines["host0"] < 500  # 787 without a bound


def test_what_is_said_too_often_is_counted() -> None:
    notes = Notes()
    lines = [
        notes.limited(Note(Level.WARNING, f"rank 1 is gone: the {n}th reason"), n / 100)
        for n in range(1000)
    ]
    told = [line for line in lines if line.level is Level.WARNING]
    assert len(told) == AT_ONCE
    last = notes.limited(Note(Level.WARNING, "rank 2 is gone: of itself"), 30.0)
    assert last.text.endswith(f"({1000 - AT_ONCE} more lines like this were left out)")
    other = Note(Level.ERROR, "no plan: there is too little room")
    assert notes.limited(other, 10.0) == other

"""What each way to run a model would give, by figures that are worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from sealring.files.models import structure
from sealring.forecast import (
    APART,
    ENGINE,
    Candidate,
    Forecast,
    Judgement,
    Overheads,
    Pace,
    Workload,
    judge,
    recommend,
    ways,
)
from sealring.generation.status import describe_paces
from sealring.local.paces import known_machines
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import CacheCost, Decode, DType, Prefill, Spent
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.plan import PlanRequest, Strategy
from sealring_trio.files.models import TINY, describe_model, find_model

pytestmark = pytest.mark.usefixtures("quick_paces")

MIB = 1 << 20
INFO = EngineInfo(
    model=bytes(32),
    dtype=DType.F32,
    hidden=64,
    vocabulary=1000,
    context=4000,
    trimmable=True,
    room=0,
    ends=20 * MIB,
    layers=(10 * MIB,) * 8,
    splits=8,
    backends=1 << 2,
)
COSTS = (CacheCost(0, 1024),) * 8
PACE = Pace(layer=0.001, more=0.25, prompt=0.0001, head=2.0, measured=True)
NETWORK = Overheads(turn=0.002, hop=0.003, turn_measured=True, hop_measured=True)
TWO = (Candidate("desk", "one", 1 << 30, PACE), Candidate("shelf", "two", 1 << 30, PACE))
ASKED = Workload(context=1000, rows=1)


def of(found: list[Forecast]) -> dict[str, Forecast]:
    return {way.name: way for way in found}


def test_one_machine() -> None:
    (way,) = ways(INFO, COSTS, TWO[:1], NETWORK, ASKED)
    assert (way.name, way.strategy, way.layers) == ("desk alone", "single", (range(8),))
    assert way.weights == (100 * MIB,)
    assert way.caches == (8 * 1024 * 1000,)
    assert way.engines == ENGINE == 95 * MIB
    # 8 layers and a head of 2 at 1 ms, and a turn of 2 ms.
    assert way.one == pytest.approx(1 / 0.012)
    # 8 rows: 10 ms x (1 + 7 x 0.25) = 27.5 ms, and the turn.
    assert way.many == pytest.approx(8 / 0.0295)
    # 1000 tokens x 8 layers x 0.1 ms, the turn, and the first token.
    assert way.first == pytest.approx(0.8 + 0.002 + 0.012)
    assert way.measured


def test_a_pipeline_of_two() -> None:
    way = of(ways(INFO, COSTS, TWO, NETWORK, ASKED))["ring of 2 (pp)"]
    assert way.layers == (range(4), range(4, 8))
    assert way.weights == (60 * MIB, 40 * MIB)
    assert way.caches == (4 * 1024 * 1000,) * 2
    assert way.engines == 190 * MIB
    # 6 ms and 4 ms, and two hops of 3 ms.
    assert way.one == pytest.approx(1 / 0.016)
    # One group of 8: 27.5 + 6 = 33.5 ms. Two of 4: x 1.75: a trip of 17.5 + 6 = 23.5, and rank 0 is
    # busy for 2 x 10.5 = 21. Three of 3: x 1.5: 15 + 6 = 21, busy for 3 x 9 = 27. So two groups.
    assert way.many == pytest.approx(8 / 0.0235)
    # Four chunks of 250: 100 ms on each rank, three of which follow the first; two hops.
    assert way.first == pytest.approx(0.2 + 0.006 + 3 * 0.1 + 0.016)
    assert way.measured


def test_ranks_of_one_machine_take_turns() -> None:
    near = [attrs.evolve(each, host="one") for each in TWO]
    found = of(ways(INFO, COSTS, near, NETWORK, ASKED))
    # One group of 8: 33.5 ms. Two of 4: 2 x 17.5 = 35 ms of one machine's work.
    assert found["ring of 2 (pp)"].many == pytest.approx(8 / 0.0335)
    # Four chunks take as long as one after the other.
    assert found["ring of 2 (pp)"].first == pytest.approx(0.2 + 0.006 + 3 * 0.2 + 0.016)
    assert found[APART].many == found["desk alone"].many


def test_two_rings_of_one_share_the_streams() -> None:
    slow = attrs.evolve(TWO[1], pace=attrs.evolve(PACE, layer=0.002))
    way = of(ways(INFO, COSTS, [TWO[0], slow], NETWORK, ASKED))[APART]
    assert way.one == pytest.approx(1 / 0.012)  # the faster machine's
    # Four streams on each: 17.5 and 35 ms, and a turn.
    assert way.many == pytest.approx(4 / 0.0195 + 4 / 0.037)
    assert way.weights == (100 * MIB, 100 * MIB)


def test_tensor_parallelism_where_a_sum_was_measured() -> None:
    network = attrs.evolve(NETWORK, sums=0.0001)
    way = of(ways(INFO, COSTS, TWO, network, ASKED))["ring of 2 (tp)"]
    # Half of 8 ms, the head's 2 ms, 17 sums of 0.1 ms, and a turn of 2 ms.
    assert way.one == pytest.approx(1 / 0.0097)
    assert way.weights == (60 * MIB,) * 2  # all of the ends, and half of the layers
    assert way.caches == (4 * 1024 * 1000,) * 2
    assert not way.measured
    assert "ring of 2 (tp)" not in of(ways(INFO, COSTS, TWO, NETWORK, ASKED))


def test_the_longest_context_is_that_of_the_rank_with_the_least_room() -> None:
    # 45 MiB less 40 of weights; 4 layers take 4 KiB for each token. A tenth is kept for caches.
    small = attrs.evolve(TWO[1], room=45 * MIB)
    even = PlanRequest(Strategy.PIPELINE, (4, 4))
    found = of(ways(INFO, COSTS, [TWO[0], small], NETWORK, Workload(1200, 1), even))
    assert found["ring of 2 (pp)"].longest == 5 * MIB // 4096 == 1280
    assert found["ring of 2 (pp)"].fits
    assert found["desk alone"].longest == INFO.context
    assert "shelf alone" not in found  # 100 MiB do not fit
    assert APART not in found
    found = of(ways(INFO, COSTS, [TWO[0], small], NETWORK, Workload(1200, 2), even))
    assert not found["ring of 2 (pp)"].fits


def test_what_is_recommended_and_why() -> None:
    found = ways(INFO, COSTS, TWO, NETWORK, ASKED)
    way, why = recommend(found, ASKED) or pytest.fail("nothing fits")
    assert way.name == "desk alone"
    assert why == (
        "one machine is faster: 83.3 tokens/s for one stream, and ring of 2 (pp) gives 62.5"
    )
    several = Workload(1000, 8)
    way, why = recommend(ways(INFO, COSTS, TWO, NETWORK, several), several) or pytest.fail("none")
    # 8 streams: 2 x 4 in 19.5 ms.
    assert (way.name, way.many) == (APART, pytest.approx(8 / 0.0195))
    assert why == (
        "it is the fastest: 410 tokens/s for 8 streams, and desk alone gives 271 (estimate)"
    )


def test_another_head_is_recommended_where_it_is_clearly_faster() -> None:
    for layer, name in ((0.0012, "desk alone"), (0.0013, "desk alone"), (0.002, "shelf alone")):
        slow = attrs.evolve(TWO[0], pace=attrs.evolve(PACE, layer=layer))
        way, why = recommend(ways(INFO, COSTS, [slow, TWO[1]], FAR, ASKED), ASKED) or (None, "")
        assert way is not None
        assert way.name == name
        assert why.startswith("one machine is faster: ")


def test_a_ring_is_recommended_where_no_machine_has_room_alone() -> None:
    small = [attrs.evolve(each, room=80 * MIB) for each in TWO]
    found = ways(INFO, COSTS, small, NETWORK, ASKED)
    assert recommend(found, ASKED) == (
        found[0],
        "no machine has room for it alone; 62.5 tokens/s for one stream",
    )
    assert (
        recommend(ways(INFO, COSTS, small, NETWORK, Workload(4000, 8)), Workload(4000, 8)) is None
    )


def timing(work: Decode | Prefill, rows: int, *computed: int, closing: int = 0) -> StepTiming:
    spent = tuple(Spent(compute_us=us) for us in computed)
    total = sum(computed) + closing + 700
    return StepTiming(1, work, tuple(range(rows)), total, spent, Spent(compute_us=closing))


def test_what_the_head_has_measured() -> None:
    paces = describe_paces(
        [
            *[timing(Decode(0), 1, 100, 200, closing=30)] * 3,
            *[timing(Decode(0), 1, 300, 400, closing=50)] * 3,
            *[timing(Decode(0), 1, 120, 220, closing=40)] * 3,
            *[timing(Decode(0), 4, 500, 600, closing=70)] * 8,
            *[timing(Decode(0), 3, 9000, 9000)] * 7,  # as rows came and went
            timing(Decode(0, 1), 1, 9000, 9000),  # on a guess
            timing(Prefill(1, 0, 10), 1, 9000, 9000),  # small chunks are slow for each token
            timing(Prefill(1, 0, 100), 1, 2000, 3000),
        ]
    )
    assert paces == {
        "steps": 17,
        "decode_us": {"1": [173.3, 273.3], "4": [500, 600]},
        "closing_us": 40,
        "prompt_us": [20, 30],
        "away_us": 700,
    }
    assert describe_paces([])["decode_us"] == {}


def test_what_was_measured_adds_up_to_what_steps_took() -> None:
    steps = [timing(Decode(0), 1, 100 + 10 * n, 200 - n, closing=30) for n in range(19)]
    stalled = timing(Decode(0), 1, 900_000, 200, closing=30)  # a device prepared for the shape
    paces = describe_paces([*steps, stalled])
    whole = sum(paces["decode_us"]["1"]) + paces["closing_us"] + paces["away_us"]
    kept = sorted(each.total_us for each in steps)[2:-1]  # without two of twenty on either side
    assert whole == pytest.approx(sum(kept) / len(kept), abs=0.3)


def test_a_queue_and_a_seal_are_time_that_a_plan_counts() -> None:
    spent = (Spent(100, 50, 20), Spent(200, 0, 10))
    step = StepTiming(1, Decode(0), (1,), 1000, spent, Spent(30, 0, 5))
    assert describe_paces([step] * 8)["away_us"] == 1000 - 330


def test_a_rank_that_claims_more_than_a_step_took_does_not_make_time_run_backwards() -> None:
    step = StepTiming(1, Decode(0), (1,), 1000, (Spent(100), Spent(1 << 31)), Spent(30))
    assert describe_paces([step] * 8)["away_us"] == 0


FAR = attrs.evolve(NETWORK, hop=0.01)
"""The ring of two takes 10 ms and two hops of 10 ms: 33.3 tokens/s. Alone a machine takes 10 ms and
a turn: 83.3; 50 if that takes as long as a hop."""
SMALL = Candidate("desk", "one", 112 * MIB, PACE)
SLOW = Candidate("desk", "one", 1 << 30, attrs.evolve(PACE, layer=0.002))
FASTER = "desk alone gives 83.3 tokens/s for one stream (estimate), and the ring of 2 gave"


def judged(
    machines: Sequence[Candidate] = TWO,
    network: Overheads = FAR,
    asked: Workload = ASKED,
    gave: float = 0.0,
) -> Judgement:
    """What is said of the pipeline of *machines*, which *gave* so much, if not what was computed.
    What a ring of one takes for a turn was not measured."""
    network = attrs.evolve(network, turn_measured=False)
    found = ways(INFO, COSTS, machines, network, asked)
    bound = attrs.evolve(network, turn=network.hop, turn_measured=True)
    least = ways(INFO, COSTS, machines[:1], bound, asked)
    computed = found[0].many if asked.rows > 1 else found[0].one
    return judge(found, least[0] if least else None, gave or computed, asked)


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (judged(), f"{FASTER} 33.3"),
        (judged(gave=37.4), f"{FASTER} 37.4"),
        # 8 streams: 27.5 ms and a turn of 2 ms; four groups of 2 take 12.5 ms and two hops, so that
        # all have one token in 32.5 ms.
        (
            judged(asked=Workload(1000, 8), network=attrs.evolve(NETWORK, hop=0.05)),
            "desk alone gives 271 tokens/s for 8 streams (estimate), and the ring of 2 gave 71.1",
        ),
        (judged(TWO[::-1]), FASTER.replace("desk", "shelf") + " 33.3"),
        # The other is faster, 83.3 and not 71.4, but not clearly: it need not be the head.
        (
            judged([attrs.evolve(TWO[0], pace=attrs.evolve(PACE, layer=0.0012)), TWO[1]]),
            FASTER.replace("83.3", "71.4") + " 32.1",
        ),
    ],
)
def test_the_head_alone_is_taken_where_it_is_clearly_faster(verdict: Judgement, why: str) -> None:
    assert verdict.takes
    assert verdict.why == why


BESIDE = "the ring of 2 gives {} tokens/s for one stream, and {} alone would give {} (estimate)"


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        # It is clearly faster only if a turn is shorter than a hop, which nobody has measured.
        (
            judged(gave=37.6),
            BESIDE.format("37.6", "desk", "83.3") + "; but that is not sure to be clearly faster",
        ),
        (judged(gave=62.6), BESIDE.format("62.6", "desk", "83.3")),  # by a guessed turn, too
        (judged(network=attrs.evolve(NETWORK, turn=0.03)), BESIDE.format("62.5", "desk", "25")),
        (
            judged([SLOW, TWO[1]]),
            BESIDE.format("27.8", "shelf", "83.3")
            + ": 'sealring machines move shelf --rank 0' makes it the head, which can be alone",
        ),
        (
            judged([SMALL, TWO[1]], asked=Workload(500, 1)),
            BESIDE.format("33.3", "desk", "83.3")
            + "; but it has room for 1536 tokens of a stream, and the ring for 4000",
        ),
        (
            judged([attrs.evolve(each, room=80 * MIB) for each in TWO]),
            "the ring of 2 gives 33.3 tokens/s for one stream; no machine has room for the model "
            "alone",
        ),
        (
            judged([attrs.evolve(e, pace=attrs.evolve(PACE, measured=False)) for e in TWO]),
            BESIDE.format("33.3", "desk", "83.3") + "; but that is not sure to be clearly faster",
        ),
    ],
)
def test_the_ring_stays_where_that_is_not_sure(verdict: Judgement, text: str) -> None:
    assert verdict == Judgement(False, text)


def test_a_plan_goes_by_what_the_head_has_measured() -> None:
    info = describe_model(find_model(TINY))
    first, second = 1, len(info.layers) - 1
    timings = [
        *[timing(Decode(0), 1, 100, 200, closing=30)] * 8,
        *[timing(Decode(0), 4, 250, 500, closing=70)] * 8,
        timing(Prefill(1, 0, 100), 1, 2000, 3000),
    ]
    facts = {
        "rank": 0,
        "name": "desk",
        "addresses": ["10.0.0.1:7470"],
        "peers": [{"rank": 1, "name": "shelf", "addresses": []}],
        "bounds": [0, first, first + second],
        "paces": describe_paces(timings),
        "sum_us": 90,
    }
    known = known_machines(info, structure(info), [1 << 30, 2 << 30], facts, 8)
    desk, shelf = known.machines
    assert [(each.name, each.host, each.room) for each in known.machines] == [
        ("desk", "10.0.0.1", 1 << 30),
        ("shelf", "shelf", 2 << 30),
    ]
    assert (desk.pace.layer, shelf.pace.layer) == pytest.approx((1e-4, 2e-4 / second))
    # Four rows take 2.5 times as long as one.
    assert (desk.pace.more, shelf.pace.more) == pytest.approx((0.5, 0.5))
    assert (desk.pace.prompt, shelf.pace.prompt) == pytest.approx((2e-5, 3e-5 / second))
    assert desk.pace.head == pytest.approx(0.3)
    assert known.network.hop == pytest.approx(350e-6)
    assert (known.network.hop_measured, known.network.turn_measured) == (True, False)
    assert known.network.sums == pytest.approx(90e-6)
    assert desk.pace.measured
    assert known.source == "measured by the head in 16 steps"


def test_what_the_head_has_not_measured_is_an_estimate() -> None:
    info = describe_model(find_model(TINY))
    facts = {
        "rank": 0,
        "name": "desk",
        "addresses": [],
        "peers": [],
        "bounds": [0, len(info.layers)],
        "paces": describe_paces([timing(Decode(0), 1, 1000)] * 8),
        "sum_us": 0,
        "guess_ms": {"plain": 1.5},
    }
    known = known_machines(info, structure(info), [1 << 30], facts, 8)
    (desk,) = known.machines
    assert known.source.endswith(", but for prompts, but for several streams")
    assert not desk.pace.measured
    assert known.network.turn == pytest.approx(0.0005)
    # The layers and the head together take what a step did.
    assert desk.pace.decode(len(info.layers), 1, head=True) == pytest.approx(0.001)


def test_a_figure_that_was_not_measured_is_called_an_estimate() -> None:
    guessed = attrs.evolve(TWO[0], pace=attrs.evolve(PACE, measured=False))
    assert recommend(ways(INFO, COSTS, [guessed], NETWORK, ASKED), ASKED) == (
        ways(INFO, COSTS, [guessed], NETWORK, ASKED)[0],
        "there is no other machine; 83.3 tokens/s for one stream (estimate)",
    )

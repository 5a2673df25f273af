"""`sealring profile`: what it says of a real ring, its trace file, and how it adds up."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring.cli.profile import (
    RankParts,
    Recording,
    balance_of,
    events,
    gather,
    parts_of,
    slow_links_of,
)
from sealring.local.node_socket import ask
from sealring_trio.errors import OperationError

from tests.io_trio.conftest import Ring
from tests.io_trio.helpers import sealring
from tests.serving import PATIENCE

NAMES = ["desk", "laptop", "shelf"]


def nested(trace: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all events of each thread follow each other or nest."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in trace:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1e3)
            span = (begin, begin + round(event["dur"] * 1e3))
            threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in threads.values():
        open_until: list[int] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            if open_until and end > open_until[-1]:
                return False
            open_until.append(end)
    return True


# ---------------------------------------------------------------------------- real rings


def test_a_running_ring(ring: Ring, tmp_path: Path) -> None:
    configs = [option for config in ring.configs for option in ("--config", config)]
    trace = tmp_path / "trace.json"
    done = sealring("profile", *configs, "--tokens", "24", "--json", "--trace", trace)
    told = done.json()
    assert (done.code, told["strategy"], told["recorded_ranks"]) == (0, "pp", [0, 1])
    decode = told["decode"]
    assert decode["steps"] == 24
    assert decode["tokens_per_step"] == 1
    parts = [*decode["ranks"], decode["closing"]]
    assert [rank["rank"] for rank in decode["ranks"]] == [0, 1]
    assert all(rank[name] >= 0 for rank in parts for name in rank)
    assert all(rank["compute_ms"] > 0 and rank["node_ms"] > 0 for rank in parts)
    assert all(rank["wire_ms"] > 0 for rank in decode["ranks"])
    added = sum(value for rank in parts for name, value in rank.items() if name != "rank")
    assert added == pytest.approx(decode["step_ms"], rel=0.1)
    assert told["prefill"]["steps"] >= 1

    written = json.loads(trace.read_text())["traceEvents"]
    assert nested(written)
    processes = {e["pid"]: e["args"]["name"] for e in written if e["name"] == "process_name"}
    assert processes == {0: "rank 0: rank0", 1: "rank 1: rank1"}
    for rank in (0, 1):
        names = [event["name"] for event in written if event["pid"] == rank]
        assert names.count("compute") >= 24
    assert len([event for event in written if event["name"].startswith("decode ")]) == 24


def test_the_head_alone_estimates_the_others(ring: Ring, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    head = ("--config", ring.configs[0], "--tokens", "8", "--rows", "2")
    told = sealring("profile", *head, "--json", "--trace", trace).json()
    first, second = told["decode"]["ranks"]
    assert first["wire_ms"] > 0
    assert (second["node_ms"], second["wire_ms"]) == (None, 0)
    written = json.loads(trace.read_text())["traceEvents"]
    assert nested(written)
    lanes = {e["args"]["name"] for e in written if e["name"] == "thread_name" and e["pid"] == 1}
    assert lanes
    assert all(lane.startswith("engine (estimated)") for lane in lanes)


def test_a_table(ring: Ring) -> None:
    done = sealring("profile", "--config", ring.configs[0], "--tokens", "4")
    assert done.code == 0
    for words in ("decode: milliseconds of a step", "0 rank0, draws the token", "under way"):
        assert words in done.out


def test_another_rank_watches_what_runs(ring: Ring) -> None:
    ended = threading.Event()

    def keep_asking() -> None:
        while not ended.is_set():
            list(ring.nodes[0].ask("generate", {"prompt": "Count.", "max_tokens": 8}))

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        told = sealring("profile", "--config", ring.configs[1], "--seconds", "2", "--json").json()
    finally:
        ended.set()
        asking.join()
    assert told["recorded_ranks"] == [1]
    (own,) = told["decode"]["ranks"]
    assert own["compute_ms"] > 0
    assert own["node_ms"] > 0


def test_a_rank_takes_no_requests(ring: Ring) -> None:
    done = sealring("profile", "--config", ring.configs[1])
    assert done.code == 2
    assert "none of these nodes is the head, rank0" in done.err
    assert "--seconds" in done.err


def test_nothing_runs(ring: Ring) -> None:
    done = sealring("profile", "--config", ring.configs[0], "--seconds", "0.1")
    assert (done.code, "no step passed meanwhile" in done.err) == (1, True)


def test_one_profile_at_a_time_and_another_after_it(ring: Ring) -> None:
    socket = ring.nodes[0].control
    refused: list[str] = []

    def work(_: list[Recording]) -> None:
        with pytest.raises(OperationError, match="being profiled already"):
            next(ask(socket, "profile"))
        refused.append("yes")

    gather([socket], work)
    end = time.monotonic() + PATIENCE
    while True:  # the node hears a moment later that the first client has gone
        try:
            (recording,) = gather([socket], lambda _: None)
        except OperationError:
            assert time.monotonic() < end
        else:
            break
    assert refused
    assert recording.place["names"] == ["rank0", "rank1"]


def test_a_ring_that_is_just_started_has_nothing_to_watch() -> None:
    done = sealring("profile", "--seconds", "1")
    assert (done.code, "--config" in done.err) == (2, True)


@pytest.mark.long
def test_a_ring_that_it_starts() -> None:
    told = sealring("profile", "--tokens", "12", "--ranks", "1", "--json").json()
    assert told["decode"]["steps"] == 12
    assert told["decode"]["closing"] is None
    assert told["decode"]["ranks"][0]["wire_ms"] == 0


# ---------------------------------------------------------------------------- by hand

US = 1e6


def recording(
    rank: int, steps: Sequence[Any] = (), stays: Sequence[Any] = (), strategy: str = "pp"
) -> Recording:
    made = Recording()
    place = {"rank": rank, "names": NAMES, "strategy": strategy}
    first: dict[str, Any] = {"place": {**place, "strategy": ""}, "clock": 0.0}  # not serving yet
    made.add({**first, "steps": steps, "stays": stays, "processors": {"node": [1.0, 2.0]}})
    last: dict[str, Any] = {"place": place, "clock": 9.0, "steps": [], "stays": []}
    made.add({**last, "processors": {"node": [1.5, 2.0]}})
    return made


STEP = [1, "decode", 0, 1, 10.0, 10.010, [[1000, 100, 10], [2000, 200, 20]], [500, 50, 5]]
"""A step of two ranks that takes 10 ms."""
FIRST = [1, False, 10.0, 10.0015, 1000, 100, 10]
SECOND = [1, False, 10.002, 10.005, 2000, 200, 20]
LAST = [1, True, 10.009, 10.010, 500, 50, 5]


def test_a_step_adds_up() -> None:
    parts = parts_of([recording(0, [STEP], [FIRST, LAST]), recording(1, [], [SECOND])], "decode")
    assert parts is not None
    assert parts.closing is not None
    first, second = parts.ranks[0], parts.ranks[1]
    assert first.node == pytest.approx(0.39e-3)
    assert first.wire == pytest.approx(0.5e-3)
    assert second.node == pytest.approx(0.78e-3)
    assert second.wire == pytest.approx(4e-3)
    assert first.total + second.total + parts.closing.total == pytest.approx(parts.step)


def test_what_another_machine_took_is_in_the_wire_before_it() -> None:
    parts = parts_of([recording(0, [STEP], [FIRST, LAST])], "decode")
    assert parts is not None
    assert parts.ranks[1].node is None
    assert parts.ranks[0].wire == pytest.approx(7.5e-3 - 2.22e-3)
    assert sum(rank.total for rank in parts.ranks.values()) + 1e-3 == pytest.approx(parts.step)


def test_ranks_beside_each_other() -> None:
    step = [1, "decode", 0, 4, 10.0, 10.010, [[6000, 0, 0], [7000, 0, 0]], [0, 0, 0]]
    own, other = [1, False, 10.0, 10.007, 6000, 0, 0], [1, False, 10.001, 10.009, 7000, 0, 0]
    parts = parts_of([recording(0, [step], [own], "tp"), recording(1, [], [other], "tp")], "decode")
    assert parts is not None
    assert parts.closing is None
    assert [rank.wire for rank in parts.ranks.values()] == pytest.approx([3e-3, 2e-3])
    assert [rank.node for rank in parts.ranks.values()] == pytest.approx([1e-3, 1e-3])


def test_the_pace_of_a_row_and_the_head_between_steps() -> None:
    steps = [[n, "decode", 0, 1, n, n + 0.4, [[1, 0, 0]], [0, 0, 0]] for n in range(4)]
    far = [9, "decode", 0, 1, 90.0, 90.4, [[1, 0, 0]], [0, 0, 0]]
    quick = [[n, "decode", 0, 1, n * 0.5, n * 0.5 + 0.4, [[1, 0, 0]], [0, 0, 0]] for n in range(4)]
    slow, other = (parts_of([recording(0, each)], "decode") for each in ([*steps, far], quick))
    assert slow is not None
    assert other is not None
    assert (slow.token, slow.head) == (None, 0.0)  # it had nothing to do between
    assert other.token == pytest.approx(0.5)
    assert other.head == pytest.approx(0.1)
    assert other.under_way == pytest.approx(1.6 / 1.9)


def test_processors_are_told_by_difference() -> None:
    assert recording(0).used() == {"node": (0.5, 0.0)}


SPENT = st.tuples(*[st.integers(0, 5000)] * 3)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9000), st.integers(0, 20_000), st.lists(SPENT, min_size=3, max_size=3)
        ),
        max_size=12,
    ),
    st.booleans(),
)
@settings(max_examples=60)
def test_events_nest_whatever_was_recorded(found: list[Any], whole: bool) -> None:
    begins = itertools.accumulate(begin for begin, _, _ in found)
    steps, stays, others = [], [], []
    for n, (begin, (_, took, spent)) in enumerate(zip(begins, found, strict=True)):
        at, until = begin / US, (begin + took) / US
        steps.append([n, "decode", 0, 1, at, until, spent, spent[0]])
        middle = (at + until) / 2
        stays += [[n, False, at, middle, *spent[0]], [n, True, middle, until, *spent[0]]]
        others.append([n, False, at, middle, *spent[1]])
    recordings = [recording(0, steps, stays), *([recording(1, [], others)] if whole else [])]
    assert nested(list(events(recordings)))


# ------------------------------------------------------------------------- the split


@pytest.mark.parametrize(
    ("layers", "compute", "closing", "best"),
    [
        ((16, 16), (0.16, 0.16), 0.0, None),
        ((16, 16), (0.16, 0.16), 0.04, (14, 18)),  # the output head is worth four layers
        ((16, 16), (0.32, 0.16), 0.0, (11, 21)),
        ((16, 16), (0.161, 0.16), 0.0, None),
        ((31, 1), (0.31, 0.01), 0.5, (1, 31)),
    ],
)
def test_the_split_that_would_even_out_the_ranks(layers, compute, closing, best) -> None:
    found = balance_of(layers, compute, closing)
    assert (found and tuple(found["layers"])) == best


@given(
    layers=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    data=st.data(),
    closing=st.floats(0, 10),
)
def test_no_other_split_is_better(layers, data, closing) -> None:
    compute = data.draw(st.lists(st.floats(0.01, 10), min_size=len(layers), max_size=len(layers)))

    def longest(counts: Sequence[int]) -> float:
        takes = [n * took / had for n, took, had in zip(counts, compute, layers, strict=True)]
        return max(takes[0] + closing, *takes[1:], 0.0)

    found = balance_of(layers, compute, closing)
    if found is None:
        return
    assert sum(found["layers"]) == sum(layers)
    ways = itertools.product(range(1, sum(layers) + 1), repeat=len(layers))
    best = min(longest(way) for way in ways if sum(way) == sum(layers))
    assert longest(found["layers"]) == pytest.approx(best)
    assert found["gain"] == pytest.approx(longest(layers) / best, abs=5.001e-4)


@pytest.mark.parametrize(
    ("took", "slow"),
    [
        ([(0.02, 0.05), (0.02, 0.9)], [0]),  # the last rank's way back carries no hidden states
        ([(0.02, 0.01), (0.02, 0.01)], []),
        ([(0.0001, 0.0005), (0.0001, 0.0005)], []),
        ([(0.02, 0.05), (0.02, 0.03), (0.02, 0.0)], [0, 1]),
        ([(0.02, 0.9)], []),
    ],
)
def test_links_that_hold_up_the_reading_of_prompts(took, slow) -> None:
    ranks = {
        rank: RankParts(0.0, compute, 0.0, 0.0, wire) for rank, (compute, wire) in enumerate(took)
    }
    assert [link["rank"] for link in slow_links_of(ranks)] == slow

"""The bench of long prompts: a small model, the real processes of every side."""

from __future__ import annotations

import pytest
from sealring_protocol.control.requests import SchedulerConfig
from sealring_tools.bench import prefill, random_model
from sealring_tools.bench.prefill import MAY_WAIT, YARDSTICK, Reading, Setup, measure
from sealring_tools.bench.random_model import Size, model_or_random

from tests.io_trio.helpers import sealring

SMALL = Size(layers=2, hidden=32, feed_forward=64, heads=2, kv_heads=1, vocabulary=1500)


@pytest.mark.long
def test_every_side_of_the_prefill_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(random_model.SIZES, "25m-even", SMALL)
    monkeypatch.setattr(prefill, "FLOOR_TOKENS", 300)
    monkeypatch.setattr(prefill, "FLOOR", 1e9)
    sizes = ("--tokens", "100", "--tokens", "300", "--ranks", "1", "--ranks", "2")
    done = sealring("bench", "prefill", *sizes, "--turns", "1", "--check", "--json")
    assert [line["name"].removeprefix("25m-even f32, ") for line in done.json()] == [
        f"{ring}, {tokens} tokens"
        for ring in ("1 rank", "2 ranks")
        for tokens in (100, 300)
        for _ in range(2)
    ]
    assert {line["yardstick_name"] for line in done.json()} == {YARDSTICK}
    assert all(line["ours"] > 0 and line["yardstick"] > 0 for line in done.json())
    assert [line.get("floor") for line in done.json()] == [None] * 6 + [1e9, None]
    assert done.code == 3  # which no ratio reaches


@pytest.mark.long
def test_rows_that_decode_beside_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(random_model.SIZES, "25m-even", SMALL)
    with model_or_random(None, "25m-even", "f32") as (folder, name):
        results = measure(Setup((300,), (2,), beside=2, turns=1), folder, name, print)
    pace, first, wait = results
    assert pace.name == "25m-even f32, 2 ranks, 300 tokens beside 2 rows"
    assert pace.ours == pytest.approx(300 / first.ours)
    assert (wait.yardstick_name, wait.ceiling) == (MAY_WAIT, 1.0)
    assert wait.ours > 0
    assert wait.yardstick > SchedulerConfig().chunk_seconds


def test_medians_of_turns_and_the_longest_wait_of_all() -> None:
    found = {
        (0, 4096): [Reading(9.0), Reading(6.0), Reading(5.0)],
        (2, 4096): [Reading(4.0, 0.9, 0.1), Reading(3.0, 0.3, 0.2), Reading(1.0, 0.2, 0.1)],
    }
    setup = Setup((4096,), (2,), beside=8)
    pace, first, wait = prefill._case(setup, "a model", found, (2, 4096))
    assert (pace.ratio, pace.floor, pace.holds) == (2.0, 1.5, True)
    assert (first.ours, first.yardstick) == (3.0, 6.0)
    assert (wait.ours, wait.yardstick) == (0.9, pytest.approx(0.7))
    assert not wait.holds

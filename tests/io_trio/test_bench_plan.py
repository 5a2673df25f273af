"""`sealring bench plan` and `bench auto`: a small model, one turn, the real rings of every side."""

from __future__ import annotations

import pytest
from sealring_tools.bench import auto, plan, random_model
from sealring_tools.bench.random_model import Size

from tests.io_trio.helpers import sealring

SMALL = Size(layers=2, hidden=32, feed_forward=64, heads=2, kv_heads=2, vocabulary=1500)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_paces")
def test_what_a_plan_says_is_set_beside_what_rings_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FLOOR", 1e9)
    options = ("--size", "tiny", "--tokens", "40", "--turns", "1")
    done = sealring("bench", "plan", *options, "--check", "--json")
    lines = done.json()
    assert [line["name"].removeprefix("tiny, ") for line in lines] == [
        "one rank, measured",
        "two ranks, measured",
        "one rank, estimate by a ring of two",
        "one rank, estimate without a node",
        "two ranks, estimate without a node",
    ]
    assert all(line["ours"] > 0 and line["yardstick"] > 0 for line in lines)
    # Whoever is asked, what the same ring gives is the same.
    assert lines[0]["yardstick"] == lines[2]["yardstick"] == lines[3]["yardstick"]
    assert lines[1]["yardstick"] == lines[4]["yardstick"]
    # Only what was measured has to be right.
    assert [line.get("floor") for line in lines] == [1e9, 1e9, None, None, None]
    assert done.code == 3  # which no ratio reaches


@pytest.mark.long
def test_rings_with_auto_and_pp_are_timed_from_their_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(random_model.SIZES, "25m", SMALL)
    monkeypatch.setattr(auto, "CEILING", 1e-9)
    done = sealring("bench", "auto", "--tokens", "40", "--check", "--json")
    (line,) = done.json()
    assert (line["name"], line["unit"], line["yardstick_name"]) == (
        "25m f32, 2 ranks, auto, start to answer",
        "s",
        "pp",
    )
    assert line["ours"] > 0
    assert line["yardstick"] > 0
    assert done.code == 3  # no ring with auto is as fast as that
    assert "s later, away for" in done.err  # it decided about tensor parallelism

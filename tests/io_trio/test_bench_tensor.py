"""The benches of tensor parallelism: a small model, few turns, the real processes of every side."""

from __future__ import annotations

import pytest
from sealring_tools.bench import comms, random_model, tensor
from sealring_tools.bench.measure import Result
from sealring_tools.bench.random_model import Size

from tests.io_trio.helpers import sealring


@pytest.mark.slow
def test_sums_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comms, "TURNS", 1)
    monkeypatch.setattr(comms, "ROUNDS", 10)
    monkeypatch.setattr(comms, "CEILING", 1e-9)
    done = sealring("bench", "comms", "--bytes", "4096", "--layers", "3", "--check", "--json")
    assert [(line["name"], line["unit"], line["yardstick_name"]) for line in done.json()] == [
        ("sum of 4096 bytes, plain relay", "us", "direct"),
        ("sum of 4096 bytes, two plain relays", "us", "direct"),
        ("sum of 4096 bytes, sealed", "us", "direct"),
        ("sums of a token of 3 layers, plain relay", "ms", "direct"),
        ("sums of a token of 3 layers, two plain relays", "ms", "direct"),
        ("sums of a token of 3 layers, sealed", "ms", "direct"),
    ]
    one, token = done.json()[2], done.json()[5]
    assert token["ours"] == pytest.approx(6 * one["ours"] / 1000)
    assert one["ceiling"] == 1e-9
    assert done.code == 3  # which no ratio reaches


@pytest.mark.long
def test_every_side_of_the_tensor_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Size(layers=2, hidden=32, feed_forward=64, heads=4, kv_heads=2, vocabulary=1500)
    monkeypatch.setitem(random_model.SIZES, "25m", small)
    monkeypatch.setattr(tensor, "FLOOR", 1e9)
    options = ("--rows", "1", "--rows", "2", "--tokens", "40", "--turns", "1")
    done = sealring("bench", "tp", "--dtype", "f32", *options, "--check", "--json")
    assert [(line["name"], line["yardstick_name"]) for line in done.json()] == [
        ("25m f32, 2 ranks, 1 group, 1 row, trusted link", "mlx-lm tensor parallel, stream"),
        ("25m f32, 2 ranks, 1 group, 1 row, sealed", "mlx-lm tensor parallel, stream"),
        ("25m f32, 2 ranks, 1 group, 2 rows, trusted link", "mlx-lm tensor parallel"),
        ("25m f32, 2 ranks, 1 group, 2 rows, sealed", "mlx-lm tensor parallel"),
    ]
    assert all(line["ours"] > 0 and line["yardstick"] > 0 for line in done.json())
    assert [line.get("floor") for line in done.json()] == [1e9, None, 1e9, None]
    assert done.code == 3


LIMITS = [(None, None), (2.0, None), (None, 2.0), (2.1, None), (None, 1.9)]


@pytest.mark.parametrize(("floor", "ceiling"), LIMITS)
def test_a_ratio_keeps_its_limits(floor: float | None, ceiling: float | None) -> None:
    result = Result("it", "us", 4.0, 2.0, "that", floor, ceiling)
    assert result.holds is ((floor, ceiling) in LIMITS[:3])

"""Batches on a ring beside mlx-lm's: a small model, the real processes of every side."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from sealring_model import tiny
from sealring_tools.bench import random_model, speculate
from sealring_tools.bench.batch import FLOORS, ONE_ROW
from sealring_tools.bench.random_model import Size
from sealring_tools.bench.yardstick import joint_pace

from tests.io_trio.helpers import sealring

SMALL = Size(layers=2, hidden=32, feed_forward=64, heads=2, kv_heads=1, vocabulary=1500)


@pytest.mark.long
def test_every_side_of_the_batch_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(random_model.SIZES, "25m", SMALL)
    monkeypatch.setitem(FLOORS, ("25m bf16", "2 ranks, 1 group, 2 rows", ONE_ROW), 1e9)
    options = ("--rows", "1", "--rows", "2", "--groups", "1", "--tokens", "40", "--turns", "1")
    done = sealring("bench", "batch", "--dtype", "bf16", *options, "--check", "--json")
    assert [
        (line["name"].removeprefix("25m bf16, 2 ranks, 1 group, "), line["yardstick_name"])
        for line in done.json()
    ] == [
        ("1 row", "mlx-lm stream_generate"),
        ("1 row", "mlx-lm BatchGenerator"),
        ("1 row", "mlx-lm pipeline"),
        ("2 rows", "mlx-lm BatchGenerator"),
        ("2 rows", "mlx-lm pipeline"),
        ("2 rows", "1 row on this ring"),
    ]
    assert all(line["ours"] > 0 and line["yardstick"] > 0 for line in done.json())
    assert done.json()[-1]["floor"] == 1e9
    assert done.code == 3  # which no ratio reaches


@pytest.mark.long
def test_a_model_that_mlx_lm_cannot_split() -> None:
    done = sealring("bench", "batch", "--model", "tiny", "--rows", "1", "--turns", "1")
    assert done.code == 1
    assert "mlx-lm itself raised an error: The model does not support pipelining" in done.err
    assert "or --ranks 1" in done.err


def test_only_the_end_of_a_random_text_is_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(random_model.SIZES, "25m", SMALL)
    model = random_model.write_random_model(tmp_path, "25m", "bf16")
    end = json.loads((model / "config.json").read_text("utf-8"))["eos_token_id"]
    data = (model / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + size])["model.embed_tokens.weight"]
    first, last = (8 + size + offset for offset in head["data_offsets"])
    lines = [data[at : at + 2 * SMALL.hidden] for at in range(first, last, 2 * SMALL.hidden)]
    assert [at for at, line in enumerate(lines) if not any(line)] == [end]
    assert len(lines) == SMALL.vocabulary


@pytest.mark.parametrize(
    ("times", "pace"),
    [
        ([[0.0, 1.0, 2.0]], 1.0),
        ([[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]], 2.0),
        ([[0.0, 1.0, 2.0, 3.0], [0.5, 1.5, 2.5, 9.5]], 2.0),  # alone at the end: does not count
        ([[0.0, 1.0], [2.0, 3.0]], 0.0),  # never together
    ],
)
def test_the_pace_of_rows_is_taken_while_all_of_them_run(
    times: list[list[float]], pace: float
) -> None:
    assert joint_pace(times) == pytest.approx(pace)


@pytest.mark.long
@pytest.mark.parametrize("places", [(), ({}, {})])
def test_a_process_that_would_share_a_device_has_its_turns_while_the_ring_is_down(places):
    told: list[str] = []
    setup = speculate.Setup(turns=1, tokens=16, shares=(0.9,), places=places)
    found = speculate.measure(setup, tiny.path(), "tiny", told.append)
    assert [result.yardstick_name for result in found] == [speculate.STREAM, speculate.PLAIN]
    assert all(result.ours > 0 and result.yardstick > 0 for result in found)
    up = told.index("bringing everybody up")
    theirs = [
        at > up
        for at, line in enumerate(told)
        if f"turn 1 of 1: {speculate.STREAM}, 1 row:" in line
    ]
    assert theirs == ([False, True] if places else [True])

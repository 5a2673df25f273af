"""What a ring tells as it is verified: whose fingerprints are missing."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from sealring.service.verification import AskedRow
from sealring.verify.answers import run_rows


def numbers(n: int, rank: int, given: bool) -> dict[str, Any]:
    shape = [int(given), 1, 1, 3]
    data = struct.pack("<3f", 0.0, 0.0, 1.0) if given else b""
    told = {"shape": shape, "data": base64.b64encode(data).decode()}
    nothing = {"shape": [0, 1, 1, 3], "data": ""}
    about = {"epoch": 1, "n": n, "rank": rank, "closing": False}
    return {"event": "numbers", **about, "received": nothing, "given": told}


def run(bounds: list[int], given: dict[tuple[int, int], bool]) -> dict[int, int]:
    """Who is silent when step 1 reads a prompt and step 2 draws, and *given* says by step and rank
    whose fingerprints come, and whether they are of anything."""

    def ask(_: str, __: dict[str, Any]) -> Iterator[dict[str, Any]]:
        names = ["ann", "ben"]
        about = {"names": names, "strategy": "pp", "bounds": bounds, "windows": [], "model": ""}
        yield {"event": "ring", **about}
        yield {"event": "row", "row": 0, "prompt": [1, 2]}
        for n in (1, 2):
            step = {"epoch": 1, "n": n, "rows": [[0, n - 1]], "tokens": 1, "decode": n == 2}
            yield {"event": "step", **step}
        for (n, rank), full in given.items():
            yield numbers(n, rank, full)
        yield {"event": "token", "row": 0, "token": 3, "chosen": 0.0, "ids": [], "values": []}

    rows = [AskedRow(prompt=[1, 2], tokens=1)]
    return run_rows(ask, rows, checked=True, waiting=lambda _: None).silent


ALL = {(n, rank): True for n in (1, 2) for rank in (0, 1)}
NONE_OF_PREFILL = ALL | {(1, 0): False, (1, 1): False}


@pytest.mark.parametrize(
    ("bounds", "given", "silent"),
    [
        ([0, 2, 4], ALL, {}),
        ([0, 2, 4], NONE_OF_PREFILL, {0: 1, 1: 1}),
        ([0, 4], NONE_OF_PREFILL, {}),
        ([0, 4], NONE_OF_PREFILL | {(2, 1): False}, {1: 1}),
        ([0, 2, 4], {(1, 0): True, (2, 0): True}, {1: 2}),
        ([0, 4], {(1, 0): False, (2, 0): True}, {1: 2}),
    ],
)
def test_a_rank_is_silent_of_each_step_that_it_tells_nothing_of(bounds, given, silent):
    """Ranks that hold all layers give nothing of a prefill, but say so."""
    assert run(bounds, given) == silent

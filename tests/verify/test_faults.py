"""A verification finds each fault that is planted in one rank's engine, and names the rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sealring.verify.judge import Options, difference_text, verify
from sealring_model import tiny

from tests.verify.rings import family, ring, verified

PLANTED = [
    ("wrong_weights", 1, "layers", "rank 1 (rank1), layers 4 to 7"),
    ("wrong_mask", 1, "layers", "rank 1 (rank1), layers 4 to 7"),
    ("wrong_mask", 0, "layers", "rank 0 (rank0), layers 0 to 3"),
    ("cache_off_by_one", 1, "layers", "rank 1 (rank1), layers 4 to 7"),
    ("skipped_layer", 0, "layers", "rank 0 (rank0), layers 0 to 3"),
    ("rounded_on_the_wire", 0, "hop", "the hop from rank 0 (rank0) to rank 1 (rank1)"),
    ("rounded_on_the_wire", 1, "hop", "the hop from rank 1 (rank1) to rank 0 (rank0)"),
    ("wrong_head", 0, "head", "rank 0 (rank0), the output head"),
    ("wrong_draw", 0, "draw", "rank 0 (rank0), the draw of tokens"),
    ("wrong_far_on", 1, "layers", "rank 1 (rank1), layers 4 to 7"),
    ("cut_too_late", 0, "layers", "rank 0 (rank0), layers 0 to 3"),
]


def check(
    model: Path, fault: str, rank: int, what: str, says: str, layers: Sequence[int] = ()
) -> None:
    found = verified(model, fault=(rank, fault), layers=layers)
    assert not found.passed
    first = found.verdict.first
    assert first is not None
    assert (first.place.what, first.place.rank) == (what, rank), first
    assert difference_text(first, found.answers).startswith(says)


@pytest.mark.long
def test_rows_that_are_swapped_are_found() -> None:
    check(tiny.path(), "swapped_rows", 1, "layers", "rank 1 (rank1), layers 4 to 7")


@pytest.mark.long
@pytest.mark.parametrize(("fault", "rank", "what", "says"), PLANTED)
def test_a_fault_is_found(fault: str, rank: int, what: str, says: str) -> None:
    check(tiny.path(), fault, rank, what, says)


@pytest.mark.slow
def test_a_stand_in_that_lies_is_found(tmp_path: Path) -> None:
    """A body scales by the offset of a cache that another rank owns."""
    model = family(tmp_path, "ministral3", context=160)
    says = "rank 1 (rank1), layer 3"
    check(model, "lying_stand_in", 1, "layers", says, layers=(3, 1))


@pytest.mark.long
def test_a_fault_of_what_is_done_as_it_serves_alone_is_told() -> None:
    """In a checked epoch no graph is built ahead."""
    found = verified(tiny.path(), fault=(1, "wrong_ahead"))
    assert not found.passed
    assert found.verdict.passed
    assert found.served is not None
    assert "the tokens as it serves" in difference_text(found.served, found.answers)


@pytest.mark.long
def test_a_guess_that_stays_in_the_caches_is_told() -> None:
    """A checked epoch has no guesses."""
    found = verified(tiny.path(), fault=(1, "guesses_that_stay"))
    assert found.tried.taken_back > 0
    assert not found.passed
    assert found.verdict.passed
    assert found.served is not None


@pytest.mark.long
def test_an_engine_that_is_killed_meanwhile_is_no_fault() -> None:
    """The epoch breaks, the next one is checked too, and rows are read in again."""
    with ring(tiny.path()) as nodes:
        numbers = 0

        def ask(name: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
            nonlocal numbers
            for event in nodes[0].ask(name, fields):
                numbers += event["event"] == "numbers"
                if numbers == 40:
                    numbers += 1
                    os.kill(nodes[1].status()["engine_pid"], signal.SIGKILL)
                yield event

        found = verify(ask, tiny.path(), Options(seed=1), lambda _: None)
        assert nodes[1].status()["engine_restarts"] == 1
    assert len({claim.epoch for claim in found.answers.claims}) == 2
    assert found.passed, found.verdict.first


@pytest.mark.long
@pytest.mark.parametrize("fault", ["silence", "emptiness"])
def test_a_rank_that_tells_nothing_is_told(fault: str) -> None:
    found = verified(tiny.path(), fault=(1, fault))
    assert not found.passed
    assert set(found.verdict.silent) == {1}

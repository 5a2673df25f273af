"""`sealring verify`: of a running ring, and of one that it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sealring.local.ring import LocalNode, write_cluster
from sealring_model import tiny

from tests.io_trio.helpers import sealring
from tests.verify.rings import family, ring


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[LocalNode]]:
    with ring(tiny.path()) as found:
        yield found


@pytest.mark.long
def test_a_running_ring_is_right(nodes: list[LocalNode]) -> None:
    outcome = sealring("verify", "--config", nodes[0].config, "--json", "--seed", "3")
    assert outcome.code == 0, outcome.err
    told = outcome.json()
    assert told["passed"]
    assert told["bounds"] == [0, 4, 8]
    assert told["largest_batch"] > 1
    assert told["cached_tokens"] > 600
    tried = told["tried"]
    assert tried["longest"] > 1500
    assert tried["continued"] > 600
    assert tried["cut"] == 2 * 320
    assert tried["taken_back"] > 0
    assert (told["first"], told["served"], told["silent"]) == (None, None, {})
    assert told["tokens"] > 100
    assert told["seed"] == 3
    assert max(place["largest"] for place in told["places"]) < 1e-3
    assert "the ring runs 20 rows" in outcome.err


@pytest.mark.slow
def test_a_ring_that_it_starts_is_right(tmp_path: Path) -> None:
    outcome = sealring("verify", "--model", family(tmp_path, "qwen3_5"), "--json")
    assert outcome.code == 0, outcome.err
    told = outcome.json()
    assert told["passed"]
    assert told["largest_batch"] > 1
    assert told["cached_tokens"] > 0
    assert (told["first"], told["served"], told["silent"]) == (None, None, {})


@pytest.mark.long
def test_it_is_told_in_words(nodes: list[LocalNode]) -> None:
    outcome = sealring("verify", "--config", nodes[0].config)
    assert outcome.code == 0, outcome.err
    assert "layers 4 to 7" in " ".join(outcome.out.split())
    assert "right: " in outcome.out
    assert "tried: rows of up to 1544 tokens; " in outcome.out


@pytest.mark.long
def test_tensor_parallelism_on_this_machine_is_right() -> None:
    options = ("--strategy", "tp", "--collectives", "shared-loopback", "--json")
    outcome = sealring("verify", *options)
    assert outcome.code == 0, outcome.err
    whats = [place["what"] for place in outcome.json()["places"]]
    assert whats == ["share", "share", "draw", "scores"]


@pytest.mark.long
def test_layers_may_be_given() -> None:
    outcome = sealring("verify", "--layers", "3,5", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json()["bounds"] == [0, 3, 8]


def test_mistakes_are_told(tmp_path: Path) -> None:
    config, _ = write_cluster(tmp_path, 2, tiny.path())
    for options, says in [
        (("--config", config, "--ranks", "2"), "a config names a ring"),
        (("--layers", "3,x"), "these are no numbers"),
        (("--layers", "3,5", "--ranks", "3"), "2 numbers, for 3 ranks"),
    ]:
        outcome = sealring("verify", *options)
        assert outcome.code == 2
        assert says in outcome.err

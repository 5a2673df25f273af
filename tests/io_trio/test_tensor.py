"""Tensor parallelism on real nodes: two daemons, two engines, and the collective between them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest
from sealring.generation.status import collective_link, describe_seals
from sealring.local.reference import one_process
from sealring.local.ring import LocalApi, LocalNode, local_api
from sealring_model import tiny
from sealring_protocol.codec.messages import Backend
from sealring_protocol.control.plan import Partition, Plan, Strategy

from tests.api.test_forms import FORMS, SCHEMA
from tests.io_trio.helpers import sealring
from tests.serving import PATIENCE

IN_DAEMONS = "sums sealed from node to node; in the clear inside each node's process"
PROMPT = "Tell me a story about a fox named Pip."
TOKENS = 24
SEALED = "sealed between the nodes, not inside them: ring goes through the tunnel link"
ASKED = {"prompt": PROMPT, "max_tokens": TOKENS}


@pytest.fixture(scope="module")
def api() -> Iterator[LocalApi]:
    with local_api(2, tiny.path(), options={"strategy": "tp"}) as running:
        yield running


def ask(node: LocalNode) -> dict[str, Any]:
    *_, done = node.ask("generate", ASKED)
    return done


@pytest.mark.slow
def test_both_ranks_together_say_what_one_process_says(api: LocalApi) -> None:
    with one_process(tiny.path()) as single:
        answer = single.generate(PROMPT, TOKENS)
    assert ask(api.nodes[0])["token_ids"] == list(answer.tokens)


@pytest.mark.slow
def test_the_status_tells_of_each_link_whether_its_sums_are_sealed(api: LocalApi) -> None:
    for rank, node in enumerate(api.nodes):
        status = sealring("status", "--config", node.config, "--json").json()
        assert (status["strategy"], status["backend"]) == ("tp", "ring")
        assert status["layers"] == [0, 8]
        peer = status["peers"][0]
        assert peer["rank"] == 1 - rank
        assert (peer["control"], peer["step"], peer["tunnel"]) == (True, False, True)
        assert peer["collective"] == SEALED
    shown = sealring("status", "--config", api.nodes[0].config).out
    assert "tensor parallelism over 2 ranks (ring)" in shown
    assert re.search(f"activations +{IN_DAEMONS}", shown)
    assert "inner seal" not in shown
    assert SEALED in shown


@pytest.mark.slow
def test_the_cluster_tells_it_too(api: LocalApi) -> None:
    cluster = httpx2.get(f"{api.url}/v1/cluster").json()
    assert (cluster["strategy"], cluster["activations"]) == ("tp", IN_DAEMONS)
    assert cluster["collective"] == {
        "backend": "ring",
        "sealed": True,
        "links": [
            {
                "ranks": [0, 1],
                "sums": SEALED,
            }
        ],
    }
    assert [rank["layers"] for rank in cluster["ranks"]] == [[0, 8], [0, 8]]
    assert all(rank["sum_us"] > 0 and rank["token_us"] > 0 for rank in cluster["ranks"])


@pytest.mark.slow
def test_each_member_holds_an_answer_to_its_form(api: LocalApi) -> None:
    """They draw the same tokens, each by masks of its own."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me of a thing."}],
        "max_tokens": 300,
        "n": 3,
        "seed": 7,
        # Without white space it is over sooner, and each member masks as much for each token.
        **FORMS["tight"][0],
    }
    answer = httpx2.post(f"{api.url}/v1/chat/completions", json=body, timeout=PATIENCE)
    for choice in answer.json()["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def sums(backend: Backend, world: int, trusted: bool) -> Plan:
    return Plan(Strategy.TENSOR, Partition((0, 8), ()), "", world, backend, trusted)


TOLD = {
    "neighbours": (sums(Backend.RING, 4, False), (1, 2), SEALED),
    "the last and the first": (sums(Backend.RING, 4, False), (3, 0), SEALED),
    "no neighbours": (sums(Backend.RING, 4, False), (1, 3), ""),
    "oneself": (sums(Backend.RING, 4, False), (1, 1), ""),
    "none": (None, (0, 1), ""),
    "trusted": (
        sums(Backend.RING, 2, True),
        (0, 1),
        "NOT SEALED: ring goes beside the sealed links, as the config allows",
    ),
    "everybody with everybody": (
        sums(Backend.NCCL, 4, True),
        (0, 2),
        "NOT SEALED: nccl goes beside the sealed links, as the config allows",
    ),
}


@pytest.mark.parametrize(("collective", "ranks", "told"), TOLD.values(), ids=TOLD)
def test_what_is_told_of_a_link(collective: Plan | None, ranks: tuple[int, int], told: str) -> None:
    assert collective_link(collective, range(4), *ranks) == told


def test_what_is_told_of_links_of_a_ring_that_leaves_a_rank_out() -> None:
    collective, _, told = TOLD["neighbours"]
    ring = (0, 2, 3)
    assert [collective_link(collective, ring, 0, rank) for rank in range(4)] == ["", "", told, told]


ACTIVATIONS = {
    "a pipeline": ((True, "pp", None), "sealed from engine to engine; no node process holds"),
    "without an inner seal": ((False, "pp", None), "in the clear inside each node's process"),
    "sums": ((True, "tp", sums(Backend.RING, 2, False)), IN_DAEMONS),
    "trusted": ((True, "tp", sums(Backend.NCCL, 2, True)), "NOT SEALED: the ranks' sums"),
    "alone": ((True, "single", None), ""),
    "not yet": ((True, "", None), ""),
}


@pytest.mark.parametrize(("given", "told"), ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_what_is_told_of_activations(given: tuple[bool, str, Plan | None], told: str) -> None:
    found = describe_seals(*given)
    assert told in found
    assert bool(told) == bool(found)

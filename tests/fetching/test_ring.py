"""Real rings whose ranks fetch from a hub what they own."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from sealring.files.config import NO_API
from sealring.local.ring import (
    LocalNode,
    running_node,
    wait_until_up,
    write_cluster,
)
from sealring_model.loading import model_store
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import tensors_of
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError
from sealring_trio.fetching.fetcher import fetch
from sealring_trio.fetching.hub import Hub, find_hub_model

from tests.fetching.conftest import ASKED, MODEL
from tests.fetching.stand_in import COMMIT, StandIn
from tests.io_trio.helpers import sealring

PATIENCE = 90.0
SPLIT = [2, 3, 2]


class Ring:
    """Three nodes with a store each, that know the model by its hub id."""

    def __init__(
        self,
        folder: Path,
        server: StandIn,
        api: str = NO_API,
        split: Sequence[int] = SPLIT,
        **options: str | float | bool,
    ) -> None:
        self.folder = folder
        self.url = server.url
        self.configs = write_cluster(folder, 3, Path(MODEL), split, api, options)

    def store(self, rank: int) -> Path:
        return self.folder / f"store{rank}"

    def node(self, rank: int, **more: str) -> contextlib.AbstractContextManager[LocalNode]:
        place = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.folder / "empty"),
            model_store.VARIABLE: str(self.store(rank)),
        }
        return running_node(self.configs[rank], place=place | more)

    @contextlib.contextmanager
    def running(self, *ranks: int) -> Iterator[list[LocalNode]]:
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(self.node(rank)) for rank in ranks]
            for node in nodes:
                wait_until_up(node)
            yield nodes

    def share(self, rank: int) -> tuple[PartialModel, list[str]]:
        """What *rank* has, and the tensors that it owns."""
        model = PartialModel.open(self.store(rank) / MODEL.replace("/", "--") / COMMIT)
        assert model is not None
        first = sum(SPLIT[:rank])
        owned = tensors_of(model.entries, sum(SPLIT), first, first + SPLIT[rank])
        return model, [name for names in owned.values() for name in names]

    def have_all(self, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the whole model in the store of *rank*."""
        with monkeypatch.context() as patch:
            patch.setenv(model_store.VARIABLE, str(self.store(rank)))
            hub = Hub(endpoint=self.url)
            model = PartialModel.open(find_hub_model(MODEL, hub))
            assert model is not None
            trio.run(fetch, model, list(model.entries), hub, lambda _: None)


def tokens(head: LocalNode) -> list[int]:
    found = []
    for event in head.ask("generate", ASKED):
        assert event["event"] in ("waiting", "text", "done"), json.dumps(event)
        found += event.get("token_ids", [])
    return found


def until(look: Callable[[], Any]) -> Any:
    """What *look* finds, once it finds something."""
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def why(node: LocalNode, words: str) -> str:
    """What status of *node* says with *words* in it, once it does."""
    return until(
        lambda: next((w["text"] for w in node.status()["why"] if words in w["text"]), None)
    )


@pytest.mark.long
def test_a_rank_that_has_nothing_gets_its_share_and_resumes(
    tmp_path, server, expected, store, monkeypatch
):
    ring = Ring(tmp_path, server)
    for rank in (0, 2):
        ring.have_all(rank, monkeypatch)
    with ring.running(0, 2) as (head, last):
        with ring.node(1) as node:
            wait_until_up(node)
            model, names = ring.share(1)
            size = sum(model.entries[name].size for name in names)
            server.stop_at = server.weights_sent + size // 2
            assert server.fell_silent.wait(PATIENCE)
            for each in (head, node, last):
                why(each, "layers are still being fetched; rank 1 (rank1): ")
            node.process.kill()
            node.process.wait()
        model, names = ring.share(1)
        here = model.bytes_here(names)
        assert here > size // 8
        server.speak_again()
        before = server.weights_sent
        with ring.node(1) as node:
            wait_until_up(node)
            assert tokens(head) == expected
        assert server.weights_sent - before <= 1.02 * (size - here)
        model, names = ring.share(1)
        assert sorted(model.hashes) == sorted(names)


@pytest.mark.slow
def test_every_rank_that_fetches_is_told_of_everywhere(
    tmp_path, server, expected, store, monkeypatch
):
    api = f"127.0.0.1:{free_ports(1)[0]}"
    ring = Ring(tmp_path, server, api)
    ring.have_all(0, monkeypatch)
    server.stop_at = server.weights_sent + 4 * 1024 * 1024
    with ring.running(0, 1, 2) as (head, one, two), httpx2.Client(base_url=f"http://{api}") as http:

        def ranks() -> list[tuple[int, int]]:
            told = http.get("/v1/cluster").json()["ranks"]
            return [(rank["fetched_bytes"], rank["fetch_bytes"]) for rank in told]

        assert server.fell_silent.wait(PATIENCE)
        until(lambda: all(size for _, size in ranks()[1:]))
        sizes = [
            sum(model.entries[name].size for name in names)
            for model, names in map(ring.share, (1, 2))
        ]
        assert [size for _, size in ranks()] == [0, *sizes]
        until(lambda: sum(here for here, _ in ranks()) > 1024 * 1024)
        told = r"rank 1 \(rank1\): \d+\.\d of \d+\.\d MB; rank 2 \(rank2\): \d+\.\d of \d+\.\d MB"
        for node in (head, one, two):
            assert re.search(f"layers are still being fetched; {told}", why(node, "; rank 2 "))
        assert re.search(
            told, next(e for e in head.ask("generate", ASKED) if e["event"] == "waiting")["text"]
        )
        shown = sealring("status", "--config", ring.configs[0]).out
        assert re.search(rf"fetching +{told}\n", shown)
        assert re.search(
            r"fetching +rank 2 \(rank2\)", sealring("status", "--config", ring.configs[2]).out
        )
        metric = re.search(r'rank_fetch_bytes{of="all",rank="2"} (.*)', http.get("/metrics").text)
        assert metric is not None
        assert float(metric[1]) == sizes[1]
        # Nothing else is in the way, once the head has its tokenizer.
        until(lambda: [each["cause"] for each in http.get("/health").json()["why"]] == ["fetching"])
        server.speak_again()
        assert tokens(head) == expected
        assert ranks() == [(0, 0)] * 3


@pytest.mark.long
def test_each_rank_fetches_its_share_alone(tmp_path, server, expected):
    ring = Ring(tmp_path, server)
    with ring.running(0, 1, 2) as nodes:
        assert tokens(nodes[0]) == expected
    total = 0
    for rank in range(3):
        model, names = ring.share(rank)
        assert sorted(model.hashes) == sorted(names)
        total += sum(entry.size for entry in model.entries.values())
    whole = total // 3
    assert whole <= server.weights_sent <= 1.02 * whole


@pytest.mark.long
def test_the_ring_serves_while_a_newcomer_fetches_and_a_smaller_one_fetches_what_it_lacks(
    tmp_path, server, expected, store, monkeypatch
):
    ring = Ring(tmp_path, server, split=(), min_ranks=1)
    for rank in (0, 1):
        ring.have_all(rank, monkeypatch)

    def inside(head: LocalNode) -> list[int]:
        facts = head.status()
        return facts["ring"] if not facts["why"] else []

    with ring.running(0) as (head,), ring.running(1) as (one,):
        until(lambda: inside(head) == [0, 1])
        server.stop_at = server.weights_sent + 256 * 1024
        with ring.running(2):
            assert server.fell_silent.wait(PATIENCE)
            until(lambda: "fetched" in head.status()["peers"][1]["outside"])
            assert tokens(head) == expected
            assert inside(head) == [0, 1]
            server.speak_again()
            until(lambda: inside(head) == [0, 1, 2])
            assert tokens(head) == expected
            before = server.weights_sent
            one.process.kill()
            until(lambda: inside(head) == [0, 2])
            assert server.weights_sent > before
            assert tokens(head) == expected


@pytest.mark.slow
def test_what_cannot_be_fetched_reaches_the_person(tmp_path, server, store, monkeypatch):
    ring = Ring(tmp_path, server)
    for rank in (0, 2):
        ring.have_all(rank, monkeypatch)
    with ring.running(0, 2) as (head, _), ring.node(1) as node:
        wait_until_up(node)
        server.models.clear()
        told = why(head, "cannot be fetched")
        assert "rank1" in told or "rank 1" in told
        assert "the hub has no model.safetensors of someone/model-1" in told
        with pytest.raises(OperationError, match="cannot be fetched"):
            tokens(head)


@pytest.mark.long
def test_a_node_that_may_not_ask_the_hub(tmp_path, server):
    ring = Ring(tmp_path, server, offline=True)
    with ring.node(1) as node:
        assert node.process.wait(PATIENCE) == 2
        assert "offline = true forbids to ask the hub" in node.ending()
    assert not server.seen

"""A ring of three processes, one of which is killed under a stream and comes back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sealring.local.ring import LocalNode, free_ports, running_node, wait_until_up, write_cluster
from sealring_model import tiny

PATIENCE = 60.0
TOKENS = 1200


class Api:
    """The head's HTTP API at *port*."""

    def __init__(self, port: int) -> None:
        self._client = httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=3 * PATIENCE, trust_env=False
        )

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> Any:
        return self._client.get(path).json()

    def ranks(self) -> list[bool]:
        """Whether each rank is in a ring that serves."""
        ring = self.get("/v1/cluster")
        return [rank["in_ring"] and ring["healthy"] for rank in ring["ranks"]]

    def text(self) -> str:
        body = {"model": "tiny", "prompt": "Once upon a time", "temperature": 0}
        body |= {"max_tokens": TOKENS, "ignore_eos": True}
        answer = self._client.post("/v1/completions", json=body).json()
        return str(answer["choices"][0]["text"])


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "not in time"
        pause.wait(0.1)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[list[Path], list[LocalNode], Api]]:
    (port,) = free_ports(1)
    options = {"min_ranks": 1, "guesses": False, "prefixes": 0}
    configs = write_cluster(tmp_path, 3, tiny.path(), api=f"127.0.0.1:{port}", options=options)
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(running_node(config)) for config in configs]
        for node in nodes:
            wait_until_up(node)
        api = stack.enter_context(contextlib.closing(Api(port)))
        until(lambda: api.get("/health")["status"] == "ok" and not api.get("/health")["degraded"])
        yield configs, nodes, api


@pytest.mark.slow
def test_a_stream_goes_on_without_a_rank_that_was_killed_and_with_it_again(
    home: tuple[list[Path], list[LocalNode], Api],
) -> None:
    configs, nodes, api = home
    alone = api.text()
    texts: list[str] = []
    stream = threading.Thread(target=lambda: texts.append(api.text()))
    stream.start()
    until(lambda: bool(api.get("/v1/cluster")["requests"]))
    nodes[1].process.kill()
    until(lambda: api.ranks() == [True, False, True])
    assert api.get("/health")["degraded"] == [{"rank": 1, "name": "rank1", "why": "it is away"}]
    with running_node(configs[1]):
        until(lambda: api.ranks() == [True, True, True])
        assert api.get("/health")["degraded"] == []
        stream.join(3 * PATIENCE)
    assert texts == [alone]

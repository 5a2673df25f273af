"""Rings of processes that go on while their members come and go."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sealring.cli.coordinator import KEY_NAME
from sealring.cli.members import put_in_force, read_cluster, read_signer
from sealring.local.ring import LocalNode, free_ports, running_node, wait_until_up, write_cluster
from sealring_model import tiny

from tests.io_trio.helpers import sealring, until

PATIENCE = 60.0
TOKENS = 120
"""Of an answer, which takes half a second or more: a machine is killed meanwhile."""
PROMPTS = [f"Once upon a time there were {n} bears." for n in range(8)]


class Home:
    """A cluster: the config of each member, and the API of the head, which is the first."""

    def __init__(self, folder: Path, members: int) -> None:
        (port,) = free_ports(1)
        options = {"min_ranks": 1, "guesses": False, "prefixes": 0, "coordinator_key": KEY_NAME}
        api = f"127.0.0.1:{port}"
        self.configs = write_cluster(folder, members, tiny.path(), api=api, options=options)
        self.url = f"http://{api}"
        self._client = httpx2.Client(base_url=self.url, timeout=3 * PATIENCE, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> Any:
        return self._client.get(path).json()

    def ring(self) -> str:
        """The names of who is in the ring, if it serves."""
        ring = self.get("/v1/cluster")
        inside = [rank["name"] for rank in ring["ranks"] if rank["in_ring"]]
        return " ".join(inside) if ring["healthy"] else ""

    def until(self, ring: str) -> None:
        until(
            lambda: self.ring() == ring,
            lambda: f"the ring is {self.ring()}; {self.get('/v1/cluster')['why']}",
        )

    def ask(self, prompt: str) -> str:
        body = {"model": "tiny", "prompt": prompt, "temperature": 0}
        body |= {"max_tokens": TOKENS, "ignore_eos": True}
        answer = self._client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def up(self) -> dict[str, float]:
        """By rank, what the metrics say of who is there, and then of who is in the ring."""
        text = self._client.get("/metrics").text
        pattern = r'^(sealring_rank_(?:up|in_ring)\{rank="\d"\}) ([\d.]+)$'
        return {name: float(value) for name, value in re.findall(pattern, text, re.MULTILINE)}


class Asked:
    """*prompts* are asked again and again, side by side, until the block ends."""

    def __init__(self, home: Home, prompts: list[str]) -> None:
        self.texts: dict[str, list[str]] = {prompt: [] for prompt in prompts}
        self.begun = 0
        self._home, self._over = home, threading.Event()

    def _go_on(self, prompt: str) -> None:
        while not self._over.is_set():
            self.begun += 1
            self.texts[prompt].append(self._home.ask(prompt))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(len(self.texts)) as threads:
            asked = [threads.submit(self._go_on, prompt) for prompt in self.texts]
            try:
                yield
            finally:
                self._over.set()
            for each in asked:
                each.result()


@contextlib.contextmanager
def homes(folder: Path, members: int, start: int) -> Iterator[tuple[Home, list[LocalNode]]]:
    """A cluster of so many *members*, of which the first few *start*."""
    with contextlib.ExitStack() as stack:
        home = Home(folder, members)
        stack.callback(home.close)
        nodes = [stack.enter_context(running_node(config)) for config in home.configs[:start]]
        for node in nodes:
            wait_until_up(node)
        yield home, nodes


def without(home: Home) -> dict[str, str]:
    """Why the ring goes on without each member that is left out, without the seconds."""
    told = home.get("/health")["degraded"]
    return {each["name"]: each["why"].partition(" (")[0] for each in told}


@pytest.mark.slow
def test_streams_go_on_without_a_rank_that_was_killed_and_with_it_again(tmp_path: Path) -> None:
    """One of four members was never seen, and is not waited for."""
    with homes(tmp_path, 4, 3) as (home, nodes):
        home.until("rank0 rank1 rank2")
        assert without(home) == {"rank3": "it is not here"}
        alone = home.ask(PROMPTS[0])
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(home.ask, PROMPTS[0])
            until(lambda: home.get("/v1/cluster")["requests"])
            nodes[1].process.kill()
            assert not answer.done()
            home.until("")
            assert home.ask(PROMPTS[0]) == alone  # which comes meanwhile, and waits
            assert home.ring() == "rank0 rank2"
            assert answer.result(PATIENCE) == alone
        assert without(home) == {"rank1": "it is away", "rank3": "it is not here"}
        assert list(home.up().values()) == [1, 0, 1, 0, 1, 0, 1, 0]
        told = sealring("status", "--config", nodes[0].config).out
        assert re.search(r"^ring +rank0, rank2: 2 of 4 machines$", told, re.MULTILINE)
        assert re.search(r"^without rank1: it is away \(for \d+ s\)$", told, re.MULTILINE)
        asked = Asked(home, PROMPTS[:1])
        with running_node(home.configs[1]), asked.running():
            home.until("rank0 rank1 rank2")
            assert list(home.up().values()) == [1, 1, 1, 0, 1, 1, 1, 0]
        assert {text for texts in asked.texts.values() for text in texts} == {alone}
        log = nodes[0].log.read_text()
        assert "the ring goes on without rank1: it is away (for 5 s)" in log
        assert "the ring takes rank1 in" in log


@pytest.mark.long
def test_a_machine_is_added_and_removed_twenty_times_under_eight_streams(tmp_path: Path) -> None:
    with homes(tmp_path, 3, 3) as (home, nodes):
        home.until("rank0 rank1 rank2")
        with ThreadPoolExecutor(8) as threads:
            alone = dict(zip(PROMPTS, threads.map(home.ask, PROMPTS), strict=True))
        config = home.configs[0]
        whole = read_cluster(config).roster.roster.members
        asked = Asked(home, PROMPTS)
        longest = 0.0
        with asked.running():
            for _ in range(20):
                for members in (2, 3):
                    cluster = read_cluster(config)
                    began = time.monotonic()
                    put_in_force(cluster, whole[:members], read_signer(cluster.config, None))
                    home.until("rank0 rank1 rank2" if members == 3 else "rank0 rank1")
                    longest = max(longest, time.monotonic() - began)
        print(f"{sum(map(len, asked.texts.values()))} answers; longest change {longest:.1f} s")
        for prompt, texts in asked.texts.items():
            assert texts
            assert set(texts) == {alone[prompt]}
        assert home.get("/v1/cluster")["ranks"][2]["ready"]
        assert nodes[2].process.poll() is None

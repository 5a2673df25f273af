"""Real rings with a real HTTP API, each started once.

`ring` is two ranks of the tiny model on loopback, as most people will have it; both serve the API.
`team` is one rank of the scripted model that listens on every address, so that it asks for keys;
tests that need answers known beforehand use it, and so does the one that ends it.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx2
import pytest
from openai import OpenAI
from sealring.http.keys import KEY_FILE, new_key
from sealring.local.ring import (
    LocalNode,
    running_node,
    wait_until_up,
    write_cluster,
)
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports

from tests.api import scripted

UNDER_WAY = ("parse", "queued", "prefill", "decode")
"""States of a request that is not over."""

TIMEOUT = 8.0
"""Seconds that a request of the team's ring may take."""

LET_IN = {
    "allowed_hosts": ["host.docker.internal"],
    "allowed_origins": ["app://obsidian.md", "vscode-webview://*"],
}
"""Who may ask the ring besides loopback: its config says so."""

PATIENCE = 60.0
"""Seconds after which what should have happened has not."""

LOOK = 0.05
"""Seconds between two looks at an API. To ask without a pause takes a core and more, half of it
from the node that is asked."""


@attrs.define
class Served:
    """A ring's head, seen from its API."""

    head: LocalNode
    others: list[LocalNode]
    url: str
    model: str
    http: httpx2.Client
    openai: OpenAI
    """The official client, which does not try again, so that every error shows."""
    alone: list[httpx2.Response] = attrs.field(factory=list)
    """What the head answered while it was the only rank."""
    door: str = ""
    """The URL of the follower's API, if it has one."""

    def chat(self, text: str, **options: Any) -> dict[str, Any]:
        """A body for chat completions."""
        messages = [{"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, "temperature": 0, **options}

    def post(self, body: Any, path: str = "/v1/chat/completions") -> httpx2.Response:
        """Send a body."""
        return self.http.post(path, json=body)

    def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """Ask at *path* until the answer *holds*."""
        end = time.monotonic() + PATIENCE
        while not holds(answer := self.http.get(path).json()):
            assert time.monotonic() < end, answer
            time.sleep(LOOK)
        return answer

    def trace(self, name: str) -> dict[str, Any]:
        """The trace of a request, once it is over."""
        path = f"/v1/requests/{name}/trace"
        return self.until(path, lambda told: told["state"] not in UNDER_WAY)


@contextlib.contextmanager
def connected(head: LocalNode, url: str, key: str, model: str) -> Iterator[Served]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with (
        httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE) as http,
        OpenAI(
            base_url=f"{url}/v1", api_key=key or "unused", max_retries=0, timeout=PATIENCE
        ) as openai,
    ):
        yield Served(head, [], url, model, http, openai)


@pytest.fixture(scope="package")
def ring() -> Iterator[Served]:
    """Two ranks of the tiny model; the head is there first, alone."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        address, other = (f"127.0.0.1:{port}" for port in free_ports(2))
        configs = write_cluster(folder, 2, tiny.path(), api=address, options=LET_IN)
        serves_too(configs[1], other)
        head = stack.enter_context(running_node(configs[0]))
        wait_until_up(head)
        served = stack.enter_context(connected(head, f"http://{address}", "", "tiny"))
        served.alone = [served.http.get("/health"), served.post(served.chat("Hello."))]
        served.alone += [served.http.get(path) for path in ("/readyz", "/livez")]
        served.others = [stack.enter_context(running_node(configs[1]))]
        served.until("/health", lambda told: told["status"] == "ok")
        served.door = f"http://{other}"
        yield served


def serves_too(config: Path, address: str) -> None:
    """Have the follower of *config* serve the API at *address*."""
    config.write_text(config.read_text().replace('api = "off"', f'api = "{address}"'))


@pytest.fixture(scope="package")
def team() -> Iterator[Served]:
    """One rank of the scripted model, for whoever has a key."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        model = folder / "scripted"
        model.mkdir()
        scripted.build(model)
        (model / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 2}')
        port = free_ports(1)[0]
        (config,) = write_cluster(folder, 1, model, api=f"0.0.0.0:{port}")
        settings = f'timeout = {TIMEOUT}\nqueue = 4\naliases = ["gpt-4o", "org/other"]\n'
        settings += 'sampling = "api"\n'
        config.write_text(config.read_text() + settings)
        key = new_key(folder / f"{config.stem}.state" / KEY_FILE, "alice")
        head = stack.enter_context(running_node(config, ["--trace"]))
        wait_until_up(head)
        url = f"http://127.0.0.1:{port}"
        served = stack.enter_context(connected(head, url, key, "scripted"))
        served.until("/health", lambda told: told["status"] == "ok")
        yield served

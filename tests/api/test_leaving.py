"""Hundreds of clients that leave whenever they like, beside some that stay."""

from __future__ import annotations

import asyncio
import json
import random

import httpx2
import pytest

from tests.api.conftest import PATIENCE, Served
from tests.api.test_http import CHAT, nobody_left
from tests.rows import rows

AT_ONCE = 40


@pytest.mark.parametrize("clients", rows([60, 200], 60))
def test_nobody_is_changed_and_nothing_is_left(ring: Served, clients: int) -> None:
    source = random.Random(7)
    prompts = ["Count to ten.", "Tell me a story about a fox named Pip.", "Hello."]
    bodies = [ring.chat(prompt, max_tokens=10, stream=True) for prompt in prompts]
    texts = [text_of(ring.post(body).text) for body in bodies]
    plan = [
        (source.randrange(3), source.choice([None, 0, 0.001, 0.02, 0.1])) for _ in range(clients)
    ]

    async def one(
        http: httpx2.AsyncClient, gate: asyncio.Semaphore, kind: int, leaves: float | None
    ) -> None:
        async with gate:
            try:
                answer = await asyncio.wait_for(http.post(CHAT, json=bodies[kind]), leaves)
            except TimeoutError:
                return
            assert answer.status_code == 200, answer.text
            assert text_of(answer.text) == texts[kind]

    async def crowd() -> None:
        limits = httpx2.Limits(max_connections=AT_ONCE)
        async with httpx2.AsyncClient(base_url=ring.url, limits=limits, timeout=PATIENCE) as http:
            gate = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(one(http, gate, kind, leaves) for kind, leaves in plan))

    asyncio.run(crowd())
    nobody_left(ring)
    assert "Traceback" not in ring.head.log.read_text()


def text_of(stream: str) -> str:
    """The text of a stream's events, whatever pieces it came in."""
    lines = [
        line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")
    ]
    return "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines)

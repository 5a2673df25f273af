"""The API of a follower of a real ring, by real clients."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx2
import openai
import pytest
from sealring.http.bodies import MAX_BODY
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports

from tests.api.conftest import PATIENCE, UNDER_WAY, Served, connected, serves_too
from tests.io_trio.helpers import as_process, sealring


@pytest.fixture(scope="module")
def door(ring: Served) -> Iterator[Served]:
    """The ring, seen from its follower's API."""
    with connected(ring.others[0], ring.door, "", "tiny") as served:
        served.until("/readyz", lambda told: told["status"] == "ready")
        yield served


def streamed(served: Served, text: str) -> list[str]:
    """The pieces of an answer, by OpenAI's client."""
    chunks = served.openai.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": text}],
        temperature=0,
        max_completion_tokens=24,
        stream=True,
    )
    return [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]


def test_an_answer_is_the_heads(ring: Served, door: Served) -> None:
    pieces = streamed(door, "Tell me a story.")
    assert len(pieces) > 8
    assert "".join(pieces) == "".join(streamed(ring, "Tell me a story."))
    whole = door.post(door.chat("Tell me a story.", max_tokens=24))
    assert whole.json()["choices"][0]["message"]["content"] == "".join(pieces)
    assert whole.headers["x-sealring-head"] == "rank0"
    assert "x-sealring-head" not in ring.http.get("/v1/models").headers


def test_who_leaves_a_follower_ends_the_request_at_the_head(ring: Served, door: Served) -> None:
    body = door.chat("Tell me a story.", max_tokens=1500, ignore_eos=True, stream=True)
    with door.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()  # which ends the connection once nobody has it
        first = next(line for line in lines if line.startswith("data: "))
        name = json.loads(first[6:])["id"]
        assert ring.http.get(f"/v1/requests/{name}/trace").json()["state"] in UNDER_WAY
    assert ring.trace(name)["state"] == "client_gone"


@pytest.mark.parametrize(
    ("size", "status", "code"),
    [
        (MAX_BODY, 400, "context_length_exceeded"),
        (MAX_BODY + 1, 413, "request_too_large"),
    ],
)
def test_a_body_has_the_heads_limits(door: Served, size: int, status: int, code: str) -> None:
    body = json.dumps(door.chat("")).replace('"content": ""', '"content": "%s"')
    text = body.replace("%s", "a " * ((size - len(body) + 2) // 2)).ljust(size).encode()
    assert len(text) == size
    answer = door.http.post(
        "/v1/chat/completions", content=text, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_the_page_and_its_events_come_through(ring: Served, door: Served) -> None:
    for path in ("/", "/dashboard/monitor.js"):
        assert door.http.get(path).content == ring.http.get(path).content
    with door.http.stream("GET", "/v1/cluster/events") as events:
        first = next(line for line in events.iter_lines() if line.startswith("data: "))
    assert json.loads(first[6:])["cluster"]["model"] == "tiny"


def test_a_followers_owner_asks_by_its_socket(door: Served) -> None:
    transport = httpx2.HTTPTransport(uds=str(door.head.control))
    with httpx2.Client(transport=transport, base_url="http://x", timeout=PATIENCE) as http:
        answer = http.post("/v1/chat/completions", json=door.chat("Hello.", max_tokens=4))
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert http.post("/node/status", json={}).json()["role"] == "rank"


def test_commands_may_name_a_follower(door: Served) -> None:
    shown = sealring("status", "--url", door.url, "--json").json()
    assert [rank["name"] for rank in shown["ranks"]] == ["rank0", "rank1"]


def test_commands_may_name_several_machines_of_which_some_are_gone(door: Served) -> None:
    urls = f"127.0.0.1:{free_ports(1)[0]},{door.url}/v1"
    run = partial(as_process, "run", "tiny", "Hello.", "--json", "--max-tokens", "4", "--url")
    code, out, err = run(urls)
    assert code == 0, err
    assert json.loads(out)["usage"]["completion_tokens"] == 4
    code, _, err = run(f"{door.url},")
    assert (code, b"'' is no URL" in err) == (2, True)


@pytest.mark.slow
def test_streams_whose_head_dies_end_with_an_error() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        address, other = (f"127.0.0.1:{port}" for port in free_ports(2))
        configs = write_cluster(folder, 2, tiny.path(), api=address)
        serves_too(configs[1], other)
        head, follower = (stack.enter_context(running_node(config)) for config in configs)
        for node in (head, follower):
            wait_until_up(node)
        served = stack.enter_context(connected(follower, f"http://{other}", "", "tiny"))
        served.until("/health", lambda told: told.get("status") == "ok")
        chunks = served.openai.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Tell me a story."}],
            extra_body={"ignore_eos": True},
            stream=True,
        )
        for _ in range(4):
            next(chunks)
        head.process.kill()
        killed = time.monotonic()
        with pytest.raises(openai.APIError, match="The head, rank0, was lost"):
            for _ in chunks:
                pass
        assert time.monotonic() - killed < PATIENCE / 4  # its kernel says so at once
        answer = served.post(served.chat("Hello."))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_head")
        assert answer.headers["retry-after"] == "1"
        assert "rank0" in answer.json()["error"]["message"]
        assert served.http.get("/readyz").status_code == 503
        assert served.http.get("/livez").status_code == 200


@pytest.mark.slow
def test_a_follower_that_stops_says_so_in_what_it_has_to_end() -> None:
    """A page that watches does not keep it, an answer does for the time it was given."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        address, other = (f"127.0.0.1:{port}" for port in free_ports(2))
        configs = write_cluster(folder, 2, tiny.path(), api=address, options={"drain": 2})
        serves_too(configs[1], other)
        nodes = [stack.enter_context(running_node(config)) for config in configs]
        for node in nodes:
            wait_until_up(node)
        served = stack.enter_context(connected(nodes[1], f"http://{other}", "", "tiny"))
        served.until("/health", lambda told: told.get("status") == "ok")
        watching = stack.enter_context(served.http.stream("GET", "/v1/cluster/events"))
        chunks = served.openai.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Tell me a story."}],
            extra_body={"ignore_eos": True},
            stream=True,
        )
        next(chunks)
        nodes[1].process.terminate()
        with pytest.raises(openai.APIError, match="this node is shutting down"):
            for _ in chunks:
                pass
        watching.close()
        assert nodes[1].process.wait(PATIENCE) == 0
        assert "requests that are still passed on are ended: 1" in nodes[1].log.read_text()


@pytest.mark.slow
def test_a_follower_of_a_head_without_an_api_says_what_may_be_wrong() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        other = f"127.0.0.1:{free_ports(1)[0]}"
        configs = write_cluster(folder, 2, tiny.path())
        serves_too(configs[1], other)
        nodes = [stack.enter_context(running_node(config)) for config in configs]
        for node in nodes:
            wait_until_up(node)
        served = stack.enter_context(connected(nodes[1], f"http://{other}", "", "tiny"))
        served.until("/readyz", lambda told: "api = 'off'" in told["reasons"][0])

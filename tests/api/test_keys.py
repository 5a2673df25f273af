"""API keys on loopback: who is asked for one, and when that begins and ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import httpx2
import pytest
from sealring.http.keys import KEY_FILE
from sealring.local.ring import LocalNode, running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports

from tests.api.conftest import PATIENCE
from tests.io_trio.helpers import sealring

PROXIED = {"host": "ring.example", "x-forwarded-for": "192.0.2.1"}
"""What a proxy sends that gives the world's requests to loopback."""

CLOSED = ("/v1/models", "/v1/cluster", "/v1/cluster/events", "/v1/requests", "/metrics")


def statuses(http: httpx2.Client, **headers: str) -> set[int]:
    told = set()
    for path in CLOSED:
        with http.stream("GET", path, headers=headers) as answer:  # which may be without end
            told.add(answer.status_code)
    return told


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tuple[LocalNode, httpx2.Client]]:
    """One node, on loopback, and a client of it."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    (config,) = write_cluster(tmp_path, 1, tiny.path(), api=address)
    with running_node(config) as node:
        wait_until_up(node)
        with httpx2.Client(base_url=f"http://{address}", timeout=PATIENCE) as http:
            yield node, http


@pytest.mark.slow
def test_who_listens_is_put_out_when_his_key_is_revoked_or_the_first_is_made(
    alone: tuple[LocalNode, httpx2.Client],
) -> None:
    node, http = alone

    def listening(**headers: str) -> tuple[ExitStack, Iterator[bytes]]:
        stack = ExitStack()
        answer = stack.enter_context(http.stream("GET", "/v1/cluster/events", headers=headers))
        assert answer.status_code == 200
        told = answer.iter_bytes()
        assert b'"cluster"' in next(told)
        return stack, told

    stack, told = listening()
    key = sealring("apikey", "new", "alice", "--config", node.config, "--json").json()["key"]
    with stack:
        assert len(list(islice(told, 20))) < 10  # it has ended
    stack, told = listening(authorization=f"Bearer {key}")
    with stack:
        assert next(told)  # it goes on as long as the key is there
        sealring("apikey", "revoke", "alice", "--config", node.config)
        assert len(list(islice(told, 20))) < 10


@pytest.mark.slow
def test_the_head_of_the_event_stream_is_not_without_end(
    alone: tuple[LocalNode, httpx2.Client],
) -> None:
    _, http = alone
    for _ in range(40):  # more than may listen at once
        answer = http.head("/v1/cluster/events")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")


def test_keys_are_asked_for_on_loopback_from_the_first_on(
    alone: tuple[LocalNode, httpx2.Client],
) -> None:
    node, http = alone
    config = node.config
    assert http.get("/v1/models").status_code == 200
    assert http.get("/v1/models", headers=PROXIED).status_code == 403  # a name that is not its own
    key = sealring("apikey", "new", "alice", "--config", config, "--json").json()["key"]
    bearer = {"authorization": f"Bearer {key}"}
    # Nobody comes in without one, from this machine or through a proxy; whoever has one does.
    assert statuses(http) == {401}
    assert statuses(http, **PROXIED) == {401}
    assert statuses(http, authorization="Bearer sk-sealring-wrong") == {401}
    assert http.get("/v1/models", headers=bearer).status_code == 200
    assert http.get("/v1/models", headers={**bearer, **PROXIED}).status_code == 200
    for path in ("/health", "/", "/dashboard/main.js"):
        assert http.get(path).status_code in (200, 503)  # it may still be loading
    # The node's owner needs none at its Unix socket, whatever it says there.
    uds = httpx2.HTTPTransport(uds=str(node.control))
    with httpx2.Client(transport=uds, base_url="http://localhost") as own:
        assert statuses(own) == {200}
        assert statuses(own, authorization="Bearer sk-sealring-wrong") == {200}
        with own.stream("GET", "/v1/cluster/events", timeout=PATIENCE) as news:
            assert len(list(islice(news.iter_lines(), 10))) == 10
    # The local commands go there, and chat reports what it lacks.
    assert sealring("status", "--config", config, "--json").json()["name"] == "rank0"
    done = sealring("chat", "--url", str(http.base_url))
    assert done.code == 1
    assert "needs a key" in done.err
    assert "--api-key" in done.err
    # The last key that is revoked closes the API; it does not open it.
    done = sealring("apikey", "revoke", "alice", "--config", config)
    assert "no key is left" in done.err
    assert statuses(http, **bearer) == {401}
    keys = node.control.parent / KEY_FILE
    assert str(keys) in done.err
    # A file that cannot be read does not open it either.
    keys.write_text("{")
    assert statuses(http) == {503}
    keys.unlink()
    keys.symlink_to(keys)  # nor one that cannot even be looked at
    assert statuses(http) == {503}
    keys.unlink()
    assert http.get("/v1/models").status_code == 200


@pytest.mark.slow
def test_a_config_may_free_loopback_in_so_many_words(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = {"api_keys": "beyond-loopback"}
    (config,) = write_cluster(tmp_path, 1, tiny.path(), api=address, options=options)
    assert sealring("apikey", "new", "alice", "--config", config).code == 0
    with running_node(config) as node:
        wait_until_up(node)
        assert httpx2.get(f"http://{address}/v1/models").status_code == 200
        # A name that is not its own is still refused: a page may have been sent here.
        refused = httpx2.get(f"http://{address}/v1/models", headers=PROXIED)
        assert json.loads(refused.text)["error"]["code"] == "wrong_host"
    assert "it asks for no key on loopback, as the config says" in node.log.read_text()

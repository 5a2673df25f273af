"""The API of a node whose rank changes, in one process and without an engine."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import attrs
import httpx2
import pytest
import trio
from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.service.head_api import NodeApi
from sealring_model import tiny
from sealring_protocol.security.roster import Rights, sign_roster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError

from tests.attacks.test_floods import AtWork, at_work
from tests.serving import PATIENCE
from tests.sim.rosters import COORDINATOR


async def install(node: AtWork, serial: int, *, turned: bool, rights: Rights = Rights.TEXT) -> None:
    """A newer roster, in which the node is the second if it is *turned*, and has *rights* then."""
    roster = node.roster.roster
    own, other = roster.members
    members = (other, attrs.evolve(own, rights=rights)) if turned else (own, other)
    signed = sign_roster(attrs.evolve(roster, serial=serial, members=members), COORDINATOR)
    await node.runtime.install(signed.encode())


def config_of(folder: Path, port: int) -> Config:
    return Config.model_construct(api=("127.0.0.1", port), state=folder, listen=("127.0.0.1", 1))


@asynccontextmanager
async def serving(
    node: AtWork, config: Config
) -> AsyncIterator[tuple[NodeApi, httpx2.AsyncClient]]:
    """The API of *node*, and a client of it."""
    api = NodeApi(Generator(node.runtime, tiny.path()), config, Mock())
    assert config.api is not None
    url = f"http://127.0.0.1:{config.api[1]}"
    async with trio.open_nursery() as nursery, httpx2.AsyncClient(base_url=url) as http:
        with trio.fail_after(PATIENCE):
            await nursery.start(api.run)
            yield api, http
            await api.close()
        nursery.cancel_scope.cancel()


async def test_a_node_whose_rank_changes_keeps_its_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with at_work() as node, serving(node, config_of(tmp_path, free_ports(1)[0])) as (_, http):
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.json()["data"][0]["id"]) == (200, "tiny")
        assert "x-sealring-head" not in answer.headers

        await install(node, 2, turned=True)
        await trio.testing.wait_all_tasks_blocked()
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_head")
        said = answer.json()["error"]["message"]
        assert said.startswith("No request can be passed on: the ")
        assert said.count("the head (node1)") == 1
        assert answer.headers["x-sealring-head"] == "node1"
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        assert "this node is the head no more; its API passes requests on to node1" in caplog.text

        await install(node, 3, turned=False)
        await trio.testing.wait_all_tasks_blocked()
        assert (await http.get("/v1/models")).status_code == 200
        assert caplog.text.count("this node is the head now, and its API answers by itself") == 1
        assert caplog.text.count("the API is at") == 1


async def test_a_member_that_sees_no_texts_says_whom_to_ask(tmp_path: Path) -> None:
    async with at_work() as node, serving(node, config_of(tmp_path, free_ports(1)[0])) as (_, http):
        await install(node, 2, turned=True, rights=Rights(0))
        await trio.testing.wait_all_tasks_blocked()
        answer = await http.post("/v1/chat/completions", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_texts")
        assert "Ask the head, node1." in answer.json()["error"]["message"]
        assert "retry-after" not in answer.headers
        assert answer.headers["x-should-retry"] == "false"


async def test_a_follower_whose_port_is_taken_does_its_part_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work() as node:
        await install(node, 2, turned=True)
        with socket.create_server(("127.0.0.1", 0)) as other:
            config = config_of(tmp_path, other.getsockname()[1])
            async with serving(node, config) as (api, http):
                await trio.testing.wait_all_tasks_blocked()
                assert "this node serves no API: cannot listen at 127.0.0.1:" in caplog.text
                assert api.app is not None  # at its Unix socket
                other.close()
                await install(node, 3, turned=False)
                await trio.testing.wait_all_tasks_blocked()
                assert (await http.get("/v1/models")).status_code == 200


async def test_a_head_whose_port_is_taken_does_not_begin(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = config_of(tmp_path, other.getsockname()[1])
        async with at_work() as node:
            with pytest.raises(ExceptionGroup) as caught:
                async with serving(node, config):
                    pass
    found: BaseException = caught.value
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, OperationError)
    assert "Change 'api' in the config." in found.advice

"""The API of machines that wait: who may say that one becomes a member, and what everybody sees.

A real door, real newcomers and a real HTTP server, in one process.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx2
import pytest
import trio
from sealring.dashboard import pages
from sealring.files.config import load_config
from sealring.generation.generation import Generator
from sealring.http.app import build_app
from sealring.http.head import ApiHead
from sealring.http.http1 import ApiServer
from sealring.http.keys import KEY_FILE, ApiKeys, new_key, revoke_key
from sealring.http.openapi import NewcomerAnswer, NewcomersAnswer
from sealring.local.node_socket import listening
from sealring.service.newcomers import NewcomersApi, newcomers_at
from sealring.service.owner_api import OwnerApi, serve_owner
from sealring.service.verification import Reply
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports
from starlette.types import ASGIApp

from tests.attacks.test_floods import at_work
from tests.joining.doors import Home, Machine, asked, home

WAITING = "/v1/newcomers"


@attrs.define(eq=False)
class Page:
    """What asks the head of *made* at *url*; its *keys* are alice's, which may admit, and bob's."""

    made: Home
    http: httpx2.AsyncClient
    keys: dict[str, str]
    key_file: Path
    app: ASGIApp | None

    def headers(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[name]}"} if name else {}

    async def see(self, name: str = "") -> dict[str, Any]:
        answer = await self.http.get(WAITING, headers=self.headers(name))
        assert answer.status_code == 200, answer.text
        NewcomersAnswer.model_validate_json(answer.text)
        return dict(answer.json())

    async def decide(
        self, id_: str, decision: str, name: str = "", **more: str
    ) -> tuple[int, dict[str, Any]]:
        path = f"{WAITING}/{id_}/{decision}"
        answer = await self.http.post(path, headers=self.headers(name) | more)
        return answer.status_code, answer.json()


@asynccontextmanager
async def page_of(folder: Path, *, keyed: bool = True, signs: bool = True) -> AsyncIterator[Page]:
    api = f"127.0.0.1:{free_ports(1)[0]}"
    async with at_work() as node, home(folder, signs=signs, api=api) as made:
        config = load_config(made.files.config)
        file = config.state / KEY_FILE
        keys = {}
        if keyed:
            keys["alice"] = new_key(file, "alice", admit=True)
            keys["bob"] = new_key(file, "bob")
        routes = [*NewcomersApi(made.door, config).routes(), *pages.routes()]
        generator = Generator(node.runtime, tiny.path())
        head = ApiHead(generator, config, "tiny", ApiKeys(file), newcomers=newcomers_at(made.door))
        app = build_app(head, routes)
        assert config.api is not None
        server = ApiServer(config.api, app)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            nursery.start_soon(head.answers.run)
            async with httpx2.AsyncClient(base_url=f"http://{api}", timeout=30) as http:
                yield Page(made, http, keys, file, app)
            await server.close()
            nursery.cancel_scope.cancel()


async def test_a_key_that_may_admit_lets_a_machine_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    den = Machine()
    async with page_of(tmp_path) as page, trio.open_nursery() as nursery:
        knock = await asked(page.made, den, nursery)
        seen = await page.see("alice")
        assert (seen["may_admit"], seen["why_not"]) == (True, "")
        assert seen["command"] == "sealring machines accept --config node.toml"
        (about,) = seen["data"]
        shown = ("state", "name", "fingerprint", "system", "memory", "source", "addresses")
        assert [about[name] for name in shown] == [
            *("waiting", "den", knock.fingerprint, "macOS 26", 64 << 30),
            *("127.0.0.1", ["127.0.0.1:7999"]),
        ]
        assert 590 <= about["invitation_s"] <= 600
        status, done = await page.decide(about["id"], "accept", "alice")
        assert (status, done["state"]) == (200, "joined")
        NewcomerAnswer.model_validate(done)
        await den.over.wait()
        assert den.ended is True
        assert page.made.names == ["desk", "den"]
        # Everybody else sees what became of it, and who decided.
        (about,) = (await page.see("bob"))["data"]
        assert (about["state"], about["by"]) == ("joined", "the API key 'alice'")
        status, again = await page.decide(about["id"], "refuse", "alice")
        assert (status, again["error"]["code"]) == (409, "newcomer_not_decided")
    assert f"the API key 'alice' lets in den (fingerprint {knock.fingerprint}" in caplog.text


async def test_a_key_that_may_admit_refuses_one(tmp_path: Path) -> None:
    den = Machine()
    async with page_of(tmp_path) as page, trio.open_nursery() as nursery:
        knock = await asked(page.made, den, nursery)
        status, done = await page.decide(knock.id, "refuse", "alice")
        assert (status, done["state"]) == (200, "refused")
        await den.over.wait()
        assert "a person there has said no" in den.told
        assert page.made.names == ["desk"]


@pytest.mark.parametrize(("decision", "verb"), [("accept", "let in"), ("refuse", "refuse")])
async def test_nobody_else_decides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, decision: str, verb: str
) -> None:
    async with page_of(tmp_path) as page, trio.open_nursery() as nursery:
        knock = await asked(page.made, Machine(), nursery)
        seen = await page.see("bob")
        assert not seen["may_admit"]
        status, told = await page.decide(knock.id, decision, "bob")
        assert (status, told["error"]["code"]) == (403, "may_not_admit")
        assert "may ask, and may not say which machines" in told["error"]["message"]
        assert told["error"]["message"] == seen["why_not"]
        assert f"the API key 'bob' would {verb} den (" in caplog.text
        page.keys["eve"] = "sk-sealring-wrong"
        cookie = f"key={page.keys['alice']}; authorization=Bearer {page.keys['alice']}"
        foreign = {"origin": "https://evil.example"}
        for name, more, expected in (
            ("", {}, (401, "invalid_api_key")),
            ("", {"cookie": cookie}, (401, "invalid_api_key")),
            ("eve", {}, (401, "invalid_api_key")),
            ("alice", foreign, (403, "wrong_origin")),
            ("alice", {"sec-fetch-site": "cross-site"}, (403, "wrong_site")),
        ):
            status, told = await page.decide(knock.id, decision, name, **more)
            assert (status, told["error"]["code"]) == expected
        asks = {**foreign, "access-control-request-method": "POST"}
        answer = await page.http.options(f"{WAITING}/{knock.id}/{decision}", headers=asks)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
        answer = await page.http.get(f"{WAITING}/{knock.id}/{decision}")
        assert answer.status_code == 401
        revoke_key(page.key_file, "alice")
        assert (await page.decide(knock.id, decision, "alice"))[0] == 401
        assert page.made.door.waiting() == [knock]
        nursery.cancel_scope.cancel()
    assert page.made.names == ["desk"]


async def test_without_keys_nobody_decides_on_the_page(tmp_path: Path) -> None:
    async with page_of(tmp_path, keyed=False) as page, trio.open_nursery() as nursery:
        knock = await asked(page.made, Machine(), nursery)
        seen = await page.see()
        assert not seen["may_admit"]
        assert "Decide in a terminal of the head's machine" in seen["why_not"]
        assert [each["name"] for each in seen["data"]] == ["den"]
        for decision in ("accept", "refuse"):
            status, told = await page.decide(knock.id, decision)
            assert (status, told["error"]["code"]) == (403, "may_not_admit")
        assert page.made.door.waiting() == [knock]
        nursery.cancel_scope.cancel()


async def test_the_owner_decides_at_the_node_s_socket(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sealring-") as short:
        place = Path(short) / "control.sock"
        async with page_of(tmp_path) as page, trio.open_nursery() as nursery:
            knock = await asked(page.made, Machine(), nursery)
            with listening(place) as listener:
                nursery.start_soon(serve_owner, listener, OwnerApi(nothing, lambda: page.app))
                uds = httpx2.AsyncHTTPTransport(uds=str(place))
                async with httpx2.AsyncClient(transport=uds, base_url="http://localhost") as own:
                    answer = await own.post(f"{WAITING}/{knock.id}/refuse")
                assert (answer.status_code, answer.json()["by"]) == (200, "the owner")
            nursery.cancel_scope.cancel()


async def nothing(name: str, body: bytes, reply: Reply) -> None:
    """The answers of a node that is asked nothing."""


async def test_a_key_elsewhere_signs_in_a_terminal(tmp_path: Path) -> None:
    async with page_of(tmp_path, signs=False) as page, trio.open_nursery() as nursery:
        knock = await asked(page.made, Machine(), nursery)
        seen = await page.see("alice")
        assert not seen["may_admit"]
        assert "is not on the head's machine" in seen["why_not"]
        assert seen["command"] == "sealring machines accept --config node.toml --key FILE"
        assert (await page.decide(knock.id, "accept", "alice"))[0] == 403
        nursery.cancel_scope.cancel()


async def test_a_click_is_about_one_visit(tmp_path: Path) -> None:
    """Neither a name, nor a key, nor its words stand for it; nor does a visit that is over."""
    den = Machine()
    async with page_of(tmp_path) as page, trio.open_nursery() as nursery:
        knock = await asked(page.made, den, nursery)
        node = knock.newcomer.id.hex()
        for who in ("den", knock.fingerprint, node, node[:16], knock.id[:8]):
            status, told = await page.decide(who, "accept", "alice")
            assert (status, told["error"]["code"]) == (404, "newcomer_not_found")
        assert den.request is not None
        den.request.stop()
        await knock.over.wait()
        later = await asked(page.made, Machine(signer=den.signer), nursery)
        status, told = await page.decide(knock.id, "accept", "alice")
        assert (status, told["error"]["code"]) == (409, "newcomer_not_decided")
        assert "Den has left before it joined: it was stopped there" in told["error"]["message"]
        states = [each["state"] for each in (await page.see("alice"))["data"]]
        assert states == ["left", "waiting"]
        assert page.made.door.waiting() == [later]
        nursery.cancel_scope.cancel()
    assert page.made.names == ["desk"]


async def test_a_page_hears_of_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PERIOD", 3600.0)
    async with page_of(tmp_path) as page, trio.open_nursery() as nursery:
        url, key = page.http.base_url, page.keys["bob"]
        stream = await trio.open_tcp_stream(url.host, url.port or 80)
        asks = f"GET /v1/cluster/events HTTP/1.1\r\nhost: {url.host}:{url.port}\r\n"
        await stream.send_all(f"{asks}authorization: Bearer {key}\r\n\r\n".encode())
        came = bytearray()

        async def heard() -> list[tuple[str, str]]:
            """The newcomers in the next event."""
            while not (event := re.search(rb"data: (.*?)\n\n", came)):
                came.extend(await stream.receive_some())
            newcomers = json.loads(event[1])["cluster"]["newcomers"]
            del came[: event.end()]
            return [(each["name"], each["state"]) for each in newcomers]

        assert await heard() == []
        knock = await asked(page.made, Machine(), nursery)
        assert await heard() == [("den", "waiting")]
        page.made.door.refuse(knock)
        assert await heard() == [("den", "refused")]
        await stream.aclose()

"""Rosters that change while a ring runs, as an operator changes them: by the commands, on machines
of their own."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sealring.files.cluster import read_draft, write_draft

from tests.io_trio.helpers import sealring
from tests.operation.machines import API_PORT, Machine, machines

pytestmark = pytest.mark.long

READY = "the ring is ready"


def sign(made: Sequence[Machine], *names: str) -> Path:
    """The next roster, with the members *names* in rank order."""
    office = made[0].folder.parent / "coordinator"
    everybody = office / "everybody.toml"
    if not everybody.exists():
        write_draft(everybody, read_draft(office / "home.toml"))
    draft = read_draft(everybody)
    members = {member.name: member for member in draft.member}
    chosen = [members[name] for name in names]
    write_draft(office / "home.toml", draft.model_copy(update={"member": chosen}))
    done = sealring("roster", "sign", office / "home.toml", "--key", office / "coordinator.key")
    assert done.code == 0, done.err
    return office / "home.roster"


def install(machine: Machine, roster: Path) -> None:
    done = machine.run("roster", "install", roster, "--config", machine.config)
    assert done.code == 0, done.err
    assert "is in force here" in done.out


class Stream:
    """A long answer, streamed from *machine* by a thread."""

    def __init__(self, machine: Machine, tokens: int) -> None:
        self.text = ""
        self.events: list[dict[str, Any]] = []
        self.begun = threading.Event()
        self._machine = machine
        self._tokens = tokens
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Count to a thousand."}],
            "max_tokens": self._tokens,
            "temperature": 0,
            "stream": True,
        }
        url = f"http://127.0.0.1:{API_PORT}/v1/chat/completions"
        with (
            self._machine.inside(),
            httpx2.Client(timeout=120, trust_env=False) as client,
            client.stream("POST", url, json=body) as response,
        ):
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    if "error" in self.events[-1]:
                        return
                    for choice in self.events[-1]["choices"]:
                        self.text += choice["delta"].get("content") or ""
                    if len(self.events) > 20:
                        self.begun.set()

    def end(self) -> str:
        """Its text, once it is over."""
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.text


def whole(machine: Machine, tokens: int) -> str:
    return Stream(machine, tokens).end()


def serials(made: Sequence[Machine]) -> list[int]:
    return [machine.status()["serial"] for machine in made]


def test_a_request_goes_on_while_members_come_and_go() -> None:
    tokens = 600
    with machines(3) as made:
        desk, shelf, den = made
        for machine in (desk, shelf):
            machine.start()
        desk.wait_for_log("waiting for")
        shelf.wait_for_log("is rank 1 of 3")
        install(desk, sign(made, "desk", "shelf"))  # they wait for den no more
        desk.wait_for(lambda: serials([desk, shelf]) == [2, 2], "roster 2")
        desk.wait_for(lambda: desk.http("GET", "/health").status_code == 200, "200")
        expected = whole(desk, tokens)

        stream = Stream(desk, tokens)
        assert stream.begun.wait(60)
        den.start()
        shelf.fill_disk()  # which does not keep a roster from being stored
        third = sign(made, "desk", "den", "shelf")
        install(desk, third)
        desk.wait_for(
            lambda: desk.status()["world"] == 3 and desk.status()["state"] == "serving", "change"
        )
        assert stream.end() == expected
        assert serials(made) == [3, 3, 3]

        stream = Stream(desk, tokens)
        assert stream.begun.wait(60)
        install(shelf, sign(made, "desk", "shelf"))
        desk.wait_for(
            lambda: desk.status()["world"] == 2 and desk.status()["state"] == "serving", "change"
        )
        assert stream.end() == expected
        den.wait_for(lambda: any(peer["put_out"] for peer in den.status()["peers"]), "put out")
        assert den.log.count("desk holds a newer roster than this node's (3)") == 1
        assert "put out by" in den.run("status", "--config", den.config).out

        # And each remembers it, on a full disk too.
        shelf.stop()
        assert shelf.config.parent.joinpath("home.roster").exists()
        shelf.start()
        desk.wait_for(lambda: desk.status()["state"] == "serving", "change")
        assert serials([desk, shelf]) == [4, 4]


def test_the_api_follows_the_head() -> None:
    with machines(2) as made:
        desk, shelf = made
        shelf.configure(api=f"0.0.0.0:{API_PORT}")
        shelf.start()
        shelf.wait_for_log("if a roster made this rank the head, it could not serve: ")
        fault = "the API listens beyond loopback, at 0.0.0.0:7480, and there are no API keys"
        assert fault in shelf.run("status", "--config", shelf.config).out
        shelf.configure(api=f"127.0.0.1:{API_PORT}")
        for machine in made:
            machine.start()
        desk.wait_for_log(READY)
        assert shelf.status()["head_fault"] == ""
        expected = whole(desk, 20)

        # What runs goes on at the next head, and what is new waits for it.
        roster = sign(made, "shelf", "desk")
        expected_stream = whole(desk, 600)
        stream = Stream(desk, 600)
        assert stream.begun.wait(60)
        asked = {"roster": roster.read_bytes().hex()}
        installed = [*desk.node.ask("roster", asked)]
        assert [event["event"] for event in installed][-1] == "done"
        assert desk.ask("Hello.", max_tokens=4).status_code == 200
        assert stream.end() == expected_stream
        shelf.wait_for_log(READY)
        shelf.wait_for(lambda: shelf.http("GET", "/health").status_code == 200, "change")
        assert whole(shelf, 20) == expected
        assert "the API is at http://127.0.0.1:7480/v1" in shelf.log
        assert "this node is the head no more; its API passes requests on to shelf" in desk.log
        desk.wait_for(lambda: desk.http("GET", "/readyz").status_code == 200, "change")
        assert desk.http("GET", "/health").headers["x-sealring-head"] == "shelf"
        assert whole(desk, 20) == expected
        install(shelf, sign(made, "desk", "shelf"))
        desk.wait_for(lambda: desk.status()["role"] == "head", "change")
        desk.wait_for(lambda: desk.status()["state"] == "serving", "change")
        assert whole(desk, 20) == expected

"""Answers that outlive their head, on real rings of three: the head is killed, moved or stopped in
the middle of streams, and their clients get the events that they would have had."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx2
import pytest
from sealring.files.config import load_config
from sealring.http.keys import KEY_FILE
from sealring.local.ring import LocalNode, running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports
from sealring_trio.units import format_address

from tests.io_trio.helpers import sealring, until
from tests.serving import PATIENCE

TOKENS = 150
AT = 40
"""The event at which something happens."""


def url(config: Path) -> str:
    address = load_config(config).api
    assert address is not None
    return f"http://{format_address(*address)}"


@attrs.define
class Reader(threading.Thread):
    """Reads an answer at *config*, in a thread; *at* is called with the number of each event."""

    config: Path
    path: str
    fields: dict[str, Any]
    at: Callable[[int], None] = lambda number: None
    events: list[str] = attrs.field(factory=list)
    failed: str = ""

    def __attrs_pre_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        body = {"model": "tiny", "max_tokens": TOKENS, **self.fields}
        try:
            with httpx2.stream(
                "POST", url(self.config) + self.path, json=body, timeout=PATIENCE
            ) as answer:
                if answer.status_code != 200:
                    self.failed = f"{answer.status_code} {answer.read()!r}"
                    return
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line)
                        self.at(len(self.events))
        except httpx2.HTTPError as error:
            self.failed = repr(error)

    def text(self) -> str:
        """The text of the whole answer."""
        self.join(3 * PATIENCE)
        assert not self.is_alive()
        assert not self.failed
        assert self.events[-1] in ("data: [DONE]", 'data: {"type":"message_stop"}')
        return "".join(map(text_of, self.events))


def text_of(line: str) -> str:
    """The text in the event of *line*."""
    if line == "data: [DONE]":
        return ""
    event = json.loads(line.removeprefix("data: "))
    assert "error" not in event, event
    delta = event.get("delta") or next(iter(event.get("choices") or [{}])).get("delta") or {}
    return str(delta.get("content") or delta.get("text") or "")


CHAT = {"stream": True, "messages": [{"role": "user", "content": "Count to a hundred."}]}
ASKED = {
    "/v1/chat/completions": {**CHAT, "temperature": 1, "seed": 7},
    "/v1/messages": {**CHAT, "temperature": 0},
}


@pytest.fixture
def ring() -> Iterator[tuple[list[Path], list[LocalNode], contextlib.ExitStack]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        api = f"127.0.0.1:{free_ports(1)[0]}"
        options = {"min_ranks": 1}
        configs = write_cluster(folder, 3, tiny.path(), api=api, options=options, elects=True)
        nodes = [stack.enter_context(running_node(config)) for config in configs]
        for node in nodes:
            wait_until_up(node)
        until(lambda: all(map(ready, configs)), nodes[0].log.read_text)
        yield configs, nodes, stack


def ready(config: Path) -> bool:
    try:
        return httpx2.get(f"{url(config)}/readyz", timeout=PATIENCE).status_code == 200
    except httpx2.ConnectError:
        return False


@pytest.mark.slow
def test_streams_go_on_when_the_head_is_killed_moved_and_stopped(
    ring: tuple[list[Path], list[LocalNode], contextlib.ExitStack],
) -> None:
    configs, nodes, stack = ring
    first, second, third = configs
    logs = lambda: "\n\n".join(node.log.read_text() for node in nodes)  # noqa: E731

    def read(config: Path, at: Callable[[int], None] = lambda number: None) -> list[Reader]:
        found = [Reader(config, path, fields) for path, fields in ASKED.items()]
        found[0].at = at
        for each in found:
            each.start()
        return found

    wanted = [each.text() for each in read(third)]
    assert [len(text) > 2 * AT for text in wanted] == [True, True]

    def kill(number: int) -> None:
        if number == AT:
            nodes[0].process.kill()

    readers = [*read(third, kill), *read(second)]
    try:
        assert [each.text() for each in readers] == [*wanted, *wanted]
    except AssertionError:
        print(logs())
        raise

    nodes[0] = stack.enter_context(running_node(first))
    until(lambda: ready(first), logs)

    def move(number: int) -> None:
        if number == AT:
            moved.append(sealring("head", "move", "rank0", "--config", second).code)

    moved: list[int] = []
    readers = [*read(second, move), *read(third), *read(first)]
    try:
        assert [each.text() for each in readers] == [*wanted] * 3
        assert moved == [0]
    except AssertionError:
        print(logs())
        raise

    def stop(number: int) -> None:
        if number == AT:
            nodes[0].process.send_signal(signal.SIGTERM)

    readers = [*read(third, stop), *read(second)]
    try:
        assert [each.text() for each in readers] == [*wanted] * 2
    except AssertionError:
        print(logs())
        raise

    sealring("apikey", "new", "alice", "--config", second)
    kept = load_config(third).state / KEY_FILE
    until(kept.exists, logs)
    assert kept.read_bytes() == (load_config(second).state / KEY_FILE).read_bytes()

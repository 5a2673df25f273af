"""The control socket's request `verify`, on a real ring of two."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sealring.local.ring import LocalNode
from sealring_model import tiny
from sealring_trio.errors import OperationError, UserError

from tests.verify.rings import ring

pytestmark = pytest.mark.slow

PERSON_SECONDS = 120.0

SHORT = [{"prompt": [5, 6, 7], "tokens": 3}]
LONG = [{"prompt": [5, 6, 7], "tokens": 400}]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[LocalNode]]:
    with ring(tiny.path()) as found:
        yield found


def events(node: LocalNode, rows: list[Any], *, checked: bool = True) -> list[dict[str, Any]]:
    return list(node.ask("verify", {"rows": rows, "checked": checked}))


def kinds(found: list[dict[str, Any]]) -> set[str]:
    return {event["event"] for event in found if event["event"] != "waiting"}


def unchecked(node: LocalNode) -> list[dict[str, Any]]:
    """The events of a row that is not checked, once no other verification is under way."""
    deadline = time.monotonic() + PERSON_SECONDS
    while True:
        try:
            return events(node, SHORT, checked=False)
        except OperationError as error:
            if "runs already" not in error.what or time.monotonic() > deadline:
                raise


def epochs(node: LocalNode) -> int:
    return int(node.status()["epoch"])


def test_the_ring_alone_is_told_where_there_are_no_rows(nodes: list[LocalNode]) -> None:
    found = events(nodes[0], [], checked=False)
    told = next(event for event in found if event["event"] == "ring")
    assert told["names"] == ["rank0", "rank1"]
    assert (told["strategy"], told["bounds"], told["windows"]) == ("pp", [0, 4, 8], [])
    assert kinds(found) == {"ring"}


def test_rows_begin_after_others_follow_others_and_leave(nodes: list[LocalNode]) -> None:
    first_prompt = list(range(5, 25))
    rows = [
        {"prompt": first_prompt, "tokens": 6},
        {"prompt": [9], "tokens": 5, "after": [0, 2], "leaves": 2},
        {"prompt": [30, 31], "tokens": 4, "continues": 0},
    ]
    found = events(nodes[0], rows, checked=False)
    assert kinds(found) == {"ring", "row", "cached", "token", "left"}
    tokens = [
        [event["token"] for event in found if event["event"] == "token" and event["row"] == row]
        for row in range(3)
    ]
    assert list(map(len, tokens)) == [6, 2, 4]
    prompts = {event["row"]: event["prompt"] for event in found if event["event"] == "row"}
    assert prompts == {0: first_prompt, 1: [9], 2: [*first_prompt, *tokens[0], 30, 31]}
    begun = next(at for at, event in enumerate(found) if event == {**event, "row": 1})
    first = [at for at, e in enumerate(found) if e["event"] == "token" and e["row"] == 0]
    assert begun > first[1]
    reasons = {event["row"]: event["reason"] for event in found if event["event"] == "left"}
    assert reasons == {0: "length", 1: "withdrawn", 2: "length"}
    cached = {event["row"]: event["tokens"] for event in found if event["event"] == "cached"}
    assert cached == {0: 0, 1: 0, 2: 25}


def test_only_a_checked_epoch_tells_numbers_and_it_ends(nodes: list[LocalNode]) -> None:
    before = epochs(nodes[0])
    assert not {"step", "numbers"} & kinds(events(nodes[0], SHORT, checked=False))
    assert epochs(nodes[0]) == before, "nothing began anew"
    assert {"step", "numbers"} <= kinds(events(nodes[0], SHORT))
    assert not {"step", "numbers"} & kinds(events(nodes[0], SHORT, checked=False))
    assert epochs(nodes[0]) == before + 2


def test_it_ends_when_the_client_leaves(nodes: list[LocalNode]) -> None:
    before = epochs(nodes[0])
    with contextlib.closing(nodes[0].ask("verify", {"rows": LONG, "checked": True})) as lines:
        assert any(event["event"] == "numbers" for event in lines)
    found = unchecked(nodes[0])
    assert not {"step", "numbers"} & kinds(found)
    assert epochs(nodes[0]) == before + 2


def test_requests_of_others_go_on_and_are_not_told(nodes: list[LocalNode]) -> None:
    done: list[dict[str, Any]] = []

    def generate() -> None:
        asked = {"prompt": "Count to twenty.", "max_tokens": 120}
        done.extend(event for event in nodes[0].ask("generate", asked) if event["event"] == "done")

    generate()
    alone = done.pop()["token_ids"]
    other = threading.Thread(target=generate)
    other.start()
    found = events(nodes[0], [{"prompt": [5] * 20, "tokens": 30}])
    other.join(60)
    assert done[0]["token_ids"] == alone
    for event in found:
        if event["event"] == "step":
            assert {row for row, _ in event["rows"]} <= {0, None}


def test_one_verification_runs_at_a_time(nodes: list[LocalNode]) -> None:
    with contextlib.closing(nodes[0].ask("verify", {"rows": LONG, "checked": True})) as lines:
        assert any(event["event"] == "token" for event in lines)
        with pytest.raises(OperationError, match="runs already"):
            events(nodes[0], SHORT)
    unchecked(nodes[0])


def test_a_client_that_never_reads_holds_no_epoch(nodes: list[LocalNode]) -> None:
    first = {"prompt": [200] * 800, "tokens": 1}
    rows = [first, *({"prompt": [n], "tokens": 1, "continues": 0} for n in range(5, 65))]
    # Each is told its whole prompt: more than a socket holds, and little to compute.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(nodes[0].control))
        body = json.dumps({"rows": rows, "checked": True})
        header = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        client.sendall(f"POST /node/verify HTTP/1.1\r\n{header}\r\n\r\n{body}".encode())
        assert client.recv(1)
        assert not {"step", "numbers"} & kinds(unchecked(nodes[0]))


def test_a_follower_runs_none(nodes: list[LocalNode]) -> None:
    with pytest.raises(OperationError, match="rank 1"):
        events(nodes[1], SHORT)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"prompt": [], "tokens": 1}], "rows.0.prompt"),
        ([{"prompt": [1], "tokens": 0}], "rows.0.tokens"),
        ([{"prompt": [1], "tokens": 1, "more": 1}], "rows.0.more"),
        ([{"prompt": [1], "tokens": 1, "continues": 0}], "row 0 waits"),
        ([{"prompt": [1], "tokens": 1, "after": [1, 0]}], "row 0 waits"),
        ([{"prompt": [1 << 31], "tokens": 1}], "row 0 cannot be run"),
        ([{"prompt": [1], "tokens": 4000}], "row 0 cannot be run"),
        (SHORT * 65, "rows"),
    ],
)
def test_a_mistake_is_told(nodes: list[LocalNode], rows: list[Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        events(nodes[0], rows)
    assert kinds(events(nodes[0], SHORT, checked=False)) >= {"token"}


def test_why_rows_wait_is_told(nodes: list[LocalNode]) -> None:
    """The last of all: it ends a node."""
    asked = {"rows": LONG, "checked": True}
    with contextlib.closing(nodes[0].ask("verify", asked)) as lines:
        assert any(event["event"] == "token" for event in lines)
        nodes[1].process.kill()
        told = next(event["text"] for event in lines if event["event"] == "waiting")
    assert "rank1" in told

"""`sealring bench serve --beside mlx-lm`: its client, its neighbours, and a tiny load."""

from __future__ import annotations

import json
import os

import psutil
import pytest
from sealring_tools.bench import beside, http_load
from sealring_tools.bench.http_load import Burst, burst, count_tokens
from sealring_trio.errors import OperationError

from tests.io_trio.helpers import sealring
from tests.serving import Served

CHUNK = {"choices": [{"delta": {"content": "once"}}], "usage": None}
USAGE = {"choices": [], "usage": {"completion_tokens": 7}}


def response(*events: object, status: str = "200 OK", end: bool = True) -> bytes:
    """A streamed answer with *events*."""
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    header = f"HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n"
    last = "0\r\n\r\n" if end else ""
    return f"{header}{len(body):x}\r\n{body}\r\n{last}".encode()


def test_the_last_event_counts_the_tokens() -> None:
    assert count_tokens(response(CHUNK, CHUNK, USAGE)) == 7


def test_a_server_that_closes_after_its_answer() -> None:
    body = f"data: {json.dumps(USAGE)}\n\n"
    assert count_tokens(f"HTTP/1.0 200 OK\r\n\r\n{body}".encode()) == 7


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (response(CHUNK, status="429 Too Many Requests"), "refused: 429"),
        (response(CHUNK), "counts no tokens"),
        (response(CHUNK, USAGE, end=False), "not HTTP"),
        (b"", "not HTTP"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
    ],
    ids=["refused", "uncounted", "cut", "nothing", "another protocol"],
)
def test_an_answer_that_counts_for_nothing(answer: bytes, says: str) -> None:
    with pytest.raises(OperationError, match=says):
        count_tokens(answer)


@pytest.mark.slow
def test_a_burst_at_a_real_ring(served: Served) -> None:
    bodies = [beside._body("tiny", number, 5) for number in range(3)]
    done = burst(served.url, bodies)
    assert 3 <= done.tokens <= 15
    assert done.pace == done.tokens / done.seconds > 0


def test_nobody_answers() -> None:
    with pytest.raises(OperationError, match="broke off"):
        burst("http://127.0.0.1:1", [{}])


def test_a_server_that_is_too_late(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_load, "ANSWER_SECONDS", 0.0)
    with pytest.raises(OperationError, match="did not answer within"):
        burst(served.url, [beside._body("tiny", 1, 5)])


def test_neighbours_are_strangers_of_usual_priority_and_end() -> None:
    with beside.neighbours(2) as pids:
        found = [psutil.Process(pid) for pid in pids]
        assert [process.nice() for process in found] == [os.nice(0)] * 2
        assert {os.getsid(pid) for pid in pids} == set(pids)
    assert not any(process.is_running() for process in found)


def test_floors_are_for_eight_at_once() -> None:
    assert beside.floor_of("tiny", 8, 1, 0) == 1.4
    assert beside.floor_of("tiny", 8, 2, 2) == 0.8
    assert beside.floor_of("tiny", 32, 1, 0) is None


def test_several_ranks_are_for_a_comparison() -> None:
    done = sealring("bench", "serve", "--ranks", "1", "--ranks", "2")
    assert (done.code, "--beside mlx-lm" in done.err) == (2, True)


@pytest.mark.long
def test_a_tiny_load_beside_mlx_lm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "FLOORS", {("tiny", 1): 1e9})
    monkeypatch.setattr(beside, "_AT_ONCE", 2)
    small = ("--size", "tiny", "--ranks", "1", "--concurrency", "2", "--max-tokens", "4")
    done = sealring("bench", "serve", "--beside", "mlx-lm", *small, "--turns", "1", "--json")
    (result,) = done.json()
    assert done.code == 0
    assert result["name"] == "tiny, 2 at once, 1 rank"
    assert result["yardstick_name"] == "mlx_lm.server"
    assert result["ratio"] == result["ours"] / result["yardstick"] > 0
    assert result["floor"] == 1e9
    assert Burst(4, 2.0).pace == 2.0

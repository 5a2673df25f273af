"""`sealring serve`: what it starts, how it ends, and mistakes."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import httpx2
import pytest

from tests.io_trio.helpers import sealring
from tests.serving import PATIENCE, Served, serving


def test_it_says_where_everything_is(served: Served) -> None:
    assert served.about["api"] == f"{served.url}/v1"
    assert served.about["model"] == "tiny"
    assert [rank["layers"] for rank in served.about["ranks"]] == [[0, 4], [4, 8]]
    assert served.ask("Hello.", max_tokens=4).json()["usage"]["completion_tokens"] == 4
    page = httpx2.get(served.about["dashboard"])
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>sealring</title>" in page.text


@pytest.mark.slow
def test_an_interrupt_finishes_what_runs() -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}]}
    with serving("--ranks", "1") as running, httpx2.Client(timeout=PATIENCE) as http:
        url = f"{running.url}/v1/chat/completions"
        with http.stream("POST", url, json={**body, "stream": True}) as response:
            lines = response.iter_lines()
            first = next(lines)
            running.interrupt()
            rest = list(lines)
        assert first.startswith("data: ")
        assert rest[-2:] == ["data: [DONE]", ""]
        assert running.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_rank_that_dies_ends_it() -> None:
    with serving("--ranks", "1") as running:
        os.kill(running.about["ranks"][0]["pid"], signal.SIGKILL)
        assert running.process.wait(PATIENCE) == 1
        assert running.process.stderr is not None
        told = running.process.stderr.read()
    assert "rank0 has ended; its log ends with:" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("options", "what", "advice"),
    [
        (["--ranks", "9"], "9 ranks are too many for a model of 8 layers", "at least one layer"),
        (["--ranks", "0"], "--ranks", "sealring serve --help"),
        (["--model", "./none"], "cannot find the model", "'tiny'"),
        (["--port", "70000"], "--port", "sealring serve --help"),
    ],
)
def test_mistakes(options: list[str], what: str, advice: str) -> None:
    done = sealring("serve", "--port", "0", *options)
    assert done.code == 2
    assert what in done.err
    assert advice in done.err
    assert done.out == ""


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = sealring("serve", "--port", str(port))
    assert done.code == 2
    assert f"cannot listen at port {port}: Address already in use" in done.err
    assert "--port" in done.err

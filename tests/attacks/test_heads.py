"""Attacks by a head, or what stands in its place: on the commands that ask it."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import resource
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
from sealring.cli import run
from sealring.local import client
from sealring.local.chat_session import ChatSession
from sealring.local.client import HeadClient
from sealring_trio.errors import OperationError

from tests.attacks.test_local import answering

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="only root can become another user, and Linux shows where others listen",
)


@contextmanager
def saying(*parts: bytes) -> Iterator[str]:
    """A server that answers each request with *parts*, of which it says the last without end; its
    URL."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(65536)
                for part in itertools.chain(parts, itertools.repeat(parts[-1])):
                    self.request.sendall(part)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536),
        (b"HTTP/1.1 500 No\r\n\r\n", b" " * 65536),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n", gzip.compress(bytes(1 << 26))),
    ],
    ids=["endless", "an endless error", "packed"],
)
def test_an_answer_without_end_is_not_taken_in(parts: tuple[bytes, ...]) -> None:
    with saying(*parts) as url, HeadClient(url) as http:
        tracemalloc.start()
        with pytest.raises(OperationError, match="no such API"):
            client.cluster_at(http, url)
        with pytest.raises(OperationError, match="no such API"):
            list(ChatSession(http, url, "m").ask("Hello.", print))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 80 << 20


def test_an_answer_that_comes_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CARD_SECONDS", 0.2)
    with (
        saying(b"HTTP/1.1 200 OK\r\n\r\n", b" ") as url,
        HeadClient(url) as http,
        pytest.raises(OperationError, match="says nothing any more"),
    ):
        client.cluster_at(http, url)


BLANKS = [
    b"HTTP/1.1 200 OK\r\na:" + b" " * 90_000 + b"\0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b" " * 90_000 + b"\n\r\n",
]


@pytest.mark.parametrize("said", BLANKS, ids=["header", "chunk"])
def test_blanks_of_an_answer_take_linear_time(said: bytes) -> None:
    """They took ten seconds, in which the command did not even heed Ctrl-C."""
    with saying(said) as url:  # a process of its own: the API's server bounds h11 in this one
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "sealring", "status", "--url", url]
        done = subprocess.run(command, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert b"went away" in done.stderr
    assert after.ru_utime - before.ru_utime < 4


def test_numbers_that_are_none_are_no_traceback() -> None:
    rank = {"rank": 0, "name": "a", "layers": [0, 1], "ready": True, "memory": 10**400}
    facts = ("version", "cluster", "roster_left", "model", "strategy", "activations", "state")
    told = {**dict.fromkeys(facts, "x"), "reason": "", "healthy": True, "epoch": 1, "why": []}
    told |= {"tokens_per_s": 1, "prompt_tokens_per_s": 1, "faults": [], "starved": []}
    told |= {"rows": dict.fromkeys(("decode", "prefill", "queued"), 1)}
    told |= {"guesses": {"accepted": 1}, "ranks": [{**rank, "cache": 1, "rows": 1}]}
    with answering(json.dumps(told).encode(), b"") as url:
        assert run(["status", "--url", url]) == 1


@needs_root
@pytest.mark.parametrize("command", [["status"], ["chat"]], ids=" ".join)
def test_what_another_user_has_listen_at_the_usual_address_is_not_asked(command: list[str]) -> None:
    """It would be told the key."""
    listens = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
os.setresuid(65534, 65534, 0)
with socket.create_server(("127.0.0.1", 7480)) as server:
    os.setresuid(0, 0, 0)
    server.settimeout(0.1)
    done = subprocess.run([sys.executable, "-P", "-m", "sealring", *sys.argv[1:]])
    try:
        server.accept()
    except TimeoutError:
        sys.exit(done.returncode)
    sys.exit("it was asked")
"""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", listens, *command],
        input=b"Hello.\n",
        env={**os.environ, "OPENAI_API_KEY": "secret"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert b"belongs to another user (uid 65534), and is not asked" in done.stderr
    assert done.returncode == 2, done.stderr

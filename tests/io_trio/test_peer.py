"""`sealring peer`: it talks with itself and with real nodes, and tells what was said."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sealring_model import tiny
from sealring_trio.config import load_config
from sealring_trio.local_ring import running_node, wait_until_up, write_cluster
from sealring_trio.units import format_address

from tests.io_trio.helpers import sealring

SEALRING = [sys.executable, "-m", "sealring_trio"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The configs of the two nodes that peers stand in for."""
    return write_cluster(tmp_path_factory.mktemp("cluster"), 2, tiny.path())


def who(config: Path) -> list[str]:
    settings = load_config(config)
    files = ["--roster", str(settings.roster), "--coordinator", settings.coordinator]
    return [str(settings.key), *files]


@contextmanager
def listening(config: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A peer that plays the node of *config*, and where it listens."""
    at = format_address(*load_config(config).listen)
    command = [*SEALRING, "peer", *who(config), "--listen", at, *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["listening"]
        finally:
            process.kill()


def said(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def messages(lines: list[dict[str, Any]], way: str) -> list[str]:
    return [line[way]["message"] for line in lines if way in line]


def test_two_peers_go_through_a_pipeline(cluster: list[Path]) -> None:
    head, rank = cluster
    with listening(rank) as (_, at):
        for _ in range(2):  # it goes on serving
            done = sealring("peer", *who(head), "--dial", "rank1", "--at", at, "--steps", "3")
            assert done.code == 0, done.err
            lines = said(done.out)
            steps = ["STEP"] * 3
            assert messages(lines, "sent") == ["BOOTSTRAP", *steps, "CLOSE", "CLOSE"]
            assert messages(lines, "came") == ["READY", "READY", *["STEP_DONE"] * 3]


def test_strangers_cost_it_nothing(cluster: list[Path]) -> None:
    head, rank = cluster
    with listening(rank) as (_, at):
        host, port = at.rsplit(":", 1)
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(2000)):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(data)
        done = sealring("peer", *who(head), "--dial", "rank1", "--at", at, "--steps", "1")
        assert done.code == 0, done.err


def test_an_interrupt_ends_it_without_a_word(cluster: list[Path]) -> None:
    with listening(cluster[1]) as (process, _):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
        assert (process.returncode, errors) == (130, "")


def test_a_script_does_as_it_says(cluster: list[Path], tmp_path: Path) -> None:
    head, rank = cluster
    script = tmp_path / "script"
    orders: list[dict[str, Any]] = [
        {"expect": {"message": "READY", "first": 0}},
        {"close": 0, "reason": "enough"},
    ]
    script.write_text("# what a head hears first\n\n" + "\n".join(map(json.dumps, orders)))
    with listening(rank) as (_, at):
        asked = ("peer", *who(head), "--dial", "rank1", "--at", at, "--script", script)
        done = sealring(*asked)
        assert done.code == 0, done.err
        assert messages(said(done.out), "sent") == ["CLOSE"]
        orders[0]["expect"]["first"] = 7
        script.write_text("\n".join(map(json.dumps, orders)))
        done = sealring(*asked)
        assert done.code == 1
        assert "READY came" in done.err
        assert "first" in done.err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 1, is no JSON"),
        ("[]", "says nothing that a peer can do"),
        ('{"sing": 1}', "says nothing that a peer can do"),
    ],
)
def test_a_bad_script_is_refused_at_once(
    cluster: list[Path], tmp_path: Path, line: str, why: str
) -> None:
    script = tmp_path / "script"
    script.write_text(line)
    done = sealring("peer", *who(cluster[0]), "--dial", "rank1", "--script", script)
    assert (done.code, why in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ((), "either listens or dials"),
        (("--dial", "nobody"), "has no member nobody"),
        (("--dial", "rank1", "--at", "127.0.0.1:9"), "cannot reach rank1"),
        (("--listen", "127.0.0.1:9"), "is rank 0 of 2, and plays rank 1"),
    ],
)
def test_mistakes_are_told(cluster: list[Path], more: tuple[str, ...], why: str) -> None:
    done = sealring("peer", *who(cluster[0]), *more)
    assert done.code in (1, 2)
    assert why in done.err


def test_a_real_node_answers_a_peer_that_is_the_head(cluster: list[Path]) -> None:
    head, rank = cluster
    with running_node(rank) as node:
        wait_until_up(node)
        at = format_address(*load_config(rank).listen)
        done = sealring("peer", *who(head), "--dial", "rank1", "--at", at)
        assert done.code == 0, done.err + done.out

"""What a node has for those who look after it: logs, files that are read again, probes at every
rank, and systemd's socket."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx2
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from sealring.files.config import load_config
from sealring.http.app import build_health
from sealring.local.ring import LocalNode, local_ring, running_node, wait_until_up, write_cluster
from sealring.logs import JsonLines
from sealring.service.service import Supervision
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import UserError

from tests.attacks.doorway import door, get, one
from tests.serving import PATIENCE

# ------------------------------------------------------------------- logs


def record(text: str, *arguments: object, error: BaseException | None = None) -> dict[str, Any]:
    said = logging.LogRecord(
        *("sealring.api", logging.WARNING, "x.py", 1, text, arguments),
        (type(error), error, error.__traceback__) if error else None,
    )
    said.created, said.msecs = 1_700_000_000.007, 7.0
    line = JsonLines().format(said)
    assert line.isascii()
    assert "\n" not in line
    return json.loads(line)


def test_a_line_of_json() -> None:
    assert record("%s\nis gone: %r", "rank1", "\x1b[1m\u202e") == {
        "time": "2023-11-14T22:13:20.007Z",
        "level": "warning",
        "logger": "sealring.api",
        "text": "rank1\nis gone: '\\x1b[1m\\u202e'",
    }
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    told = record("a fault", error=caught.value)["exception"]
    assert told.startswith("Traceback")
    assert told.endswith("ZeroDivisionError: division by zero")


def up(folder: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sealring", "up", "none.toml", *map(str, options)]
    return subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )


def test_a_mistake_is_in_the_log_that_programs_read(tmp_path: Path) -> None:
    done = up(tmp_path, "--log-format", "json")
    assert done.returncode == 2
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["level"], line["text"][:34]) == ("critical", "there is no config file at none.to")


def test_a_mistake_is_in_the_file_and_told(tmp_path: Path) -> None:
    done = up(tmp_path, "--log-file", tmp_path / "node.log")
    assert "there is no config file at none.toml" in done.stderr
    assert "CRITICAL there is no config file" in (tmp_path / "node.log").read_text()


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    done = up(tmp_path, "--log-file", tmp_path / "none" / "node.log")
    assert done.returncode == 2
    assert re.search(r"cannot write the log to .*/node\.log: No such file", done.stderr)


WRITER = """
import sys
from sealring.logs import begin_log, log
begin_log("info", sys.argv[1])
for count in (3000, 2):
    for number in range(count):
        log.info("line %d of %d " + 6000 * "x" * (number % 100 == 0), number, count)
    print("written", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_pipe_that_nobody_reads_holds_up_nobody(style: str) -> None:
    """The lines that it takes no more are lost, and the next says how many they were."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, style],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stderr is not None
        stuck = threading.Timer(PATIENCE, writer.kill)
        stuck.start()
        assert writer.stdout.readline() == "written\n"
        os.set_blocking(writer.stderr.fileno(), False)
        read = os.read(writer.stderr.fileno(), 1 << 20).decode()
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
        read += os.read(writer.stderr.fileno(), 1 << 20).decode()
        writer.stdin.close()
        stuck.cancel()
    *lines, notice, first, second = read.splitlines()
    texts = [line.partition(" INFO    ")[2] for line in lines]
    if style == "json":
        texts = [json.loads(line)["text"] for line in lines]
        assert json.loads(notice)["level"] == "warning"
    assert 0 < len(texts) < 3000
    assert [text.split()[:2] for text in texts] == [["line", str(n)] for n in range(len(texts))]
    lost = 3000 - len(texts)
    assert f"{lost:,} lines were lost: the reader of the log was slow" in notice
    assert "line 0 of 2" in first
    assert "line 1 of 2" in second


def test_a_pipe_whose_reader_has_gone_holds_up_nobody() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, "text"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stderr is not None
        writer.stderr.close()
        assert writer.communicate(timeout=PATIENCE)[0] == "written\nwritten\n"
        assert writer.returncode == 0


# ------------------------------------------------------------------- the config


def config(folder: Path, *lines: str) -> Path:
    known = ("key", "roster", "coordinator")
    text = [*(f'{name} = "{name}"' for name in known), 'listen = "0.0.0.0:7470"', 'model = "tiny"']
    path = folder / "desk.toml"
    path.write_text("\n".join([*text, *lines]))
    return path


def test_what_is_read_again_and_what_is_not(tmp_path: Path) -> None:
    before = load_config(config(tmp_path, 'allowed_hosts = ["a"]', "rows = 4"))
    assert before.hosts.allow("a")
    now = load_config(config(tmp_path, 'allowed_hosts = ["b"]', "rows = 5", "timeout = 9"))
    assert before.differing(now) == ["rows", "allowed_hosts", "timeout"]
    taken = before.reread(now)
    assert (taken.timeout, taken.rows, taken.path) == (9, 4, before.path)
    assert taken.hosts.allow("b")
    assert not taken.hosts.allow("a")


@pytest.mark.parametrize(
    ("health", "other"),
    [
        ("127.0.0.1:7470", "listen"),
        ("0.0.0.0:7480", "api"),
        ("127.0.0.1:7480", "api"),
    ],
)
def test_an_address_that_is_taken(tmp_path: Path, health: str, other: str) -> None:
    with pytest.raises(UserError, match=f"'health' and '{other}' are one address"):
        load_config(config(tmp_path, f'health = "{health}"'))


# ------------------------------------------------------------------- systemd


@pytest.mark.parametrize("abstract", [False, True])
async def test_systemd_hears_that_a_node_is_up_and_alive(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    abstract: bool,
) -> None:
    name = f"@sealring-{os.getpid()}" if abstract else str(tmp_path / "notify")
    if abstract and sys.platform != "linux":
        pytest.skip("an abstract socket is Linux's")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        supervision, is_up = Supervision(), trio.Event()
        assert "NOTIFY_SOCKET" not in os.environ
        with trio.move_on_after(25.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervision.watch, is_up)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(BlockingIOError):
                    manager.recv(64)
                is_up.set()
        heard = [manager.recv(64) for _ in range(4)]
        assert heard == [b"READY=1", *[b"WATCHDOG=1"] * 3]  # at 0, 10 and 20 s
        with pytest.raises(BlockingIOError):
            manager.recv(64)


def test_a_manager_that_is_gone_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    Supervision().say("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Supervision().say("READY=1")


# ------------------------------------------------------------------- probes


async def test_a_node_that_has_not_begun_is_alive_and_not_ready() -> None:
    async with door(build_health(lambda: None)) as served, await served.connect() as client:

        async def ask(path: str, method: bytes = b"GET") -> tuple[int, bytes]:
            await client.send_all(get(path).replace(b"GET", method))
            return await one(client)

        assert await ask("/livez") == (200, b'{"status":"alive"}')
        assert await ask("/readyz") == (503, b'{"status":"unavailable","reasons":["beginning"]}')
        status, page = await ask("/metrics")
        assert (status, b"sealring_build_info" in page) == (200, True)
        for path in ("/health", "/v1/models", "/", "/v1/cluster"):
            assert (await ask(path))[0] == 404
        assert (await ask("/livez", b"POST"))[0] == 405


# ------------------------------------------------------------------- a ring


@attrs.frozen
class Watched:
    """A ring of two, whose logs are JSON, with the addresses of their probes and of the API."""

    nodes: list[LocalNode]
    health: list[str]
    api: str


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    api, *probes = free_ports(3)
    folder = tmp_path_factory.mktemp("ring")
    configs = write_cluster(folder, 2, tiny.path(), api=f"127.0.0.1:{api}")
    for path, port in zip(configs, probes, strict=True):
        path.write_text(f'{path.read_text()}health = "127.0.0.1:{port}"\n')
    flags = ("--log-format", "json")
    with running_node(configs[0], flags) as head, running_node(configs[1], flags) as rank:
        for node in (head, rank):
            wait_until_up(node)
        yield Watched(
            [head, rank], [f"http://127.0.0.1:{port}" for port in probes], f"http://127.0.0.1:{api}"
        )


def until(true: Callable[[], Any]) -> None:
    """Wait until something is *true*."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def families(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The metrics at *url*: their values by those of their labels."""
    found = text_string_to_metric_families(httpx2.get(f"{url}/metrics").text)
    return {
        sample.name: {
            tuple(each.labels.values()): each.value
            for each in family.samples
            if each.name == sample.name
        }
        for family in found
        for sample in family.samples
    }


@pytest.mark.slow
def test_every_rank_has_probes_and_metrics(watched: Watched) -> None:
    for url in watched.health:
        until(lambda url=url: httpx2.get(f"{url}/readyz").status_code == 200)
        assert httpx2.get(f"{url}/livez").json() == {"status": "alive"}
        assert httpx2.get(f"{url}/v1/models").status_code == 404
        told = families(url)
        assert told["sealring_up"] == {(): 1}
        assert told["sealring_rank_up"] == {("0",): 1, ("1",): 1}
        assert 0 < told["sealring_roster_expires_seconds"][()] <= 86_400
        assert told["sealring_roster_serial"] == {(): 1}
        assert not told.keys() & {"sealring_requests_total", "sealring_http_requests_total"}
    assert families(watched.api)["sealring_rank_up"] == {("0",): 1, ("1",): 1}


@pytest.mark.slow
def test_a_hangup_reads_files_again_and_ends_nobody(watched: Watched) -> None:
    head, rank = watched.nodes
    until(lambda: httpx2.get(f"{watched.api}/health").status_code == 200)
    page = {"origin": "https://chat.example"}
    assert httpx2.get(f"{watched.api}/v1/models", headers=page).status_code == 403
    text = head.config.read_text()
    head.config.write_text(f'{text}allowed_origins = ["https://chat.example"]\nrows = 3\n')
    engines = [pid for node in watched.nodes for pid in node.status()["engine_pids"]]
    for pid in (head.process.pid, rank.process.pid, *engines):
        os.kill(pid, signal.SIGHUP)
    until(lambda: httpx2.get(f"{watched.api}/v1/models", headers=page).status_code == 200)

    head.config.write_text("nonsense")
    head.process.send_signal(signal.SIGHUP)
    until(lambda: "goes on with the config that it has" in head.log.read_text())
    assert httpx2.get(f"{watched.api}/v1/models", headers=page).status_code == 200
    head.config.write_text(text)

    assert engines == [pid for node in watched.nodes for pid in node.status()["engine_pids"]]
    assert httpx2.get(f"{watched.api}/health").status_code == 200
    lines = [
        json.loads(line)
        for node in watched.nodes
        for line in node.log.read_text().split("\n")
        if line
    ]
    said = [line["text"] for line in lines]
    assert "SIGHUP: the config is read again; changed: allowed_origins" in said
    assert "changes of rows count from the node's next start" in said
    assert "SIGHUP: the config is read again; changed: nothing" in said


@pytest.mark.slow
def test_a_log_file_that_is_moved_away_and_a_node_that_a_watchdog_ends(tmp_path: Path) -> None:
    log, place = tmp_path / "node.log", tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place))
        manager.settimeout(PATIENCE)
        places = [{"NOTIFY_SOCKET": str(place), "WATCHDOG_USEC": "300000"}]
        flags = ("--log-file", str(log))
        with local_ring(1, tiny.path(), flags=flags, places=places) as (node,):
            assert [manager.recv(64) for _ in range(3)] == [b"READY=1", *[b"WATCHDOG=1"] * 2]
            log.rename(tmp_path / "node.log.1")
            node.process.send_signal(signal.SIGHUP)
            until(log.exists)
            until(lambda: "SIGHUP: the config is read again" in log.read_text())
            assert "SIGHUP" not in (tmp_path / "node.log.1").read_text()
            assert node.log.read_text() == ""
            node.process.send_signal(signal.SIGABRT)
            assert node.process.wait(PATIENCE) == -signal.SIGABRT
            stacks = node.log.read_text()
    assert stacks.startswith("Fatal Python error: Aborted\n")
    assert "sealring/cli/up.py" in stacks

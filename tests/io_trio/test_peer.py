"""`sealring peer`: it talks with itself and with real nodes, and tells what was said."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import trio
from sealring.files.config import load_config
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_protocol.codec.encoding import to_fields
from sealring_protocol.codec.messages import Backend, Bootstrap, Epoch, Ready
from sealring_protocol.security.admission import Admission
from sealring_tools.peer.playing import Model, Rank
from sealring_tools.peer.serving import Peer, drive
from sealring_trio.errors import OperationError
from sealring_trio.files.models import describe_model, find_model
from sealring_trio.units import format_address

from tests.io_trio.helpers import sealring
from tests.serving import PATIENCE

SEALRING = [sys.executable, "-m", "sealring"]


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
            assert messages(lines, "came") == ["HELLO", "READY", *["STEP_DONE"] * 3]


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
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (130, "")


def test_a_script_does_as_it_says(cluster: list[Path], tmp_path: Path) -> None:
    head, rank = cluster
    script = tmp_path / "script"
    orders: list[dict[str, Any]] = [
        {"expect": {"message": "HELLO", "layers": described(rank).layers}},
        {"close": 0, "reason": "enough"},
    ]
    script.write_text("# what a head hears first\n\n" + "\n".join(map(json.dumps, orders)))
    with listening(rank) as (_, at):
        asked = ("peer", *who(head), "--dial", "rank1", "--at", at, "--script", script)
        done = sealring(*asked)
        assert done.code == 0, done.err
        assert messages(said(done.out), "sent") == ["CLOSE"]
        orders[0]["expect"]["hidden"] = 7
        script.write_text("\n".join(map(json.dumps, orders)))
        done = sealring(*asked)
        assert done.code == 1
        assert "HELLO came" in done.err
        assert "hidden" in done.err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 1, is no JSON"),
        ("[]", "says nothing that a peer can do"),
        ('{"sing": 1}', "says nothing that a peer can do"),
        ("[" * 100_000, "line 1, is no JSON"),
        ('{"wait": "1"}', "line 1: 'wait' takes a number of seconds"),
        ('{"wait": -1}', "line 1: 'wait' takes a number of seconds"),
        ('{"wait": NaN}', "line 1: 'wait' takes a number of seconds"),
        ('{"close": 99}', "line 1: 'close' takes a code of CLOSE"),
        ('{"close": "0"}', "line 1: 'close' takes a code of CLOSE"),
        ('{"expect": 7}', "line 1: 'expect' takes an object"),
        ('{"send": ["READY"]}', "line 1: 'send' takes an object"),
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


def test_a_rank_is_ready_once_its_step_link_is_up(cluster: list[Path], tmp_path: Path) -> None:
    head, rank = cluster
    control, chain = tmp_path / "control", tmp_path / "chain"
    with listening(rank) as (process, at):
        dial = ("peer", *who(head), "--dial", "rank1", "--at", at, "--script")
        model = described(rank)
        order = {
            "message": "BOOTSTRAP",
            "instance": "7",
            "counter": "1",
            "backend": 1,
            "rank": 1,
            "inner_seal": True,
            "trusted": False,
            "checked": False,
            "deadline_ms": 60_000,
            "steps": 1,
            "model": model.digest.hex(),
            "bounds": [0, 1, model.layers],
            "hosts": [],
            "members": [],
            "kept": [],
        }
        orders = [{"expect": {"message": "HELLO"}}, {"send": order}]
        orders += [{"expect": {"message": "READY", "counter": "1"}}]
        control.write_text("\n".join(map(json.dumps, orders)))
        chain.write_text(json.dumps({"wait": 0}))
        pipe = subprocess.PIPE
        command = [*SEALRING, *map(str, (*dial, control))]
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as asking:
            told = until(process, lambda line: "BOOTSTRAP" in messages([line], "came"))
            done = sealring(*dial, chain, "--purpose", "step")
            assert done.code == 0, done.err
            told = until(process, lambda line: "READY" in messages([line], "sent"))
            assert [line["purpose"] for line in told if "up" in line] == ["STEP"]
            asking.communicate(timeout=PATIENCE)
            assert asking.returncode == 0


def described(config: Path) -> Model:
    info = describe_model(find_model(str(load_config(config).model)))
    return Model(info.digest, len(info.layers), info.hidden, info.dtype)


def until(
    process: subprocess.Popen[str], found: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """What *process* tells, up to and with the line that is looked for."""
    assert process.stdout is not None
    told: list[dict[str, Any]] = []
    for line in process.stdout:
        told.append(json.loads(line))
        if found(told[-1]):
            return told
    raise AssertionError(f"it ended first: {told}")


class Slips(Model):
    """A rank's model that is described otherwise once it is asked for, as *slip* says."""

    slip: ClassVar[Callable[[Ready], Ready]]

    def ready(self, epoch: Epoch, first: int, last: int) -> Ready:
        return type(self).slip(super().ready(epoch, first, last))


@pytest.mark.parametrize(
    ("slip", "why"),
    [
        (lambda r: attrs.evolve(r, epoch=Epoch(r.epoch.instance, 2)), "the epoch that BOOTSTRAP"),
        (lambda r: attrs.evolve(r, first=r.first + 1), "BOOTSTRAP gave"),
    ],
)
def test_a_head_looks_at_what_a_rank_says(
    cluster: list[Path], slip: Callable[[Ready], Ready], why: str
) -> None:
    def peer(config: Path) -> Peer:
        key, _, roster, _, coordinator = who(config)
        return Peer.of(Path(key), Path(roster), coordinator, 7, lambda told: None)

    slips = type("Slips", (Slips,), {"slip": staticmethod(slip)})
    model = described(cluster[1])
    rank = Rank(slips(model.digest, model.layers, model.hidden, model.dtype))

    async def talk() -> None:
        other = peer(cluster[1])
        admission = Admission(trio.current_time())
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def met(stream: trio.SocketStream) -> None:
            line = other.accept(stream, admission)
            async with trio.open_nursery() as both:
                both.start_soon(line.run)
                await rank.play(line)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, met, listeners))
            at = format_address(*listeners[0].socket.getsockname()[:2])
            try:
                await drive(peer(cluster[0]), "rank1", at, 1)
            finally:
                nursery.cancel_scope.cancel()

    with pytest.RaisesGroup(
        pytest.RaisesExc(OperationError, match=why), flatten_subgroups=True, allow_unwrapped=True
    ):
        trio.run(talk)


def test_who_leaves_before_it_is_answered_ends_his_link_alone(
    cluster: list[Path], tmp_path: Path
) -> None:
    head, rank = cluster
    hosts = ("127.0.0.1", 1), ("127.0.0.1", 2)
    order = Bootstrap(Epoch(1, 1), Backend.RING, 1, False, 60_000, bytes(32), (0, 2), hosts)
    lines = [{"send": to_fields(order)}] * 30
    script = tmp_path / "script"
    script.write_text("\n".join(map(json.dumps, lines)))
    with listening(rank) as (peer, at):
        for _ in range(3):
            sealring("peer", *who(head), "--dial", "rank1", "--at", at, "--script", script)
        done = sealring("peer", *who(head), "--dial", "rank1", "--at", at, "--steps", "1")
        assert done.code == 0, done.err
        assert peer.poll() is None

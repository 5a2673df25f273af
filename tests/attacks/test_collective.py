"""Another user of the machine attacks a collective: real nodes, real engines, a real other user.

On the machine's loopback whoever connects first to the port where MLX's ring listens becomes a
rank's neighbour. The attacker here connects to every such port as soon as it is there, and stays;
so he and his victims have a loopback of their own, apart from that of other tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing
from sealring.local.ring import local_ring
from sealring_model import tiny
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Tunnel, TunnelEvent
from sealring_trio.collective.loopback import LOOPBACK, SharedLoopback
from sealring_trio.engine.supervisor import Engine, EngineCommand
from sealring_trio.processes.namespace import NoNamespace, take_sockets, why_not

from tests.io_trio.test_engine_supervisor import FAKE, Owner
from tests.io_trio.tunnel_sides import CLOSE, EPOCH, OPEN, sides
from tests.networks import own_network

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="only root can become another user, and Linux shows where others listen",
)
needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=f"no namespaces here: {why_not()}")

ATTACKER = """
import os, socket, time
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
seen, held = set(), []
print(flush=True)
while True:
    time.sleep(0.001)  # his victims need the processor too
    with open("/proc/net/tcp") as table:
        rows = [row.split() for row in table][1:]
    for row in rows:
        host, port = row[1].split(":")
        if row[3] == "0A" and row[9] not in seen:
            seen.add(row[9])
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", int(port, 16)))
            held.append(sock)
            print(int(port, 16), flush=True)
"""


PATIENCE = 60.0

JOIN = 50.0
"""Seconds that ranks have to find each other on a busy machine: fewer than the attacker stays."""


@contextlib.contextmanager
def attacked() -> Iterator[Callable[[], list[int]]]:
    """While another user connects to all ports that he sees; how to end that, and which it were."""
    with subprocess.Popen([sys.executable, "-c", ATTACKER], stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"\n"
        # A ring that he keeps down comes up after that, and the test says so.
        patience = threading.Timer(PATIENCE, attacker.kill)
        patience.start()

        def stop() -> list[int]:
            attacker.kill()
            return [int(line) for line in attacker.communicate()[0].split()]

        try:
            yield stop
        finally:
            patience.cancel()
            attacker.kill()


RINGS = {
    "sealed between two nodes": (2, {"strategy": "tp", "group_timeout": JOIN}, "strategy"),
    "between the processes of one node": (1, {"strategy": "single", "tp": 2}, "members"),
}


@pytest.mark.slow
@needs_root
@needs_namespaces
@pytest.mark.parametrize(("ranks", "options", "told"), RINGS.values(), ids=RINGS)
def test_another_user_gets_into_no_collective(
    ranks: int, options: dict[str, str | float], told: str
) -> None:
    with (
        own_network(),
        attacked() as stop,
        local_ring(ranks, tiny.path(), options=options) as nodes,
    ):
        *_, done = nodes[0].ask("generate", {"prompt": "Once", "max_tokens": 4})
        states = [node.status() for node in nodes]
        ports = stop()
        logs = "\n".join(node.log.read_text()[-2000:] for node in nodes)
    assert len(done["token_ids"]) == 4
    assert [state["engine_restarts"] for state in states] == [0] * ranks, logs
    assert states[0][told] == "tp" or states[0][told]["size"] == 2
    assert len(ports) >= ranks  # he was there: where the nodes listen for each other


@pytest.mark.parametrize("again", [[OPEN], [CLOSE, OPEN]], ids=["open", "close and open"])
async def test_a_neighbour_that_opens_its_stream_again_and_again_begins_one(
    again: list[TunnelEvent],
) -> None:
    async with sides() as (near, far), trio.open_nursery() as nursery:
        far.prepare(EPOCH)
        await far.turn()
        far.spawn = nursery.start_soon  # type: ignore[method-assign]
        await near.say(*(Tunnel(EPOCH, 0, event) for event in [OPEN, *again * 1000]))
        await near.turn()
        await far.heard(1 + 1000 * len(again))
        assert len(nursery.child_tasks) <= 1  # none once the stream is closed
        assert far.sent == []
        nursery.cancel_scope.cancel()


OTHER_FILES: dict[str, Callable[[], tuple[int, ...]]] = {
    "pipes": os.pipe,
    "a socket and no other": lambda: (socket.socket().detach(),),
    "local sockets": lambda: tuple(each.detach() for each in socket.socketpair()),
    "a datagram socket": lambda: (
        socket.socket().detach(),
        socket.socket(type=socket.SOCK_DGRAM).detach(),
    ),
}


@pytest.mark.parametrize("made", OTHER_FILES.values(), ids=OTHER_FILES)
def test_an_engine_that_hands_over_other_files_gives_no_network(
    made: Callable[[], tuple[int, ...]],
) -> None:
    """A node that took them would stop working, or keep a descriptor for each."""
    before = psutil.Process().num_fds()
    ours, engines = socket.socketpair()
    with ours, engines:
        files = made()
        socket.send_fds(engines, [b"\0"], files)
        for number in files:
            os.close(number)
        with pytest.raises(NoNamespace, match="no other sockets"):
            take_sockets(ours)
    assert psutil.Process().num_fds() == before


@needs_namespaces
async def test_what_listens_in_an_engines_network_is_reached_by_its_node_alone() -> None:
    engine = Engine(EngineCommand(FAKE, ("good",), private=True), owner := Owner())
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            assert isinstance(await owner.told.receive(), EngineInfo)
            sockets = engine.take_sockets()
            assert sockets is not None
            with pytest.raises(NoNamespace, match="no other sockets"):
                engine.take_sockets()
            with sockets[0] as listener, sockets[1] as caller:
                address = listener.getsockname()
                with socket.socket() as stranger, pytest.raises(ConnectionRefusedError):
                    stranger.connect(address)
                caller.connect(address)
                listener.accept()[0].close()
            nursery.cancel_scope.cancel()


async def test_who_was_first_at_an_engine_on_the_shared_loopback_gets_no_sum() -> None:
    place = SharedLoopback(lambda: [os.getpid()])
    with contextlib.closing(place), socket.socket() as engine, socket.socket() as stranger:
        engine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        engine.bind((LOOPBACK, place.port))
        engine.listen()
        stranger.connect((LOOPBACK, place.port))
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_one, engine)
                assert await place.connect() is None
                nursery.cancel_scope.cancel()


async def take_one(engine: socket.socket) -> None:
    """What MLX's ring does."""
    connection, _ = await trio.to_thread.run_sync(engine.accept)
    engine.close()
    with connection:
        await trio.sleep_forever()


HIDDEN = """
import encodings.idna, os, socket
from sealring_trio.collective.loopback import ConnectionOwner, made, taken
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
server = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(server.getsockname())
ours = [os.getpid()]
print(taken(connection, ours) is ConnectionOwner.NOBODYS)
accepted = server.accept()[0]
print(taken(connection, ours) is ConnectionOwner.OURS, made(accepted, ours) is ConnectionOwner.OURS)
print(made(socket.fromfd(3, socket.AF_INET, socket.SOCK_STREAM), ours) is ConnectionOwner.ANOTHERS)
"""
"""A process that the kernel lets nobody look into but root, as an engine is to be; 3 is a
connection of another user."""


@needs_root
def test_whose_a_connection_is_can_be_told_of_a_process_that_hides_its_sockets() -> None:
    with (
        socket.create_server((LOOPBACK, 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as foreign,
    ):
        keep = f'exec 3<&{foreign.fileno()}; exec "$0" "$@"'
        done = subprocess.run(
            ["bash", "-c", keep, sys.executable, "-c", HIDDEN],
            pass_fds=[foreign.fileno()],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.stdout.split(), done.stderr) == (["True"] * 4, "")


def where_none_can_be_had(*command: str) -> subprocess.CompletedProcess[str]:
    """`sealring` *command*, on a system that allows no network namespaces."""
    forbid = "echo 0 > /proc/sys/user/max_net_namespaces"
    run = [sys.executable, "-m", "sealring", *command]
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", f'{forbid}; exec "$@"', "-", *run],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_namespaces
def test_a_try_for_a_namespace_that_fails_is_no_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that cannot even begin has not shown that engines get a network of their own."""
    for interpreter in ("/bin/false", str(tmp_path / "none")):
        monkeypatch.setattr(sys, "executable", interpreter)
        assert "the process that tries to make a network namespace failed" in why_not()


@needs_root
@needs_namespaces
def test_without_namespaces_sealed_tensor_parallelism_is_refused_at_once() -> None:
    done = where_none_can_be_had("demo", "--strategy", "tp")
    assert done.returncode
    assert "within reach of every user of this machine: cannot make a network" in done.stderr
    assert "Say collectives = 'shared-loopback' if every user" in done.stderr


@pytest.mark.long
@needs_root
@needs_namespaces
def test_without_namespaces_auto_answers_by_a_pipeline() -> None:
    done = where_none_can_be_had("demo", "--strategy", "auto", "--max-tokens", "8", "--json")
    report = json.loads(done.stdout)
    assert (report["identical"], report["strategy"]) == (True, "pp")
    assert "it is tried once some tokens have been timed" in report["reason"]


@pytest.mark.long
@needs_root
@needs_namespaces
def test_without_namespaces_an_explicit_word_allows_it() -> None:
    words = ("--strategy", "tp", "--collectives", "shared-loopback", "--max-tokens", "8")
    report = json.loads(where_none_can_be_had("demo", *words, "--json").stdout)
    assert (report["identical"], report["strategy"]) == (True, "tp")

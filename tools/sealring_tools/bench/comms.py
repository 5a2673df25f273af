"""The time of a sum of one row's hidden state over the ranks: direct, relayed, and sealed.

Tensor parallelism sums twice a layer, so that is a floor for the time of a token, whatever the
model computes. Four rings of two MLX processes each take turns in one run: one in which the ranks
are connected directly, one with a plain forwarder process between each rank and the next, one with
two of them, and one whose ranks are engines of two real nodes, with a sealed link between them that
carries the ring. Each node relays, so bytes pass two processes as they do with two forwarders.

The nodes are `service.build_runtime`'s, as `sealring up` runs them; this module, run with a config,
is such a node. Only their engines are the bench's own (`bench.sums`), since a real engine takes no
command to sum.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from sealring.files.config import load_config
from sealring.local.ring import write_cluster
from sealring_model import tiny
from sealring_tools.bench.measure import Result
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError
from sealring_trio.node.runtime import NodeClock
from sealring_trio.node.service import build_runtime, prepare
from sealring_trio.processes.interpreter import run_module

TURNS: Final = 11
ROUNDS: Final = 1000
TURN_SECONDS: Final = 0.6
"""About the most seconds of a turn: on a busy machine a sum may take a thousand times longer. It is
long enough for all processes to be warm for most of it, as in the middle of a text."""

FEWEST: Final = 5
START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 300.0
SUMS_PER_LAYER: Final = 2

SEALED: Final = "sealed"
PLAIN: Final = "plain relay"
TWO: Final = "two plain relays"
DIRECT: Final = "direct"

CEILING: Final = 5.0
"""The most that a sealed sum may take, as a multiple of a direct one."""

_MODULE: Final = "sealring_tools.bench.sums"
_RANKS: Final = 2


@attrs.frozen
class Shape:
    """What is summed: *size* bytes of a row, twice for each of *layers* for a token."""

    size: int = 8192
    layers: int = 32


class Ring:
    """Two ranks that sum on command."""

    def __init__(self, listener: socket.socket) -> None:
        """Waits for both to say that they have joined. Raises `OperationError`."""
        self._ranks: list[socket.socket] = []
        self._rounds = FEWEST
        listener.settimeout(START_SECONDS)
        try:
            for _ in range(_RANKS):
                rank, _ = listener.accept()
                self._ranks.append(rank)
                _line(rank)
        except TimeoutError:
            raise OperationError(
                f"two ranks did not find each other within {START_SECONDS:.0f} s",
                "Their messages are above.",
            ) from None

    def sum_us(self, size: int) -> float:
        """Microseconds of summing *size* bytes, the median of a turn."""
        for rank in self._ranks:
            rank.sendall(json.dumps({"bytes": size, "rounds": self._rounds}).encode() + b"\n")
        took: float = max(_line(rank)["us"] for rank in self._ranks)
        self._rounds = max(FEWEST, min(ROUNDS, int(TURN_SECONDS * 1e6 / took)))
        return took

    def close(self) -> None:
        """End both ranks."""
        for rank in self._ranks:
            rank.close()


def measure(shape: Shape) -> list[Result]:
    """Microseconds of a sum, and the milliseconds of a token's sums, medians of alternating turns:
    each way beside the direct one. Raises `OperationError`."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        rings = {
            DIRECT: stack.enter_context(_direct(folder)),
            PLAIN: stack.enter_context(_forwarded(folder, 1)),
            TWO: stack.enter_context(_forwarded(folder, 2)),
            SEALED: stack.enter_context(_sealed(folder)),
        }
        times: dict[str, list[float]] = {name: [] for name in rings}
        for turn in range(TURNS + 1):
            for name, ring in rings.items():
                took = ring.sum_us(shape.size)
                if turn:  # the first one warms up
                    times[name].append(took)
    found = {name: statistics.median(each) for name, each in times.items()}
    sums = SUMS_PER_LAYER * shape.layers
    each, token = f"sum of {shape.size} bytes", f"sums of a token of {shape.layers} layers"
    return [
        Result(
            f"{what}, {name}",
            unit,
            scale * found[name],
            scale * found[DIRECT],
            DIRECT,
            ceiling=CEILING if name == SEALED else None,
        )
        for what, unit, scale in ((each, "us", 1.0), (token, "ms", sums / 1000))
        for name in (PLAIN, TWO, SEALED)
    ]


# ----------------------------------------------------------------- four rings


@contextlib.contextmanager
def _direct(folder: Path) -> Iterator[Ring]:
    hosts = [("127.0.0.1", port) for port in free_ports(_RANKS)]
    with _commands(folder / "direct.sock") as (path, listener), _ranks(path, [hosts] * _RANKS):
        yield from _joined(listener)


@contextlib.contextmanager
def _forwarded(folder: Path, relays: int) -> Iterator[Ring]:
    """*relays* forwarders on the way from each rank to the next."""
    ports = free_ports(_RANKS)
    with contextlib.ExitStack() as stack:
        path, listener = stack.enter_context(_commands(folder / f"plain{relays}.sock"))
        places = []
        for rank in range(_RANKS):
            right = (rank + 1) % _RANKS
            onward = ports[right]
            for _ in range(relays):
                server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                arguments = ("sealring_tools.bench.forward", str(server.fileno()), str(onward))
                stack.enter_context(_child(arguments, server.fileno()))
                onward = int(server.getsockname()[1])
            hosts = [("127.0.0.1", port) for port in ports]
            hosts[right] = ("127.0.0.1", onward)
            places.append(hosts)
        stack.enter_context(_ranks(path, places))
        yield from _joined(listener)


@contextlib.contextmanager
def _sealed(folder: Path) -> Iterator[Ring]:
    options: dict[str, str | float] = {"strategy": "tp", "group_timeout": START_SECONDS}
    configs = write_cluster(folder, _RANKS, tiny.path(), options=options)
    with contextlib.ExitStack() as stack:
        path, listener = stack.enter_context(_commands(folder / "sealed.sock"))
        for config in configs:
            stack.enter_context(_child((__name__, str(config), str(path))))
        yield from _joined(listener)


def _joined(listener: socket.socket) -> Iterator[Ring]:
    ring = Ring(listener)
    try:
        yield ring
    finally:
        ring.close()


@contextlib.contextmanager
def _commands(path: Path) -> Iterator[tuple[Path, socket.socket]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path, listener


@contextlib.contextmanager
def _ranks(path: Path, places: list[list[tuple[str, int]]]) -> Iterator[None]:
    """A rank for each of *places*, which are the addresses of all as that rank is to see them."""
    with contextlib.ExitStack() as stack:
        for rank, hosts in enumerate(places):
            arguments = ("--commands", str(path), "--rank", str(rank), "--hosts", json.dumps(hosts))
            stack.enter_context(_child((_MODULE, *arguments)))
        yield


@contextlib.contextmanager
def _child(arguments: tuple[str, ...], *descriptors: int) -> Iterator[None]:
    process = subprocess.Popen(
        run_module("sealring_trio.processes.launcher", *arguments),
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=os.environ,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _line(sock: socket.socket) -> dict[str, Any]:
    """The next line. Raises `OperationError`: a rank of MLX's ring whose peer is gone would wait
    for ever."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([sock], [], [], ANSWER_SECONDS)
        part = sock.recv(1024) if ready else b""
        if not part:
            how = "ended in the middle of" if ready else f"took over {ANSWER_SECONDS:.0f} s for"
            raise OperationError(f"a rank {how} its sums", "Its messages are above.")
        data += part
    answer: dict[str, Any] = json.loads(data)
    return answer


async def _be_node(config: Path, commands: str) -> None:
    """The node of *config*, with an engine that sums on command."""
    runtime = build_runtime(prepare(load_config(config)), _MODULE, ("--commands", commands))
    await runtime.run()


if __name__ == "__main__":
    trio.run(_be_node, Path(sys.argv[1]), sys.argv[2], clock=NodeClock())

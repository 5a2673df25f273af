"""A hop of 8 KiB between two processes over trio: sealed by a link, beside a plain trio message.

Both go there and back; a hop is half of that. The plain one is what trio's own stream does with
the same number of bytes. The other process is this module, run with two connected sockets.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from sealring_protocol.codec.messages import Decode, Epoch, Step, StepDone
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.security.handshake import Admission

from sealring_trio.bench.links import End, accept, configs, dial
from sealring_trio.bench.measure import Result
from sealring_trio.wire import Wire

SIZE: Final = 8192
ROUNDS: Final = 15
TRIPS: Final = 300
_EPOCH: Final = Epoch(1, 1)
_TENSOR: Final = Tensor(DType.F32, (1, 1, SIZE // 4), bytes(SIZE))
_SOCKETS: Final = 2


def measure() -> list[Result]:
    """Microseconds per hop, medians of alternating turns."""
    plain, far_plain = _pair()
    sealed, far_sealed = _pair()
    descriptors = [far_plain.fileno(), far_sealed.fileno()]
    with plain, sealed, far_plain, far_sealed:
        process = subprocess.Popen(
            [sys.executable, "-m", "sealring_trio.bench.hop", *map(str, descriptors)],
            pass_fds=descriptors,
        )
        try:
            return [trio.run(_alternate, plain, sealed)]
        finally:
            process.kill()
            process.wait()


async def _alternate(plain: socket.socket, sealed: socket.socket) -> Result:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(plain.dup()))
    wire = Wire(sealed.dup(), lambda: None)
    near, far = configs()
    end = dial(near, far.node_id, trio.current_time())
    await _come_up(end, wire)
    message = os.urandom(SIZE)
    step = Step(_EPOCH, 1, bytes(16), work=Decode(0), tensors=(_TENSOR,))

    async def plain_trip() -> None:
        await stream.send_all(message)
        await _receive(stream)

    async def sealed_trip() -> None:
        end.link.send(step)
        wire.send(end.link.data_to_send())
        while end.take(await wire.receive(), trio.current_time()) is None:
            pass

    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for trip, times in zip((sealed_trip, plain_trip), found, strict=True):
            times.append(await _median(trip))
    await stream.aclose()
    wire.close()
    ours, yardstick = (statistics.median(times) * 1e6 / 2 for times in found)
    return Result("8 KiB hop between processes", "us", ours, yardstick, "plain trio message")


async def _median(trip: Callable[[], Awaitable[None]]) -> float:
    times = []
    for _ in range(TRIPS):
        start = time.perf_counter()
        await trip()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


async def _receive(stream: trio.SocketStream) -> bytes:
    parts = []
    left = SIZE
    while left:
        parts.append(await stream.receive_some(1 << 18))
        left -= len(parts[-1])
        if not parts[-1]:
            return b""
    return b"".join(parts)


async def _come_up(end: End, wire: Wire) -> None:
    while not end.up:
        wire.send(end.link.data_to_send())
        end.take(await wire.receive(), trio.current_time())
    wire.send(end.link.data_to_send())


# ---------------------------------------------------------------- the other process


async def _echo_plain(sock: socket.socket) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    while message := await _receive(stream):
        await stream.send_all(message)


async def _echo_sealed(sock: socket.socket) -> None:
    wire = Wire(sock, lambda: None)
    _, far = configs()
    end = accept(far, Admission(trio.current_time()), trio.current_time())
    while data := await wire.receive():
        message = end.take(data, trio.current_time())
        if message is not None:
            end.link.send(StepDone(message.epoch, message.n, tensors=message.tensors))
        if end.link.has_data_to_send:
            wire.send(end.link.data_to_send())


async def _serve(descriptors: list[int]) -> None:
    plain, sealed = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_echo_plain, plain)
        nursery.start_soon(_echo_sealed, sealed)


if __name__ == "__main__":
    trio.run(_serve, [int(argument) for argument in sys.argv[1 : 1 + _SOCKETS]])

"""A hop of 8 KiB between two processes over trio: sealed by a link, beside a plain trio message.

All go there and back; a hop is half of that. The plain one is what trio's own stream does with the
same number of bytes. Parts of the sealed hop are measured in the same way, each alone: a node's
socket code with nothing on it, and with that the encryption and decryption (AES-256-GCM from the
library), or a STEP encoded and decoded. Each costs more here than in a loop of its own, for a
process that has waited finds its code and data in no cache.

The other process is this module, run with as many connected sockets.
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
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sealring_protocol.codec.encoding import decode, encode
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
_STEP: Final = Step(_EPOCH, 1, bytes(16), work=Decode(0), tensors=(_TENSOR,))
_AEAD: Final = AESGCM(bytes(32))
_NONCE: Final = bytes(12)  # always the same: nobody's secret is sent
_SIDES: Final = 5

Trip = Callable[[], Awaitable[None]]


def measure() -> list[Result]:
    """Microseconds per hop, medians of alternating turns: the sealed hop, and its parts alone."""
    pairs = [_pair() for _ in range(_SIDES)]
    try:
        descriptors = [far.fileno() for _, far in pairs]
        process = subprocess.Popen(
            [sys.executable, "-m", "sealring_trio.bench.hop", *map(str, descriptors)],
            pass_fds=descriptors,
        )
        for _, far in pairs:
            far.close()  # so that its end is seen when the process ends
        try:
            return trio.run(_alternate, [near for near, _ in pairs])
        finally:
            process.kill()
            process.wait()
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


async def _alternate(socks: list[socket.socket]) -> list[Result]:
    trips = {
        "plain": await _plain(socks[0]),
        f"{SIZE // 1024} KiB hop between processes": await _sealed(socks[1]),
        "its wire alone": await _bare(socks[2]),
        "its wire and AES-256-GCM": await _encrypted(socks[3]),
        "its wire and STEP's encoding": await _encoded(socks[4]),
    }
    found: dict[str, list[float]] = {name: [] for name in trips}
    for _ in range(ROUNDS):
        for name, trip in trips.items():
            found[name].append(await _median(trip))
    hops = {name: statistics.median(times) * 1e6 / 2 for name, times in found.items()}
    yardstick = hops.pop("plain")
    return [
        Result(name, "us", ours, yardstick, "plain trio message") for name, ours in hops.items()
    ]


async def _median(trip: Trip) -> float:
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


# ------------------------------------------------------------------- this process


async def _plain(sock: socket.socket) -> Trip:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    message = os.urandom(SIZE)

    async def trip() -> None:
        await stream.send_all(message)
        await _receive(stream.receive_some, SIZE)

    return trip


async def _sealed(sock: socket.socket) -> Trip:
    wire = Wire(sock, lambda: None)
    near, far = configs()
    end = dial(near, far.node_id, trio.current_time())
    await _come_up(end, wire)

    async def trip() -> None:
        end.link.send(_STEP)
        wire.send(end.link.data_to_send())
        while end.take(await wire.receive(), trio.current_time()) is None:
            pass

    return trip


async def _come_up(end: End, wire: Wire) -> None:
    while not end.up:
        wire.send(end.link.data_to_send())
        end.take(await wire.receive(), trio.current_time())
    wire.send(end.link.data_to_send())


async def _bare(sock: socket.socket) -> Trip:
    wire = Wire(sock, lambda: None)
    message = os.urandom(SIZE)

    async def trip() -> None:
        wire.send(message)
        await _receive(wire.receive, SIZE)

    return trip


async def _encrypted(sock: socket.socket) -> Trip:
    wire = Wire(sock, lambda: None)
    message = os.urandom(SIZE)

    async def trip() -> None:
        sealed = _AEAD.encrypt(_NONCE, message, None)
        wire.send(sealed)
        _AEAD.decrypt(_NONCE, await _receive(wire.receive, len(sealed)), None)

    return trip


async def _encoded(sock: socket.socket) -> Trip:
    wire = Wire(sock, lambda: None)

    async def trip() -> None:
        data = b"".join(encode(_STEP))
        wire.send(data)
        decode(await _receive(wire.receive, len(data)))

    return trip


async def _receive(receive: Callable[[], Awaitable[bytes]], size: int) -> bytes:
    """The next *size* bytes, or fewer at the end of the stream."""
    parts = []
    left = size
    while left:
        parts.append(await receive())
        left -= len(parts[-1])
        if not parts[-1]:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


# --------------------------------------------------------------- the other process


async def _echo_plain(sock: socket.socket) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    while message := await _receive(stream.receive_some, SIZE):
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


async def _echo_bare(sock: socket.socket) -> None:
    wire = Wire(sock, lambda: None)
    while data := await _receive(wire.receive, SIZE):
        wire.send(data)


async def _echo_encrypted(sock: socket.socket) -> None:
    wire = Wire(sock, lambda: None)
    while sealed := await _receive(wire.receive, SIZE + 16):
        wire.send(_AEAD.encrypt(_NONCE, _AEAD.decrypt(_NONCE, sealed, None), None))


async def _echo_encoded(sock: socket.socket) -> None:
    wire = Wire(sock, lambda: None)
    size = len(b"".join(encode(_STEP)))
    while data := await _receive(wire.receive, size):
        wire.send(b"".join(encode(decode(data))))


async def _serve(descriptors: list[int]) -> None:
    echoes = (_echo_plain, _echo_sealed, _echo_bare, _echo_encrypted, _echo_encoded)
    async with trio.open_nursery() as nursery:
        for echo, descriptor in zip(echoes, descriptors, strict=True):
            nursery.start_soon(echo, socket.socket(fileno=descriptor))


if __name__ == "__main__":
    trio.run(_serve, [int(argument) for argument in sys.argv[1 : 1 + _SIDES]])

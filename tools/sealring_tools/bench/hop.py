"""A hop of 8 KiB between two processes: sealed by a link, beside a plain trio message.

All are round trips; a hop is half of one. The plain one is trio's own stream with the same number
of bytes. The sealed one is sent and received as on a node's links (`wire`). Its parts are measured
alone in the same way: that wire with plain bytes, then also with encryption and decryption
(AES-256-GCM from the library), or with a STEP encoded and decoded.

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
from typing import Final, Protocol

import trio
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.messages import Decode, Epoch, Step, StepDone
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.security.admission import Admission
from sealring_tools.bench.links import accept, configs, dial
from sealring_tools.bench.measure import Result
from sealring_trio.net.pump import Wire
from sealring_trio.processes.interpreter import run_module

SIZE: Final = 8192
ROUNDS: Final = 15
TRIPS: Final = 300
_EPOCH: Final = Epoch(1, 1)
_TENSOR: Final = Tensor(DType.F32, (1, 1, SIZE // 4), bytes(SIZE))
_STEP: Final = Step(_EPOCH, 1, bytes(16), work=Decode(0), tensors=(_TENSOR,))
_AEAD: Final = AESGCM(bytes(32))
_NONCE: Final = bytes(12)  # always the same: nobody's secret is sent

Turn = Callable[[], Awaitable[float]]
"""Runs one turn; returns the median seconds of a message's round trip in it."""


class Talk(Protocol):
    """One end of round trips: what it says, and when it has heard a whole message."""

    def say(self) -> Buffer:
        """The bytes of the next message."""

    def take(self, data: bytes) -> bool:
        """Receive *data*; returns whether it completes a message."""


def measure() -> list[Result]:
    """Microseconds per hop, medians of alternating turns: the sealed hop, and its parts alone."""
    pairs = [_pair() for _ in range(1 + len(_TALKS))]
    try:
        descriptors = [far.fileno() for _, far in pairs]
        process = subprocess.Popen(
            run_module("sealring_tools.bench.hop", *map(str, descriptors)),
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


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


# ------------------------------------------------------------------- this process


async def _alternate(socks: list[socket.socket]) -> list[Result]:
    plain = _plain(socks[0])
    found: dict[str, list[float]] = {name: [] for name in ("plain", *_TALKS)}
    async with trio.open_nursery() as nursery:
        turns = {"plain": plain}
        for (name, talk), sock in zip(_TALKS.items(), socks[1:], strict=True):
            asker = Asker(sock, talk(dials=True))
            nursery.start_soon(asker.run)
            turns[name] = asker.turn
        for _ in range(ROUNDS):
            for name, turn in turns.items():
                found[name].append(await turn())
        nursery.cancel_scope.cancel()
    hops = {name: statistics.median(times) * 1e6 / 2 for name, times in found.items()}
    yardstick = hops.pop("plain")
    return [
        Result(name, "us", ours, yardstick, "plain trio message") for name, ours in hops.items()
    ]


def _plain(sock: socket.socket) -> Turn:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    message = os.urandom(SIZE)

    async def turn() -> float:
        times = []
        for _ in range(TRIPS):
            start = time.perf_counter()
            await stream.send_all(message)
            await _receive(stream)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return turn


async def _receive(stream: trio.SocketStream) -> bytes:
    """The next `SIZE` bytes, or fewer at the end of the stream."""
    parts = []
    left = SIZE
    while left:
        parts.append(await stream.receive_some())
        left -= len(parts[-1])
        if not parts[-1]:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Asker:
    """Sends the messages of *talk* over *sock*, each as soon as the last one is back."""

    def __init__(self, sock: socket.socket, talk: Talk) -> None:
        self._wire = _wire(sock)
        self._talk = talk
        self._times: list[float] = []
        self._began = 0.0
        self._done = trio.Event()

    async def run(self) -> None:
        """Receive what comes back, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wire.write)
            while data := await self._wire.receive():
                self._heard(data)

    async def turn(self) -> float:
        """As `Turn`."""
        self._times.clear()
        self._done = trio.Event()
        self._ask()
        await self._done.wait()
        return statistics.median(self._times)

    def _ask(self) -> None:
        self._began = time.perf_counter()
        self._wire.send(self._talk.say())

    def _heard(self, data: bytes) -> None:
        if not self._talk.take(data):
            return
        self._times.append(time.perf_counter() - self._began)
        if len(self._times) < TRIPS:
            self._ask()
        else:
            self._done.set()


def _wire(sock: socket.socket) -> Wire:
    wire = Wire(sock, lambda: None)
    wire.make_room()
    return wire


# ------------------------------------------------------------------ what is said


class Sealed:
    """STEPs one way, and STEP_DONEs back, over a link, which comes up at the first turn."""

    def __init__(self, *, dials: bool) -> None:
        now = time.monotonic()
        near, far = configs()
        self._end = dial(near, far.node_id, now) if dials else accept(far, Admission(now), now)
        self._answer = StepDone(_EPOCH, 1, tensors=(_TENSOR,))
        self._dials = dials

    def say(self) -> Buffer:
        """What the link has to say, and a message once it is up."""
        if self._end.up:
            self._end.link.send(_STEP if self._dials else self._answer)
        return self._end.link.data_to_send()

    def take(self, data: bytes) -> bool:
        """Also true where the handshake has something to say."""
        message = self._end.take(data, time.monotonic())
        return message is not None or self._end.link.has_data_to_send


class Bare:
    """`SIZE` bytes."""

    def __init__(self, *, dials: bool) -> None:
        self._message = os.urandom(SIZE)
        self._came: list[bytes] = []
        self._missing = self._size = len(self.say())

    def say(self) -> Buffer:
        """As they are."""
        return self._message

    def take(self, data: bytes) -> bool:
        """Counts them."""
        self._came.append(data)
        self._missing -= len(data)
        if self._missing:
            return False
        self._missing = self._size
        self._open(self._came[0] if len(self._came) == 1 else b"".join(self._came))
        self._came.clear()
        return True

    def _open(self, message: bytes) -> None:
        """Nothing to do."""


class Encrypted(Bare):
    """The same, encrypted."""

    def say(self) -> Buffer:
        """By AES-256-GCM."""
        return _AEAD.encrypt(_NONCE, self._message, None)

    def _open(self, message: bytes) -> None:
        _AEAD.decrypt(_NONCE, message, None)


class Encoded(Bare):
    """The same, in a STEP."""

    def say(self) -> Buffer:
        """Encoded."""
        return b"".join(encode(_STEP))

    def _open(self, message: bytes) -> None:
        decode(message)


_TALKS: Final[dict[str, Callable[..., Talk]]] = {
    f"{SIZE // 1024} KiB hop between processes": Sealed,
    "its wire alone": Bare,
    "its wire and AES-256-GCM": Encrypted,
    "its wire and STEP's encoding": Encoded,
}


# --------------------------------------------------------------- the other process


async def _echo_plain(sock: socket.socket) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    while message := await _receive(stream):
        await stream.send_all(message)


async def _echo(sock: socket.socket, talk: Talk) -> None:
    wire = _wire(sock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.write)
        while data := await wire.receive():
            if talk.take(data):
                wire.send(talk.say())
        nursery.cancel_scope.cancel()


async def _serve(descriptors: list[int]) -> None:
    plain, *others = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_echo_plain, plain)
        for talk, sock in zip(_TALKS.values(), others, strict=True):
            nursery.start_soon(_echo, sock, talk(dials=False))


if __name__ == "__main__":
    trio.run(_serve, [int(argument) for argument in sys.argv[1:]])

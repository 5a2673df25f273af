"""An engine that computes nothing: a child process for tests of its supervision.

    python -m tests.io_trio.fake_engine --fd N MODE

says ENGINE_INFO, answers each PING with a PONG of the same echo, loads, joins and answers steps as
an engine does, with token 7 for each, and misbehaves as MODE says. What a member of a group does
alone is a mode with its number, like ``fails-1``.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import attrs
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    Loaded,
    LocalMessage,
)
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CacheCost,
    Failure,
    FailureKind,
    Ping,
    Pong,
    Progress,
    Ready,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType

RING = 1 << Backend.RING
INFO = EngineInfo(bytes(32), DType.F32, 8, 100, 64, True, 1 << 20, 64, (64, 64), 4, RING)


def frame(message: LocalMessage) -> bytes:
    body = b"".join(encode(message))
    return frame_header(FrameKind.LOCAL, len(body)) + body


class Fake:
    """What an engine of some *mode* answers."""

    def __init__(self, mode: str) -> None:
        self.mode, _, only = mode.partition("-")
        self.only = int(only) if only else None
        self.group: Group | None = None
        self.place: Bootstrap | None = None

    def does(self, mode: str) -> bool:
        """Whether this is one that does so."""
        member = self.group.rank if self.group else 0
        return self.mode == mode and self.only in (None, member)

    def answers(self, message: LocalMessage) -> list[LocalMessage]:
        match message:
            case Ping(echo=echo):
                return [Pong(echo, Progress(memory=os.getpid()))]
            case Bootstrap():
                self.place = message
                ready = [] if self.group and not self.group.hosts else [self.ready()]
                return [Loaded(100, 50, 5), *ready]
            case Group(hosts=hosts):
                self.group = message
                if hosts and self.does("late"):
                    return []
                us = 10 * (message.rank + 1)
                return [Grouped(message.size, us, us), self.ready()] if hosts else []
            case Step():
                return [self.step(message)]
            case _:
                return []

    def ready(self) -> Ready:
        assert self.place is not None
        room = 1000 - (self.group.rank if self.group else 0)
        cost = CacheCost(1, 2, ((16, 3),))
        return Ready(self.place.epoch, 0, 2, True, room, cost)

    def step(self, step: Step) -> StepDone:
        if self.does("dies"):
            sys.exit(3)
        if self.does("fails"):
            failure = Failure(0, FailureKind.ENGINE_ERROR, "no luck")
            return StepDone(step.epoch, step.n, failed=failure)
        return StepDone(step.epoch, step.n, ids=(8 if self.does("differs") else 7,))


def compute(seconds: float) -> None:
    """Take *seconds* of a processor's time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def serve(sock: socket.socket, mode: str) -> None:
    if mode == "mute":
        signal.pause()
    if mode == "begins":
        compute(0.2)
    fake = Fake(mode)
    sock.sendall(frame(attrs.evolve(INFO, splits=3) if mode == "odd" else INFO))
    if mode == "noise":
        sock.sendall(b"\xff" * 64)
    if mode == "network":
        sock.sendall(frame_header(FrameKind.SEALED, 4) + bytes(4))
    decoder = FrameDecoder({FrameKind.LOCAL: 1 << 24})
    while data := sock.recv(1 << 16):
        decoder.receive_data(data)
        while (got := decoder.next_frame()) is not None:
            message = decode_local(got.body)
            if mode == "crash":
                sys.exit(3)
            if mode == "eats":
                eaten = []
                while True:
                    eaten.append(b"x" * (1 << 22))
            if mode == "computes":
                compute(2.0)
            if mode == "hang":
                while True:
                    time.sleep(3600)  # with the stream open, and deaf
            for answer in fake.answers(message):
                sock.sendall(frame(answer))
    if mode == "orphan":
        signal.pause()  # ignores the end of its stream


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3])

"""The fake engine (`sim.fake_engine`) as a child process, for tests of its supervision.

    python -m tests.io_trio.engine_child --fd N MODE

says ENGINE_INFO, answers as that engine does, each PING with its process id as the memory, and
misbehaves as MODE says. What a member of a group does alone is a mode with its number, like
``fails-1``. In mode ``slow`` a member joins its group only once it has another order to load.
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
from sealring_protocol.codec.local_messages import Group, Grouped, Loaded, LocalMessage
from sealring_protocol.codec.messages import Bootstrap, CacheCost, Ping, Pong, Progress, Ready, Step

from tests.sim.fake_engine import FakeEngine, info

INFO = info(layers=2, context=64, splits=4)
COST = CacheCost(1, 2, ((16, 3),))
PROMPT = (5, 6, 7)
"""Of the row that a member chokes on in mode ``fails``: one of these tokens is poison."""


def frame(message: LocalMessage) -> bytes:
    body = b"".join(encode(message))
    return frame_header(FrameKind.LOCAL, len(body)) + body


class Child:
    """An engine that behaves as *mode* says."""

    def __init__(self, mode: str) -> None:
        self.mode, _, only = mode.partition("-")
        self.only = int(only) if only else None
        self.member = 0
        self.joins: Group | None = None
        self.engine = FakeEngine(attrs.evolve(INFO, splits=3) if mode == "odd" else INFO)
        self.behave()

    def behave(self) -> None:
        """Have the engine fail, or draw other tokens, if this member is one that does."""
        self.engine.poison = PROMPT[0] if self.does("fails") else None
        self.engine.wrong = self.does("differs")

    def does(self, mode: str) -> bool:
        """Whether this is one that does so."""
        return self.mode == mode and self.only in (None, self.member)

    def answers(self, message: LocalMessage) -> list[LocalMessage]:
        match message:
            case Ping(echo=echo):
                return [Pong(echo, Progress(memory=os.getpid()))]
            case Group(rank=rank, hosts=()):
                self.member = rank
                self.behave()
            case Group() if self.does("slow"):
                self.joins = message
                return []
            case Group():
                return [] if self.does("late") else self.join(message)
            case Bootstrap() if self.joins is not None:
                joined, self.joins = self.join(self.joins), None
                return joined + [self.told(answer) for answer in self.engine.receive(message)]
            case Step() if self.does("dies"):
                sys.exit(3)
        return [self.told(answer) for answer in self.engine.receive(message)]

    def join(self, group: Group) -> list[LocalMessage]:
        """The group has formed: from now on it is ready as soon as it has loaded."""
        assert self.engine.ready is not None
        self.engine.share = None
        us = 10 * (group.rank + 1)
        return [Grouped(group.size, us, us), self.told(self.engine.ready)]

    def told(self, answer: LocalMessage) -> LocalMessage:
        """*answer* with figures that differ by member and field, so that tests see each merged."""
        match answer:
            case Ready():
                return attrs.evolve(answer, room=1000 - self.member, cost=COST)
            case Loaded():
                return Loaded(100, 50, 5)
        return answer


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
    child = Child(mode)
    for message in child.engine.start():
        sock.sendall(frame(message))
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
            if mode == "faults":
                os.kill(os.getpid(), signal.SIGSEGV)
            if mode == "eats":
                eaten = []
                while True:
                    eaten.append(b"x" * (1 << 22))
            if mode == "computes":
                compute(2.0)
            if mode == "hang":
                while True:
                    time.sleep(3600)  # with the stream open, and deaf
            for answer in child.answers(message):
                sock.sendall(frame(answer))
    if mode == "orphan":
        signal.pause()  # ignores the end of its stream


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3])

"""A collective group of engine processes, driven as a `Ring` of executors is."""

import socket
from collections.abc import Sequence
from pathlib import Path

import attrs
from model_child import Child
from model_rings import Author, Ring, StepFailed, place_of
from sealring_model.loading.model_folder import describe
from sealring_protocol.codec.local_messages import (
    Group,
    Grouped,
    Loaded,
    LocalMessage,
    Logprobs,
    Scores,
)
from sealring_protocol.codec.messages import Backend, Ready, Row, Step, StepDone

DEADLINE_MS = 60_000


def free_hosts(count: int) -> tuple[tuple[str, int], ...]:
    """Ports of this machine that nobody listens on."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    hosts = tuple(("127.0.0.1", sock.getsockname()[1]) for sock in socks)
    for sock in socks:
        sock.close()
    return hosts


def ring_of(rank: int, size: int, hosts: Sequence[tuple[str, int]] = ()) -> Group:
    return Group(Backend.RING, rank, size, DEADLINE_MS, tuple(hosts))


class Members(Ring):
    """*size* engines for each stage of *bounds*, each stage's a group; the head's side as of a
    ring. Every answer of a stage is checked to be the same from all of its members. *options* are
    the last member's."""

    def __init__(
        self,
        folder: Path,
        bounds: Sequence[int] | None = None,
        *,
        size: int = 2,
        options: Sequence[str] = (),
    ) -> None:
        self.info = describe(folder)
        self.bounds = tuple(bounds or (0, len(self.info.layers)))
        self.size = size
        self.author = Author()
        self.params = self
        self.uids = iter(range(1, 1 << 30))
        self.last, self.text, self.told = {}, {}, {}
        self.stages = [
            [Child(folder, *(options if member == size - 1 else ())) for member in range(size)]
            for _ in self.bounds[1:]
        ]
        self.loaded: list[list[Loaded]] = []
        self.grouped: list[list[Grouped]] = []
        self.ready: list[list[Ready]] = []

    @property
    def children(self) -> list[Child]:
        return [child for members in self.stages for child in members]

    def __enter__(self) -> "Members":
        try:
            self._form()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.sock.close()
        for child in self.children:
            child.wait()

    def _form(self) -> None:
        for child in self.children:
            child.info()
        for rank, members in enumerate(self.stages):
            for member, child in enumerate(members):
                child.send(ring_of(member, self.size))
                child.send(place_of(self.info, self.bounds, rank))
        self.loaded = [_all(members, Loaded) for members in self.stages]
        for members in self.stages:
            hosts = free_hosts(self.size)
            for member, child in enumerate(members):
                child.send(ring_of(member, self.size, hosts))
        for members in self.stages:
            self.grouped.append(_all(members, Grouped))
            self.ready.append(_all(members, Ready))

    def add(self, row: Row) -> None:
        """Announce *row* to every member that samples: so `announce` of a ring does it."""
        for child in self.stages[0]:
            child.send(row)

    def send(self, step: Step) -> StepDone:
        message: Step | StepDone = step
        for members in self.stages:
            message = self._passed(members, message)
        if len(self.stages) > 1 and message.tensors:
            message = self._passed(self.stages[0], message)
        return message

    def _passed(self, members: list[Child], message: Step | StepDone) -> Step | StepDone:
        for child in members:
            child.send(message)
        answers = [self.answer(members, member) for member in range(len(members))]
        for answer in answers:
            if answer.failed:
                raise StepFailed(answer.failed)
            assert attrs.evolve(answer, spent=()) == attrs.evolve(answers[0], spent=())
        return answers[0]

    def answer(self, members: list[Child], member: int) -> LocalMessage:
        """The next answer of *member*; only the first one tells log probabilities."""
        while isinstance(message := members[member].receive(), Logprobs | Scores):
            assert member == 0
            self.told.setdefault(message.uid, []).append(message)
        return message


def _all(members: list[Child], kind: type) -> list:
    messages = [child.receive() for child in members]
    assert all(isinstance(message, kind) for message in messages), messages
    return messages

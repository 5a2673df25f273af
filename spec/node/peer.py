"""The other end of live.js: one rank of a two-rank ring on its STEP link, in Python.

It does what live.js does (rank 0 dials and drives, rank 1 listens and doubles every element), by
the same CONFIG.json, out of the public parts of `sealring_protocol`: a `Link` on a blocking
socket, a `Ledger`, and both inner seals.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from sealring_protocol.codec.messages import (
    Decode,
    Epoch,
    Join,
    Message,
    Open,
    Prefill,
    Spent,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.errors import CloseCode, SealringError
from sealring_protocol.link import (
    EncapsulationRequested,
    Link,
    LinkClosed,
    LinkEvent,
    LinkOpened,
    PeerProved,
    SignatureRequested,
)
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import PREFILL_GROUP, InnerContext, InnerOpener, InnerSealer

HIDDEN: Final = 16
PROMPT: Final = 5
BOUNDS: Final = (0, 6, 12)
GROUP: Final = 3
UIDS: Final = (7, 8)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


class Connection:
    """A link over a socket, one event at a time."""

    def __init__(self, sock: socket.socket, link: Link, signer: SoftwareSigner) -> None:
        self._sock = sock
        self._link = link
        self._signer = signer

    def next(self) -> LinkEvent:
        """The next event that asks for nothing."""
        while True:
            event = self._link.next_event()
            match event:
                case None:
                    self._wait()
                case SignatureRequested(payload):
                    self._link.provide_signature(self._signer.sign(payload), time.monotonic())
                case EncapsulationRequested(key):
                    secret, text = MLKEM768PublicKey.from_public_bytes(key).encapsulate()
                    self._link.provide_encapsulation(text, secret, time.monotonic())
                case PeerProved():
                    self._link.admit(time.monotonic())
                case _:
                    return event

    def up(self) -> LinkOpened:
        event = self.next()
        assert isinstance(event, LinkOpened), event
        return event

    def send(self, message: Message) -> None:
        self._link.send(message)
        self._flush()

    def close(self) -> None:
        """Say CLOSE, and wait until the peer has ended its side too."""
        self._link.close(CloseCode.SHUTDOWN, "")
        self._flush()
        self._sock.shutdown(socket.SHUT_WR)
        while self._sock.recv(1 << 16):
            pass
        self._sock.close()

    def _flush(self) -> None:
        self._sock.sendall(self._link.data_to_send())

    def _wait(self) -> None:
        """Until bytes have come or time is up."""
        self._flush()
        deadline = self._link.next_timeout()
        assert deadline is not None
        self._sock.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            data = self._sock.recv(1 << 16)
        except TimeoutError:
            self._link.handle_timeout(time.monotonic())
        else:
            self._link.receive_data(data, time.monotonic()) if data else self._link.receive_eof()


@attrs.frozen
class Place:
    """Where a step's tensor belongs, on either hop, and its shape."""

    step: Step
    ledger: Ledger

    @property
    def rows(self) -> tuple[int, ...]:
        match self.step.work:
            case Decode(group):
                return self.ledger.groups.get(group, ())
            case Prefill(uid):
                return (uid,)
        raise AssertionError(self.step.work)

    @property
    def shape(self) -> tuple[int, ...]:
        work = self.step.work
        tokens = work.count if isinstance(work, Prefill) else 1
        return (len(self.rows), tokens, HIDDEN)

    def at(self, boundary: int) -> InnerContext:
        work = self.step.work
        group = work.group if isinstance(work, Decode) else PREFILL_GROUP
        return InnerContext(self.step.epoch, self.step.n, group, boundary, self.rows)


def doubled(elements: bytes) -> bytes:
    layout = struct.Struct(f"<{len(elements) // 4}f")
    return layout.pack(*(2 * element for element in layout.unpack(elements)))


def random_elements(shape: tuple[int, ...]) -> bytes:
    rows, tokens, hidden = shape
    count = rows * tokens * hidden
    return struct.pack(f"<{count}f", *(secrets.randbits(32) / 2**32 for _ in range(count)))


def written_steps(epoch: Epoch, count: int) -> Iterator[Step]:
    """The steps that the head writes: every row is read in, all join, and the group decodes."""
    for n in range(1, count + 1):
        if n <= len(UIDS):
            uid = UIDS[n - 1]
            yield Step(epoch, n, bytes(16), open=(Open(uid),), work=Prefill(uid, 0, PROMPT))
        else:
            join = tuple(Join(uid, GROUP) for uid in UIDS) if n == len(UIDS) + 1 else ()
            yield Step(epoch, n, bytes(16), join=join, work=Decode(GROUP))


class Rank:
    """One rank, by its configuration."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._signer = SoftwareSigner.from_scalar(int(told["scalar"], 16))
        self._config = HandshakeConfig(
            self._signer.public_key,
            SignedRoster.decode(bytes.fromhex(told["roster"])),
            bytes.fromhex(told["coordinator"]),
            secrets.randbits(64),
            tuple(Suite(suite) for suite in told["suites"]),
        )
        self._roster = self._config.roster.roster

    def run(self) -> None:
        rank = self._roster.rank(self._config.node_id)
        connection = self._dial() if rank == 0 else self._await()
        up = connection.up()
        hop, cluster = up.hop, self._roster.cluster
        sealer = InnerSealer(hop.suite, hop.send, cluster)
        opener = InnerOpener(hop.suite, hop.receive, cluster)
        act = self._lead if rank == 0 else self._serve
        did = act(connection, sealer, opener)
        say(rank=rank, peer=up.peer.hex(), suite=int(up.suite), **did)

    def _dial(self) -> Connection:
        sock = socket.create_connection(("127.0.0.1", self._told["port"]))
        peer, entropy = self._roster.members[1].id, secrets.token_bytes(96)
        link = Link.dial(self._config, peer, Purpose.STEP, time.monotonic(), wall_ms(), entropy)
        return Connection(sock, link, self._signer)

    def _await(self) -> Connection:
        with socket.create_server(("127.0.0.1", 0)) as server:
            say(port=server.getsockname()[1])
            sock, (source, _) = server.accept()
        now = time.monotonic()
        link = Link.accept(
            self._config, Admission(now), source, now, wall_ms(), secrets.token_bytes(32)
        )
        return Connection(sock, link, self._signer)

    def _lead(
        self, connection: Connection, sealer: InnerSealer, opener: InnerOpener
    ) -> dict[str, int]:
        ledger, answered = Ledger(), 0
        for planned in written_steps(Epoch(self._config.instance, 1), self._told["steps"]):
            ledger.apply(planned)
            place = Place(planned, ledger)
            data = random_elements(place.shape)
            sealed = sealer.seal(place.at(BOUNDS[1]), DType.F32, place.shape, data)
            digest = ledger.digest(planned.n)
            connection.send(attrs.evolve(planned, digest=digest, tensors=(sealed,)))

            done = connection.next()
            assert isinstance(done, StepDone), done
            assert done.n == planned.n
            assert done.failed is None
            for answer in done.tensors:
                assert opener.open(place.at(BOUNDS[2]), answer) == doubled(data)
                answered += 1
        connection.close()
        return {"steps": self._told["steps"], "answered": answered}

    def _serve(
        self, connection: Connection, sealer: InnerSealer, opener: InnerOpener
    ) -> dict[str, int]:
        ledger, steps = Ledger(), 0
        while isinstance(step := connection.next(), Step):
            ledger.apply(step)
            assert ledger.digest(step.n) == step.digest
            place = Place(step, ledger)
            elements = opener.open(place.at(BOUNDS[1]), step.tensors[0])
            begin = time.perf_counter()
            result = doubled(elements)
            spent = Spent(round(1e6 * (time.perf_counter() - begin)))
            tensors: tuple[Tensor, ...] = ()
            if isinstance(step.work, Decode):
                tensors = (sealer.seal(place.at(BOUNDS[2]), DType.F32, place.shape, result),)
            connection.send(StepDone(step.epoch, step.n, tensors=tensors, spent=(spent,)))
            steps += 1
        assert isinstance(step, LinkClosed), step
        return {"steps": steps}


if __name__ == "__main__":
    try:
        Rank(json.loads(Path(sys.argv[1]).read_text())).run()
    except (SealringError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")

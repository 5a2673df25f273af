"""The link that the trace tells: ada (rank 0) dials ben (rank 1) for steps, and sends one.

It is computed by `spec.vectors.plain` and `talk` from the specification's formulas alone, with the
keys and the entropy of the vectors.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Final

import attrs
from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.messages import (
    Close,
    Epoch,
    Message,
    Open,
    Ping,
    Pong,
    Prefill,
    Progress,
    Step,
)
from sealring_protocol.codec.tensor import DType, Tensor

from spec.vectors.plain import Keys, LedgerState, Place, inner_sealed, place_of
from spec.vectors.talk import SS, X_ANSWERING, X_DIALING, Talk
from spec.vectors.world import ADA, BEN, CLUSTER

EPOCH: Final = Epoch(ADA.instance, 1)
UID: Final = 7
SHAPE: Final = (1, 2, 4)
BOUNDARY: Final = 8
COUNTER: Final = 0
"""Of the inner seal: the first tensor of this link."""

ELEMENTS: Final = struct.pack("<8f", *(value / 4 for value in range(8)))
PLACE: Final = Place(
    CLUSTER, EPOCH.instance, EPOCH.counter, 1, 0xFFFF, BOUNDARY, int(DType.F32), SHAPE, (UID,)
)


@attrs.frozen
class Sealed:
    """One sealed frame: who sent it, its number in that direction, and what it says."""

    to_answerer: bool
    number: int
    message: str
    plaintext: bytes
    frame: bytes
    secret: bytes

    @property
    def keys(self) -> Keys:
        """Key and iv that seal it."""
        return Keys.of(self.secret, place_of(self.number)[0])

    @property
    def nonce(self) -> bytes:
        """Its nonce."""
        return self.keys.nonce(place_of(self.number)[1])


class Link:
    """The whole link, from INIT to CLOSE."""

    def __init__(self) -> None:
        self.talk = Talk(1, dialer=ADA, answerer=BEN, purpose=2)
        self.init = self.talk.init()
        self.resp = self.talk.resp()
        self.fin = self.talk.fin()
        self.ss_kem = SS
        self.ss_x = X_DIALING.exchange(X_ANSWERING.public_key())

    @cached_property
    def activation(self) -> bytes:
        """The activation secret towards ben, under which ada's engine seals tensors."""
        return self.talk.secret(b"activation", 0)

    @cached_property
    def tensor(self) -> Tensor:
        """The hidden states of two tokens, sealed by ada's engine."""
        data = inner_sealed(self.talk.suite, self.activation, COUNTER, ELEMENTS, PLACE)
        return Tensor(DType.F32, SHAPE, data, sealed=True, counter=COUNTER)

    @cached_property
    def step(self) -> Step:
        """Step 1 of the epoch: row 7 begins, and two tokens of it are read."""
        digest = LedgerState(private={UID: 2}).digest(1)
        work = Prefill(UID, 0, 2)
        return Step(EPOCH, 1, digest, open=(Open(UID),), work=work, tensors=(self.tensor,))

    @cached_property
    def frames(self) -> list[Sealed]:
        """The sealed frames in the order in which they travel."""
        accept = self.talk.accept()
        plain = b"\x04" + self.talk.t4 + struct.pack(">QI", 5, 0)
        told = [Sealed(False, 0, "ACCEPT", plain, accept, self.talk.secret(b"traffic", 1))]
        said: list[tuple[bool, Message]] = [
            (True, Ping(1, Progress())),
            (False, Pong(1, Progress(steps_received=3))),
            (True, self.step),
            (True, Close(0, "enough")),
        ]
        numbers = {True: 0, False: 1}
        for outward, message in said:
            data = b"".join(bytes(part) for part in encode(message))
            seal = self.talk.to_answerer if outward else self.talk.to_dialer
            secret = self.talk.secret(b"traffic", 0 if outward else 1)
            frame = seal(numbers[outward], data)
            told.append(Sealed(outward, numbers[outward], message.CODE.name, data, frame, secret))
            numbers[outward] += 1
        return told

"""Captures made of what two links say to each other, as a recorder beside them would have it."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from pathlib import Path

import attrs
from sealring_protocol.codec.messages import Decode, Epoch, Step
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.errors import CloseCode
from sealring_protocol.security.handshake import TrafficSecrets
from sealring_protocol.security.roles import Purpose

from tests.link.pair import Pair, config

PORTS = {"ab": (40001, 7470), "ba": (7470, 40001)}
STEPS = 70
"""More than 64: the keys change on the way."""

Said = list[tuple[str, bytes]]


def talk(steps: int = STEPS) -> tuple[Said, list[TrafficSecrets]]:
    """What a link of *steps* steps says, by direction and in order; and its keys, from each end."""
    keys: list[TrafficSecrets] = []
    said: Said = []
    ends = [attrs.evolve(config(index), key_log=keys.append) for index in (0, 1)]
    pair = Pair(*ends, purpose=Purpose.STEP, indexes=(0, 1))
    for way in ("ab", "ba"):
        pair.mangle[way] = lambda data, way=way: said.append((way, data)) or data
    pair.run()
    epoch, tensor = Epoch(7, 1), Tensor(DType.F32, (1, 1, 4), bytes(16))
    for n in range(1, steps + 1):
        pair.a.link.send(Step(epoch, n, bytes(16), work=Decode(3), tensors=(tensor,)))
        pair.run()
    pair.a.link.close(CloseCode.SHUTDOWN, "enough")
    pair.run()
    assert pair.a.error is None
    assert pair.b.error is None
    assert sum(isinstance(event, Step) for event in pair.b.events) == steps
    return said, keys


def segments(said: Said, size: int = 1000) -> list[bytes]:
    """IPv4 packets of a TCP connection that carries *said*, cut at *size* bytes."""
    sequence = {"ab": 0xFFFF_FF00, "ba": 5}  # one wraps around
    packets = [packet("ab", sequence["ab"], 2, b""), packet("ba", sequence["ba"], 0x12, b"")]
    sequence = {way: (at + 1) % (1 << 32) for way, at in sequence.items()}
    for way, data in said:
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            packets.append(packet(way, sequence[way], 0x18, piece))
            sequence[way] = (sequence[way] + len(piece)) % (1 << 32)
    return packets


def packet(way: str, sequence: int, flags: int, data: bytes) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", *PORTS[way], sequence, 0, 5 << 4, flags, 65535, 0, 0) + data
    loopback = bytes([127, 0, 0, 1])
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, loopback, loopback)
    return head + tcp


def disturbed(packets: list[bytes], seed: int) -> list[bytes]:
    """*packets*, some of them twice, and some changing places with the one before."""
    choose, result = random.Random(seed), list(packets[:2])
    for one in packets[2:]:
        result.append(one)
        if choose.random() < 0.2:
            result.append(one)
        if choose.random() < 0.2 and len(result) > 3 and result[-1][20:24] == result[-2][20:24]:
            result[-1], result[-2] = result[-2], result[-1]
    return result


def write_pcap(path: Path, packets: Iterable[bytes], link: int = 101, before: bytes = b"") -> Path:
    parts = [struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, link)]
    for at, each in enumerate(packets):
        data = before + each
        parts += [struct.pack("<IIII", 1000, at, len(data), len(data)), data]
    path.write_bytes(b"".join(parts))
    return path


def write_pcapng(path: Path, packets: Iterable[bytes]) -> Path:
    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack(">I", 12 + len(body))
        return struct.pack(">I", kind) + size + body + size

    resolution = struct.pack(">HHB3x", 9, 1, 9) + bytes(4)  # nanoseconds
    parts = [
        block(0x0A0D0D0A, struct.pack(">IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(1, struct.pack(">HHI", 101, 0, 1 << 18) + resolution),
        block(5, bytes(12)),  # statistics, to be skipped
    ]
    for at, each in enumerate(packets):
        ticks = 1000 * 10**9 + at
        body = struct.pack(">IIIII", 0, ticks >> 32, ticks & 0xFFFFFFFF, len(each), len(each))
        parts.append(block(6, body + each))
    path.write_bytes(b"".join(parts))
    return path

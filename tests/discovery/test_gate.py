"""What strangers send passes a gate before it is read."""

from __future__ import annotations

import asyncio
import time

import pytest
from sealring.discovery.multicast import MAX_DATAGRAM, Budget, DatagramGate


class Reader(asyncio.DatagramProtocol):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.read.append(data)


OURS = b"\x09_sealring\x04_tcp\x05local\x00"


@pytest.mark.parametrize(
    ("data", "source", "passes"),
    [
        (OURS, "10.0.0.9", True),
        (OURS, "fe80::1", True),
        (OURS, "fe80::1%2", True),
        (OURS, "8.8.8.8", False),
        (OURS, "2a00::1", False),
        (b"\x04_ipp\x04_tcp\x05local\x00", "10.0.0.9", False),
        (b"", "10.0.0.9", False),
        (OURS.ljust(MAX_DATAGRAM, b"\0"), "10.0.0.9", True),
        (OURS.ljust(MAX_DATAGRAM + 1, b"\0"), "10.0.0.9", False),
    ],
)
def test_what_passes(data: bytes, source: str, passes: bool) -> None:
    reader = Reader()
    DatagramGate(reader, Budget()).datagram_received(data, (source, 5353))
    assert reader.read == ([data] if passes else [])


def test_what_comes_in_takes_a_share_of_a_processor() -> None:
    gate = DatagramGate(Reader(), Budget())
    end, used, count = time.monotonic() + 1.5, time.thread_time(), 0
    while time.monotonic() < end:
        gate.datagram_received(b"nothing", ("10.0.0.9", 5353))
        count += 1
    assert count > 100
    assert time.thread_time() - used < 0.25  # in two of such seconds

"""The network between the machines of a test: packets, with delay, loss, a rate and firewalls.

Each machine's only way out is a TUN device, whose other end is a file descriptor here. One thread
takes each IPv4 packet from it and writes it to the machine that the packet is addressed to, as late
as the `Way` between the two says, or never. No qdisc and no packet filter of the kernel is needed:
many kernels lack them.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import threading
import time
from typing import Final

import attrs

MTU: Final = 9000
LONGEST_QUEUE: Final = 0.25
"""Seconds of a rate's packets that wait; further ones are lost, as in a router."""

ADDRESSES: Final = 10
"""How many addresses further on a machine has its next one."""

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_TCP: Final = 6
_SYN: Final = 0x02
_ACK: Final = 0x10


@attrs.define
class Way:
    """One direction between two machines. It may be changed at any time."""

    delay: float = 0.0
    """Seconds that a packet takes."""
    loss: float = 0.0
    """Share of packets that are lost."""
    rate: float = 0.0
    """Bytes a second; 0 for as many as come."""
    opens: bool = True
    """Whether TCP connections may be opened in this direction; if not, a firewall drops their SYN.
    Packets of connections that were opened in the other direction pass."""
    passes: bool = True
    """Whether anything passes."""
    free_at: float = attrs.field(default=0.0, init=False)


class Cable:
    """Connects the machines whose addresses are ``10.77.0.1`` onwards; each may move up by
    `ADDRESSES` as often as it likes."""

    def __init__(self) -> None:
        self.ways: dict[tuple[int, int], Way] = {}
        """By the indices of the sending and the receiving machine."""
        self._devices: list[int] = []
        self._dice = random.Random(17)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def plug(self, device: str) -> None:
        """Make the TUN *device* for the next machine. It goes away with this cable."""
        number = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._devices.append(number)
        fcntl.ioctl(number, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN_NO_PI))
        last = len(self._devices) - 1
        for other in range(last):
            self.ways[last, other], self.ways[other, last] = Way(), Way()

    def start(self) -> None:
        """Carry packets from here on."""
        self._thread.start()

    def stop(self) -> None:
        """Carry no more. Call it while the devices are still there."""
        os.write(self._stopped, b"stop")
        self._thread.join()

    def close(self) -> None:
        """Take the devices away."""
        for number in (*self._devices, self._stop, self._stopped):
            os.close(number)

    def _carry(self) -> None:
        poll = select.poll()
        senders = {number: index for index, number in enumerate(self._devices)}
        for number in (*senders, self._stop):
            poll.register(number, select.POLLIN)
        while True:
            wait = self._waiting[0][0] - time.monotonic() if self._waiting else None
            ready = poll.poll(None if wait is None else max(0.0, 1000 * wait))
            for number, _ in ready:
                if number == self._stop:
                    return
                self._take(number, senders[number])
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, receiver, packet = heapq.heappop(self._waiting)
                self._give(receiver, packet)

    def _take(self, number: int, sender: int) -> None:
        try:
            while True:
                packet = os.read(number, MTU + 64)
                receiver = (packet[19] - 1) % ADDRESSES if packet[0] >> 4 == 4 else -1
                way = self.ways.get((sender, receiver))
                if way is not None:
                    self._send(way, receiver, packet)
        except BlockingIOError:
            return

    def _send(self, way: Way, receiver: int, packet: bytes) -> None:
        if not way.passes or (not way.opens and _opens_connection(packet)):
            return
        if way.loss and self._dice.random() < way.loss:
            return
        now = time.monotonic()
        leaves = now
        if way.rate:
            leaves = max(now, way.free_at) + len(packet) / way.rate
            if leaves - now > LONGEST_QUEUE:
                return
            way.free_at = leaves
        if leaves + way.delay <= now:
            self._give(receiver, packet)
        else:
            item = (leaves + way.delay, next(self._order), receiver, packet)
            heapq.heappush(self._waiting, item)

    def _give(self, receiver: int, packet: bytes) -> None:
        try:
            os.write(self._devices[receiver], packet)
        except OSError:
            return  # the machine's device is down, or its queue is full: a lost packet


def _opens_connection(packet: bytes) -> bool:
    start = (packet[0] & 15) * 4
    return packet[9] == _TCP and packet[start + 13] & (_SYN | _ACK) == _SYN

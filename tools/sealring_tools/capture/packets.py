"""TCP segments out of a capture file, pcap or pcapng.

The formats are those of the Internet drafts *PCAP Capture File Format* and *PCAP Now Generic*; of
the second, section headers, interfaces and enhanced packets, which is what capturing programs
write. Links of Ethernet, loopback, raw IP and Linux's "any" device are known; IPv4 without
fragments, and IPv6 without extension headers, which is how TCP comes. All other packets are
skipped.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from sealring_trio.errors import UserError
from sealring_trio.units import format_address

_PCAP: Final = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e-6),
    b"\xa1\xb2\xc3\xd4": (">", 1e-6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
    b"\xa1\xb2\x3c\x4d": (">", 1e-9),
}
_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_ORDER: Final = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _PACKET = 1, 6
_RESOLUTION: Final = 9

# How many bytes are before the IP packet, by the code of the kind of link.
_LINK_HEADER: Final = {0: 4, 1: 14, 12: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20}
_ETHERNET, _VLAN = 1, (b"\x81\x00", b"\x88\xa8")
_TCP: Final = 6
_SHORTEST_TCP: Final = 20


@attrs.frozen
class Segment:
    """One TCP segment: seconds since 1970, both ends as ``host:port``, and its data."""

    time: float
    source: str
    destination: str
    sequence: int
    syn: bool
    data: bytes = attrs.field(repr=False)


def read_segments(path: Path) -> Iterator[Segment]:
    """The TCP segments in *path*, in the file's order. Raises `UserError` if it is no capture."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "Name a capture file.") from None
    try:
        for time, link, packet in _packets(data, path):
            if segment := _segment(time, link, packet):
                yield segment
    except struct.error:
        raise UserError(
            f"{path} is cut short or damaged", "Record it anew, or repair it with a capture tool."
        ) from None


def _packets(data: bytes, path: Path) -> Iterator[tuple[float, int, bytes]]:
    if data[:4] in _PCAP:
        return _pcap(data)
    if data[:4] == _SECTION:
        return _pcapng(data)
    raise UserError(
        f"{path} is neither pcap nor pcapng",
        "Record one with: tcpdump -i any -w FILE tcp port 7470",
    )


def _pcap(data: bytes) -> Iterator[tuple[float, int, bytes]]:
    order, resolution = _PCAP[data[:4]]
    (link,) = struct.unpack_from(f"{order}I", data, 20)
    at = 24
    while at < len(data):
        seconds, fraction, size, _ = struct.unpack_from(f"{order}4I", data, at)
        at += 16 + size
        if at > len(data):
            return  # the recorder was stopped in the middle of a packet
        yield seconds + fraction * resolution, link & 0xFFFF, data[at - size : at]


def _pcapng(data: bytes) -> Iterator[tuple[float, int, bytes]]:
    order, interfaces, at = "<", list[tuple[int, float]](), 0
    while at + 12 <= len(data):
        if data[at : at + 4] == _SECTION:
            order, interfaces = _ORDER.get(data[at + 8 : at + 12], "<"), []
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if size < 12 or at + size > len(data):
            return
        if kind == _INTERFACE:
            (link,) = struct.unpack_from(f"{order}H", data, at + 8)
            interfaces.append((link, _resolution(data[at + 16 : at + size - 4], order)))
        elif kind == _PACKET:
            number, high, low, length = struct.unpack_from(f"{order}4I", data, at + 8)
            if number < len(interfaces) and length <= size - 32:
                link, resolution = interfaces[number]
                yield (high << 32 | low) * resolution, link, data[at + 28 : at + 28 + length]
        at += size


def _resolution(options: bytes, order: str) -> float:
    """Seconds in one tick of an interface's clock."""
    at = 0
    while at + 4 <= len(options):
        code, size = struct.unpack_from(f"{order}HH", options, at)
        if code == _RESOLUTION and size == 1 and at + 4 < len(options):
            power = options[at + 4]
            return float(2.0 ** -(power & 0x7F) if power & 0x80 else 10.0**-power)
        at += 4 + size + -size % 4
    return 1e-6


def _segment(time: float, link: int, packet: bytes) -> Segment | None:
    skip = _LINK_HEADER.get(link)
    if skip is None:
        return None
    while link == _ETHERNET and packet[skip - 2 : skip] in _VLAN:
        skip += 4
    packet = packet[skip:]
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20 and packet[9] == _TCP:
        end, start = int.from_bytes(packet[2:4], "big"), 4 * (packet[0] & 15)
        hosts = packet[12:16], packet[16:20]
    elif version == 6 and len(packet) >= 40 and packet[6] == _TCP:
        end, start = 40 + int.from_bytes(packet[4:6], "big"), 40
        hosts = packet[8:24], packet[24:40]
    else:
        return None
    tcp = packet[start:end] if end > start else packet[start:]  # 0: the card cuts it up
    if len(tcp) < _SHORTEST_TCP:
        return None
    ports = struct.unpack_from(">HH", tcp)
    (sequence,) = struct.unpack_from(">I", tcp, 4)
    ends = [
        format_address(str(ipaddress.ip_address(host)), port)
        for host, port in zip(hosts, ports, strict=True)
    ]
    syn, data = bool(tcp[13] & 2), tcp[4 * (tcp[12] >> 4) :]
    return Segment(time, ends[0], ends[1], sequence, syn, data)

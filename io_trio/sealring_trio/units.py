"""Sizes, addresses and the wall clock: the numbers that machines use, and what people write.

Sizes take binary suffixes, as memory is sold: ``32G`` is 32 x 2^30 bytes. Addresses are
``host:port``, with an IPv6 host in brackets. Wall clock times are milliseconds since 1970, as in
rosters and logs; all deadlines go by trio's clock.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import time
from typing import Final

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+)):(\d{1,5})")

_LAST_SECOND: Final = 253_402_300_799
"""The last of the year 9999, with which Python's calendar ends."""


def wall_ms() -> int:
    """The wall clock now."""
    return time.time_ns() // 1_000_000


def format_time(wall_ms: int) -> str:
    """A wall clock time for people. Rosters may name times that are beyond the calendar."""
    if wall_ms // 1000 > _LAST_SECOND:
        return "after the year 9999"
    return f"{datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def parse_size(text: str) -> int:
    """Bytes of ``24G``, ``512M``, ``1.5GiB`` or a plain number. Raises `ValueError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no size; write one like 24G or 512M")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size <= 0:
        raise ValueError(f"'{text}' is no size; it must be more than nothing")
    return size


def format_size(size: int) -> str:
    """*size* bytes for people, in binary units: ``1.5 GiB``."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``. Raises `ValueError`."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 0 < int(match[3]) < 1 << 16:
        raise ValueError(f"'{text}' is no address; write host:port, or [ipv6]:port")
    return match[1] or match[2], int(match[3])


def format_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_unspecified(host: str) -> bool:
    """Whether *host* stands for every address of a machine, as 0.0.0.0 does."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether *host* is this machine and can be reached from no other."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Sizes and addresses as people write them, to and from the numbers that machines use.

Sizes take binary suffixes, as memory is sold: ``32G`` is 32 x 2^30 bytes. Addresses are
``host:port``, with an IPv6 host in brackets.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+)):(\d{1,5})")


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

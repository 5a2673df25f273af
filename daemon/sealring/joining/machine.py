"""What a machine says of itself to others: its name, its system, its memory, and where it is
reached; and which names a person would take for each other.

A cluster's owner may give any printable name. A newcomer gives its own, and a person decides by
what is on a screen. So the name of a newcomer is ASCII: beyond it, letters of one script look like
those of another (Unicode Technical Standard 39, https://www.unicode.org/reports/tr39/), and which
do changes with each version of Unicode. Of ASCII letters and digits few are confusable;
`look_alike` knows them.
"""

from __future__ import annotations

import ipaddress
import platform
import re
import socket
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

import psutil  # type: ignore[import-untyped]
from sealring_protocol.codec.wire import is_plain
from sealring_protocol.limits import MAX_INVITATION_ADDRESSES, MAX_NAME, MAX_SYSTEM
from sealring_trio.units import format_address, is_loopback, is_unspecified

_INSIDE: Final = re.compile(r"docker|br-|veth|virbr|vmnet|lxc|cni|flannel|podman|bridge1\d\d")
"""How interfaces begin that containers and virtual machines of this machine use among themselves:
another machine has the same addresses on its own."""

_ELSEWHERE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of documentation (RFC 5737, RFC 3849). Nothing is sent there."""

_NAMELESS: Final = "machine"

_BETWEEN: Final = re.compile(r"[\s._-]+")
_CONFUSABLE: Final = (("I", "l"), ("|", "l"), ("1", "l"), ("0", "o"), ("O", "o"))
_CONFUSABLE_PAIRS: Final = (("rn", "m"), ("vv", "w"))


def machine_name() -> str:
    """What to call this machine: the first part of its host name."""
    return ascii_name(socket.gethostname().partition(".")[0]) or _NAMELESS


def system_name() -> str:
    """This machine's system, in words: ``macOS 26.1, arm64``."""
    match platform.system():
        case "Darwin":
            name = f"macOS {platform.mac_ver()[0]}"
        case "Linux":
            try:
                name = platform.freedesktop_os_release()["PRETTY_NAME"]
            except (OSError, KeyError):
                name = "Linux"
        case other:
            name = other
    told = f"{name}, {platform.machine()}"
    return "".join(c for c in told if is_plain(c)).encode()[:MAX_SYSTEM].decode(errors="ignore")


def machine_memory() -> int:
    """Bytes of memory that this machine has."""
    return int(psutil.virtual_memory().total)


def addresses_of(listen: tuple[str, int], first: str = "") -> tuple[str, ...]:
    """Where others reach what listens at *listen*, the best first: that host itself; or, if it is
    every address of this machine, those of its interfaces, beginning with *first* if that is one.
    Those of loopback are given only if there is no other, or *first* is one."""
    host, port = listen
    if is_unspecified(host) and is_loopback(first):
        host = first
    if not is_unspecified(host):
        return (format_address(host, port),)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = list(_interfaces(family))
    best = [each for each in (first, _outward(family)) if each in found]
    chosen = list(dict.fromkeys(best + found)) or ["::1" if ":" in host else "127.0.0.1"]
    return tuple(format_address(host, port) for host in chosen[:MAX_INVITATION_ADDRESSES])


def _interfaces(family: socket.AddressFamily) -> Iterator[str]:
    """The addresses at which other machines may reach the interfaces that are up."""
    for _, address in interface_addresses(family):
        if not ipaddress.ip_address(address).is_link_local:
            yield address


def interface_addresses(family: socket.AddressFamily) -> Iterator[tuple[str, str]]:
    """The name and the address, without a zone, of each interface that leads to other machines and
    is up; one that has several addresses comes several times."""
    up = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if name not in up or not up[name].isup or _INSIDE.match(name):
            continue
        for each in addresses:
            if each.family == family:
                address = ipaddress.ip_address(each.address.partition("%")[0])
                if not address.is_loopback:
                    yield name, str(address)


def _outward(family: socket.AddressFamily) -> str:
    """The address of the interface that leads away from this machine; empty if none does."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((_ELSEWHERE[family], 9))
        except OSError:
            return ""
        return str(sock.getsockname()[0])


# ---------------------------------------------------------------------- names


def plain_name(text: str) -> str:
    """*text* as a machine's name: printable, and of `MAX_NAME` bytes at most; empty if nothing of
    it can be."""
    kept = "".join(char for char in text if is_plain(char)).strip()
    return kept.encode()[:MAX_NAME].decode(errors="ignore").strip()


def ascii_name(text: str) -> str:
    """*text* as a newcomer's name: letters lose their accents, and what is not ASCII then is left
    out."""
    return plain_name(unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode())


def ascii_text(text: str, limit: int) -> str:
    """What a stranger wrote, for a screen: up to *limit* characters of ASCII. What is not ASCII is
    written as its code, since letters of some scripts have those around them read the other way."""
    return text.encode("ascii", "backslashreplace").decode()[:limit]


def look_alike(name: str, other: str) -> bool:
    """Whether a person may take *name* for *other*: they differ in case, in accents, in what is
    between words, or in characters such as 1 and l."""
    return _folded(name) == _folded(other) or _skeleton(name) == _skeleton(other)


def alike(name: str, names: Iterable[str]) -> str:
    """The first of *names* that *name* is, or looks like; empty if there is none."""
    return next((each for each in names if look_alike(name, each)), "")


def free_name(name: str, taken: Iterable[str]) -> str:
    """*name*, or with a number after it if it is, or looks like, one that is *taken*."""
    others = list(taken)
    number, free = 1, name
    while alike(free, others):
        number += 1
        end = f"-{number}"
        free = name.encode()[: MAX_NAME - len(end)].decode(errors="ignore") + end
    return free


def _folded(name: str) -> str:
    """*name* without case, accents, compatibility forms, and differences of what is between
    words."""
    letters = unicodedata.normalize("NFKD", name.strip())
    bare = "".join(char for char in letters if not unicodedata.combining(char))
    return _BETWEEN.sub("-", unicodedata.normalize("NFKC", bare.casefold()))


def _skeleton(name: str) -> str:
    """*name* with one character for each of those that look the same."""
    for character, same in _CONFUSABLE:
        name = name.replace(character, same)
    folded = _folded(name)
    for pair, same in _CONFUSABLE_PAIRS:
        folded = folded.replace(pair, same)
    return folded

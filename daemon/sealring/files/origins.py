"""The names by which the HTTP API may be addressed, and the origins whose pages may use it.

A request's Host header says by which name its client found the server. A web page can have its own
name resolve to loopback (DNS rebinding), but it cannot have the browser send another name. A
browser's Origin header says which page asks. Both are read by one strict grammar (RFC 9110, 7.2;
RFC 6454, 7): no user, no path, no percent-encoding, ASCII only. What it does not match is no name
at all. Case and one dot at the end do not count, and IPv6 addresses are compared as numbers.

A name in a config is exact, or begins with ``*.``, which stands for one label or more. For origins
of other schemes than HTTP, which are those of programs (``vscode-webview://*``), ``*`` may also
stand for the whole host. ``*`` alone stands for everything.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

import attrs
from sealring_trio.units import is_loopback

ANY: Final = "*"

MAX_NAME: Final = 253
"""Characters of a host's name, which is what DNS allows."""

_PORTS: Final = {"http": 80, "https": 443}
"""The ports that an origin of a web page leaves out."""

_AUTHORITY: Final = re.compile(
    r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\.?)(?::([0-9]{1,5}))?"
)
_ORIGIN: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31})://(.+)", re.DOTALL)


@attrs.frozen
class Authority:
    """A host, in one spelling, and the port if there is one."""

    host: str
    port: int | None


@attrs.frozen
class Origin:
    """Where a page is from; *port* is None where its scheme has no usual one and none is given."""

    scheme: str
    host: str
    port: int | None

    def is_at(self, host: Authority, *, secure: bool) -> bool:
        """Whether it is a page of the server itself, which was addressed as *host*. If *secure*,
        that server speaks TLS, and so do its pages; if not, a proxy before it may."""
        if self.scheme not in (("https",) if secure else _PORTS):
            return False
        return self.host == host.host and self.port == (host.port or _PORTS[self.scheme])


def parse_authority(text: str) -> Authority | None:
    """The host and port that *text* names; None if it is not ``host`` or ``host:port``."""
    match = _AUTHORITY.fullmatch(text)
    if match is None or len(text) > MAX_NAME + len(".:65535"):
        return None
    literal, name, digits = match.groups()
    port = int(digits) if digits else None
    if port is not None and not 0 < port < 1 << 16:
        return None
    if literal is None:
        return Authority(name.lower(), port)
    try:
        return Authority(ipaddress.IPv6Address(literal).compressed, port)
    except ValueError:
        return None


def parse_origin(text: str) -> Origin | None:
    """The origin that *text* names; None if it is none, as ``null`` is."""
    match = _ORIGIN.fullmatch(text)
    place = parse_authority(match[2]) if match else None
    if match is None or place is None:
        return None
    scheme = match[1].lower()
    return Origin(scheme, place.host, place.port or _PORTS.get(scheme))


@attrs.frozen
class _Allowed:
    names: Sequence[str] = ()

    @property
    def everyone(self) -> bool:
        """Whether every name, or every page, is allowed."""
        return ANY in self.names


class AllowedHosts(_Allowed):
    """What `allowed_hosts` in the config says, besides loopback."""

    def allow(self, host: str) -> bool:
        """Whether a server on loopback may be addressed as *host*, in the spelling of
        `Authority`."""
        if is_loopback(host):
            return True
        return any(name == ANY or _fits(host, name) for name in self.names)


class AllowedOrigins(_Allowed):
    """What `allowed_origins` in the config says, besides the server's own pages."""

    def allow(self, origin: str) -> bool:
        """Whether pages of *origin*, as their browser says, may use the API. ``null``, which
        any page can have itself called, is allowed with everything else only."""
        if self.everyone:
            return True
        page = parse_origin(origin)
        return page is not None and any(_same_page(page, name) for name in self.names)


def _same_page(page: Origin, name: str) -> bool:
    scheme, _, place = name.partition("://")
    if place == ANY:
        return page.scheme == scheme
    wild = place.startswith("*.")
    allowed = parse_origin(f"{scheme}://{place.removeprefix('*.')}")
    if allowed is None or (page.scheme, page.port) != (allowed.scheme, allowed.port):
        return False
    return _fits(page.host, f"*.{allowed.host}" if wild else allowed.host)


def _fits(host: str, name: str) -> bool:
    """Whether *host* is *name*, or is below it if that begins with ``*.``."""
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def check_host(text: str) -> str:
    """*text*, a name of `allowed_hosts`, in the spelling of `Authority`. Raises `ValueError`."""
    if text == ANY:
        return text
    wild = text.startswith("*.")
    bare = f"[{text}]" if text.count(":") > 1 and "[" not in text else text
    place = parse_authority(bare.removeprefix("*."))
    if place is None:
        raise ValueError(
            f"'{text}' is no name of a host; write one like mymac.local, *.example.com or "
            "192.168.1.10, in ASCII, without a scheme"
        )
    if place.port is not None:
        raise ValueError(f"'{text}' has a port, which does not count; leave it out")
    return f"*.{place.host}" if wild else place.host


def check_origin(text: str) -> str:
    """*text*, a name of `allowed_origins`, in one spelling. Raises `ValueError`."""
    if text == ANY:
        return text
    if text == "null":
        raise ValueError(
            "any page can have itself called 'null', so it names none; serve your page by HTTP and "
            "name that, or say '*' for all pages"
        )
    scheme, mark, place = text.rstrip("/").partition("://")
    scheme = scheme.lower()
    if place == ANY and scheme not in _PORTS and parse_origin(f"{scheme}://x"):
        return f"{scheme}://{ANY}"
    wild = place.startswith("*.")
    page = parse_origin(f"{scheme}{mark}{place.removeprefix('*.')}")
    if page is None:
        raise ValueError(
            f"'{text}' is no origin; write one like https://chat.example.com, "
            "http://192.168.1.10:3000, app://obsidian.md, https://*.example.com or "
            "vscode-webview://*, without a path"
        )
    host = f"[{page.host}]" if ":" in page.host else page.host
    port = "" if page.port in (None, _PORTS.get(scheme)) else f":{page.port}"
    return f"{scheme}://{'*.' if wild else ''}{host}{port}"

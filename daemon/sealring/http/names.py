"""Which names a request may call this server by, and which pages may use it.

Any web page can make a browser on this machine send requests to loopback. So while the API listens
on loopback without keys, a request must name loopback as its host, or one of the config's
`allowed_hosts`, which an attack by DNS rebinding does not. A request that names an origin, as those
of web pages do, must come from this server's own page, or from one of `allowed_origins`. Only the
latter get CORS headers: other origins get no answer to read. The page's files say nothing
of the ring, and are served under every name, as a proxy may give it another.

Pages of other origins (https://fetch.spec.whatwg.org/#http-cors-protocol): a browser keeps an
answer from a page unless the answer names the page's origin. Before a request that no form could
send it asks whether it may (a preflight): ``OPTIONS``, without a key. Answers never allow
credentials, as the API knows no cookies: a key is a header that the page itself gives, and the
browser adds nothing that would let one page act as another.

Each machine of a ring goes by its own config: names and pages are those of the address that a
client has. A follower checks them before it passes a request on (`relay`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from sealring_protocol.codec.wire import clip
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from sealring.dialects.errors import INVALID, ApiError
from sealring.files.config import Config
from sealring.files.origins import AllowedOrigins, parse_authority, parse_origin

PAGE_FILES: Final = "/dashboard/"
"""The folder of the page's files."""

_SHOWN: Final = 200
_FOREIGN: Final = ("cross-site", "same-site")
_VISIT: Final = "navigate"

MAX_ASKED: Final = 64
"""Headers that a preflight may ask for; more are left out."""

MAX_AGE: Final = 600
"""Seconds for which a browser may keep the answer to a preflight."""

_METHODS: Final = "GET, HEAD, POST, DELETE"
_REQUEST: Final = "access-control-request-"

_ALLOWED: Final = re.compile(
    r"(?:accept|authorization|baggage|cache-control|content-type|http-referer|idempotency-key"
    r"|last-event-id|traceparent|tracestate|user-agent|x-api-key|x-request-id|x-requested-with"
    r"|x-title|(?:anthropic|openai|x-stainless)-[a-z0-9-]{1,64})"
)
"""Headers that pages may send, in lower case: those that the API reads, and those that clients of
OpenAI's and Anthropic's send with every request."""

_EXPOSED: Final = (
    "request-id, retry-after, server-timing, traceparent, tracestate, www-authenticate, "
    "x-request-id, x-sealring-adapted, x-sealring-head, x-sealring-ignored, x-sealring-tools"
)
"""Headers of answers that pages may read."""


def plain(path: str) -> str:
    """*path* without the slashes that clients add where a base URL ends with one. What is looked up
    afterwards is this path alone, so that no other spelling gets past a check."""
    if path.startswith(PAGE_FILES):
        return path
    return "/" + "/".join(part for part in path.split("/") if part)


def is_page(path: str) -> bool:
    """Whether *path* is one of the page's files."""
    return path == "/" or path.startswith(PAGE_FILES)


def is_named(config: Config, given: str) -> bool:
    """Whether *given*, which a request names as its host, is a name of the server of *config* on
    loopback."""
    host = parse_authority(given)
    return host is not None and config.hosts.allow(host.host)


def check_host(config: Config, given: str) -> None:
    """Raise `ApiError` if *given*, a request's host, may be another's name for loopback."""
    if not is_named(config, given):
        host = parse_authority(given)
        message = f"The host '{clip(given, _SHOWN)}' is not one of this server's names."
        if host is not None:
            message += (
                f" If it is to be one, add it to the config of its node: "
                f"allowed_hosts = [{json.dumps(host.host)}] "
                f"(sealring serve: --allowed-hosts {host.host})."
            )
        message += " An address on loopback needs no such line."
        raise ApiError(403, message, "wrong_host", kind=INVALID, param="host")


def check_page(headers: Headers, *, secure: bool) -> None:
    """Raise `ApiError` for a request with *headers* of a page that is not this server's own, which
    speaks TLS if it is *secure*."""
    for given in headers.getlist("origin"):
        page, host = parse_origin(given), parse_authority(headers.get("host", ""))
        if page is None or host is None or not page.is_at(host, secure=secure):
            raise ApiError(403, _foreign(given), "wrong_origin", kind=INVALID, param="origin")
    # A page's request for a picture or a script names no origin, but says where it is from.
    if headers.get("sec-fetch-site") in _FOREIGN and headers.get("sec-fetch-mode") != _VISIT:
        message = (
            "Pages of another site may not use this server. If one is to, have it ask by CORS, "
            "and add its origin to the config of its node: allowed_origins = [...]."
        )
        raise ApiError(403, message, "wrong_site", kind=INVALID, param="sec-fetch-site")


def _foreign(origin: str) -> str:
    """The refusal for pages of *origin*, which may not use the API."""
    message = f"Pages of the origin '{clip(origin, _SHOWN)}' may not use this server."
    if parse_origin(origin) is not None:
        return (
            f"{message} If they are to, add it to its node's config: "
            f"allowed_origins = [{json.dumps(origin)}] "
            f"(sealring serve: --allowed-origins {origin}). If they are this server's own, behind "
            "a proxy, have the proxy pass the Host header on."
        )
    if origin == "null":
        return (
            f"{message} A file or a sandboxed frame has no origin of its own, so it cannot be told "
            "from any other page: serve the page by HTTP, and allow its origin."
        )
    return message


def shared_with(headers: Headers, allowed: AllowedOrigins) -> str:
    """The value of ``Access-Control-Allow-Origin`` for the page that sent *headers*; empty if it
    gets none."""
    origins = headers.getlist("origin")
    if len(origins) != 1 or not allowed.allow(origins[0]):
        return ""
    return "*" if allowed.everyone else origins[0]


def is_preflight(method: str, headers: Headers) -> bool:
    """Whether a browser asks what a page may send."""
    return method == "OPTIONS" and "origin" in headers and f"{_REQUEST}method" in headers


def preflight(headers: Headers) -> Response:
    """The answer to a preflight of a page that may use the API."""
    given = {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": ", ".join(_granted(headers)),
        "access-control-max-age": str(MAX_AGE),
    }
    if headers.get(f"{_REQUEST}private-network") == "true":
        given["access-control-allow-private-network"] = "true"
    asked = (f"{_REQUEST}{each}" for each in ("method", "headers", "private-network"))
    return Response(status_code=204, headers={**given, "vary": ", ".join(asked)})


def _granted(headers: Headers) -> Iterator[str]:
    """Those of the headers that the page wants to send which it may send."""
    asked = headers.get(f"{_REQUEST}headers", "").lower().split(",")[:MAX_ASKED]
    return (name for each in asked if _ALLOWED.fullmatch(name := each.strip()))


def share(headers: MutableHeaders, with_origin: str) -> None:
    """Have an answer with *headers* say that pages of *with_origin* (see `shared_with`) may read
    it, and that it depends on who asks."""
    if with_origin:
        headers["access-control-allow-origin"] = with_origin
        headers["access-control-expose-headers"] = _EXPOSED
    headers.add_vary_header("Origin")

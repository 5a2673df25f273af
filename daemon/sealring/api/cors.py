"""Cross-origin resource sharing (https://fetch.spec.whatwg.org/#http-cors-protocol): what a browser
is told about pages of other origins, which the config's `allowed_origins` names.

The browser keeps an answer from a page unless the answer names the page's origin. Before a request
that no form could send it asks whether it may (a preflight): ``OPTIONS``, without a key. Answers
never allow credentials, as the API knows no cookies: a key is a header that the page itself gives,
and the browser adds nothing that would let one page act as another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from sealring.files.origins import AllowedOrigins

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
    "x-request-id, x-sealring-adapted, x-sealring-ignored, x-sealring-tools"
)
"""Headers of answers that pages may read."""


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
    told = {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": ", ".join(_granted(headers)),
        "access-control-max-age": str(MAX_AGE),
    }
    if headers.get(f"{_REQUEST}private-network") == "true":
        told["access-control-allow-private-network"] = "true"
    asked = (f"{_REQUEST}{each}" for each in ("method", "headers", "private-network"))
    return Response(status_code=204, headers={**told, "vary": ", ".join(asked)})


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

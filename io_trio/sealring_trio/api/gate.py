"""The checks before a request is read: it gets an id, its caller is found, and the caller's
requests are counted.

Once an API key has been made, each request needs one, except for `PUBLIC` paths, which tell no
secrets. Beyond loopback there must be keys. A config may exempt loopback, by name.

Any web page can make a browser on the head's machine send requests to loopback. So while the API
listens on loopback without keys, a request must name loopback as its host, which an attack by DNS
rebinding does not. A request that names an origin, as those of web pages do, must come from this
server's own page. There are no CORS headers: other origins get no answer to read.

The time that a prompt takes, and how much of it was cached, would reveal what others asked before.
So a request shares cached prefixes with requests of the same known key only; without a key, with
those of its own connection. The config's `prefix_sharing` may say otherwise. Each connection has an
id that is never used again (``scope["state"]["connection"]``), since the next client may get the
same address and port.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio
from sealring_protocol.codec.wire import clip
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealring_trio.api.connections import MAX_CONNECTIONS
from sealring_trio.api.errors import INVALID, ApiError, unavailable
from sealring_trio.api.head import ApiHead
from sealring_trio.api.keys import digest
from sealring_trio.errors import UserError
from sealring_trio.files.units import is_loopback

log = logging.getLogger("sealring.api")

MAX_OF_ONE: Final = MAX_CONNECTIONS // 2
"""Requests with one key that are being answered at once: slow bodies with it leave room for
everybody else's."""

PUBLIC: Final = ("/health", "/")
PUBLIC_BELOW: Final = "/dashboard/"
"""Paths that need no key, and the folder of the dashboard's files."""

PREFIXES: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chatcmpl-",
    "/v1/completions": "cmpl-",
}
"""How the ids of answers begin; those of other requests begin with ``req-``."""

_SHOWN: Final = 200
_TOLD: Final = 8  # digits of a key's hash, in logs
_KNOWN: Final = "known "  # how the owner of a known key begins; its digest follows
_FOREIGN: Final = ("cross-site", "same-site")
_VISIT: Final = "navigate"

_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


@attrs.frozen
class Caller:
    """Who sent a request: its *id*, the caller's name in logs, and when it came (trio's clock).
    Callers take turns by *owner*; cached prefixes are shared within *scope*."""

    id: str
    name: str
    owner: str
    scope: str
    arrived: float

    @property
    def keyed(self) -> bool:
        """Whether the request had a known key."""
        return not self.scope

    def may_stay(self, head: ApiHead) -> bool:
        """Whether *head* would still let the caller in: keys are made and revoked while a stream
        runs."""
        try:
            if not head.keys_needed:
                return True
            return self.keyed and head.keys.has(self.owner.removeprefix(_KNOWN))
        except UserError:
            return False


def is_public(path: str) -> bool:
    """Whether *path* needs no key."""
    return path in PUBLIC or path.startswith(PUBLIC_BELOW)


class Gate:
    """ASGI middleware in front of *app*."""

    def __init__(self, app: ASGIApp, head: ApiHead) -> None:
        self._app = app
        self._head = head
        self._of_owner: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        name = PREFIXES.get(path, "req-") + secrets.token_hex(12)
        status = 499  # of a client that has gone before its answer began

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = name
                for header, value in _HEADERS.items():
                    headers[header] = value
            await send(message)

        try:
            caller = self._admit(scope, path, name)
            scope.setdefault("state", {})["visitor"] = caller
            with self._counted(caller):
                await self._app(scope, receive, answer)
        except ApiError as error:
            await error.response()(scope, receive, answer)
        finally:
            self._head.metrics.answered(path, status)
            log.debug("%s: %s %s: %d", name, scope["method"], clip(path, _SHOWN), status)

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        """Count one more request of its owner until the block ends. Raises `ApiError` if its known
        key has too many; requests without a key are bounded by their connections."""
        owner = caller.owner
        if caller.keyed and self._of_owner[owner] >= MAX_OF_ONE:
            text = "Too many requests with this key are being answered at once."
            raise unavailable(text, "overloaded")
        self._of_owner[owner] += 1
        try:
            yield
        finally:
            self._of_owner[owner] -= 1
            if not self._of_owner[owner]:
                del self._of_owner[owner]

    def _admit(self, scope: Scope, path: str, name: str) -> Caller:
        """The caller of request *name*. Raises `ApiError` if it may not pass."""
        headers = Headers(scope=scope)
        with _told_if_unreadable():
            needed = self._head.keys_needed
        self._check_origin(headers, needed)
        presented = _presented(headers)
        with _told_if_unreadable():
            owner = self._head.keys.owner(presented) if presented else None
        if needed and owner is None and not is_public(path):
            what = "This API needs a key" if not presented else "The API key is not known"
            raise ApiError(
                401,
                f"{what}: send 'Authorization: Bearer KEY' with one of 'sealring apikey new'.",
                "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if self._head.generator.draining and scope["method"] == "POST":
            raise unavailable("The head is shutting down.", "shutting_down", retry=5)
        key = digest(presented) if presented else ""
        now = trio.current_time()
        if owner is not None:
            return Caller(name, owner, f"{_KNOWN}{key}", "", now)
        # Where no key is needed, clients that present one still take turns by it. Many present the
        # same, such as "unused"; so it is no sign that they are one.
        shared = self._shared(scope, name)
        return Caller(name, f"key-{key[:_TOLD]}" if key else "", f"unknown {key}", shared, now)

    def _shared(self, scope: Scope, name: str) -> str:
        """The scope in which the caller of request *name*, who has no known key, shares cached
        prefixes."""
        match self._head.config.prefix_sharing:
            case "everyone":
                return "everyone"
            case "connection" if connection := scope.get("state", {}).get("connection"):
                return f"connection {connection}"
            case _:
                return f"request {name}"

    def _check_origin(self, headers: Headers, keys_needed: bool) -> None:
        host = headers.get("host", "")
        if not keys_needed and not self._is_own(host):
            message = f"The host '{host}' is not this server; use its address on loopback."
            raise ApiError(403, message, "wrong_host", kind=INVALID, param="host")
        origin = headers.get("origin")
        if origin is not None and not _is_at(origin, host):
            message = f"Pages of the origin '{origin}' may not use this server."
            raise ApiError(403, message, "wrong_origin", kind=INVALID, param="origin")
        # A page's request for a picture or a script names no origin, but says where it is from.
        if headers.get("sec-fetch-site") in _FOREIGN and headers.get("sec-fetch-mode") != _VISIT:
            message = "Pages of another site may not use this server."
            raise ApiError(403, message, "wrong_site", kind=INVALID, param="sec-fetch-site")

    def _is_own(self, host: str) -> bool:
        try:
            return is_loopback(urlsplit(f"//{host}").hostname or "")
        except ValueError:
            return False


@contextmanager
def _told_if_unreadable() -> Iterator[None]:
    """Turns the error of an unreadable key file within the block into an `ApiError`."""
    try:
        yield
    except UserError as error:
        log.warning("%s", error)
        raise unavailable("The API keys cannot be read.", "keys_unreadable") from None


def _is_at(origin: str, host: str) -> bool:
    """Whether pages of *origin* come from *host*."""
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:
        return False


def _presented(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""

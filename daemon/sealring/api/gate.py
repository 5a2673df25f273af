"""The checks before a request is read: it gets an id, its caller is found, and the caller's
requests are counted. A fault in what comes after is answered here too, so that every answer has the
headers that this adds.

Once an API key has been made, each request needs one, except for `PUBLIC` paths, which tell no
secrets. Beyond loopback there must be keys. A config may exempt loopback, by name.

Any web page can make a browser on the head's machine send requests to loopback. So while the API
listens on loopback without keys, a request must name loopback as its host, or one of the config's
`allowed_hosts`, which an attack by DNS rebinding does not. A request that names an origin, as those
of web pages do, must come from this server's own page, or from one of `allowed_origins`. Only the
latter get CORS headers (`cors`): other origins get no answer to read. The page's files tell nothing
of this head, and are served under every name, as a proxy may give it another. `PROBES` are answered
under every name too, for a load balancer's check may name no host; under another name than the
server's the answer says only whether, and not why.

The time that a prompt takes, and how much of it was cached, would reveal what others asked before.
So a request shares cached prefixes with requests of the same known key only; without a key, with
those of its own connection. The config's `prefix_sharing` may say otherwise. Each connection has an
id that is never used again (``scope["state"]["connection"]``), since the next client may get the
same address and port.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import attrs
import trio
from sealring_protocol.codec.wire import clip
from sealring_trio.errors import UserError
from sealring_trio.units import is_loopback
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealring.api import cors
from sealring.api.connections import MAX_CONNECTIONS
from sealring.api.errors import INVALID, ApiError, is_anthropic, unavailable
from sealring.api.head import ApiHead
from sealring.api.keys import digest
from sealring.api.trace_context import TraceContext, request_id
from sealring.files.origins import parse_authority, parse_origin

log = logging.getLogger("sealring.api")

MAX_OF_ONE: Final = MAX_CONNECTIONS // 2
"""Requests with one key that are being answered at once: slow bodies with it leave room for
everybody else's."""

PUBLIC: Final = (*PROBES, "/", "/openapi.json")
PUBLIC_BELOW: Final = "/dashboard/"
"""Paths that need no key, and the folder of the page's files."""

PREFIXES: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chatcmpl-",
    "/v1/completions": "cmpl-",
    "/v1/responses": "resp_",
    "/v1/messages": "msg_",
}
"""How the ids of answers begin; those of other requests begin with ``req-``."""

_SHOWN: Final = 200
_TOLD: Final = 8  # digits of a key's hash, in logs
_KNOWN: Final = "known "  # how the owner of a known key begins; its digest follows
_FOREIGN: Final = ("cross-site", "same-site")
_VISIT: Final = "navigate"

_BUG: Final = ApiError(
    500, "The server failed; its log says how.", "internal_error", kind="server_error"
)

_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


@attrs.frozen
class Caller:
    """Who sent a request: its *id*, the caller's name in logs, and when it came (trio's clock).
    Callers take turns by *owner*; cached prefixes are shared within *scope*. What it takes of
    memory counts to *account*: without a known key that is the client's address, as it could
    present another key with each request. *asked* is what the
    client calls the request, if it does, and *trace_id* the trace that it belongs to. The answer
    has what is *told* among its headers."""

    id: str
    name: str
    owner: str
    scope: str
    account: str
    arrived: float
    asked: str = ""
    trace_id: str = ""
    told: dict[str, str] = attrs.field(factory=dict, eq=False)

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


def _plain(path: str) -> str:
    """*path* without the slashes that clients add where a base URL ends with one. What is looked up
    afterwards is this path alone, so that no other spelling gets past a check."""
    if path.startswith(PUBLIC_BELOW):
        return path
    return "/" + "/".join(part for part in path.split("/") if part)


def _address(scope: Scope) -> str:
    """The account of the client of *scope*: its address. All of loopback is one, since whoever is
    there has all of it."""
    host = (scope.get("client") or ("",))[0]
    return f"address {'loopback' if is_loopback(host) else host}"


def is_public(path: str) -> bool:
    """Whether *path* needs no key."""
    return path in PUBLIC or path.startswith(PUBLIC_BELOW)


def _is_page(path: str) -> bool:
    """Whether *path* is one of the page's files."""
    return path == "/" or path.startswith(PUBLIC_BELOW)


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
        path = scope["path"] = _plain(scope["path"])
        name = PREFIXES.get(path, "req-") + secrets.token_hex(12)
        status = 499  # of a client that has gone before its answer began
        begun = False
        headers = Headers(scope=scope)
        asked, context = request_id(headers), TraceContext.of(headers)
        shared = cors.shared_with(headers, self._head.config.origins)

        async def answer(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                told = MutableHeaders(scope=message)
                told["x-request-id"] = asked or name
                if is_anthropic(path):
                    told["request-id"] = asked or name
                told["traceparent"] = context.parent
                if context.state:
                    told["tracestate"] = context.state
                for header, value in _HEADERS.items():
                    told[header] = value
                if (caller := scope.get("state", {}).get("visitor")) is not None:
                    told.update(caller.told)
                cors.share(told, shared)
            await send(message)

        try:
            needed = self._keys_needed()
            self._check_names(scope, headers, keys_needed=needed)
            if not shared and not _is_page(path):
                self._check_page(headers, secure=scope.get("scheme") == "https")
            if shared and cors.is_preflight(scope["method"], headers):
                await cors.preflight(headers)(scope, receive, answer)
                return
            caller = self._admit(scope, headers, name, needed)
            caller = attrs.evolve(caller, asked=asked, trace_id=context.trace_id)
            scope.setdefault("state", {})["visitor"] = caller
            with self._counted(caller):
                await self._app(scope, receive, answer)
        except ApiError as error:
            await error.response(path)(scope, receive, answer)
        except Exception:
            if not begun:
                await _BUG.response(path)(scope, receive, answer)
            raise
        finally:
            self._head.metrics.answered(path, status)
            log.debug(
                "%s: %s %s: %d%s",
                name,
                scope["method"],
                clip(path, _SHOWN),
                status,
                named(asked, context.trace_id),
            )

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

    def _keys_needed(self) -> bool:
        with _told_if_unreadable():
            return self._head.keys_needed

    def _admit(self, scope: Scope, headers: Headers, name: str, needed: bool) -> Caller:
        """The caller of request *name*. Raises `ApiError` if it may not pass."""
        presented = _presented(headers)
        with _told_if_unreadable():
            owner = self._head.keys.owner(presented) if presented else None
        if needed and owner is None and not is_public(scope["path"]):
            what = "This API needs a key" if not presented else "The API key is not known"
            raise ApiError(
                401,
                f"{what}: send 'Authorization: Bearer KEY' or 'x-api-key: KEY' with one of "
                "'sealring apikey new'.",
                "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        generator = self._head.generator
        if generator.draining and scope["method"] == "POST":
            code = "not_head" if generator.gives_way else "shutting_down"
            text = generator.refusal.replace("this node", "the head")
            raise unavailable(f"{text[:1].upper()}{text[1:]}.", code, retry=5)
        key = digest(presented) if presented else ""
        now = trio.current_time()
        if owner is not None:
            return Caller(name, owner, f"{_KNOWN}{key}", "", f"{_KNOWN}{key}", now)
        # Where no key is needed, clients that present one still take turns by it. Many present the
        # same, such as "unused"; so it is no sign that they are one.
        shared = self._shared(scope, name)
        told = f"key-{key[:_TOLD]}" if key else ""
        return Caller(name, told, f"unknown {key}", shared, _address(scope), now)

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

    def _check_names(self, scope: Scope, headers: Headers, *, keys_needed: bool) -> None:
        """Raise `ApiError` for a request whose host may be another's name for loopback."""
        given, path = headers.get("host", ""), scope["path"]
        if path in PROBES:
            scope.setdefault("state", {})["brief"] = not (keys_needed or self._is_named(given))
        elif not keys_needed and not _is_page(path):
            self._check_host(given)

    def _is_named(self, given: str) -> bool:
        """Whether *given*, which a request names as its host, is this server's on loopback."""
        host = parse_authority(given)
        return host is not None and self._head.config.hosts.allow(host.host)

    def _check_host(self, given: str) -> None:
        """Raise `ApiError` if *given*, a request's host, may be another's name for loopback."""
        if not self._is_named(given):
            host = parse_authority(given)
            message = f"The host '{clip(given, _SHOWN)}' is not one of this server's names."
            if host is not None:
                message += (
                    f" If it is to be one, add it to the head's config: "
                    f"allowed_hosts = [{json.dumps(host.host)}] "
                    f"(sealring serve: --allowed-hosts {host.host})."
                )
            message += " An address on loopback needs no such line."
            raise ApiError(403, message, "wrong_host", kind=INVALID, param="host")

    def _check_page(self, headers: Headers, *, secure: bool) -> None:
        """Raise `ApiError` for a request of a page that is not this server's own."""
        for given in headers.getlist("origin"):
            page, host = parse_origin(given), parse_authority(headers.get("host", ""))
            if page is None or host is None or not page.is_at(host, secure=secure):
                raise ApiError(403, _foreign(given), "wrong_origin", kind=INVALID, param="origin")
        # A page's request for a picture or a script names no origin, but says where it is from.
        if headers.get("sec-fetch-site") in _FOREIGN and headers.get("sec-fetch-mode") != _VISIT:
            message = (
                "Pages of another site may not use this server. If one is to, have it ask by CORS, "
                "and add its origin to the head's config: allowed_origins = [...]."
            )
            raise ApiError(403, message, "wrong_site", kind=INVALID, param="sec-fetch-site")


def named(asked: str, trace_id: str) -> str:
    """What a line of the log says of the names that others gave a request."""
    return f" (trace {trace_id}{', called ' + asked if asked else ''})"


def _foreign(origin: str) -> str:
    """What pages of *origin*, which may not use the API, are told."""
    message = f"Pages of the origin '{clip(origin, _SHOWN)}' may not use this server."
    if parse_origin(origin) is not None:
        return (
            f"{message} If they are to, add it to the head's config: "
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


@contextmanager
def _told_if_unreadable() -> Iterator[None]:
    """Turns the error of an unreadable key file within the block into an `ApiError`."""
    try:
        yield
    except UserError as error:
        log.warning("%s", error)
        raise unavailable("The API keys cannot be read.", "keys_unreadable") from None


def _presented(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()

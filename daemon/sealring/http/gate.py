"""The checks before a request is read: it gets an id, its caller is found, and the caller's
requests are counted. A fault in what comes after is answered here too, so that every answer has the
headers that this adds.

Once an API key has been made, each request needs one, except for `PUBLIC` paths, which have no
secrets. Beyond loopback there must be keys. A config may exempt loopback, by name.

`names` says which hosts a request may name while no key is asked for, and which pages may ask.
`PROBES` are answered under every name, for a load balancer's check may name no host; under another
name than the server's the answer says only whether, and not why.

A follower passes the requests of its clients on (`relay`). It has checked their names and pages by
its own config; keys are the head's, for them as for all. A client beyond the follower's loopback
needs a key whatever the head asks for. At the follower's Unix socket its owner needs none: the
roster lets that member see texts. What a member and its clients take without a known key counts to
one account, since the member could make up as many addresses as it likes.

The time that a prompt takes, and how much of it was cached, would reveal what others asked before.
So a request shares cached prefixes with requests of the same known key only; without a key, with
those of its own connection. The config's `prefix_sharing` may say otherwise. Each connection has an
id that is never used again (``scope["state"]["connection"]``), since the next client may get the
same address and port.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import attrs
import trio
from sealring_protocol.codec.wire import clip
from sealring_trio.errors import UserError
from sealring_trio.units import is_loopback
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealring.dialects.errors import ApiError, failed, is_anthropic, unavailable
from sealring.http.connections import MAX_CONNECTIONS, OWNER, counted
from sealring.http.head import ApiHead
from sealring.http.http1 import PROBES
from sealring.http.keys import digest
from sealring.http.names import (
    PAGE_FILES,
    check_host,
    check_page,
    is_named,
    is_page,
    is_preflight,
    plain,
    preflight,
    share,
    shared_with,
)

log = logging.getLogger("sealring.api")

PART_OF_ONE: Final = 0.5
"""How many requests with one key may be answered at once, as a part of the connections that there
may be: slow bodies with it leave room for everybody else's."""

PUBLIC: Final = (*PROBES, "/", "/openapi.json")
"""Paths that need no key, as none below `PAGE_FILES` does."""

PREFIXES: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chatcmpl-",
    "/v1/completions": "cmpl-",
    "/v1/responses": "resp_",
    "/v1/messages": "msg_",
}
"""How the ids of answers begin; those of other requests begin with ``req-``."""

ANSWER: Final = b"x-sealring-answer"
"""The header by which a front (`front`) names the answer to a request. What a client sends by this
name is left out."""

AWAY: Final = b"x-sealring-away"
"""The header by which a head tells a front that another head, or this one in a while, can answer:
the code of its error. No client gets it."""

_AWAY: Final = ("no_majority", "not_head", "ring_not_ready", "shutting_down")

_AGAIN: Final = (408, 429, 500, 503, 504)
"""The statuses of requests that may succeed if they are sent again."""

_SHOWN: Final = 200
_DIGITS: Final = 8  # digits of a key's hash, in logs
_KNOWN: Final = "known "  # how the owner of a known key begins; its digest follows

_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}

MAX_STATE: Final = 512
"""Characters of a ``tracestate`` that is taken up."""

MAX_MEMBERS: Final = 32
"""Members of a ``tracestate``, as the recommendation has it."""

MAX_REQUEST_ID: Final = 128
"""Characters of a client's ``x-request-id`` that is taken up."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY: Final = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_VALUE: Final = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER: Final = re.compile(rf"({_KEY})={_VALUE}")
_REQUEST_ID: Final = re.compile(rf"[A-Za-z0-9._~:+=@-]{{1,{MAX_REQUEST_ID}}}")

_KNOWN_FLAGS: Final = 0x03  # sampled, and random
_RANDOM: Final = 0x02


@attrs.frozen
class Caller:
    """Who sent a request: its *id*, the caller's name in logs, and when it came (trio's clock).
    Callers take turns by *owner*; cached prefixes are shared within *scope*. What it takes of
    memory counts to *account*: without a known key that is the client's address, as it could
    present another key with each request, and for another member and its clients that member.
    *asked* is what the client calls the request, if it does, and *trace_id* the trace that it
    belongs to. Who is *far* needs a key whatever the head asks for. The answer has the *headers*
    among its own."""

    id: str
    name: str
    owner: str
    scope: str
    account: str
    arrived: float
    asked: str = ""
    trace_id: str = ""
    far: bool = False
    headers: dict[str, str] = attrs.field(factory=dict, eq=False)

    @property
    def keyed(self) -> bool:
        """Whether the request had a known key."""
        return not self.scope

    def may_admit(self, head: ApiHead) -> bool:
        """Whether the caller may say who becomes a member: with a key of *head* that has this
        right, or as the node's owner. Raises `UserError` if the keys cannot be read."""
        if self.owner == OWNER:
            return True
        return self.keyed and head.keys.may_admit(self.owner.removeprefix(_KNOWN))

    def may_stay(self, head: ApiHead) -> bool:
        """Whether *head* would still let the caller in: keys are made and revoked while a stream
        runs."""
        try:
            if self.owner.startswith(OWNER) or not (self.far or head.keys_needed):
                return True
            return self.keyed and head.keys.has(self.owner.removeprefix(_KNOWN))
        except UserError:
            return False


def _address(scope: Scope) -> str:
    """The account of the client of *scope*: its address, or the member whose client it is. All of
    loopback is one, since whoever is there has all of it."""
    if member := member_of(scope):
        return f"member {member}"
    host = (scope.get("client") or ("",))[0]
    return f"address {'loopback' if is_loopback(host) else host}"


def member_of(scope: Scope) -> str:
    """The member that passed the request of *scope* on; empty if the client asked here."""
    return str(scope.get("state", {}).get("relayed", ""))


def _owner_of(scope: Scope) -> str:
    """Who asks by a Unix socket, which its node opens to its owner alone: of this node, or of the
    member that passed the request on. Empty for any other client."""
    if not scope.get("state", {}).get("owner"):
        return ""
    return f"{OWNER} {member}" if (member := member_of(scope)) else OWNER


def _is_far(scope: Scope) -> bool:
    """Whether the client of *scope* is one of another member, and beyond its loopback."""
    host = (scope.get("client") or ("",))[0]
    return bool(member_of(scope)) and not _owner_of(scope) and not is_loopback(host)


def is_public(path: str) -> bool:
    """Whether *path* needs no key."""
    return path in PUBLIC or path.startswith(PAGE_FILES)


async def nothing(scope: Scope) -> None:
    """Nothing is to be done first."""


class Gate:
    """ASGI middleware in front of *app*, to which there may be so many *connections*. For a request
    that it lets in it first waits for *admitted*, which may raise an `ApiError`."""

    def __init__(
        self,
        app: ASGIApp,
        head: ApiHead,
        connections: int = MAX_CONNECTIONS,
        admitted: Callable[[Scope], Awaitable[None]] = nothing,
    ) -> None:
        self._app = app
        self._admitted = admitted
        self._head = head
        self._most = max(1, int(connections * PART_OF_ONE))
        self._of_owner: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] = plain(scope["path"])
        name = PREFIXES.get(path, "req-") + secrets.token_hex(12)
        status = 499  # of a client that has gone before its answer began
        begun = False
        start: Message | None = None  # goes with the first part of the body
        headers = Headers(scope=scope)
        asked, context = request_id(headers), TraceContext.of(headers)
        here = not member_of(scope)  # else the names and the page were checked there
        shared = shared_with(headers, self._head.config.origins) if here else ""

        async def answer(message: Message) -> None:
            nonlocal status, begun, start
            if message["type"] == "http.response.start":
                status, start = message["status"], message
                sent = MutableHeaders(scope=message)
                sent.update(_HEADERS | _names(path, asked or name, context))
                _leave_out(sent, headers)
                if (caller := scope.get("state", {}).get("visitor")) is not None:
                    sent.update(caller.headers)
                share(sent, shared)
                return
            first, start, begun = start, None, True
            try:
                await self._pass_on(scope, first, message, send)
            except ApiError as error:
                await error_response(error, path)(scope, receive, answer)

        try:
            needed = self._keys_needed(scope)
            self._check_host(scope, headers, keys_needed=needed)
            if here and not shared and not is_page(path):
                check_page(headers, secure=scope.get("scheme") == "https")
            if shared and is_preflight(scope["method"], headers):
                await preflight(headers)(scope, receive, answer)
                return
            caller = attrs.evolve(
                self._admit(scope, headers, name, needed), asked=asked, trace_id=context.trace_id
            )
            scope.setdefault("state", {})["visitor"] = caller
            with nullcontext() if path in PROBES else self._counted(caller):
                await self._admitted(scope)
                await self._app(scope, receive, answer)
        except ApiError as error:
            await error_response(error, path)(scope, receive, answer)
        except Exception:
            if not begun:
                await error_response(failed(), path)(scope, receive, answer)
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

    async def _pass_on(
        self, scope: Scope, start: Message | None, message: Message, send: Send
    ) -> None:
        """Send *start*, if there is one, and *message*. An answer in one piece counts to its
        caller's account until the client has taken it. Raises `ApiError`, before anything is sent,
        if that is too much. A stream counts what it writes itself, and what is `PUBLIC` has the
        same bytes for all."""
        if start is None:
            await send(message)
            return
        caller: Caller | None = scope.get("state", {}).get("visitor")
        counted = not (caller is None or message.get("more_body") or is_public(scope["path"]))
        account = caller.account if caller is not None else ""
        with self._head.holding(account, len(message.get("body", b"")) if counted else 0):
            await send(start)
            await send(message)

    def _counted(self, caller: Caller) -> AbstractContextManager[None]:
        """Counts one more request of its owner. Raises `ApiError` if its known key has too many;
        requests without a key are bounded by their connections."""
        owner = caller.owner
        if caller.keyed and self._of_owner[owner] >= self._most:
            text = "Too many requests with this key are being answered at once."
            raise unavailable(text, "overloaded")
        return counted(self._of_owner, owner)

    def _keys_needed(self, scope: Scope) -> bool:
        if _owner_of(scope):
            return False
        with unreadable_keys():
            return _is_far(scope) or self._head.keys_needed

    def _admit(self, scope: Scope, headers: Headers, name: str, needed: bool) -> Caller:
        """The caller of request *name*. Raises `ApiError` if it may not pass."""
        presented = _presented(headers)
        with unreadable_keys():
            owner = self._head.keys.owner(presented) if presented else None
        if needed and owner is None and not is_public(scope["path"]):
            what = "This API needs a key" if not presented else "The API key is not known"
            where = ", which are made on the head's machine" if member_of(scope) else ""
            raise ApiError(
                401,
                f"{what}: send 'Authorization: Bearer KEY' or 'x-api-key: KEY' with one of "
                f"'sealring apikey new'{where}.",
                "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        generator = self._head.generator
        if generator.draining and scope["method"] == "POST":
            code = "not_head" if generator.gives_way else "shutting_down"
            text = generator.refusal.replace("this node", "the head")
            raise unavailable(f"{text[:1].upper()}{text[1:]}.", code, retry=5)
        now = trio.current_time()
        if who := _owner_of(scope):
            account = _address(scope) if member_of(scope) else who
            return Caller(name, "", who, who, account, now)
        key = digest(presented) if presented else ""
        far = _is_far(scope)
        if owner is not None:
            return Caller(name, owner, f"{_KNOWN}{key}", "", f"{_KNOWN}{key}", now, far=far)
        # Where no key is needed, clients that present one still take turns by it. Many present the
        # same, such as "unused"; so it is no sign that they are one.
        shared = self._shared(scope, name)
        called = f"key-{key[:_DIGITS]}" if key else ""
        # This node's own name, too: its clients stay who they are when it becomes the head.
        takes_turns = f"unknown {member_of(scope) or self._head.machine} {key}"
        return Caller(name, called, takes_turns, shared, _address(scope), now, far=far)

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

    def _check_host(self, scope: Scope, headers: Headers, *, keys_needed: bool) -> None:
        """Raise `ApiError` for a request whose host may be another's name for loopback."""
        given, path = headers.get("host", ""), scope["path"]
        if path in PROBES:
            brief = not (keys_needed or is_named(self._head.config, given))
            scope.setdefault("state", {})["brief"] = brief
        elif not (keys_needed or member_of(scope) or is_page(path)):
            check_host(self._head.config, given)


def error_response(error: ApiError, path: str = "") -> JSONResponse:
    """*error* as an HTTP response to a request for *path*."""
    headers = error.headers
    if error.status not in _AGAIN:
        headers = {**headers, "x-should-retry": "false"}
    if error.code in _AWAY:
        headers = {**headers, AWAY.decode(): error.code}
    if not is_anthropic(path):
        return JSONResponse(error.body(), error.status, headers)
    # Anthropic's clients know "overloaded" by a status of its own.
    status = 529 if error.status == 503 else error.status
    return JSONResponse(error.anthropic_body(), status, headers)


def _names(path: str, name: str, context: TraceContext) -> dict[str, str]:
    """The headers that say what a client's request for *path* is called: *name*, and in
    *context*."""
    given = {"x-request-id": name, "traceparent": context.parent}
    if is_anthropic(path):
        given["request-id"] = name
    return given | ({"tracestate": context.state} if context.state else {})


def _leave_out(sent: MutableHeaders, headers: Headers) -> None:
    """Leave out of an answer's headers *sent* what is for fronts alone, unless one has asked, with
    *headers*."""
    if ANSWER.decode() not in headers:
        del sent[AWAY.decode()]


def named(asked: str, trace_id: str) -> str:
    """What a line of the log says of the names that others gave a request."""
    return f" (trace {trace_id}{', called ' + asked if asked else ''})"


@contextmanager
def unreadable_keys() -> Iterator[None]:
    """Turns the error of an unreadable key file within the block into an `ApiError`."""
    try:
        yield
    except UserError as error:
        log.warning("%s", error)
        raise unavailable("The API keys cannot be read.", "keys_unreadable") from None


def _presented(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


@attrs.frozen
class TraceContext:
    """The trace of a request, this server's span in it, the flags, and the *state* that came with
    it; ids are in hex (W3C Trace Context, https://www.w3.org/TR/trace-context/).

    A client's ``traceparent`` is taken up if it is exactly what the recommendation says, and
    otherwise ignored: the request then begins a trace of its own. ``tracestate`` goes with a
    ``traceparent`` that was taken up; one that breaks the grammar is dropped by itself. The answer
    has both, with this server's own span as the parent."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    @classmethod
    def of(cls, headers: Headers) -> TraceContext:
        """The context that *headers* name, or a new one."""
        span = secrets.token_hex(8)
        given = headers.getlist("traceparent")
        if len(given) == 1 and (found := _PARENT.fullmatch(given[0])) is not None:
            version, trace, parent, flags, more = found.groups()
            sound = version != "ff" and not (version == "00" and more is not None)
            if sound and trace.strip("0") and parent.strip("0"):
                state = _state(headers.getlist("tracestate"))
                return cls(trace, span, int(flags, 16) & _KNOWN_FLAGS, state)
        return cls(secrets.token_hex(16), span, _RANDOM)

    @property
    def parent(self) -> str:
        """The ``traceparent`` of what this request has done here."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def _state(given: list[str]) -> str:
    """The members of all ``tracestate`` headers; empty if any breaks the grammar."""
    members = [part.strip(" \t") for line in given for part in line.split(",")]
    members = [member for member in members if member]
    state = ",".join(members)
    if len(state) > MAX_STATE or len(members) > MAX_MEMBERS:
        return ""
    keys = [found[1] for member in members if (found := _MEMBER.fullmatch(member))]
    return state if len(keys) == len(members) == len(set(keys)) else ""


def request_id(headers: Headers) -> str:
    """What the client calls its request with ``x-request-id``, if that is short and plain; else
    empty. It is never the id by which the server knows a request."""
    given = headers.getlist("x-request-id")
    return given[0] if len(given) == 1 and _REQUEST_ID.fullmatch(given[0]) else ""

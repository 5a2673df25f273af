"""What the clients of one machine meet: the front of its API, whoever is the head.

Every machine whose config has `api` serves the whole API. The head's own app answers there
(`Front.own`). A follower reads and writes HTTP for its clients: its TLS, its limits of connections,
headers and slow clients, its names and pages (`names`). It passes each request on to the head as a
stream of its API link, and the head's answer back. Keys, turns, budgets and answers are the head's.

**An answer outlives its head.** A request to generate gets an id here, by which the members that
may be head next know it, too. If the head is lost in the middle of its answer, or is the head no
more, the front keeps its client, waits for whoever is head then, this machine included, and asks
for what follows the events that it has passed on. The client notices a pause. What nobody knows
there, and of which the client has nothing yet, is asked again. That holds for what a client comes
back to by itself, too, as far as its events have ids.

Where nobody goes on in time, the client gets an error event in the dialect of its path, with the
answer's id; what is no such stream, or stopped within an event, is cut off. Before an answer has
begun there is an error with a status of its own.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import attrs
import trio
from sealring_protocol.codec.relay_messages import Question
from sealring_protocol.codec.wire import clip
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_CLIENT, MAX_METHOD, MAX_STREAMS
from sealring_protocol.relay import BodyCame, DropCame, ReplyCame
from sealring_trio.units import is_loopback
from starlette import datastructures
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealring.dialects.errors import INVALID, ApiError, unavailable
from sealring.files.config import Config
from sealring.http.bodies import MAX_BODY, PassedOn, beside
from sealring.http.connections import PART_OF_SOURCE, counted, source_of
from sealring.http.gate import ANSWER, AWAY, PREFIXES, error_response
from sealring.http.http1 import PROBES
from sealring.http.names import (
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
from sealring.http.records import new_id
from sealring.http.relay import (
    CONNECTION,
    FOR_ONE_HOP,
    INTERNAL,
    RelayStream,
    RelayStreams,
    StreamGone,
)
from sealring.text.workers import SharedBudget

log = logging.getLogger("sealring.api")

NEXT_HEAD_SECONDS: Final = 30.0
"""Seconds that a request waits for the next head."""

MAX_KEPT_BODIES: Final = 32 << 20
"""Bytes of all requests that are kept to be asked again, of which one client's may be half. What
has no room is not asked again."""

_MOST_SENT: Final = 4
"""How often a request is sent of whose answer nothing has come: it may be what ends heads."""

_PAUSE: Final = 0.5  # seconds before a head that cannot answer yet is asked again

_WATCHING: Final = "/v1/cluster/events"
"""What the page watches, as long as it is open."""

_BRIEF: Final = "No request can be answered here now."
"""Why, to whoever names another server: a message may name machines and their addresses."""

_SOON: Final = (b"not_head", b"no_majority")
"""The codes of a head that another may follow at once."""

_STOPS: Final = b"shutting_down"
"""That of one which ends. A new request does not wait for the next; a client tries another."""

_HELD: Final = 64 << 10
"""Bytes of an error that are held to be looked at."""

_OF_REQUEST: Final = (
    ANSWER,
    b"content-length",
    b"content-type",
    b"idempotency-key",
    b"last-event-id",
)
"""Headers that are of no use where a stream is come back to."""


class HeadLost(Exception):
    """The head was lost before the answer was complete, as *error* says. If it is *final*, there is
    no use in asking another."""

    def __init__(self, error: ApiError, *, final: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.final = final


class _Ask(enum.Enum):
    """What the head is asked."""

    REQUEST = "request"
    """The request itself."""
    RECORD = "record"
    """The rest of its answer, by the id that the front gave it."""
    STREAM = "stream"
    """The rest of a stream whose events have ids, as its client would ask."""


_NOT_THERE: Final = {
    _Ask.REQUEST: frozenset({503, 529}),
    _Ask.RECORD: frozenset({404, 503}),
    _Ask.STREAM: frozenset({404, 503, 529}),
}
"""The statuses that may say that a head cannot answer yet, or does not know what it is asked."""


class Upload:
    """The body of a request, which *receive* reads from the client as somebody asks for it. It is
    kept to be read again within *budget*, where it counts to *source*."""

    def __init__(self, receive: Receive, budget: SharedBudget, source: str) -> None:
        self._receive = receive
        self._budget = budget
        self._source = source
        self._body = bytearray()  # what is kept of it
        self._first = 0  # where in it that begins
        self._read = 0  # how far it was read
        self._taken = 0  # bytes of the budget
        self.whole = False
        self.gone = False
        """Whether the client has left."""
        self.again = True
        """Whether it can be read from its beginning."""

    async def read(self, at: int) -> tuple[bytes, bool] | None:
        """What there is from byte *at* on, and whether more comes; None once the client has left.
        Without `again` only what nobody has read is there."""
        if at == self._first + len(self._body) and not self.whole:
            message = await self._receive()
            if message["type"] != "http.request":
                self.gone = True
                return None
            self._keep(message.get("body", b""))
            self.whole = not message.get("more_body", False)
        data = bytes(self._body[at - self._first :])
        self._read = at + len(data)
        if not self.again:
            self._trim()
        return data, not self.whole

    async def left(self) -> None:
        """Wait until the client, which has sent all of it, leaves."""
        while not self.gone:
            self.gone = (await self._receive())["type"] == "http.disconnect"

    def forget(self) -> None:
        """Nobody reads it from its beginning any more."""
        self.again = False
        self._budget.give_back(self._source, self._taken)
        self._taken = 0
        self._trim()

    def _keep(self, data: bytes) -> None:
        self._body += data
        if not self.again:
            return
        if len(self._body) <= MAX_BODY and self._budget.take(self._source, len(data)):
            self._taken += len(data)
        else:
            self.forget()

    def _trim(self) -> None:
        del self._body[: self._read - self._first]
        self._first = self._read


class _Reading:
    """One reading of *upload* from its beginning."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._at = 0
        self._over = False

    async def receive(self) -> Message:
        """As ASGI has it."""
        if self._over:
            await self._upload.left()
        elif (found := await self._upload.read(self._at)) is not None:
            data, more = found
            self._at += len(data)
            self._over = not more
            return {"type": "http.request", "body": data, "more_body": more}
        return {"type": "http.disconnect"}


class _Listening:
    """A request with *body*, whose client is that of *upload*."""

    def __init__(self, upload: Upload, body: bytes) -> None:
        self._upload = upload
        self._body = body
        self._over = False

    async def receive(self) -> Message:
        """As ASGI has it."""
        if self._over:
            await self._upload.left()
            return {"type": "http.disconnect"}
        self._over = True
        await trio.lowlevel.checkpoint()
        return {"type": "http.request", "body": self._body, "more_body": False}


@attrs.define(eq=False)
class _Try:
    """The answer of one head on its way to *passed*. An answer whose status is *held_for* is held:
    it may say that this head cannot answer."""

    passed: PassedOn
    upload: Upload
    held_for: frozenset[int]
    status: int = 0
    away: bytes = b""
    """The code of an error by which this head says that it cannot answer now."""

    _held: list[Message] = attrs.field(factory=list)
    _size: int = 0

    @property
    def held(self) -> bool:
        """Whether nothing of it is passed on yet."""
        return bool(self._held)

    async def send(self, message: Message) -> None:
        """Take *message* of ASGI."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.away = dict(message["headers"]).get(AWAY, b"")
            headers = [each for each in message["headers"] if each[0] != AWAY]
            message = {**message, "headers": headers}
            if self.status in self.held_for or (self.passed.begun and self.status != 200):
                self._held = [message]
                return
        elif self._held:
            self._size += len(message.get("body", b""))
            if self._size <= _HELD or not self.passed.begun:
                self._held.append(message)
            if self._size > _HELD and not self.passed.begun:
                await self.pass_on()
            return
        await self.passed.send(message)
        if self.passed.begun and self.upload.again:
            self.upload.forget()

    async def pass_on(self) -> None:
        """It is the answer."""
        held, self._held = self._held, []
        for message in held:
            await self.passed.send(message)


@attrs.define(eq=False)
class _Request:
    """A request of *scope* for *path* that outlives the head: what its client sends and has got.
    *name* is the id of its answer; empty for one that is come back to. *known* is what was known
    here of that answer when its head was lost, which is never behind what the client has."""

    scope: Scope
    path: str
    name: str
    upload: Upload
    passed: PassedOn
    resumable: bool
    ask: _Ask = _Ask.REQUEST
    known: bytes = b""
    sent: int = 0
    """How often the request itself was sent."""
    told: object = None
    """The head that was last asked for what follows, as the log says."""

    @property
    def may_return(self) -> bool:
        """Whether its client can come back to the answer, at any machine."""
        return self.resumable or self.passed.resumable

    def lost(self) -> bool:
        """The head that was asked is lost. Whether another can be asked, and for what."""
        if self.passed.cut:
            return False
        if not self.name:
            return self._without_record()
        begun = self.upload.whole or self.passed.begun  # by the head, which has all of it
        self.ask = _Ask.RECORD if begun else _Ask.REQUEST
        return begun or self.upload.again

    def unknown(self) -> bool:
        """The head that was asked does not know the answer. Whether it can be asked otherwise."""
        return self.ask is _Ask.RECORD and self._without_record()

    def _without_record(self) -> bool:
        if self.passed.last is not None:
            self.ask = _Ask.STREAM
            return True
        self.ask = _Ask.REQUEST
        return self.upload.again and not self.passed.begun and self.sent < _MOST_SENT

    def asked(self) -> Scope:
        """The scope of what the head is asked."""
        passed, scope = self.passed, self.scope
        if self.ask is _Ask.REQUEST:
            return scope
        more: dict[str, Any] = {"method": "GET", "query_string": b""}
        if self.ask is _Ask.STREAM and passed.last is not None:
            name, number = passed.last
            path = f"/v1/streams/{name}"
            headers = [each for each in scope["headers"] if each[0] not in _OF_REQUEST]
            more["headers"] = [*headers, (b"last-event-id", b"%b:%d" % (name.encode(), number))]
        else:
            path = f"{INTERNAL}answers/{self.name}"
            more["method"] = "POST"
            more["query_string"] = b"after=%d" % passed.place
            more["headers"] = [(b"host", b"localhost")]
            more["client"] = None
            more["state"] = {**scope["state"], "owner": True}
        return {**scope, **more, "path": path, "raw_path": path.encode()}


@attrs.define(eq=False)
class Front:
    """The ASGI app of a machine. While it `is_head`, `own` gives the app that answers. Else the
    head, whose name is `head`, is asked by the *streams*; `why_not` is the error if neither can be,
    `refusal` why this machine takes no more requests, and *page* gives the files of the page where
    the head cannot: the page says why, and goes on by itself. A request waits so many seconds for
    the next head as *patience* says. `config` gives this machine's config, *record* what is known
    here of an answer, by its id, and `here` the name of this machine. `cut_off` says whether other
    machines may have a head that this one does not hear: who can come back to an answer is sent
    there."""

    streams: RelayStreams
    config: Callable[[], Config]
    is_head: Callable[[], bool]
    own: Callable[[], ASGIApp]
    head: Callable[[], str]
    refusal: Callable[[], str]
    why_not: Callable[[], ApiError | None]
    page: ASGIApp
    patience: Callable[[], float] = lambda: NEXT_HEAD_SECONDS
    record: Callable[[str], bytes] = lambda name: b""
    here: Callable[[], str] = lambda: ""
    cut_off: Callable[[], bool] = lambda: False
    _of_source: Counter[str] = attrs.field(factory=Counter)
    _bodies: SharedBudget = attrs.field(factory=lambda: SharedBudget(MAX_KEPT_BODIES))
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _asked: object = None  # who answers: this machine, or the head at the end of a link
    _lost: float = -math.inf  # when that was lost last
    _waiting: int = 0
    _ended: ApiError | None = None

    def __attrs_post_init__(self) -> None:
        self.streams.turned = self.turned
        self.turned()

    # ------------------------------------------------------- who answers

    def turned(self) -> None:
        """Another may be the head, or the link with it is up or lost."""
        now = self if self.is_head() else self.streams.head
        if self._asked is not None and now is not self._asked:
            self._lost = trio.current_time()
        self._asked = now
        self._changed.unpark_all()

    @property
    def under_way(self) -> int:
        """The number of requests that are passed on and end by themselves, or wait for a head."""
        return self.streams.under_way + self._waiting

    def end_all(self, error: ApiError) -> None:
        """End every request that is passed on, or waits, because of *error*."""
        self._ended = error
        self.streams.end_all(error)
        self._changed.unpark_all()

    # ------------------------------------------------------- requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a client of this machine, or have it answered."""
        path = plain(scope["path"])
        if not self.is_head():
            await self._as_follower(scope, path, receive, send)
            return
        try:
            _check_path(path)
            if survives(scope["method"], path):
                await self._survive(scope, path, receive, send)
                return
        except ApiError as error:
            await _refused(error, path)(scope, receive, send)
            return
        await self.own()(scope, receive, send)

    async def _as_follower(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        headers = datastructures.Headers(scope=scope)
        config = self.config()
        shared = shared_with(headers, config.origins)
        named = self._is_named(scope, headers)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = datastructures.MutableHeaders(scope=message)
                if named:  # or a page that calls loopback by a name of its own would read it
                    # A header has no letters beyond ASCII.
                    sent["x-sealring-head"] = quote(self.head(), safe=" ")
                share(sent, shared)
            await send(message)

        try:
            _check_path(path)
            own = self._here(path, brief=not named) if scope["method"] in ("GET", "HEAD") else None
            if own is not None:
                await own(scope, receive, answer)
                return
            if not (scope["state"]["owner"] or is_page(path)):
                if not (named or path in PROBES):
                    check_host(config, headers.get("host", ""))
                if not shared:
                    check_page(headers, secure=scope["scheme"] == "https")
            if shared and is_preflight(scope["method"], headers):
                await preflight(headers)(scope, receive, answer)
                return
            await self._pass_on(scope, path, receive, answer)
        except ApiError as error:
            if not named and error.status == 503:
                error = ApiError(**{**error.fields(), "message": _BRIEF})
            await _refused(error, path)(scope, receive, answer)

    def _here(self, path: str, *, brief: bool) -> JSONResponse | None:
        """Whether this process is alive; or that no requests should be sent to it, and why not,
        unless it is *brief*. None for what the head answers, as whether it is ready itself."""
        if path == "/livez":
            return JSONResponse({"status": "alive"})
        if path != "/readyz":
            return None
        error = self.why_not()
        found = [why for why in (self.refusal(), "" if error is None else error.message) if why]
        if not found:
            return None
        body = {"status": "unavailable", "reasons": [] if brief else found}
        return JSONResponse(body, 503, {"Retry-After": "1"})

    def _is_named(self, scope: Scope, headers: datastructures.Headers) -> bool:
        """Whether a request names this server, or need not. Only the head knows whether it asks for
        keys; so on loopback it has to."""
        config = self.config()
        if scope["state"]["owner"] or config.api is None or not is_loopback(config.api[0]):
            return True
        return is_named(config, headers.get("host", ""))

    async def _pass_on(self, scope: Scope, path: str, receive: Receive, answer: Send) -> None:
        """Have the head answer. Raises `ApiError`."""
        if why := self.refusal():
            raise unavailable(f"{why[:1].upper()}{why[1:]}.", "shutting_down", retry=5)
        with self._counted(scope):
            if survives(scope["method"], path):
                await self._survive(scope, path, receive, answer)
                return
            if (error := self.why_not()) is not None:
                if is_page(path):
                    await self.page({**scope, "path": path}, receive, answer)
                    return
                raise error
            passed = PassedOn(answer)
            try:
                await self._by_link(scope, receive, passed.send, endless=path == _WATCHING)
            except HeadLost as lost:
                log.warning("%s: %s", path, lost.error.message)
                await passed.end(path, lost.error, resumable=False)

    def _counted(self, scope: Scope) -> contextlib.AbstractContextManager[None]:
        """Counts one more request of its client's address. Raises `ApiError` if that has its part
        of the streams, which answers that nobody takes may have for long."""
        source = _source(scope)
        if self._of_source[source] >= MAX_STREAMS * PART_OF_SOURCE:
            text = "Too many requests from this address are passed on at once."
            raise unavailable(text, "overloaded")
        return counted(self._of_source, source)

    # ------------------------------------------------------- answers that outlive a head

    async def _survive(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Have the request of *scope* for *path* answered by whoever is head, one after another.
        Raises `ApiError` before anything of the answer is sent."""
        own = [each for each in scope["headers"] if each[0] != ANSWER]
        kind, name = _resumed(path)
        answer = "" if name else new_id(self.here())
        if answer:
            own.append((ANSWER, answer.encode()))
        headers = datastructures.Headers(scope=scope)
        passed = PassedOn(send, name=name)
        request = _Request(
            {**scope, "headers": own},
            kind,
            answer,
            Upload(receive, self._bodies, _source(scope)),
            passed,
            bool(name) or "idempotency-key" in headers,
        )
        try:
            await self._answered(request)
        except ApiError as error:
            log.warning("%s: %s", passed.name or path, error.message)
            await passed.end(kind, error, resumable=request.may_return)
        finally:
            request.upload.forget()

    async def _answered(self, request: _Request) -> None:
        """Have *request* answered. Raises `ApiError` if its answer ends before it is complete."""
        passed, until = request.passed, -math.inf
        lost: ApiError | None = None  # why the head before is lost
        had: object = None  # what the client had then
        while True:
            if request.may_return and self.cut_off():
                text = "This machine hears too few others to answer. They may have another head."
                raise unavailable(text, "no_majority")
            tried = _Try(passed, request.upload, _NOT_THERE[request.ask])
            error = self._ended or self.why_not()
            another, asked = False, self._asked  # who was not asked yet
            if error is None:
                try:
                    await self._ask(request, tried)
                except HeadLost as gone:
                    if request.upload.gone:
                        return
                    error = lost = gone.error
                    another = self._asked is not asked
                    request.known = self.record(request.name) or request.known
                    if had != (has := (passed.begun, passed.place)):
                        had, until = has, trio.current_time() + self.patience()
                    if gone.final or not request.lost():
                        raise error from None
                else:
                    if await self._settled(request, tried, lost):
                        return
                    another = not tried.away
            if tried.away in _SOON and until == -math.inf:
                until = trio.current_time() + self.patience()
            until = max(until, self._lost + self.patience())
            if not await self._next_head(request, until, at_once=another):
                if not request.upload.gone:
                    await self._end(tried, self._ended or error or lost)
                return

    async def _settled(self, request: _Request, tried: _Try, lost: ApiError | None) -> bool:
        """Whether *request* is over with what was *tried*; else it is to be asked again. Raises
        `ApiError`, which is why the head before is *lost* if it is."""
        if request.upload.gone or not tried.held:
            return True
        if tried.status == 404 and request.ask is not _Ask.REQUEST:
            if not request.unknown():
                raise lost or _forgotten()
            return False
        if tried.away and (lost is not None or tried.away != _STOPS):
            return False
        await self._end(tried, lost)
        return True

    async def _end(self, tried: _Try, error: ApiError | None) -> None:
        """Give the client the answer that *tried* holds, unless it has a part of another: then
        raise *error*."""
        if not tried.held or tried.passed.begun:
            raise error or _forgotten()
        await tried.pass_on()

    async def _next_head(self, request: _Request, until: float, *, at_once: bool) -> bool:
        """Wait until somebody may answer *request*; *at_once* if there is somebody who was not
        asked. False if it should wait no longer."""
        passed, upload = request.passed, request.upload
        if self._ended is not None or trio.current_time() >= until:
            return False
        if at_once and self._asked is not None:
            await trio.lowlevel.checkpoint()
            return True

        async def leave(scope: trio.CancelScope) -> None:
            if upload.whole:
                await upload.left()
                scope.cancel()

        async def turn() -> None:
            with trio.move_on_after(_PAUSE):
                await self._changed.park()
            await passed.break_silence()

        self._waiting += 1
        try:
            await beside(turn, leave)
        finally:
            self._waiting -= 1
        return not upload.gone

    def _ask(self, request: _Request, tried: _Try) -> Awaitable[None]:
        """Ask whoever is head now. What it returns raises `HeadLost`, or `ApiError` if nothing is
        asked."""
        scope = request.asked()
        again = request.ask is not _Ask.REQUEST
        if again and request.told is not self._asked:  # once of each head
            request.told = self._asked
            text = "%s: the head is asked for what follows %d events"
            log.info(text, request.passed.name or request.name, request.passed.place)
        request.sent += not again
        known = request.known if request.ask is _Ask.RECORD else b""
        body = _Listening(request.upload, known) if again else _Reading(request.upload)
        if self.is_head():
            return self._by_own(scope, body.receive, tried.send, partial(self._leaves, request))
        return self._by_link(scope, body.receive, tried.send)

    async def _by_own(
        self, scope: Scope, receive: Receive, send: Send, leaves: Callable[[], bool]
    ) -> None:
        """Have this machine's own app answer as long as it is the head, and the request not one
        that *leaves*. Raises `HeadLost`."""
        app, over, whole = self.own(), False, False

        async def given(message: Message) -> None:
            nonlocal whole
            if not self.is_head():  # what the app says now is not the answer
                leaving.cancel()
                await trio.lowlevel.checkpoint()
            whole = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def work() -> None:
            nonlocal over
            try:
                await app(scope, receive, given)
            except ApiError as error:  # of what stands before the app
                await error_response(error, scope["path"])(scope, receive, given)
            over = True

        async def watch(_: trio.CancelScope) -> None:
            while self.is_head() and not leaves():
                with trio.move_on_after(_PAUSE):
                    await self._changed.park()
            leaving.cancel()

        with trio.CancelScope() as leaving:
            await beside(work, watch)
        if not (over and whole):  # or its client has left
            text = "This machine was the head, and did not complete the answer."
            raise HeadLost(unavailable(text, "head_lost"), final=False)

    def _leaves(self, request: _Request) -> bool:
        """Whether *request* waits no longer for this head, which leads no more: its client may come
        back to the answer elsewhere, or has nothing of it."""
        if request.may_return and self.cut_off():
            return True
        return not request.passed.begun and self.why_not() is not None

    async def _by_link(
        self, scope: Scope, receive: Receive, send: Send, *, endless: bool = False
    ) -> None:
        """Have the head at the other end of the link answer. Raises `HeadLost`, and `ApiError` if
        it is not asked."""
        head = self.head()
        try:
            with self.streams.asking(self._question(scope)) as stream:
                stream.endless = endless
                give = partial(_answer, stream, head, send)
                lost = await beside(give, partial(_send_body, receive, stream))
        except LocalProtocolError as fault:
            raise unavailable(f"No request can be passed on: {fault}.", "overloaded") from None
        if lost and lost[0] is not None:
            raise lost[0]

    def _question(self, scope: Scope) -> Question:
        """What the head is asked. Raises `ApiError`."""
        target = scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        client = "" if scope["state"]["owner"] else scope["client"][0]
        config = self.config()
        if client and is_loopback(client) and config.api and not is_loopback(config.api[0]):
            # Others reach this port, and a proxy would have them look like this machine.
            client = config.api[0]
        connection = str(scope["state"]["connection"]).encode()
        headers = [(name, value) for name, value in scope["headers"] if name not in FOR_ONE_HOP]
        try:
            return Question(
                scope["method"][:MAX_METHOD],
                target,
                scope["scheme"] == "https",
                clip(client, MAX_CLIENT),
                (*headers, (CONNECTION, connection)),
            )
        except LocalProtocolError as fault:
            text = f"The request cannot be passed on: {fault}."
            raise ApiError(400, text, "bad_request", kind=INVALID) from None


def survives(method: str, path: str) -> bool:
    """Whether the answer to a request with *method* for *path* outlives its head."""
    return path in PREFIXES if method == "POST" else method == "GET" and bool(_resumed(path)[1])


def _resumed(path: str) -> tuple[str, str]:
    """If a client comes back at *path* to an answer: the path where it was asked for, and its name.
    Else *path*, and no name."""
    name = path.rpartition("/")[2]
    for kind, begin in PREFIXES.items():
        if name.startswith(begin) and path in (f"/v1/streams/{name}", f"/v1/responses/{name}"):
            return kind, name
    return path, ""


def _check_path(path: str) -> None:
    """Raise `ApiError` for what is for fronts alone."""
    if path.startswith(INTERNAL):
        raise ApiError(404, f"There is nothing at {path}.", "not_found", kind=INVALID)


def _forgotten() -> ApiError:
    """The error for an answer with which the next head does not go on."""
    return unavailable("The head does not go on with the answer.", "head_lost")


def _source(scope: Scope) -> str:
    return "" if scope["state"]["owner"] else source_of(scope["client"][0])


def _refused(error: ApiError, path: str) -> JSONResponse:
    """*error* as the answer to a request for *path* that no head has answered."""
    name = f"req-{secrets.token_hex(12)}"
    always = {"x-content-type-options": "nosniff", "x-request-id": name}
    response = error_response(
        ApiError(**{**error.fields(), "headers": always | error.headers}), path
    )
    del response.headers[AWAY.decode()]
    return response


async def _send_body(receive: Receive, stream: RelayStream, answering: trio.CancelScope) -> None:
    """Send the body of the request as it comes; then wait for its client to leave, which ends
    *answering*."""
    try:
        while (message := await receive())["type"] == "http.request":
            await stream.send(message["body"], last=not message["more_body"])
    except StreamGone:
        return  # the answer says why, or is whole
    answering.cancel()  # first, or the answer would take this for the head's end
    stream.drop("the client has left")


async def _answer(stream: RelayStream, head: str, send: Send) -> HeadLost | None:
    """Give the client the answer of *head*, as it comes; returns why it is not complete, if it is
    not."""
    while True:
        match await stream.take():
            case ReplyCame(_, status, headers):
                kept = [each for each in headers if each[0] not in FOR_ONE_HOP]
                await send({"type": "http.response.start", "status": status, "headers": kept})
            case BodyCame(_, data, last):
                await send({"type": "http.response.body", "body": data, "more_body": not last})
                if last:
                    return None
                stream.took(len(data))
            case DropCame(_, reason):
                what = f"The head, {head}, was lost before the answer was complete: {reason}."
                error = stream.ended or unavailable(what, "head_lost")
                return HeadLost(error, final=stream.ended is not None)

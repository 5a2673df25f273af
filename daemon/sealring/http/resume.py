"""Answers that a client may come back to: while they are made, and once they are over.

A request asks for it, by an ``Idempotency-Key`` or by ``background``. Then its answer is made
beside the connection, and goes into a `KeptAnswer`: its events, already written and numbered, or
the whole of it. Whoever sends the request is the answer's first reader. A reader that comes later
names the last event that it has, gets all that follow it, and then those that are still to come.
There is one reader at a time: a newer one takes over. Without a reader the answer is still made for
the config's `resume_seconds`.

All that is kept has a bound: for one answer, for one account, and in all. Where there is no room,
answers go that are over and have no reader, the oldest first. If that is not enough, the answer
that grows is kept no longer: its reader gets the rest as any stream is given, at the pace at which
it reads, and cannot come back.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sealring.dialects.errors import ApiError, failed, invalid, unavailable
from sealring.dialects.replies import KEEPALIVE, broken_off
from sealring.http.bodies import (
    KEEPALIVE_SECONDS,
    ClientGone,
    EventStream,
    HeldBytes,
    attended,
)

if TYPE_CHECKING:
    from sealring.http.gate import Caller
    from sealring.http.head import ApiHead

log = logging.getLogger("sealring.api")

MAX_ANSWERS: Final = 128 << 20
"""Bytes of all answers that are kept."""

MAX_ANSWERS_OF_ONE: Final = 32 << 20
MAX_ANSWER: Final = 16 << 20
"""Bytes of one account's, and of one answer: some 60,000 tokens of a chat."""

MAX_COUNT: Final = 1024
MAX_COUNT_OF_ONE: Final = 128
"""Answers that are kept in all, and of one account."""

MAX_UNREAD: Final = 64
MAX_UNREAD_OF_ONE: Final = 16
"""Answers that are made while nobody reads them, in all and of one account. Of more than that, the
one that has been left the longest ends at once: else connections would not bound them."""

EVENT_SIZE: Final = 64
"""Bytes that an event takes beside its own."""

STEP: Final = 64 << 10
"""Bytes of which room is taken at once, and that are given to a connection at once."""

MAX_KEY: Final = 255
"""Characters of an ``Idempotency-Key``."""

_KEY: Final = re.compile(rf"[!-~]{{1,{MAX_KEY}}}")
_EVENT_ID: Final = re.compile(r"([A-Za-z0-9_-]{1,64}):([0-9]{1,12})")
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_OUTGROWN: Final = b": this answer is kept no longer, and cannot be resumed from here on\n\n"


@attrs.frozen
class ResumeFields:
    """What a request for *path* says of coming back: a digest of its *key*, empty for none, and one
    of its *body*; and the event that it has last, by the *answer* and its number, -1 for none."""

    path: str
    key: bytes = b""
    body: bytes = b""
    answer: str = ""
    after: int = -1

    @classmethod
    def of(cls, headers: Headers, path: str, body: bytes) -> ResumeFields:
        """What a request with *headers* for *path* says, whose body is *body*. Raises
        `ApiError`."""
        given = headers.getlist("idempotency-key")
        if not given:
            return cls(path, b"", b"", *_last_event(headers))
        if len(given) > 1 or not _KEY.fullmatch(given[0]):
            raise invalid(
                f"The Idempotency-Key is one word of up to {MAX_KEY} plain characters.",
                "idempotency-key",
            )
        key = hashlib.blake2b(given[0].encode(), digest_size=16).digest()
        made = hashlib.blake2b(body, digest_size=32).digest()
        return cls(path, key, made, *_last_event(headers))


def _last_event(headers: Headers) -> tuple[str, int]:
    """The answer and the number of the event that ``Last-Event-ID`` names; -1 if none is. Raises
    `ApiError`."""
    if (given := headers.get("last-event-id", "")) == "":
        return "", -1
    if (found := _EVENT_ID.fullmatch(given)) is None:
        raise invalid("Last-Event-ID is the id of an event of a stream here.", "last-event-id")
    return found[1], int(found[2])


def _nothing() -> None:
    """What is left to withdraw of an answer that is over, and what nobody wants to know."""


@attrs.define(eq=False)
class KeptAnswer:
    """The answer *id* to a request of *owner*, as *asked*, which counts to *account*: its events,
    with *silence* where none comes for a while, or the `whole` of it.

    Who makes it writes it as an `EventStream`. *withdraw* has it made no further; *so_far* gives
    a response as it is, with a status. Once it is over and kept no longer, *gone* hears of it."""

    id: str
    owner: str
    account: str
    asked: ResumeFields
    _answers: KeptAnswers
    withdraw: Callable[[], None]
    silence: bytes = KEEPALIVE
    so_far: Callable[[str], bytes] | None = None
    gone: Callable[[], None] = _nothing

    again: bool = False
    """Whether another head has begun it, and each event that comes is one that that head made, or
    would have made: a reader may be ahead of them."""

    opened: bool = False
    """Whether it is a stream, and has begun."""

    over: bool = False
    moved: bool = False
    """Whether another head goes on with it. Then its reader's answer has no end here."""

    kept: bool = True
    """Whether a reader may come back."""

    whole: Response | None = None
    error: ApiError | None = None
    """The answer in one piece, or why there is none."""

    size: int = EVENT_SIZE
    room: int = 0
    """Bytes that it has, and those that were taken for it."""

    unread: float | None = attrs.field(factory=trio.current_time)
    """Since when nobody reads it, by trio's clock; None while somebody does."""

    _events: list[bytes] = attrs.field(factory=list)
    _first: int = 0  # the number of the first of them
    _reader: int = 0  # the present one's number; 0 for none
    _readers: int = 0  # that there have been
    _giving: int = 0  # readers that are still given something, older ones too
    _forsaken: bool = False
    _place: int = 0  # of the event that the reader takes next
    _told: int = 0  # of the event after the last that any reader was given here
    _other: float = math.inf  # of the first that another head may have made otherwise
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    @property
    def end(self) -> int:
        """The number of the next event."""
        return self._first + len(self._events)

    @property
    def may_go(self) -> bool:
        """Whether it is over, and nobody holds any of it."""
        return self.over and not self._giving

    # ------------------------------------------------------- who makes it

    async def open(self) -> None:
        """It is a stream."""
        self.opened = True
        self._wake()
        await trio.lowlevel.checkpoint()

    async def write(self, events: bytes) -> None:
        """Add *events*. Waits for the reader if they are not kept."""
        for each in events.split(b"\n\n")[:-1]:  # JSON has no line feed of its own
            made = each + b"\n\n"
            if self.kept:
                made = b"id: %b:%d\n%b" % (self.id.encode(), self.end, made)
            self._events.append(made)
            self.size += len(made) + EVENT_SIZE
        if self.kept and not self._answers.has_room(self):
            self.keep_no_longer()
        if not self.kept:
            self._forget()  # what a reader has that is ahead
        self._wake()
        await trio.lowlevel.checkpoint()
        self._answers.before()
        while not self.kept and self._place < self.end and (self._reader or not self._readers):
            await self._changed.park()

    async def close(self) -> None:
        """No more events."""
        self.finish()
        await trio.lowlevel.checkpoint()

    async def keep_alive(self, _: bytes) -> None:
        """Its reader does that."""
        await trio.sleep_forever()

    def move(self) -> None:
        """Another head goes on with it: here it is over, and not whole."""
        self.moved = True
        self.finish()
        self.keep_no_longer()

    def made_again(self) -> None:
        """The events from now on need not be those of the head that has begun it."""
        self.again, self._other = False, self.end
        self._wake()

    def finish(self, whole: Response | None = None, error: ApiError | None = None) -> None:
        """It is over: a stream, or *whole*, or there is none because of *error*. The last is not
        kept, so that the same request may be sent again."""
        self.over, self.whole, self.error, self.again = True, whole, error, False
        self.withdraw, self.so_far = _nothing, None
        if whole is not None:
            self.size += len(whole.body)
        if error is not None or not (self.kept and self._answers.has_room(self)):
            self.keep_no_longer()
        self._wake()

    def keep_no_longer(self) -> None:
        """Whoever reads it gets the rest, and nobody comes back."""
        if not self.kept:
            return
        self.kept = False
        self._answers.hide(self)
        if self._readers and not self._reader:
            self._place = self.end
        self._forget()
        if self.opened and not self.over:
            self._place += self._place > self.end  # no event that a reader waits for is this
            self._events.append(_OUTGROWN)

    def _forget(self) -> None:
        """Forget the events that its last reader has. What is left takes its room until then."""
        gone = self._events[: self._place - self._first]
        del self._events[: len(gone)]
        self._first += len(gone)
        self.size -= sum(map(len, gone)) + EVENT_SIZE * len(gone)
        if self._giving:
            self._answers.take(self, self.size)
        else:
            self._answers.release(self)

    async def unattended(self, seconds: float) -> None:
        """Wait until it is to be made no further: nobody has read it for so long, or nobody reads
        what is not kept, or too many are made that nobody reads."""
        while True:
            if self._reader:
                await self._changed.park()
                continue
            if self._forsaken or self.unread is None or (self._readers and not self.kept):
                return
            with trio.move_on_at(self.unread + seconds) as limit:
                await self._changed.park()
            if limit.cancelled_caught:
                return

    def forsake(self) -> None:
        """Make it no further, as nobody reads it."""
        self._forsaken = True
        self._wake()

    # -------------------------------------------------------- who reads it

    async def reach(self, after: int) -> None:
        """Wait until there is an event *after*, or there will be none, or none is kept."""
        while after >= self.end and self.kept and not self.over:
            await self._changed.park()

    def check_after(self, after: int) -> None:
        """Raise `ApiError` unless there is an event *after*, or may be once it is made again. Where
        another head may have given another one of that number, none is."""
        if self._other <= after < self.end and after >= self._told:
            raise not_there(self.id)
        if after >= self.end and not self.again:
            raise invalid(
                f"The stream '{self.id}' has {self.end} events so far, and none is numbered "
                f"{after}.",
                "starting_after",
            )

    async def give(
        self, scope: Scope, receive: Receive, send: Send, holding: HeldBytes, after: int = -1
    ) -> None:
        """Answer a request by all that follows event *after*, until it is over. *holding* counts
        what its client has not taken: that stays, whatever becomes of the answer. Raises
        `ApiError`, before anything is sent."""
        if self.moved:
            return
        self.check_after(after)
        if not self.kept and self._readers:
            raise not_there(self.id)
        self._giving += 1
        self._readers += 1
        self._reader = mine = self._readers
        self._place, self.unread = after + 1, None
        self._wake()
        try:
            await attended(receive, partial(self._tell, scope, receive, send, holding, mine))
        except ClientGone:
            pass
        finally:
            self._giving -= 1
            if not self.kept:
                self._forget()
            if self._reader == mine:
                self._reader, self.unread = 0, trio.current_time()
                self._wake()
                self._answers.left(self)

    async def _tell(
        self, scope: Scope, receive: Receive, send: Send, holding: HeldBytes, mine: int
    ) -> None:
        while not (self.opened or self.over) or (self.again and self._place > self.end):
            if self._reader != mine:
                raise self._taken_over()
            await self._changed.park()
        if self._place > self.end:
            if self.moved:
                return
            # Its events may have been grouped otherwise: none has its old number.
            raise not_there(self.id)
        if self.error is not None:
            raise self.error
        if self.whole is not None:
            await self.whole(scope, receive, send)
        elif self.opened:
            await self._tell_events(send, holding, mine)

    async def _tell_events(self, send: Send, holding: HeldBytes, mine: int) -> None:
        stream = EventStream(send, self._answers.before)
        await stream.open()
        place, error = self._place, None
        while self._reader == mine and not (self.over and place == self.end):
            if place < self.end:
                events, count = _some(self._events, place - self._first)
                try:
                    holding.grow(len(events))
                except ApiError as full:
                    error = full
                    break
                self._told = max(self._told, place + count)
                await stream.write(events)
                holding.grow(-len(events))
                place += count
                if self._reader == mine:
                    self._place = place
                    if not self.kept:
                        self._forget()
                        self._wake()
                continue
            with trio.move_on_after(KEEPALIVE_SECONDS) as silent:
                await self._changed.park()
            if silent.cancelled_caught:
                await stream.write(self.silence)
        if self.moved:
            return
        if self._reader != mine:
            error = self._taken_over()
        if error is not None:
            path, again = self.asked.path, self.kept
            await stream.write(broken_off(path, error, self.id, place, resumable=again))
        await stream.close()

    def _taken_over(self) -> ApiError:
        text = "Another request has taken this answer over, and gets the rest of it."
        return ApiError(409, text, "taken_over")

    def _wake(self) -> None:
        self._changed.unpark_all()


def _some(events: list[bytes], begin: int) -> tuple[bytes, int]:
    """*events* from index *begin* on, of `STEP` bytes at most if they are more than one, and how
    many they are."""
    size, end = 0, begin
    while end < len(events) and (end == begin or size + len(events[end]) <= STEP):
        size += len(events[end])
        end += 1
    return b"".join(events[begin:end]), end - begin


@attrs.define
class _Account:
    """The answers of one account, by their ids, the oldest first, and the *room* of them all: those
    that are kept, and those that their readers still have."""

    kept: dict[str, KeptAnswer] = attrs.field(factory=dict)
    room: int = 0

    def oldest(self) -> KeptAnswer | None:
        """The oldest answer that may go; None if there is none."""
        return next((each for each in self.kept.values() if each.may_go), None)


class KeptAnswers:
    """What all owners may come back to. `run` makes them."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptAnswer] = {}  # by their ids
        self._keys: dict[tuple[str, bytes], KeptAnswer] = {}
        self._accounts: dict[str, _Account] = {}
        self._room = 0
        self._making: trio.Nursery | None = None
        self.before: Callable[[], None] = _nothing
        """Is called before any of them is given to a client."""

    async def run(self) -> None:
        """Make answers until cancelled."""
        async with trio.open_nursery() as making:
            self._making = making
            try:
                await trio.sleep_forever()
            finally:
                self._making = None

    def making(self) -> trio.Nursery:
        """Where answers are made. Raises `ApiError` if nobody makes any: the daemon ends."""
        if self._making is None:
            raise unavailable("This machine ends.", "shutting_down", retry=5)
        return self._making

    def start(self, answer: KeptAnswer, make: Callable[[], Awaitable[None]]) -> None:
        """Keep *answer* from now on, and have *make* make it, beside whoever reads it.
        Raises `ApiError`, as `making` does."""
        self.making().start_soon(_made, answer, make)
        self._kept[answer.id] = answer
        self._accounts.setdefault(answer.account, _Account()).kept[answer.id] = answer
        if answer.asked.key:
            self._keys[answer.owner, answer.asked.key] = answer
        if not self.has_room(answer):
            answer.keep_no_longer()

    def find(self, owner: str, name: str) -> KeptAnswer | None:
        """Answer *name* of *owner*; None if it is not kept."""
        found = self._kept.get(name)
        return found if found is not None and found.owner == owner else None

    def again(self, owner: str, asked: ResumeFields) -> KeptAnswer | None:
        """The answer to a request of *owner* that was sent before, as *asked*; None if it was not.
        Raises `ApiError` if the key was another request's, or what follows an event is asked for
        that is not kept."""
        keyed = bool(asked.key)  # one in the background may have no key
        found = self._keys.get((owner, asked.key)) if keyed else self.find(owner, asked.answer)
        same = found is not None and found.asked.path == asked.path
        if keyed and found is not None and not (same and found.asked.body == asked.body):
            raise ApiError(
                409,
                "The Idempotency-Key was sent with another body or path. Use a new one for each "
                "request.",
                "idempotency_key_reused",
                param="idempotency-key",
            )
        if asked.answer and not (same and found is not None and found.id == asked.answer):
            raise not_there(asked.answer)
        return found

    def hide(self, answer: KeptAnswer) -> None:
        """Nobody comes back to *answer*."""
        self._kept.pop(answer.id, None)
        if self._keys.get((answer.owner, answer.asked.key)) is answer:
            del self._keys[answer.owner, answer.asked.key]
        if answer.over and not answer.moved:
            answer.gone()

    def release(self, answer: KeptAnswer) -> None:
        """*answer* has no room any more."""
        self.take(answer, 0)
        account = self._accounts.get(answer.account)
        if account is not None:
            account.kept.pop(answer.id, None)
            if not account.kept:
                del self._accounts[answer.account]

    def has_room(self, answer: KeptAnswer) -> bool:
        """Whether *answer* is within the bounds, for which others may have to go."""
        if answer.size <= answer.room:
            return True
        if answer.size > MAX_ANSWER:
            return False
        self.take(answer, answer.size + STEP)
        own = self._accounts[answer.account]
        while len(own.kept) > MAX_COUNT_OF_ONE or own.room > MAX_ANSWERS_OF_ONE:
            if not _make_room(own):
                return False
        while len(self._kept) > MAX_COUNT or self._room > MAX_ANSWERS:
            have = [each for each in self._accounts.values() if each.oldest() is not None]
            if not _make_room(max(have, key=lambda each: each.room, default=own)):
                return False
        return True

    def take(self, answer: KeptAnswer, room: int) -> None:
        """*answer* has so much *room* from now on, unless it has none any more."""
        account = self._accounts.get(answer.account)
        if account is not None and answer.id in account.kept:
            more, answer.room = room - answer.room, room
            account.room += more
            self._room += more

    def move(self) -> None:
        """Another node is the head: it makes again what is over, from the records of that."""
        for answer in [*self._kept.values()]:
            if answer.over:
                answer.move()

    def left(self, answer: KeptAnswer) -> None:
        """The reader of *answer* has left it. One that is made for nobody may have to end."""
        if answer.over:
            return
        alone = [each for each in self._kept.values() if not each.over and each.unread is not None]
        own = [each for each in alone if each.account == answer.account]
        full = own if len(own) > MAX_UNREAD_OF_ONE else alone if len(alone) > MAX_UNREAD else []
        if full:
            min(full, key=lambda each: each.unread or 0.0).forsake()


def _make_room(account: _Account) -> bool:
    """Keep the oldest answer of *account* that may go no longer; whether there was one."""
    if (oldest := account.oldest()) is None:
        return False
    oldest.keep_no_longer()
    return True


async def _made(answer: KeptAnswer, make: Callable[[], Awaitable[None]]) -> None:
    """Make *answer*. What goes wrong is logged, and ends with it."""
    try:
        await make()
    except* Exception:
        log.exception("an answer failed")
    finally:
        if not answer.over:
            answer.finish(error=failed())


def left(seconds: float) -> ApiError:
    """The error for an answer that is made no further, because nobody reads it."""
    message = f"No client reads the answer, and none came back to it within {seconds:g} seconds."
    return ApiError(499, message, "client_gone", kind="cancelled")


def not_there(name: str) -> ApiError:
    """The error for an answer that is not there."""
    return ApiError(
        404,
        f"There is no stream '{name}' to resume, or no longer. The head keeps in memory what was "
        "asked for with an Idempotency-Key or in the background, unless it becomes too large.",
        "stream_not_found",
    )


@attrs.frozen
class Resumed:
    """The ASGI answer to who comes back to *answer*, and has all up to event *after*."""

    answer: KeptAnswer
    after: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give what follows."""
        head: ApiHead = scope["app"].state.head
        caller: Caller = scope["state"]["visitor"]
        with head.holding(caller.account, 0) as holding:
            await self.answer.give(scope, receive, send, holding, self.after)


def found(request: Request, path: str = "") -> KeptAnswer | None:
    """The answer that *request* names, if its owner has it, and asked for it at *path*, if that is
    given."""
    head: ApiHead = request.app.state.head
    caller: Caller = request.scope["state"]["visitor"]
    answer = head.answers.find(caller.owner, request.path_params["id"])
    return answer if answer is not None and path in ("", answer.asked.path) else None


def resumed(request: Request) -> Resumed:
    """What *request* asks for of the answer that it names, after the event of its
    ``starting_after`` or ``Last-Event-ID``. Raises `ApiError`."""
    if (answer := found(request)) is None:
        raise not_there(request.path_params["id"])
    if request.method == "HEAD":  # it would take the stream over, and throw it away
        raise ApiError(405, "A stream is resumed by GET.", "method_not_allowed")
    name, after = _last_event(request.headers)
    if name not in ("", answer.id):
        raise invalid(f"Last-Event-ID is of another stream than '{answer.id}'.", "last-event-id")
    if (given := request.query_params.get("starting_after")) is not None:
        if not _NUMBER.fullmatch(given):
            raise invalid("starting_after is the number of an event.", "starting_after")
        after = int(given)
    answer.check_after(after)
    return Resumed(answer, after)


async def resume(request: Request) -> Resumed:
    """``GET /v1/streams/{id}``."""
    return resumed(request)


async def forget(request: Request) -> JSONResponse:
    """``DELETE /v1/streams/{id}``: end it if it is under way, and keep it no longer."""
    if not forgotten(request):
        raise not_there(request.path_params["id"])
    return JSONResponse({"id": request.path_params["id"], "object": "stream", "deleted": True})


def forgotten(request: Request, path: str = "") -> bool:
    """End the answer that *request* names (`found`), and keep it no longer; whether there was
    one."""
    if (answer := found(request, path)) is None:
        return False
    answer.withdraw()
    answer.keep_no_longer()
    return True

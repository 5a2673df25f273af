"""The next head goes on with the answers of the one before: what the members ask each other for.

A successor has the head tell it of all answers under way (`hear_of_answers`; `records` has what is
told). Once another member is the head, the door that has an answer's client asks that one for the
rest, after the events that the client has, and brings its own record along: that is never behind
the client, and the new head's may be. `/_ring/` is for doors alone: whoever is in front of a head's
app lets no client ask there, and a head answers members, and its own door.

Answers that are kept for their clients need no door. The new head waits a moment for one, or for
the client itself, and then makes them as the old one did; last, and one by one, those that are
complete, of which it asks the ring nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import attrs
import trio
from sealring_protocol.codec.relay_messages import Question
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.relay import BodyCame, DropCame, ReplyCame
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sealring.dialects.errors import ApiError, unavailable
from sealring.http.gate import error_response, member_of
from sealring.http.records import (
    AnswerRecords,
    Frames,
    Kind,
    Record,
    RecordedRequest,
    Successor,
    may_ask,
    no_record,
)
from sealring.http.relay import INTERNAL, SUCCESSION, RelayStream, RelayStreams, StreamGone
from sealring.http.resume import ResumeFields

if TYPE_CHECKING:
    from sealring.http.generate import Generate
    from sealring.http.head import ApiHead

log = logging.getLogger("sealring.api")

MAX_RECORD: Final = 32 << 20
"""Bytes of a record that a door may bring."""

BRING_SECONDS: Final = 20.0
"""Seconds that a door may take to bring a record."""

AGAIN: Final = 1.0
"""Seconds after which a head that tells nothing is asked again."""

DOOR_SECONDS: Final = 5.0
"""Seconds that a new head waits for the doors of answers that are kept."""

_ANSWER: Final = re.compile(rf"{INTERNAL}answers/([0-9a-f]{{24}})")


async def hear_of_answers(streams: RelayStreams, records: AnswerRecords) -> None:
    """Have the head tell *records* of all answers, whoever it is, by *streams*, until cancelled."""
    while True:
        await streams.linked()
        try:
            await _hear(streams, records)
        except (LocalProtocolError, StreamGone):
            pass  # the link is lost
        except ValueError as error:
            log.warning("what the head tells of its answers cannot be read: %s", error)
        records.leave_all()
        if streams.up:
            await trio.sleep(AGAIN)


async def _hear(streams: RelayStreams, records: AnswerRecords) -> None:
    """Hear what the head tells, until it ends, and answer each record by a byte: whether there was
    room for it. Raises `ValueError` for what is no such thing."""
    frames = Frames()
    with streams.asking(Question("GET", SUCCESSION.encode(), True, "", ())) as stream:
        stream.endless = True
        while True:
            match await stream.take():
                case ReplyCame(_, status) if status != 200:
                    return
                case BodyCame(_, data):
                    known = bytearray()
                    for frame in frames.add(data):
                        records.hear(*frame)
                        if frame[0] is Kind.BEGUN:
                            known.append(records.find(frame[1]) is not None)
                        await trio.lowlevel.checkpoint()
                    stream.took(len(data))
                    if known:
                        await stream.send(bytes(known), last=False)
                case DropCame():
                    return


@attrs.define(eq=False)
class Ring:
    """The ASGI app for what doors ask at `INTERNAL` of *head*, if this node is that, which goes on
    with the answers of *records*."""

    records: AnswerRecords
    head: Callable[[], ApiHead | None]
    _taking: dict[str, trio.Event] = attrs.field(factory=dict)  # records, by their ids
    _told: dict[str, RelayStream] = attrs.field(factory=dict)  # members, by their names
    _bringing: dict[str, trio.Lock] = attrs.field(factory=dict)  # the same

    def beside(self, app: ASGIApp) -> ASGIApp:
        """*app* for all other paths."""

        def chosen(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            inside = scope["type"] == "http" and scope["path"].startswith(INTERNAL)
            return (self if inside else app)(scope, receive, send)

        return chosen

    async def hurry(self, scope: Scope) -> None:
        """Go on with those kept answers of another head to which the client of *scope*, whom the
        gate lets in, may come back. Raises `ApiError` while the ring does not serve."""
        path, owner = scope["path"], scope["state"]["visitor"].owner
        back = None  # read where something waits, and nowhere else
        for record in self.records:
            if self._waits(record):
                back = back or ResumeFields.of(Headers(scope=scope), path, b"")
                named = record.name in (*path.split("/"), back.answer)
                if not (named or record.keyed == (owner, back.key.hex())):
                    continue
                if RecordedRequest.decode(record.asked).caller["owner"] == owner:
                    await self._take(record)

    def _waits(self, record: Record) -> bool:
        """Whether a client of *record* has to wait until somebody goes on with it."""
        return record.waits or record.id in self._taking

    async def _take(self, record: Record) -> None:
        """Go on with *record* for nobody, unless somebody has begun to; then wait for that. Raises
        `ApiError` while the ring does not serve."""
        if (begun := self._taking.get(record.id)) is not None:
            await begun.wait()
            return
        if (head := self.head()) is None:
            raise unavailable("This node is not the head.", "not_head")
        if not record.complete:
            head.check_serving()
        begun = self._taking[record.id] = trio.Event()
        try:
            again = Record.decode(record.id, record.encoded())
            again.kept, again.complete = record.kept, record.complete
            make = _generate(head, again)
            if self.records.put(again):
                await make.take_up(again)
        except* Exception:
            # The head before has told it, which may be anything. It ends with this answer.
            log.exception("an answer of the head before cannot be gone on with")
            if (told := self.records.find(record.id)) is not None:
                self.records.over(told)
        finally:
            del self._taking[record.id]
            begun.set()

    async def tell(self, member: str, stream: RelayStream) -> None:
        """Tell *member*, which asks by *stream*, of all answers, until it leaves or asks anew. What
        it has not taken waits here, so it is told once at a time."""
        stream.endless = True
        if (before := self._told.pop(member, None)) is not None:
            before.drop("the member asks anew")
        if self.head() is None:
            stream.reply(503, ())
            await stream.send(b"", last=True)
            return
        stream.reply(200, ())
        self._told[member] = stream
        successor = Successor(stream, self.records)
        self.records.join(successor)
        try:
            while await stream.changed():
                if known := stream.come():
                    self.records.knows(successor, known)
                successor.flush()
        finally:
            self.records.part(successor)
            if self._told.get(member) is stream:
                del self._told[member]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give a door the rest of an answer."""
        try:
            id, after = _place(scope)
            if not may_ask(member := member_of(scope), id):
                raise _unknown()
            if (head := self.head()) is None:
                raise unavailable("This node is not the head.", "not_head")
            if (found := self.records.find(id)) is None or not found.complete:
                head.check_serving()
            # A record has many bytes, and a member many streams: one is read at a time.
            async with self._bringing.setdefault(member, trio.Lock()):
                record = self._best(id, await _body(receive))
            if (begun := self._taking.get(id)) is not None:
                await begun.wait()
            make = _generate(head, record)
            if not await make.rejoin(record, after, scope, receive, send):
                await make.go_on(self._again(record), after, scope, receive, send)
        except ApiError as error:
            await error_response(error)(scope, receive, send)

    def _best(self, id: str, brought: bytes) -> Record:
        """The record of answer *id* to go on with: the longer one of what was *brought* and what is
        here, unless that is made here. What a member has made up of another's answer is none.
        Raises `ApiError`."""
        known = found = self.records.find(id)
        if brought:
            try:
                given = Record.decode(id, brought)
            except ValueError as error:
                raise no_record(error) from None
            left = found is None or found.left is not None
            if found is None or (left and len(given.drawn) > len(found.drawn)):
                found = given
            elif not left and given.asked != found.asked:
                found = None  # two answers of one id
        new = found is not None and (known is None or known.asked != found.asked)
        if found is None or (new and self.records.has_rival(found)):
            raise _unknown()
        return found

    def _again(self, record: Record) -> Record:
        """Another one as *record*, so that nobody who still works on that changes it. Raises
        `ApiError`; that somebody makes the answer passes, or it is no business of who asks."""
        found = self.records.find(record.id)
        if found is not None and found.left is None:
            raise unavailable("This answer is being made for another door.", "ring_not_ready")
        again = Record.decode(record.id, record.encoded())
        has_key = bool(RecordedRequest.decode(record.asked).key)
        again.kept = has_key if found is None else found.kept  # no record says that of itself
        if not self.records.put(again):
            raise unavailable("Too many answers are to be gone on with.", "overloaded")
        return again

    async def take_up(self) -> None:
        """Go on with the answers that are kept and that no door has come for. Without a ring those
        that are complete come first, which need none."""
        await trio.sleep(DOOR_SECONDS)
        serving = (head := self.head()) is not None and head.generator.serving
        for each in sorted(self.records, key=lambda record: record.complete is serving):
            while each.waits and self.records.find(each.id) is each:
                if (head := self.head()) is None:
                    return
                if each.complete or head.generator.serving:
                    await self._take(each)
                else:
                    await trio.sleep(AGAIN)


def _generate(head: ApiHead, record: Record) -> Generate:
    """What makes *record*'s answer at *head*. Raises `ApiError`."""
    # An import that only a head pays for.
    from sealring.http.generate import KINDS, Generate  # noqa: PLC0415

    if (kind := KINDS.get(path := RecordedRequest.decode(record.asked).path)) is None:
        raise no_record(f"nothing is generated at {path}")
    return Generate(head, kind)


def _unknown() -> ApiError:
    """The error for an answer with which this head cannot go on."""
    text = "Nothing is known of this answer here: it is over, or ended with its head."
    return ApiError(404, text, "stream_not_found")


def _place(scope: Scope) -> tuple[str, int]:
    """The answer that a door asks for, and how many of its events it has. Raises `ApiError`."""
    found = _ANSWER.fullmatch(scope["path"])
    after = parse_qs(scope["query_string"].decode("latin-1")).get("after", ["0"])[0]
    if (
        found is None
        or scope["method"] not in ("GET", "POST")
        or not after.isdecimal()
        or len(after) > 12
    ):
        raise ApiError(404, "There is no such path for doors.", "not_found")
    return found[1], int(after)


async def _body(receive: Receive) -> bytes:
    """What a door has brought. Raises `ApiError`."""
    body = bytearray()
    with trio.move_on_after(BRING_SECONDS):
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if len(body) > MAX_RECORD:
                raise ApiError(413, "The record is too large.", "request_too_large")
            if not message["more_body"]:
                return bytes(body)
        raise ApiError(499, "The door has left.", "client_gone")
    raise ApiError(408, f"The record took longer than {BRING_SECONDS:g} s.", "request_timeout")

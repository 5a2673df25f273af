"""What is known of answers under way, so that the next head can go on with them.

The door through which a request came gives its answer an id, whose first half says which member it
is (`new_id`). Under it the head has a `Record`: what was asked, and by whom; the seed; and each
piece of tokens that the ring drew, as it was taken up. From that the whole answer can be made
again, event by event, and then be gone on with: the same pieces make the same events, and the ring
draws the rest as if it had never been interrupted. So neither texts nor events are kept.

Each member that passes requests on and sees texts is a **successor**. It has the head tell it of
all records, as they begin, grow and end, by a stream of its API link that does not end
(`succession`). Whatever a client is given in one turn of the event loop is told to the successors
before: `AnswerRecords.flush` is called first. As a door is a successor itself, and has both by one
link, it never gives a client what it has no record of.

The record of an answer that is kept for its client (`resume`) stays for as long as that is, also
once all of it is drawn. Then the next head makes its events again, and needs no ring for that. Such
records make room for those of answers that are being made.

A node has one `AnswerRecords` for its life, whatever its rank. What nobody makes is forgotten after
`KEEP_SECONDS`.
"""

from __future__ import annotations

import enum
import hashlib
import math
import re
import secrets
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import attrs
import trio
from pydantic_core import from_json
from sealring_protocol.codec.local_messages import Logprobs, Scores
from sealring_protocol.control.requests import FinishReason, RequestDone, ScoresOut, TokenOut
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_LOGPROBS, MAX_SCORES, STREAM_WINDOW
from sealring_trio.node.runtime import AT_ONCE, Event

from sealring.dialects.errors import ApiError
from sealring.dialects.replies import json_bytes
from sealring.http.kept import MAX_KEPT, MAX_KEPT_EACH, MAX_KEPT_ITEMS, Kept, ResponseStore
from sealring.http.resume import MAX_COUNT
from sealring.text.frames import is_small
from sealring.text.workers import SharedBudget

MAX_RECORDS: Final = 128 << 20
"""Bytes of all records, of which one account may have half. What finds no room is not kept, and
ends with its head."""

MAX_BEHIND: Final = 32 << 20
"""Bytes that wait for one successor, beside the record that it is being told whole. One that takes
less is let go, and begins anew."""

MAX_UNTOLD: Final = 1 << 19
"""Records and responses of which one successor is still to be told anything, or is to say that it
knows of them: more than there are. One that lets as many wait is let go, too."""

RECORD_SIZE: Final = 1 << 10
"""Bytes that a record takes beside its own. So an account has 65,536 at most, however small."""

KNOWN_SECONDS: Final = 5.0
"""Seconds that a client waits at most until a successor knows of its answer. A head that was cut
off leads no more by then, and its front has sent the client away."""

PARTED_SECONDS: Final = 2.0
"""Seconds for which the head waits, once the last successor is gone, before it lets clients have
what nobody else knows: it may be the head itself that is cut off, and it then leads no longer."""

KEEP_SECONDS: Final = 60.0
"""Seconds for which an answer is known that nobody makes."""

_LOOK: Final = 5.0
_ID: Final = re.compile(r"[0-9a-f]{24}")
_ID_SIZE: Final = 12
_FRAME: Final = struct.Struct(">BI12s")
_PIECE: Final = struct.Struct(">HBHI")
_TOKEN: Final = struct.Struct(">I")
_LENGTH: Final = struct.Struct(">I")
_CALLER: Final = {
    "id": str,
    "name": str,
    "owner": str,
    "scope": str,
    "account": str,
    "asked": str,
    "trace_id": str,
    "far": bool,
}
_NAME: Final = re.compile(r"(?:chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]{24}")
_MAX_FRAME: Final = 1 << 26
_WORD: Final = 1 << 10  # characters of what a caller is called; the log has some of it
_VALUES: Final = 7 + MAX_SCORES * (2 + 2 * MAX_LOGPROBS)  # values of an event, with the lists
_REQUEST: Final = 1 << 16, 64
_MORE: Final = 32 * AT_ONCE * _VALUES, AT_ONCE * _VALUES
"""Bytes and values of the JSON in a request, and in a piece."""


class Moved(ApiError):
    """This node is the head no more: the next one goes on with the answer."""

    def __init__(self) -> None:
        super().__init__(503, "This node is the head no more.", "not_head")


def new_id(door: str) -> str:
    """An id for the answer to what a client asks at the member *door*."""
    return _of_door(door) + secrets.token_hex(_ID_SIZE // 2)


def may_ask(member: str, id: str) -> bool:
    """Whether *member*'s door gave answer *id*: no other, though all know it, may ask for the rest.
    Empty is this node's own door."""
    return not member or id.startswith(_of_door(member))


def _of_door(door: str) -> str:
    return hashlib.blake2b(door.encode(), digest_size=_ID_SIZE // 2).hexdigest()


class Kind(enum.IntEnum):
    """What a frame of a stream to a successor tells of an answer, or of the head."""

    BEGUN = 1
    MORE = 2
    KEPT = 3
    """And whether it is complete."""
    OVER = 4
    """It is forgotten."""
    SETTINGS = 5
    RESPONSES = 6
    """The names of all responses that are kept (`kept`)."""
    RESPONSE = 7
    DROPPED = 8


_SMALLEST: Final = 1 << 9  # bytes of a response that says nothing
_MOST: Final = {
    Kind.RESPONSES: (160 * (MAX_KEPT // _SMALLEST), 1 + 3 * (MAX_KEPT // _SMALLEST)),
    Kind.RESPONSE: (3 * MAX_KEPT_EACH, 16 + MAX_KEPT_ITEMS),
    Kind.DROPPED: (1 << 14, 16),
}
"""Bytes and values of frames that are JSON. A response is text there, in which each quote has one
byte more."""

Owned = tuple[str, str]
"""The owner of a response, and its name; or of a key."""

Cut = tuple[int, int, tuple[int, ...], bytes]
"""Of a piece the index of its choice, how that ends (0 if it does not), its tokens, and JSON."""

_ENDS: Final = (None, FinishReason.STOP, FinishReason.LENGTH)


@attrs.frozen
class DrawnPiece:
    """What choice *index* of an answer was given at once: *events*, or its end, if it is the
    *last*."""

    index: int
    events: tuple[Event, ...] = ()
    last: bool = False

    def encode(self) -> bytes:
        """As bytes. Of ends there are those alone that are no errors."""
        tokens = [event for event in self.events if isinstance(event, TokenOut)]
        scores = [event.scores for event in self.events if isinstance(event, ScoresOut)]
        ends = [event.reason for event in self.events if isinstance(event, RequestDone)]
        how = _ENDS.index(ends[0]) if ends and ends[0] in _ENDS else 0
        more = b""
        if scores or any(token.logprobs is not None for token in tokens):
            likely = [_of_logprobs(token.logprobs) for token in tokens]
            more = json_bytes([likely, [_of_scores(each) for each in scores]])
        head = _PIECE.pack(self.index, 4 * self.last + how, len(tokens), len(more))
        ids = b"".join([_TOKEN.pack(token.token) for token in tokens])
        return head + ids + more


def cuts(data: bytes | bytearray, end: int) -> Iterator[Cut]:
    """The pieces in the first *end* bytes of *data*, whose JSON is not read. Raises `ValueError`.
    Each takes a few microseconds, and *data* may grow meanwhile."""
    at = 0
    while at < end:
        try:
            index, flags, count, size = _PIECE.unpack_from(data, at)
            ids = struct.unpack_from(f">{count}I", data, at := at + _PIECE.size)
        except struct.error as error:
            raise ValueError(f"no pieces of an answer: {error}") from None
        at += 4 * count + size
        if at > end or count > AT_ONCE:
            raise ValueError("no pieces of an answer: one is cut off, or too large")
        yield index, flags & 7, ids, bytes(data[at - size : at])


def pieces(data: bytes | bytearray, end: int | None = None) -> Iterator[DrawnPiece]:
    """The pieces in the first *end* bytes of *data*, or in all of it, one by one: each takes a
    hundred times the bytes that it has there. Raises `ValueError`."""
    for index, ends, ids, more in cuts(data, len(data) if end is None else end):
        try:
            likely, scores = _parsed(more, _MORE) if more else ([None] * len(ids), [])
            events: list[Event] = [ScoresOut(0, _scores(each)) for each in scores]
            for token, found in zip(ids, likely, strict=True):
                events.append(TokenOut(0, token, 0, _logprobs(found)))
            if (reason := _ENDS[ends & 3]) is not None:
                events.append(RequestDone(0, reason))
            yield DrawnPiece(index, tuple(events), bool(ends & 4))
        except (TypeError, LookupError, LocalProtocolError) as error:
            raise ValueError(f"no pieces of an answer: {error}") from None


def no_record(why: object) -> ApiError:
    """The error for what was brought, or told, as a record."""
    return ApiError(400, f"This is no record: {why}.", "bad_request")


def _parsed(data: bytes, most: tuple[int, int]) -> Any:
    """The value of the JSON in *data*, which has so many bytes and values at *most*, keys too.
    Raises `ValueError`."""
    size, values = most
    if len(data) > size or not is_small(data, values):
        raise ValueError(f"JSON of more than {size} bytes, or {values} values")
    return from_json(data)


def _of_logprobs(found: Logprobs | None) -> Any:
    return None if found is None else (found.chosen, found.ids, found.values)


def _logprobs(found: Any) -> Logprobs | None:
    return None if found is None else Logprobs(0, 0, *map(_plain, found))


def _of_scores(scores: Scores) -> Any:
    return scores.position, scores.chosen, scores.ranks, scores.ids, scores.values


def _scores(found: Any) -> Scores:
    return Scores(0, 0, *map(_plain, found))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@attrs.frozen
class RecordedRequest:
    """A request for *path* with *body*, and what its answer has from the start: the fields of its
    *caller* (`gate.Caller`), when it *began* (Unix milliseconds), the *seed* of rows that have none
    of their own, the secret of its *names*, and the digest of its *key*, empty for none."""

    path: str
    body: bytes = attrs.field(repr=False)
    caller: dict[str, Any]
    began: int
    seed: int
    names: bytes = attrs.field(repr=False)
    key: bytes = b""

    @property
    def account(self) -> str:
        """Whose memory it takes."""
        return str(self.caller["account"])

    @property
    def name(self) -> str:
        """What its client calls the answer."""
        return str(self.caller["id"])

    @property
    def keyed(self) -> Owned | None:
        """Its owner, and the key by which that comes back to the answer; None if it has none."""
        return (str(self.caller["owner"]), self.key.hex()) if self.key else None

    def encode(self) -> bytes:
        """As bytes."""
        fields = {
            "path": self.path,
            "caller": self.caller,
            "began": self.began,
            "seed": self.seed,
            "names": self.names.hex(),
            "key": self.key.hex(),
        }
        head = json_bytes(fields)
        return _LENGTH.pack(len(head)) + head + self.body

    @classmethod
    def decode(cls, data: bytes) -> RecordedRequest:
        """The one that *data* has. Raises `ValueError`."""
        try:
            end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            fields = _parsed(data[_LENGTH.size : end], _REQUEST)
            names, key = bytes.fromhex(fields.pop("names")), bytes.fromhex(fields.pop("key"))
            asked = cls(**fields, body=data[end:], names=names, key=key)
            caller = {name: type(value) for name, value in asked.caller.items()}
            said = asked.caller.values()
        except (struct.error, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no request of an answer: {error}") from None
        whole = type(asked.path) is str and type(asked.began) is type(asked.seed) is int
        within = whole and 0 <= asked.began < 1 << 53 and 0 <= asked.seed < 1 << 64
        if not within or caller != _CALLER or not _NAME.fullmatch(asked.name):
            raise ValueError("no request of an answer: its fields are of other kinds")
        if not all(str(word).isprintable() and len(str(word)) <= _WORD for word in said):
            raise ValueError("no request of an answer: its caller is called by no words")
        return asked


@attrs.define(eq=False)
class Record:
    """What is known of the answer *id*: the encoded `RecordedRequest`, and its encoded pieces so
    far. Those only grow: another head's are another record."""

    id: str
    asked: bytes
    drawn: bytearray = attrs.field(factory=bytearray)
    account: str = ""
    name: str = ""
    keyed: Owned | None = None
    """As of the request."""

    kept: bool = False
    """Whether it is made for nobody, too, and its client may come back."""

    complete: bool = False
    """Whether all of it is drawn. Then it is there for its client alone."""

    room: int = 0
    left: float | None = None
    """Since when nobody makes it, by trio's clock; None while somebody does."""

    known: bool = False
    """Whether a successor has said that it knows of it."""

    @classmethod
    def of(cls, id: str, data: bytes, asked: RecordedRequest | None = None) -> Record:
        """That of answer *id* to what was *asked*, which is *data* encoded, and of which nothing is
        drawn yet. Raises `ValueError` for what is no request."""
        asked = RecordedRequest.decode(data) if asked is None else asked
        return cls(id, data, account=asked.account, name=asked.name, keyed=asked.keyed)

    def encoded(self) -> bytes:
        """All of it."""
        return _LENGTH.pack(len(self.asked)) + self.asked + self.drawn

    @classmethod
    def decode(cls, id: str, data: bytes) -> Record:
        """The record of answer *id* that *data* has, and whose pieces nobody has looked at. Raises
        `ValueError`."""
        if len(data) < _LENGTH.size:
            raise ValueError("no record of an answer")
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        record = cls.of(id, bytes(data[_LENGTH.size : end]))
        record.drawn += data[end:]
        return record

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return RECORD_SIZE + len(self.asked) + len(self.drawn)

    @property
    def waits(self) -> bool:
        """Whether it is kept for its client, and nobody makes it."""
        return self.kept and self.left is not None


class Telling(Protocol):
    """One end of a stream that takes what it can at once."""

    def offer(self, data: bytes) -> int:
        """Send as much of *data* as there is room for; how much that was."""

    def drop(self, reason: str = "") -> None:
        """Let go of it, for *reason*."""


class Successor:
    """A member that is told of all *records* by *wire*, and what it is still to be told."""

    def __init__(self, wire: Telling, records: AnswerRecords) -> None:
        self._wire = wire
        self._records = records
        self._behind = bytearray()
        self._most = MAX_BEHIND
        self._told: set[str] = set()
        self._begun: deque[str] = deque()  # what it was told of, and has not said that it knows
        names = records.responses.names
        waiting: list[str | Owned] = [*(each.id for each in records), *names]
        self._untold = OrderedDict.fromkeys(waiting)
        if records.settings:
            self._behind += _frame(Kind.SETTINGS, "", records.settings)
        self._behind += _frame(Kind.RESPONSES, "", json_bytes(names))

    def begun(self, record: Record) -> None:
        """*record* is new, or another of an answer that was known."""
        self._told.discard(record.id)
        self._later(record.id)

    def more(self, record: Record, frame: bytes) -> None:
        """*frame* tells of *record*, which has it already."""
        if record.id in self._told:
            self.tell(frame)

    def tell(self, frame: bytes) -> None:
        """Have it told *frame*."""
        self._behind += frame
        if len(self._behind) > self._most:
            self._let_go()

    def response(self, named: Owned) -> None:
        """The response *named* is kept, or dropped."""
        self._later(named)

    def knows(self, said: bytes) -> None:
        """It has *said* of each further record that it was told of whether it has room for it."""
        for _, has in zip(range(len(self._begun)), said, strict=False):
            record = self._records.find(self._begun.popleft())
            if record is not None and has:
                record.known = True

    def over(self, record: Record) -> None:
        """*record* is over."""
        self._untold.pop(record.id, None)
        if record.id in self._told:
            self._told.discard(record.id)
            self.tell(_frame(Kind.OVER, record.id))

    def flush(self) -> None:
        """Send what there is, as far as there is room."""
        while self._behind or self._next():
            sent = self._wire.offer(bytes(self._behind[:STREAM_WINDOW]))
            del self._behind[:sent]
            if not sent:
                return

    def _next(self) -> bool:
        """Take up what it has not been told of; whether there is something."""
        self._most = MAX_BEHIND
        while self._untold:
            next_one, _ = self._untold.popitem(last=False)
            if not isinstance(next_one, str):
                self._behind += _of_response(next_one, self._records.responses.find(*next_one))
                return True
            record = self._records.find(next_one)
            if record is not None and record.id not in self._told:
                self._told.add(record.id)
                self._begun.append(record.id)
                self._behind += _frame(Kind.BEGUN, record.id, record.asked)
                self._behind += _frame(Kind.MORE, record.id, record.drawn)
                if record.kept:
                    self._behind += _of_kept(record)
                self._most += len(self._behind)
                return True
        return False

    def _later(self, what: str | Owned) -> None:
        self._untold[what] = None
        if len(self._untold) + len(self._begun) > MAX_UNTOLD:
            self._let_go()

    def _let_go(self) -> None:
        self._wire.drop("it takes too little of what it is told")


def _frame(kind: Kind, id: str, data: bytes | bytearray = b"") -> bytes:
    return _FRAME.pack(kind, len(data), bytes.fromhex(id)) + data


def _of_kept(record: Record) -> bytes:
    return _frame(Kind.KEPT, record.id, bytes([record.complete]))


def _of_response(named: Owned, kept: Kept | None) -> bytes:
    """The frame of the response *named*, which is *kept* or not."""
    if kept is None:
        return _frame(Kind.DROPPED, "", json_bytes(named))
    items = [[item.decode() for item in each] for each in (kept.before, kept.inputs, kept.outputs)]
    fields = [*named, kept.response.decode(), *items, kept.account]
    return _frame(Kind.RESPONSE, "", json_bytes(fields))


class AnswerRecords:
    """The records of a node, and with them its *responses*, which the next head is to have, too.
    *settled* hears what the head tells of its settings."""

    def __init__(self, responses: ResponseStore | None = None) -> None:
        self.responses = ResponseStore() if responses is None else responses
        self.responses.changed = self._changed
        self._records: dict[str, Record] = {}
        self._complete: dict[str, Record] = {}  # of them, in the order in which they became so
        self._budget = SharedBudget(MAX_RECORDS)
        self._successors: list[Successor] = []
        self._parted = -math.inf  # when the last of them was
        self._heard = trio.lowlevel.ParkingLot()
        self.settings = b""
        """What successors are told of this head; empty for nothing."""
        self.settled: Callable[[bytes], None] = _ignored

    def __iter__(self) -> Iterator[Record]:
        return iter([*self._records.values()])

    def find(self, id: str) -> Record | None:
        """The record of answer *id*; None if it is not known."""
        return self._records.get(id)

    def has_rival(self, record: Record) -> bool:
        """Whether a client would find another answer by the name, or the key, of *record*."""
        keyed, others = record.keyed, (each for each in self if each.id != record.id)
        return any(
            each.name == record.name or (each.keyed == keyed and keyed is not None)
            for each in others
        )

    def encoded(self, id: str) -> bytes:
        """All that is known of answer *id*; empty if that is nothing."""
        record = self._records.get(id)
        return b"" if record is None else record.encoded()

    async def run(self) -> None:
        """Forget what nobody makes, until cancelled."""
        while True:
            await trio.sleep(_LOOK)
            now = trio.current_time()
            for record in self:
                if record.left is not None and now >= record.left + KEEP_SECONDS:
                    self.over(record)

    # ------------------------------------------------------------- at the head

    def begin(self, id: str, asked: RecordedRequest) -> Record | None:
        """A record of the answer *id* to what was *asked*; None if that is no id, or another answer
        has it that is being made, or there is no room."""
        known = self._records.get(id)
        if not _ID.fullmatch(id) or (known is not None and known.left is None):
            return None
        record = Record.of(id, asked.encode(), asked)
        return record if self.put(record) else None

    def put(self, record: Record) -> bool:
        """Keep *record* in place of another of its answer, if there is room; whether there is."""
        if (before := self._records.get(record.id)) is not None:
            self._remove(before)
        if not self._has_room(record):
            return False
        self._records[record.id] = record
        if record.complete:
            self._completed(record)
        for successor in self._successors:
            successor.begun(record)
        self.flush()
        return True

    def add(self, record: Record, piece: DrawnPiece) -> None:
        """*record* has *piece*. Call `flush` before anybody is given what it makes."""
        if self._records.get(record.id) is not record:
            return
        data = piece.encode()
        record.drawn += data
        if not self._has_room(record):
            self.over(record)
            return
        if self._successors:
            frame = _frame(Kind.MORE, record.id, data)
            for successor in self._successors:
                successor.more(record, frame)

    def over(self, record: Record) -> None:
        """*record* is over, and nobody comes back to it: it is forgotten."""
        if self._records.get(record.id) is record:
            self._remove(record)
            for successor in self._successors:
                successor.over(record)
            self.flush()
            self._heard.unpark_all()

    def keep(self, record: Record) -> None:
        """From now on *record* is made whether or not there is a client."""
        record.kept = True
        for successor in self._successors:
            successor.more(record, _of_kept(record))

    def complete(self, record: Record) -> None:
        """All of *record*, which is kept, is drawn. It stays until it is `over`."""
        if self._records.get(record.id) is record:
            self._completed(record)
            self.keep(record)
            self.flush()

    def leave(self, record: Record) -> None:
        """Nobody makes *record* any more, and somebody may go on with it."""
        record.left = trio.current_time()

    def leave_all(self) -> None:
        """The head that made all of them is lost, or is this node no more."""
        for record in self:
            if record.left is None:
                self.leave(record)

    def flush(self) -> None:
        """Tell the successors what they are to know before any client is given more."""
        for successor in self._successors:
            successor.flush()

    def settle(self, settings: bytes) -> None:
        """From now on tell the successors *settings*."""
        self.settings = settings
        for successor in self._successors:
            successor.tell(_frame(Kind.SETTINGS, "", settings))
        self.flush()

    @property
    def told(self) -> bool:
        """Whether anybody else knows the records."""
        return bool(self._successors)

    async def until_known(self, record: Record) -> None:
        """Wait until a successor knows of *record*, if there is any. Then its client may have an
        event of it: wherever that comes back to, somebody can go on."""
        last = trio.current_time() + KNOWN_SECONDS
        while not record.known and self._records.get(record.id) is record:
            until = last if self.told else min(last, self._parted + PARTED_SECONDS)
            if trio.current_time() >= until:
                return
            with trio.move_on_at(until):
                await self._heard.park()

    def join(self, successor: Successor) -> None:
        """*successor* is told everything from now on."""
        self._successors.append(successor)
        successor.flush()

    def knows(self, successor: Successor, said: bytes) -> None:
        """*successor* has *said* which further records it knows. See `Successor.knows`."""
        successor.knows(said)
        self._heard.unpark_all()

    def part(self, successor: Successor) -> None:
        """*successor* is told nothing more."""
        self._successors.remove(successor)
        if not self.told:
            self._parted = trio.current_time()
            self._heard.unpark_all()

    # ------------------------------------------------------------- at a successor

    def hear(self, frame: Kind, id: str, data: bytes) -> None:
        """The head tells this of answer *id*, or of itself. Raises `ValueError`."""
        match frame:
            case Kind.BEGUN:
                if (before := self._records.get(id)) is not None:
                    self._remove(before)
                record = Record.of(id, data)
                if self._has_room(record):
                    self._records[id] = record
            case Kind.MORE if (known := self._records.get(id)) is not None:
                known.drawn += data
                if not self._has_room(known):
                    self._remove(known)
            case Kind.KEPT if (known := self._records.get(id)) is not None:
                known.kept = True
                if any(data):
                    self._completed(known)
            case Kind.OVER if (known := self._records.get(id)) is not None:
                self._remove(known)
            case Kind.SETTINGS:
                self.settled(data)
            case Kind.RESPONSES | Kind.RESPONSE | Kind.DROPPED:
                try:
                    self._hear_of_responses(frame, _parsed(data, _MOST[frame]))
                except (AttributeError, LookupError, TypeError) as error:
                    raise ValueError(f"no responses: {error}") from None

    def _hear_of_responses(self, frame: Kind, told: Any) -> None:
        """The head tells this of its responses. Raises `ValueError`."""
        match frame, told:
            case Kind.RESPONSES, [*names]:
                gone = {*self.responses.names}
                gone.difference_update((each[0], each[1]) for each in names)
                for owner, name in gone:
                    self.responses.drop(owner, name)
            case Kind.DROPPED, [str(owner), str(name)]:
                self.responses.drop(owner, name)
            case Kind.RESPONSE, [str(owner), str(name), str(made), *items, str(account)]:
                before, inputs, outputs = (tuple(item.encode() for item in each) for each in items)
                self.responses.drop(owner, name)
                kept = Kept(made.encode(), before, inputs, outputs, account)
                self.responses.keep(owner, name, kept)
            case _:
                raise ValueError("no responses")

    def _changed(self, owner: str, name: str) -> None:
        """A response of *owner* is kept or dropped."""
        for successor in self._successors:
            successor.response((owner, name))

    def _has_room(self, record: Record) -> bool:
        """Whether *record* may have its size, of which it then has the room. Complete ones may have
        to go for that."""
        more = record.size - record.room
        if more > 0:
            more = max(more, min(record.size, 1 << 16))
            while not self._budget.take(record.account, more):
                goes = self._may_go(record, more)
                if goes is None or goes is record:
                    self._free(record)
                    return False
                self.over(goes)
            record.room += more
        return True

    def _may_go(self, record: Record, more: int) -> Record | None:
        """The oldest complete record of whoever has most, or of *record*'s account if that has no
        part left for *more*; None if there is none."""
        left, own = self._budget.left_of, record.account
        alone = more > left(own)
        may = (each for each in self._complete.values() if not alone or each.account == own)
        return min(may, key=lambda each: left(each.account), default=None)

    def _completed(self, record: Record) -> None:
        """All of *record* is drawn. No head keeps more of them than `MAX_COUNT`."""
        record.kept = record.complete = True
        self._complete[record.id] = record
        if len(self._complete) > MAX_COUNT:
            self.over(next(iter(self._complete.values())))

    def _free(self, record: Record) -> None:
        if record.room:
            self._budget.give_back(record.account, record.room)
            record.room = 0

    def _remove(self, record: Record) -> None:
        self._free(record)
        del self._records[record.id]
        self._complete.pop(record.id, None)


def _ignored(data: bytes) -> None:
    """This node keeps no settings of a head."""


class Frames:
    """Makes frames of what comes of a stream."""

    def __init__(self) -> None:
        self._came = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[Kind, str, bytes]]:
        """The frames that *data* completes. Raises `ValueError`."""
        self._came += data
        while len(self._came) >= _FRAME.size:
            kind, size, id = _FRAME.unpack_from(self._came)
            if size > _MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes")
            end = _FRAME.size + size
            if len(self._came) < end:
                return
            body = bytes(self._came[_FRAME.size : end])
            del self._came[:end]
            yield Kind(kind), id.hex(), body

"""The encoding of every message: one for each value, and a decoder that accepts nothing else.

`SCHEMA` is the whole of it: a row for each message, with its fields in order. `Codec` makes an
encoder, a decoder and both directions of JSON of a row; the specification's tables, the vectors and
other runtimes' layouts come from the same rows. So a new message is a class, a row, and a place in
`Message` or `LocalMessage`.

A message begins with a part of fixed size, whose first byte is the message's code and which has the
counts of all lists; the lists follow in the order of their counts. So the steps of a running ring,
which have no lists, cost one `struct` call. STEP, STEP_DONE and TUNNEL are written out a
second time, by hand, because they travel for every token; a test holds them to their rows.

`encode` returns a message as a list of parts, so that large tensors are not copied before they are
sealed. `decode` reads a plaintext; tensors are views of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, get_args

import attrs

from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.election_messages import (
    Candidacy,
    NoVote,
    NoVoteReason,
    Renew,
    Renewed,
    Vote,
)
from sealring_protocol.codec.fields import (
    DTYPE,
    F64,
    FLAG,
    U8,
    U16,
    U32,
    U64,
    Blob,
    Bounded,
    Bytes,
    Code,
    Columns,
    Fixed,
    HeaderFields,
    Hosts,
    Json,
    Name,
    Numbers,
    Optional,
    Records,
    Rest,
    Sequences,
    Tensors,
    Varying,
    Words,
    decode_tensor,
    encode_tensor,
)
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    HopKey,
    Loaded,
    LocalMessage,
    Logprobs,
    RowOver,
    RowReady,
    Scores,
)
from sealring_protocol.codec.messages import (
    NO_WORK,
    Accept,
    Addresses,
    Admit,
    Backend,
    Bootstrap,
    Build,
    CacheCost,
    CannotServe,
    Checked,
    Close,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Get,
    Hello,
    Hindrance,
    Join,
    Joined,
    KeptCache,
    Message,
    Open,
    Piece,
    Ping,
    Pong,
    Prefill,
    Prepared,
    Progress,
    Ready,
    Reason,
    Row,
    Save,
    Spent,
    Step,
    StepDone,
    TakeBack,
    Tunnel,
    TunnelEvent,
    Waiting,
    Work,
)
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply
from sealring_protocol.codec.wire import Buffer, Reader, letter, sized
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import (
    MAX_BAD,
    MAX_BIAS,
    MAX_BODY,
    MAX_CLIENT,
    MAX_ELECTED,
    MAX_ENDS,
    MAX_FIELDS,
    MAX_FILE_NAME,
    MAX_GRAMMAR,
    MAX_HEADERS,
    MAX_IDS,
    MAX_KEPT,
    MAX_LAYERS,
    MAX_LEARNT_ADDRESSES,
    MAX_LOGPROBS,
    MAX_METHOD,
    MAX_PIECE,
    MAX_REASON,
    MAX_REASONS,
    MAX_ROWS,
    MAX_SCORES,
    MAX_SETTINGS,
    MAX_SPENT,
    MAX_TARGET,
    MAX_TENSORS,
    MAX_VERSION,
    MAX_WINDOWS,
    MAX_WORLD,
    NO_GROUP,
    STREAM_WINDOW,
)

__all__ = ["decode", "decode_local", "encode"]

# ------------------------------------------------------------------- the parts that rows share


def _of(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """What takes a value of *kind* apart, in the order of its fields."""
    return attrgetter(*(field.name for field in attrs.fields(kind)))


def _pair(*values: Any) -> tuple[Any, ...]:
    return values


DIGEST: Final = 16
"""Bytes of a ledger's digest."""

IDLE, PREFILL, DECODE, SCORED = 0, 1, 2, 3
"""The values of STEP's *work*."""

# Successive steps share their epoch, and there are few groups.
_epoch: Final = lru_cache(maxsize=16)(Epoch)
_decode_work: Final = lru_cache(maxsize=64)(Decode)


def _join_work(kind: int, target: int, position: int, count: int) -> Work:
    if kind == DECODE and target <= NO_GROUP:
        return _decode_work(target, count, position)
    if kind in (PREFILL, SCORED):
        return Prefill(target, position, count, kind == SCORED)
    if kind == IDLE and not (target or position or count):
        return NO_WORK
    raise RemoteProtocolError("a step's work has a field out of range")


def _split_work(work: Work) -> tuple[int, int, int, int]:
    if isinstance(work, Decode):
        return DECODE, work.group, work.ahead, work.guessed
    if isinstance(work, Prefill):
        return SCORED if work.scored else PREFILL, work.uid, work.position, work.count
    return IDLE, 0, 0, 0


def _split_build(build: Build) -> tuple[int, int, str]:
    return build.oldest, build.newest, build.version


def _join_build(oldest: int, newest: int, version: str) -> Build:
    return Build(version, oldest, newest)


FOLDS: Final[Mapping[str, tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Any]]]] = {
    "epoch": (_of(Epoch), _epoch),
    "progress": (_of(Progress), Progress),
    "cost": (_of(CacheCost), CacheCost),
    "build": (_split_build, _join_build),
    "work": (_split_work, _join_work),
    "question": (_of(Question), Question),
}
"""Attributes that are several fields: how such a value is taken apart, and joined of its fields."""

_EPOCH: Final = (("instance", U64, "epoch"), ("counter", U64, "epoch"))
_PROGRESS: Final = tuple((field.name, U64, "progress") for field in attrs.fields(Progress))
_LAYERS: Final = Bounded("u16", MAX_LAYERS, "layers")
_HASH: Final = Bytes(32)
_BACKEND: Final = Code(Backend)
_KIND: Final = Code(FailureKind)
_EVENT: Final = Code(TunnelEvent)
_REASON: Final = Words(MAX_REASON, "bytes of a reason")
_IDS: Final = Numbers("u32", U32, MAX_IDS, "token ids")
_HOSTS: Final = Hosts()
_HEADERS: Final = HeaderFields(MAX_FIELDS, MAX_HEADERS)
_PINS: Final = Numbers("u16", U64, MAX_LAYERS + 2, "pins")
_SPENT: Final = Records(
    "u8",
    {"compute": U32, "wait": U32, "seal": U32},
    MAX_SPENT,
    "entries of times",
    Spent,
    _of(Spent),
)
_TENSORS: Final = Tensors()
_FAILED: Final = Optional(
    "bool", {"rank": U16, "kind": _KIND}, 1, "failures", Failure, _of(Failure), words="message"
)
_TAIL: Final = (
    ("spent", _SPENT),
    ("ids", _IDS),
    ("tensors", _TENSORS),
    ("failed", _FAILED),
)


def _changes(kind: type[Any], **cells: Fixed) -> Records:
    return Records("u16", cells, MAX_ROWS, "entries in a list of a step", kind, _of(kind))


_UIDS: Final = Numbers("u16", U64, MAX_ROWS, "entries in a list of a step")
_BACK: Final = _changes(TakeBack, uid=U64, count=U8)
_SAVE: Final = _changes(Save, uid=U64, handle=U64)
_OPEN: Final = _changes(Open, uid=U64, handle=U64, keep=U32)
_KEPT: Final = Records(
    "u16", {"number": U64, "length": U32}, MAX_KEPT, "kept caches", KeptCache, _of(KeptCache)
)
_JOIN: Final = _changes(Join, uid=U64, group=U16)

# ---------------------------------------------------------------------------------- the table

Field = tuple[str, Fixed | Varying] | tuple[str, Fixed | Varying, str]
"""A field's name, its kind, and the attribute that it is, if that has another name: one of `FOLDS`,
of which it is a part, or several names, which are the parts of its value."""

SCHEMA: Final[Mapping[type[Any], tuple[Field, ...]]] = {
    Ping: (("echo", U64), *_PROGRESS),
    Pong: (("echo", U64), *_PROGRESS),
    Accept: (
        ("transcript", _HASH),
        ("serial", U64),
        ("roster", Blob("u32", MAX_ELECTED, "bytes of a roster")),
    ),
    Close: (("why", U16, "code"), ("reason", _REASON)),
    Admit: (
        ("roster", Blob("u32", MAX_ELECTED, "bytes of a roster")),
        ("settings", Name(MAX_SETTINGS, "bytes of settings")),
    ),
    Joined: (),
    Hello: (
        ("model", _HASH),
        ("layers", _LAYERS),
        ("dtype", DTYPE),
        ("hidden", U32),
        ("room", U64),
        ("oldest", U16, "build"),
        ("newest", U16, "build"),
        ("version", Words(MAX_VERSION, "bytes of a version"), "build"),
        ("pins", _PINS),
    ),
    Prepared: (*_EPOCH, ("port", U16)),
    Ready: (
        *_EPOCH,
        ("first", U16),
        ("last", _LAYERS),
        ("trimmable", FLAG),
        ("room", U64),
        ("fixed", U64, "cost"),
        ("per_token", U64, "cost"),
        ("sum_us", U32),
        ("token_us", U32),
        (
            "windows",
            Records("u16", {"tokens": U32, "bytes": U64}, MAX_WINDOWS, "windows", _pair, tuple),
            "cost",
        ),
    ),
    Bootstrap: (
        *_EPOCH,
        ("backend", _BACKEND),
        ("rank", U16),
        ("inner_seal", FLAG),
        ("trusted", FLAG),
        ("checked", FLAG),
        ("steps", U16),
        ("deadline_ms", U32),
        ("model", _HASH),
        ("bounds", Numbers("u16", _LAYERS, MAX_WORLD + 1, "bounds")),
        ("hosts", _HOSTS),
        ("members", Numbers("u16", U16, MAX_WORLD, "members of a ring")),
        ("kept", _KEPT),
    ),
    Step: (
        *_EPOCH,
        ("n", U64),
        ("digest", Bytes(DIGEST)),
        ("back", _BACK),
        ("save", _SAVE),
        ("evict", _UIDS),
        ("drop", _UIDS),
        ("open", _OPEN),
        ("join", _JOIN),
        ("work", U8, "work"),
        ("target", U64, "work"),
        ("position", U32, "work"),
        ("count", U32, "work"),
        *_TAIL,
    ),
    StepDone: (*_EPOCH, ("n", U64), *_TAIL),
    CannotServe: (*_EPOCH, ("n", U64), ("kind", _KIND), ("reason", _REASON)),
    Checked: (
        *_EPOCH,
        ("n", U64),
        ("closing", FLAG),
        ("tensors", Tensors(pair=True), "received given"),
    ),
    Tunnel: (*_EPOCH, ("stream", U8), ("event", _EVENT), ("data", Rest())),
    Row: (
        ("uid", U64),
        ("seed", U64),
        ("choice", U16),
        ("temperature", F64),
        ("top_p", F64),
        ("top_k", U32),
        ("min_p", F64),
        ("repetition", F64),
        ("presence", F64),
        ("frequency", F64),
        ("logprobs", U8),
        (
            "bias",
            Records(
                "u16", {"token": U32, "value": F64}, MAX_BIAS, "biases", _pair, tuple, bare=True
            ),
        ),
        ("generated", U32),
        ("history", _IDS),
        ("least", U32),
        ("ends", Numbers("u16", U32, MAX_ENDS, "ends")),
        ("bad", Sequences(MAX_BAD, "tokens of bad sequences")),
        ("grammar", Blob("u32", MAX_GRAMMAR, "bytes of a grammar")),
    ),
    Waiting: (
        (
            "reasons",
            Records(
                "u8",
                {"hindrance": Code(Hindrance), "rank": U16},
                MAX_REASONS,
                "reasons",
                Reason,
                _of(Reason),
                words="text",
            ),
        ),
    ),
    Addresses: (
        ("member", U16),
        (
            "addresses",
            Records(
                "u8",
                {"ip": Bytes(16), "port": U16},
                MAX_LEARNT_ADDRESSES,
                "addresses",
                _pair,
                tuple,
            ),
        ),
    ),
    Get: (
        ("offset", U64),
        ("length", Bounded("u32", MAX_PIECE, "bytes of a piece")),
        ("name", Name(MAX_FILE_NAME, "bytes of a file's name")),
    ),
    Piece: (
        ("size", U64),
        ("data", Blob("u32", MAX_PIECE, "bytes of a piece", whole=False)),
        ("reason", _REASON),
    ),
    Ask: (
        ("stream", U64),
        ("method", Name(MAX_METHOD, "bytes of a method"), "question"),
        ("target", Blob("u16", MAX_TARGET, "bytes of a target"), "question"),
        ("secure", FLAG, "question"),
        ("client", Name(MAX_CLIENT, "bytes of a client's address"), "question"),
        ("headers", _HEADERS, "question"),
    ),
    Reply: (("stream", U64), ("status", U16), ("headers", _HEADERS)),
    BodyPart: (
        ("stream", U64),
        ("last", FLAG),
        ("data", Blob("u32", MAX_BODY, "bytes of a body")),
    ),
    Credit: (("stream", U64), ("size", Bounded("u32", STREAM_WINDOW, "bytes of credit"))),
    Drop: (("stream", U64), ("reason", _REASON)),
    Candidacy: (("term", U64), ("head", U16)),
    Vote: (("term", U64), ("head", U16), ("signature", Bytes(64))),
    NoVote: (("term", U64), ("head", U16), ("latest", U64), ("why", Code(NoVoteReason), "reason")),
    Renew: (("term", U64), ("count", U64)),
    Renewed: (("term", U64), ("count", U64), ("promised", U64)),
    EngineInfo: (
        ("model", _HASH),
        ("dtype", DTYPE),
        ("hidden", U32),
        ("vocabulary", U32),
        ("context", U32),
        ("trimmable", FLAG),
        ("batches", FLAG),
        ("splits", U16),
        ("backends", U8),
        ("room", U64),
        ("ends", U64),
        ("head", U32),
        ("hop", U32),
        ("ahead", U8),
        ("layers", Numbers("u16", U64, MAX_LAYERS, "layers")),
        ("joined", Numbers("u16", U16, MAX_LAYERS, "joined layers")),
        ("pins", _PINS),
        ("reason", _REASON),
    ),
    HopKey: (("outgoing", FLAG), ("suite", U8), ("cluster", _HASH), ("secret", _HASH)),
    Loaded: (("read", U64), ("held", U64), ("load_us", U64)),
    Logprobs: (
        ("n", U64),
        ("uid", U64),
        ("chosen", F64),
        (
            "alternatives",
            Columns("u8", {"token": U32, "value": F64}, MAX_LOGPROBS, "log probabilities"),
            "ids values",
        ),
    ),
    Scores: (
        ("n", U64),
        ("uid", U64),
        ("position", U32),
        (
            "scores",
            Columns("u16", {"chosen": F64, "rank": U32}, MAX_SCORES, "scores"),
            "chosen ranks",
        ),
        (
            "likeliest",
            Columns("u16", {"token": U32, "value": F64}, MAX_SCORES * MAX_LOGPROBS, "likeliest"),
            "ids values",
        ),
    ),
    RowOver: (("n", U64), ("uid", U64), ("reason", _REASON)),
    RowReady: (*_EPOCH, ("uid", U64), ("reason", _REASON)),
    Group: (
        ("backend", _BACKEND),
        ("rank", U16),
        ("size", Bounded("u16", MAX_WORLD, "members")),
        ("deadline_ms", U32),
        ("hosts", _HOSTS),
    ),
    Grouped: (("size", U16), ("sum_us", U32), ("token_us", U32)),
}
"""Every message that travels in a sealed frame or a local one: its fields, in order."""


class Codec:
    """One row of `SCHEMA`: an encoder, a decoder, and both directions of JSON."""

    def __init__(self, kind: type[Any], row: tuple[Field, ...]) -> None:
        self.kind = kind
        self.code: Final = MessageCode(kind.CODE)
        self.fields: Final = [(name, field) for name, field, *_ in row]
        letters = [letter(field.type) for _, field in self.fields if field.type]
        self.head: Final = struct.Struct(">B" + "".join(letters))
        places: dict[str, list[int]] = {}
        for place, (name, _, *attribute) in enumerate(row):
            places.setdefault(attribute[0] if attribute else name, []).append(place)
        self._folded = [(name, at, *FOLDS[name]) for name, at in places.items() if name in FOLDS]
        self._spread = [(name.split(), at) for name, (at, *_) in places.items() if " " in name]
        self._plain = [
            (name, at) for name, (at, *_) in places.items() if name not in FOLDS and " " not in name
        ]

    def values(self, message: Any) -> list[Any]:
        """The values of *message*'s fields, in order."""
        found: list[Any] = [None] * len(self.fields)
        for name, at in self._plain:
            found[at] = getattr(message, name)
        for name, places, split, _ in self._folded:
            for at, value in zip(places, split(getattr(message, name)), strict=True):
                found[at] = value
        for names, at in self._spread:
            found[at] = tuple(getattr(message, name) for name in names)
        return found

    def make(self, values: list[Any]) -> Any:
        """The message whose fields have *values*."""
        found = {name: values[at] for name, at in self._plain}
        for name, places, _, join in self._folded:
            found[name] = join(*[values[at] for at in places])
        for names, at in self._spread:
            found.update(zip(names, values[at], strict=True))
        return self.kind(**found)

    def encode(self, message: Any) -> list[Buffer]:
        """The parts of *message*. Raises `LocalProtocolError` or `struct.error`."""
        head: list[Any] = [self.code]
        tail: list[Buffer] = []
        for (_, field), value in zip(self.fields, self.values(message), strict=True):
            if isinstance(field, Fixed):
                head.append(field.write(value))
                continue
            count, parts = field.counted(value)
            if field.type:
                head.append(count)
            tail += filter(len, parts)
        return [self.head.pack(*head), *tail]

    def decode(self, reader: Reader) -> Any:
        """Read a message. Raises `RemoteProtocolError`, or `LocalProtocolError` for fields that
        contradict each other."""
        head = iter(reader.unpack(self.head)[1:])
        values: list[Any] = []
        for _, field in self.fields:
            raw = next(head) if field.type else 0
            if isinstance(field, Fixed):
                values.append(field.read(raw))
            else:
                field.check(raw)
                values.append(raw)
        for at, (_, field) in enumerate(self.fields):
            if isinstance(field, Varying):
                values[at] = field.read(reader, values[at])
        return self.make(values)

    def to_json(self, message: Any) -> dict[str, Json]:
        """The fields of *message* by name."""
        pairs = zip(self.fields, self.values(message), strict=True)
        return {name: field.to_json(value) for (name, field), value in pairs}

    def from_json(self, given: Mapping[str, Json]) -> Any:
        """The inverse of `to_json`. Raises `LocalProtocolError`."""
        return self.make([field.from_json(given[name]) for name, field in self.fields])


CODECS: Final = {kind: Codec(kind, row) for kind, row in SCHEMA.items()}


def _layouts() -> dict[str, str]:
    found: dict[str, str] = {}
    known: set[int] = set()
    for codec in CODECS.values():
        if codec.kind is Pong:
            continue  # laid out as PING is
        name, fields = (
            codec.code.name,
            [(name, field) for name, field in codec.fields if field.type],
        )
        found[name] = ", ".join(["code u8", *(f"{each} {field.type}" for each, field in fields)])
        for each, field in fields:
            if isinstance(field, Varying) and field.layout and id(field) not in known:
                known.add(id(field))  # STEP_DONE has lists of STEP's
                found[f"{name}.{each}"] = field.layout
    return found


LAYOUTS: Final[Mapping[str, str]] = _layouts()
"""The fixed part of each message, and of the entries of its lists, as `wire.FIELDS` has them."""

# ------------------------------------------------------------------ written out for their speed

_STEP: Final = CODECS[Step].head
_TUNNEL: Final = CODECS[Tunnel].head
_DONE: Final = CODECS[StepDone].head
_CHANGES: Final = (_BACK, _SAVE, _UIDS, _UIDS, _OPEN, _JOIN)


def encode_step(m: Step) -> list[Buffer]:
    """The parts of STEP, as its row has them."""
    epoch = m.epoch
    kind, target, position, count = _split_work(m.work)
    head = _STEP.pack(
        m.CODE,
        epoch.instance,
        epoch.counter,
        m.n,
        sized(m.digest, DIGEST),
        len(m.back),
        len(m.save),
        len(m.evict),
        len(m.drop),
        len(m.open),
        len(m.join),
        kind,
        target,
        position,
        count,
        len(m.spent),
        len(m.ids),
        len(m.tensors),
        m.failed is not None,
    )
    parts: list[Buffer] = [head]
    if m.changes:  # most steps of a running ring change no row
        lists = (m.back, m.save, m.evict, m.drop, m.open, m.join)
        for field, value in zip(_CHANGES, lists, strict=True):
            parts += field.counted(value)[1]
    _add_tail(parts, m)
    return parts


def encode_done(m: StepDone) -> list[Buffer]:
    """The parts of STEP_DONE, as its row has them."""
    epoch = m.epoch
    head = _DONE.pack(
        m.CODE,
        epoch.instance,
        epoch.counter,
        m.n,
        len(m.spent),
        len(m.ids),
        len(m.tensors),
        m.failed is not None,
    )
    parts: list[Buffer] = [head]
    _add_tail(parts, m)
    return parts


def _add_tail(parts: list[Buffer], m: Step | StepDone) -> None:
    if m.spent:
        parts += _SPENT.counted(m.spent)[1]
    if m.ids:
        parts += _IDS.counted(m.ids)[1]
    if m.tensors:
        if len(m.tensors) > MAX_TENSORS:
            raise LocalProtocolError(f"{len(m.tensors)} tensors; the limit is {MAX_TENSORS}")
        for tensor in m.tensors:
            parts += encode_tensor(tensor)
    if m.failed is not None:
        parts += _FAILED.counted(m.failed)[1]


def decode_step(reader: Reader) -> Step:
    """Read STEP, as its row has it."""
    (
        _,
        instance,
        counter,
        n,
        digest,
        backs,
        saves,
        evicts,
        drops,
        opens,
        joins,
        kind,
        target,
        position,
        count,
        spent,
        ids,
        tensors,
        failed,
    ) = reader.unpack(_STEP)
    back: Any = ()
    save: Any = ()
    evict: Any = ()
    drop: Any = ()
    opened: Any = ()
    join: Any = ()
    if backs or saves or evicts or drops or opens or joins:
        counts = (backs, saves, evicts, drops, opens, joins)
        for field, entries in zip(_CHANGES, counts, strict=True):
            field.check(entries)
        back, save, evict, drop, opened, join = (
            field.read(reader, entries) for field, entries in zip(_CHANGES, counts, strict=True)
        )
    work = _join_work(kind, target, position, count)
    times, drawn, data, failure = _read_tail(reader, spent, ids, tensors, failed)
    return Step(
        _epoch(instance, counter),
        n,
        digest,
        back,
        save,
        evict,
        drop,
        opened,
        join,
        work,
        drawn,
        data,
        failure,
        times,
    )


def decode_done(reader: Reader) -> StepDone:
    """Read STEP_DONE, as its row has it."""
    _, instance, counter, n, spent, ids, tensors, failed = reader.unpack(_DONE)
    times, drawn, data, failure = _read_tail(reader, spent, ids, tensors, failed)
    return StepDone(_epoch(instance, counter), n, drawn, data, failure, times)


def _read_tail(reader: Reader, spent: int, ids: int, tensors: int, failed: int) -> Any:
    """The values of the tail. All declared counts are checked before any is read."""
    times: Any = ()
    drawn: Any = ()
    data: Any = ()
    failure: Any = None
    if spent > MAX_SPENT or ids > MAX_IDS or tensors > MAX_TENSORS or failed > 1:
        for (_, field), count in zip(_TAIL, (spent, ids, tensors, failed), strict=True):
            field.check(count)
    if spent:
        times = _SPENT.read(reader, spent)
    if ids:
        drawn = _IDS.read(reader, ids)
    if tensors:
        data = tuple(map(decode_tensor, repeat(reader, tensors)))
    if failed:
        failure = _FAILED.read(reader, failed)
    return times, drawn, data, failure


def encode_tunnel(m: Tunnel) -> list[Buffer]:
    """The parts of TUNNEL, as its row has them."""
    head = _TUNNEL.pack(m.CODE, m.epoch.instance, m.epoch.counter, m.stream, m.event)
    return [head, m.data] if m.data else [head]


def decode_tunnel(reader: Reader) -> Tunnel:
    """Read TUNNEL, as its row has it."""
    _, instance, counter, stream, event = reader.unpack(_TUNNEL)
    return Tunnel(_epoch(instance, counter), stream, _EVENT.read(event), reader.rest())


# ------------------------------------------------------------------------------- bytes and back

_ENCODERS: Final[dict[type[Any], Callable[[Any], list[Buffer]]]] = {
    **{kind: codec.encode for kind, codec in CODECS.items()},
    Step: encode_step,
    StepDone: encode_done,
    Tunnel: encode_tunnel,
}


def _decoders(union: Any) -> dict[int, Callable[[Reader], Any]]:
    by_hand = {Step: decode_step, StepDone: decode_done, Tunnel: decode_tunnel}
    return {int(kind.CODE): by_hand.get(kind, CODECS[kind].decode) for kind in get_args(union)}


DECODERS: Final = _decoders(Message)
LOCAL_DECODERS: Final = _decoders(LocalMessage)


def encode(message: Message | LocalMessage) -> list[Buffer]:
    """The parts of *message*'s encoding; joined, they are the plaintext of a frame.

    Raises `LocalProtocolError` if a field exceeds its width or limit.
    """
    try:
        return _ENCODERS[type(message)](message)
    except struct.error as error:
        raise LocalProtocolError(f"a field does not fit its width: {error}") from None


def decode(plaintext: Buffer) -> Message:
    """The message in *plaintext*; its tensors are views of it.

    Raises `RemoteProtocolError` or `LimitExceeded` for anything that `encode` does not produce.
    """
    message: Message = _decode(plaintext, DECODERS)
    return message


def decode_local(plaintext: Buffer) -> LocalMessage:
    """The message in *plaintext* of a frame between a node and its engine. See `decode`."""
    message: LocalMessage = _decode(plaintext, LOCAL_DECODERS)
    return message


def _decode(plaintext: Buffer, decoders: dict[int, Callable[[Reader], Any]]) -> Any:
    if not plaintext:
        raise RemoteProtocolError("an empty frame")
    decoder = decoders.get(plaintext[0])
    if decoder is None:
        raise RemoteProtocolError(f"unknown message type 0x{plaintext[0]:02x}")
    reader = Reader(plaintext)
    try:
        message = decoder(reader)
    except LocalProtocolError as error:  # fields that contradict each other
        raise RemoteProtocolError(str(error)) from None
    reader.end()
    return message


# ------------------------------------------------------------------------------------ JSON

_BY_NAME: Final = {codec.code.name: codec for codec in CODECS.values()}


def to_fields(message: Message | LocalMessage) -> dict[str, Json]:
    """The fields of *message* in JSON, with its name under ``message``."""
    codec = CODECS[type(message)]
    return {"message": codec.code.name, **codec.to_json(message)}


def from_fields(given: Mapping[str, Json]) -> Message | LocalMessage:
    """The message in *given*, the inverse of `to_fields`."""
    message: Message | LocalMessage = _BY_NAME[given["message"]].from_json(given)
    return message

"""The bytes of every message: one encoding per value, and a decoder that takes nothing else.

`encode` gives a message as a list of parts, so that large tensors are not copied before they are
sealed; `decode` reads a plaintext back, its tensors as views of it. The first byte is the
message's code. Lists carry their counts in the fixed part at the front, so that the steps of a
running ring, which have none, cost one `struct` call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sealring_protocol.codec.messages import (
    NO_WORK,
    Accept,
    Backend,
    Bootstrap,
    CacheCost,
    Close,
    Decode,
    EngineInfo,
    Epoch,
    Failure,
    FailureKind,
    HopKey,
    Join,
    Loaded,
    LocalMessage,
    Message,
    MessageCode,
    NoWork,
    Open,
    Ping,
    Pong,
    Prefill,
    Progress,
    Ready,
    Row,
    Save,
    Step,
    StepDone,
    Work,
)
from sealring_protocol.codec.tensor import DType, Tensor, decode_tensor, encode_tensor
from sealring_protocol.codec.wire import U16, U64, Buffer, Reader, clip, pack, text, vector
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import (
    MAX_ADDRESS,
    MAX_IDS,
    MAX_LAYERS,
    MAX_REASON,
    MAX_ROSTER,
    MAX_ROWS,
    MAX_TENSORS,
    MAX_WINDOWS,
    MAX_WORLD,
)

T = TypeVar("T")

_CLOSE: Final = struct.Struct(">BH")
_READY: Final = struct.Struct(">BQQ32sHHHBIBQQQH")
_BOOTSTRAP: Final = struct.Struct(">BQQBHBI32sHH")
_STEP: Final = struct.Struct(">BQQQ16sHHHHHBQIIIIBB")
_DONE: Final = struct.Struct(">BQQQIIBB")
_FAILURE: Final = struct.Struct(">HB")
_OPEN: Final = struct.Struct(">QQI")
_SAVE: Final = struct.Struct(">QQ")
_PROGRESS: Final = struct.Struct(">B8Q")
_JOIN: Final = struct.Struct(">QH")
_WINDOW: Final = struct.Struct(">IQ")
DIGEST: Final = 16

_INFO: Final = struct.Struct(">B32sBIIIBQQH")
_HOP: Final = struct.Struct(">BBB32s32s")
_ROW: Final = struct.Struct(">BQQHddId")
_LOADED: Final = struct.Struct(">BQQQ")
_IDLE, _PREFILL, _DECODE = 0, 1, 2


def _at_most(entries: int, limit: int, what: str) -> None:
    if entries > limit:
        raise LocalProtocolError(f"{entries} {what}; the limit is {limit}")


def _failure(failed: Failure) -> bytes:
    return pack(_FAILURE, failed.rank, failed.kind) + text(
        clip(failed.message, MAX_REASON), MAX_REASON
    )


def _tail(
    ids: tuple[int, ...], tensors: tuple[Tensor, ...], failed: Failure | None
) -> list[Buffer]:
    parts: list[Buffer] = []
    if ids:
        parts.append(pack(struct.Struct(f">{len(ids)}I"), *ids))
    for tensor in tensors:
        parts += encode_tensor(tensor)
    if failed is not None:
        parts.append(_failure(failed))
    return parts


def _encode_progress(message: Ping | Pong) -> list[Buffer]:
    p = message.progress
    return [
        pack(
            _PROGRESS,
            message.CODE,
            message.echo,
            p.steps_received,
            p.steps_answered,
            p.compute_us,
            p.seal_us,
            p.rows,
            p.memory,
            p.cache,
        )
    ]


def _encode_accept(message: Accept) -> list[Buffer]:
    if len(message.transcript) != 32:
        raise LocalProtocolError("a transcript hash has 32 bytes")
    head = bytes([message.CODE]) + message.transcript + pack(U64, message.serial)
    return [head + vector(message.roster, MAX_ROSTER)]


def _encode_close(message: Close) -> list[Buffer]:
    reason = text(clip(message.reason, MAX_REASON), MAX_REASON)
    return [pack(_CLOSE, message.CODE, message.code) + reason]


def _encode_ready(message: Ready) -> list[Buffer]:
    cost = message.cost
    _at_most(len(cost.windows), MAX_WINDOWS, "windows")
    head = pack(
        _READY,
        message.CODE,
        message.epoch.instance,
        message.epoch.counter,
        _sized(message.model, 32),
        message.first,
        message.last,
        message.layers,
        message.dtype,
        message.hidden,
        message.trimmable,
        message.room,
        cost.fixed,
        cost.per_token,
        len(cost.windows),
    )
    return [head + b"".join(pack(_WINDOW, *window) for window in cost.windows)]


def _encode_bootstrap(message: Bootstrap) -> list[Buffer]:
    _at_most(message.world, MAX_WORLD, "ranks")
    _at_most(len(message.hosts), MAX_WORLD, "hosts")
    head = pack(
        _BOOTSTRAP,
        message.CODE,
        message.epoch.instance,
        message.epoch.counter,
        message.backend,
        message.rank,
        message.inner_seal,
        message.deadline_ms,
        _sized(message.model, 32),
        len(message.bounds),
        len(message.hosts),
    )
    bounds = b"".join(pack(U16, bound) for bound in message.bounds)
    hosts = b"".join(text(host, MAX_ADDRESS) + pack(U16, port) for host, port in message.hosts)
    return [head + bounds + hosts]


def _sized(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise LocalProtocolError(f"a field of {size} bytes was given {len(value)}")
    return value


def _encode_step(message: Step) -> list[Buffer]:
    for entries in (message.drop, message.evict, message.save, message.open, message.join):
        _at_most(len(entries), MAX_ROWS, "entries in one list of a step")
    _at_most(len(message.ids), MAX_IDS, "token ids")
    _at_most(len(message.tensors), MAX_TENSORS, "tensors")
    match message.work:
        case Decode(group):
            kind, target, position, count = _DECODE, group, 0, 0
        case Prefill(target, position, count):
            kind = _PREFILL
        case NoWork():
            kind = target = position = count = _IDLE
    head = pack(
        _STEP,
        message.CODE,
        message.epoch.instance,
        message.epoch.counter,
        message.n,
        _sized(message.digest, DIGEST),
        len(message.save),
        len(message.evict),
        len(message.drop),
        len(message.open),
        len(message.join),
        kind,
        target,
        position,
        count,
        message.compute_us,
        len(message.ids),
        len(message.tensors),
        message.failed is not None,
    )
    parts: list[Buffer] = [head]
    parts += [pack(_SAVE, s.uid, s.handle) for s in message.save]
    parts += [pack(U64, uid) for uid in message.evict]
    parts += [pack(U64, number) for number in message.drop]
    parts += [pack(_OPEN, o.uid, o.handle, o.keep) for o in message.open]
    parts += [pack(_JOIN, j.uid, j.group) for j in message.join]
    return parts + _tail(message.ids, message.tensors, message.failed)


def _encode_done(message: StepDone) -> list[Buffer]:
    _at_most(len(message.ids), MAX_IDS, "token ids")
    _at_most(len(message.tensors), MAX_TENSORS, "tensors")
    head = pack(
        _DONE,
        message.CODE,
        message.epoch.instance,
        message.epoch.counter,
        message.n,
        message.compute_us,
        len(message.ids),
        len(message.tensors),
        message.failed is not None,
    )
    return [head, *_tail(message.ids, message.tensors, message.failed)]


# ----------------------------------------------------------------- decodings


def _ids(reader: Reader, count: int) -> tuple[int, ...]:
    if count > MAX_IDS:
        raise LimitExceeded(f"{count} token ids; the limit is {MAX_IDS}")
    # The declared length is checked against what is there before the layout is built.
    return struct.unpack(f">{count}I", reader.view(4 * count))


def _tensors(reader: Reader, count: int) -> tuple[Tensor, ...]:
    if count > MAX_TENSORS:
        raise LimitExceeded(f"{count} tensors; the limit is {MAX_TENSORS}")
    return tuple(decode_tensor(reader) for _ in range(count))


_KINDS: Final = {int(kind): kind for kind in FailureKind}
_BACKENDS: Final = {int(backend): backend for backend in Backend}
_DTYPES: Final = {int(dtype): dtype for dtype in DType}


def _read_failure(reader: Reader, flag: int) -> Failure | None:
    if flag == 0:
        return None
    if flag > 1:
        raise RemoteProtocolError(f"a boolean is {flag}; only 0 and 1 are")
    rank, code = reader.unpack(_FAILURE)
    kind = _KINDS.get(code)
    if kind is None:
        raise RemoteProtocolError(f"unknown failure kind {code}")
    return Failure(rank, kind, _printable(reader))


def _printable(reader: Reader) -> str:
    message = reader.text(MAX_REASON)
    if not message.isprintable():
        raise RemoteProtocolError("a reason holds unprintable characters")
    return message


def _decode_ping(reader: Reader) -> Ping:
    _, echo, *counters = reader.unpack(_PROGRESS)
    return Ping(echo, Progress(*counters))


def _decode_pong(reader: Reader) -> Pong:
    _, echo, *counters = reader.unpack(_PROGRESS)
    return Pong(echo, Progress(*counters))


def _decode_accept(reader: Reader) -> Accept:
    reader.u8()
    return Accept(reader.fixed(32), reader.u64(), reader.vector(MAX_ROSTER))


def _decode_close(reader: Reader) -> Close:
    _, code = reader.unpack(_CLOSE)
    return Close(code, _printable(reader))


def _decode_ready(reader: Reader) -> Ready:
    fields = reader.unpack(_READY)
    _, instance, counter, model, first, last, layers, dtype, hidden, trim, room, *rest = fields
    fixed, per_token, count = rest
    if dtype not in _DTYPES or trim > 1 or first > last or last > layers or layers > MAX_LAYERS:
        raise RemoteProtocolError("READY has a field out of range")
    if count > MAX_WINDOWS:
        raise LimitExceeded(f"{count} windows; the limit is {MAX_WINDOWS}")
    windows = tuple((size, cost) for size, cost in (reader.unpack(_WINDOW) for _ in range(count)))
    return Ready(
        Epoch(instance, counter),
        model,
        first,
        last,
        layers,
        _DTYPES[dtype],
        hidden,
        trim == 1,
        room,
        CacheCost(fixed, per_token, windows),
    )


def _decode_bootstrap(reader: Reader) -> Bootstrap:
    fields = reader.unpack(_BOOTSTRAP)
    _, instance, counter, backend, rank, inner, deadline, model, bounded, hosted = fields
    if not 2 <= bounded <= MAX_WORLD + 1 or hosted > MAX_WORLD:
        raise LimitExceeded(f"BOOTSTRAP declares {bounded} bounds and {hosted} hosts")
    if backend not in _BACKENDS or inner > 1 or rank >= bounded - 1:
        raise RemoteProtocolError("BOOTSTRAP has a field out of range")
    bounds = tuple(reader.u16() for _ in range(bounded))
    if bounds[0] or bounds[-1] > MAX_LAYERS or list(bounds) != sorted(set(bounds)):
        raise RemoteProtocolError("BOOTSTRAP's layer bounds do not rise from 0")
    hosts = tuple((reader.text(MAX_ADDRESS), reader.u16()) for _ in range(hosted))
    return Bootstrap(
        Epoch(instance, counter),
        _BACKENDS[backend],
        rank,
        inner == 1,
        deadline,
        model,
        bounds,
        hosts,
    )


def _decode_step(reader: Reader) -> Step:
    (
        _,
        instance,
        counter,
        n,
        digest,
        saves,
        evicts,
        drops,
        opens,
        joins,
        kind,
        target,
        position,
        count,
        compute_us,
        idents,
        tensors,
        failed,
    ) = reader.unpack(_STEP)
    if max(saves, evicts, drops, opens, joins) > MAX_ROWS:
        raise LimitExceeded(f"a list of a step is longer than {MAX_ROWS}")
    return Step(
        Epoch(instance, counter),
        n,
        digest,
        tuple(Save(*reader.unpack(_SAVE)) for _ in range(saves)) if saves else (),
        tuple(reader.u64() for _ in range(evicts)) if evicts else (),
        tuple(reader.u64() for _ in range(drops)) if drops else (),
        tuple(Open(*reader.unpack(_OPEN)) for _ in range(opens)) if opens else (),
        tuple(Join(*reader.unpack(_JOIN)) for _ in range(joins)) if joins else (),
        _work(kind, target, position, count),
        _ids(reader, idents) if idents else (),
        _tensors(reader, tensors) if tensors else (),
        _read_failure(reader, failed),
        compute_us,
    )


def _work(kind: int, target: int, position: int, count: int) -> Work:
    if kind == _DECODE and not (position or count) and target <= 0xFFFF:
        return Decode(target)
    if kind == _PREFILL and count:
        return Prefill(target, position, count)
    if kind == _IDLE and not (target or position or count):
        return NO_WORK
    raise RemoteProtocolError("a step's work has a field out of range")


def _decode_done(reader: Reader) -> StepDone:
    _, instance, counter, n, compute_us, idents, tensors, failed = reader.unpack(_DONE)
    return StepDone(
        Epoch(instance, counter),
        n,
        compute_us,
        _ids(reader, idents) if idents else (),
        _tensors(reader, tensors) if tensors else (),
        _read_failure(reader, failed),
    )


# --------------------------------------------------- between node and engine


def _encode_info(message: EngineInfo) -> list[Buffer]:
    _at_most(len(message.layers), MAX_LAYERS, "layers")
    head = pack(
        _INFO,
        message.CODE,
        _sized(message.model, 32),
        message.dtype,
        message.hidden,
        message.vocabulary,
        message.context,
        message.trimmable,
        message.room,
        message.ends,
        len(message.layers),
    )
    return [head + b"".join(pack(U64, size) for size in message.layers)]


def _decode_info(reader: Reader) -> EngineInfo:
    _, model, dtype, hidden, vocabulary, context, trim, room, ends, count = reader.unpack(_INFO)
    if dtype not in _DTYPES or trim > 1 or count > MAX_LAYERS:
        raise RemoteProtocolError("ENGINE_INFO has a field out of range")
    layers = tuple(reader.u64() for _ in range(count))
    kind = _DTYPES[dtype]
    return EngineInfo(model, kind, hidden, vocabulary, context, trim == 1, room, ends, layers)


def _encode_hop(message: HopKey) -> list[Buffer]:
    cluster, secret = _sized(message.cluster, 32), _sized(message.secret, 32)
    return [pack(_HOP, message.CODE, message.outgoing, message.suite, cluster, secret)]


def _decode_hop(reader: Reader) -> HopKey:
    _, outgoing, suite, cluster, secret = reader.unpack(_HOP)
    if outgoing > 1:
        raise RemoteProtocolError("HOP_KEY has a field out of range")
    return HopKey(outgoing == 1, suite, cluster, secret)


def _encode_row(m: Row) -> list[Buffer]:
    fields = (m.uid, m.seed, m.choice, m.temperature, m.top_p, m.top_k, m.min_p)
    return [pack(_ROW, m.CODE, *fields)]


def _decode_row(reader: Reader) -> Row:
    _, *fields = reader.unpack(_ROW)
    return Row(*fields)


def _encode_loaded(message: Loaded) -> list[Buffer]:
    return [pack(_LOADED, message.CODE, message.read, message.held, message.load_us)]


def _decode_loaded(reader: Reader) -> Loaded:
    _, *fields = reader.unpack(_LOADED)
    return Loaded(*fields)


# ------------------------------------------------------------------- the tables

_ENCODERS: Final[dict[type[Any], Callable[[Any], list[Buffer]]]] = {
    Accept: _encode_accept,
    Ping: _encode_progress,
    Pong: _encode_progress,
    Close: _encode_close,
    Ready: _encode_ready,
    Bootstrap: _encode_bootstrap,
    Step: _encode_step,
    StepDone: _encode_done,
    EngineInfo: _encode_info,
    HopKey: _encode_hop,
    Row: _encode_row,
    Loaded: _encode_loaded,
}

DECODERS: Final[dict[int, Callable[[Reader], Message]]] = {
    MessageCode.ACCEPT: _decode_accept,
    MessageCode.PING: _decode_ping,
    MessageCode.PONG: _decode_pong,
    MessageCode.CLOSE: _decode_close,
    MessageCode.READY: _decode_ready,
    MessageCode.BOOTSTRAP: _decode_bootstrap,
    MessageCode.STEP: _decode_step,
    MessageCode.STEP_DONE: _decode_done,
}

LOCAL_DECODERS: Final[dict[int, Callable[[Reader], LocalMessage]]] = {
    MessageCode.PING: _decode_ping,
    MessageCode.PONG: _decode_pong,
    MessageCode.READY: _decode_ready,
    MessageCode.BOOTSTRAP: _decode_bootstrap,
    MessageCode.STEP: _decode_step,
    MessageCode.STEP_DONE: _decode_done,
    MessageCode.ENGINE_INFO: _decode_info,
    MessageCode.HOP_KEY: _decode_hop,
    MessageCode.ROW: _decode_row,
    MessageCode.LOADED: _decode_loaded,
}


def encode(message: Message | LocalMessage) -> list[Buffer]:
    """The parts of *message*'s one encoding; joined, they are the plaintext of a frame.

    Raises `LocalProtocolError` when a field is beyond its width or limit.
    """
    return _ENCODERS[type(message)](message)


def decode(plaintext: Buffer) -> Message:
    """The message that *plaintext* encodes; its tensors are views of it.

    Raises `RemoteProtocolError` or `LimitExceeded` for anything that `encode` does not give.
    """
    return _decode(plaintext, DECODERS)


def decode_local(plaintext: Buffer) -> LocalMessage:
    """The same for the frames between a node and its engine."""
    return _decode(plaintext, LOCAL_DECODERS)


def _decode(plaintext: Buffer, decoders: dict[int, Callable[[Reader], T]]) -> T:
    if not plaintext:
        raise RemoteProtocolError("an empty frame")
    decoder = decoders.get(plaintext[0])
    if decoder is None:
        raise RemoteProtocolError(f"unknown message type 0x{plaintext[0]:02x}")
    reader = Reader(plaintext)
    message = decoder(reader)
    reader.end()
    return message

"""One decoder per message, which accepts only what `writers` produces."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from sealring_protocol.codec.layouts import (
    BACK,
    BOOTSTRAP,
    CANNOT,
    CHECKED,
    CLOSE,
    DECODE,
    DONE,
    FAILURE,
    GET,
    HELLO,
    IDLE,
    JOIN,
    OPEN,
    PIECE,
    PREFILL,
    PREPARED,
    PROGRESS,
    READY,
    REASON,
    SAVE,
    SCORED,
    SPENT,
    STEP,
    TUNNEL,
    WAITING,
    WINDOW,
)
from sealring_protocol.codec.messages import (
    NO_WORK,
    Accept,
    Backend,
    Bootstrap,
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
    Open,
    Piece,
    Ping,
    Pong,
    Prefill,
    Prepared,
    Progress,
    Ready,
    Reason,
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
from sealring_protocol.codec.tensor import DType, Tensor, decode_tensor
from sealring_protocol.codec.wire import Reader, plain
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import (
    MAX_ADDRESS,
    MAX_FILE_NAME,
    MAX_IDS,
    MAX_LAYERS,
    MAX_PIECE,
    MAX_REASON,
    MAX_REASONS,
    MAX_ROSTER,
    MAX_ROWS,
    MAX_SPENT,
    MAX_TENSORS,
    MAX_WINDOWS,
    MAX_WORLD,
    NO_GROUP,
)


def read_ids(reader: Reader, count: int) -> tuple[int, ...]:
    """*count* token ids."""
    if count > MAX_IDS:
        raise LimitExceeded(f"{count} token ids; the limit is {MAX_IDS}")
    # The declared length is checked against the bytes present before the layout is built.
    return struct.unpack(f">{count}I", reader.view(4 * count))


def _spent(reader: Reader, count: int) -> tuple[Spent, ...]:
    if count > MAX_SPENT:
        raise LimitExceeded(f"{count} entries of times; the limit is {MAX_SPENT}")
    return tuple(Spent(*reader.unpack(SPENT)) for _ in range(count))


def _tensors(reader: Reader, count: int) -> tuple[Tensor, ...]:
    if count > MAX_TENSORS:
        raise LimitExceeded(f"{count} tensors; the limit is {MAX_TENSORS}")
    if count == 1:
        return (decode_tensor(reader),)
    return tuple(decode_tensor(reader) for _ in range(count))


# Successive steps share their epoch, and there are few groups.
_epoch: Final = lru_cache(maxsize=16)(Epoch)
_decode: Final = lru_cache(maxsize=64)(Decode)

_KINDS: Final = {int(kind): kind for kind in FailureKind}
BACKENDS: Final = {int(backend): backend for backend in Backend}
DTYPES: Final = {int(dtype): dtype for dtype in DType}


def _read_failure(reader: Reader, flag: int) -> Failure:
    if flag > 1:
        raise RemoteProtocolError(f"a boolean is {flag}; it must be 0 or 1")
    rank, code = reader.unpack(FAILURE)
    return Failure(rank, _kind(code), _printable(reader))


def _kind(code: int) -> FailureKind:
    kind = _KINDS.get(code)
    if kind is None:
        raise RemoteProtocolError(f"unknown failure kind {code}")
    return kind


def _printable(reader: Reader) -> str:
    return plain(reader.text(MAX_REASON))


def decode_ping(reader: Reader) -> Ping:
    """Read PING."""
    _, echo, *counters = reader.unpack(PROGRESS)
    return Ping(echo, Progress(*counters))


def decode_pong(reader: Reader) -> Pong:
    """Read PONG."""
    _, echo, *counters = reader.unpack(PROGRESS)
    return Pong(echo, Progress(*counters))


def decode_accept(reader: Reader) -> Accept:
    """Read ACCEPT."""
    reader.u8()
    return Accept(reader.fixed(32), reader.u64(), reader.vector(MAX_ROSTER))


def decode_close(reader: Reader) -> Close:
    """Read CLOSE."""
    _, code = reader.unpack(CLOSE)
    return Close(code, _printable(reader))


def decode_hello(reader: Reader) -> Hello:
    """Read HELLO."""
    _, model, layers, dtype, hidden, room, build, pinned = reader.unpack(HELLO)
    if max(layers, pinned - 2) > MAX_LAYERS:
        raise LimitExceeded(f"HELLO declares {layers} layers and {pinned} pins")
    if dtype not in DTYPES:
        raise RemoteProtocolError("HELLO has an unknown dtype")
    pins = tuple(reader.u64() for _ in range(pinned))
    return Hello(model, layers, DTYPES[dtype], hidden, room, pins, build)


def decode_prepared(reader: Reader) -> Prepared:
    """Read PREPARED."""
    _, instance, counter, port = reader.unpack(PREPARED)
    return Prepared(Epoch(instance, counter), port)


def decode_ready(reader: Reader) -> Ready:
    """Read READY."""
    _, instance, counter, first, last, trim, room, *rest = reader.unpack(READY)
    fixed, per_token, sum_us, token_us, count = rest
    if last > MAX_LAYERS or count > MAX_WINDOWS:
        raise LimitExceeded(f"READY declares {last} layers and {count} windows")
    if trim > 1:
        raise RemoteProtocolError("READY has a field out of range")
    windows = tuple((size, cost) for size, cost in (reader.unpack(WINDOW) for _ in range(count)))
    cost = CacheCost(fixed, per_token, windows)
    return Ready(Epoch(instance, counter), first, last, trim == 1, room, cost, sum_us, token_us)


def decode_bootstrap(reader: Reader) -> Bootstrap:
    """Read BOOTSTRAP."""
    fields = reader.unpack(BOOTSTRAP)
    _, instance, counter, backend, rank, inner, *rest = fields
    trusted, checked, deadline, model, bounded, hosted = rest
    if bounded > MAX_WORLD + 1 or hosted > MAX_WORLD:
        raise LimitExceeded(f"BOOTSTRAP declares {bounded} bounds and {hosted} hosts")
    if backend not in BACKENDS or max(inner, trusted, checked) > 1:
        raise RemoteProtocolError("BOOTSTRAP has a field out of range")
    bounds = tuple(reader.u16() for _ in range(bounded))
    if max(bounds, default=0) > MAX_LAYERS:
        raise LimitExceeded(f"BOOTSTRAP declares {max(bounds)} layers")
    hosts = read_hosts(reader, hosted)
    return Bootstrap(
        Epoch(instance, counter),
        BACKENDS[backend],
        rank,
        inner == 1,
        deadline,
        model,
        bounds,
        hosts,
        trusted == 1,
        checked == 1,
    )


def read_hosts(reader: Reader, count: int) -> tuple[tuple[str, int], ...]:
    """*count* pairs of an address and a port."""
    return tuple((reader.text(MAX_ADDRESS), reader.u16()) for _ in range(count))


def decode_step(reader: Reader) -> Step:
    """Read STEP."""
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
        idents,
        tensors,
        failed,
    ) = reader.unpack(STEP)
    back: tuple[TakeBack, ...] = ()
    save: tuple[Save, ...] = ()
    evict: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    open_: tuple[Open, ...] = ()
    join: tuple[Join, ...] = ()
    # Most steps of a running ring change no row.
    if backs or saves or evicts or drops or opens or joins:
        if max(backs, saves, evicts, drops, opens, joins) > MAX_ROWS:
            raise LimitExceeded(f"a list of a step is longer than {MAX_ROWS}")
        back = tuple(TakeBack(*reader.unpack(BACK)) for _ in range(backs))
        save = tuple(Save(*reader.unpack(SAVE)) for _ in range(saves))
        evict = tuple(reader.u64() for _ in range(evicts))
        drop = tuple(reader.u64() for _ in range(drops))
        open_ = tuple(Open(*reader.unpack(OPEN)) for _ in range(opens))
        join = tuple(Join(*reader.unpack(JOIN)) for _ in range(joins))
    work = _work(kind, target, position, count)
    times = _spent(reader, spent) if spent else ()
    ids = read_ids(reader, idents) if idents else ()
    found = _tensors(reader, tensors) if tensors else ()
    failure = _read_failure(reader, failed) if failed else None
    return Step(
        _epoch(instance, counter),
        n,
        digest,
        back,
        save,
        evict,
        drop,
        open_,
        join,
        work,
        ids,
        found,
        failure,
        times,
    )


def _work(kind: int, target: int, position: int, count: int) -> Work:
    if kind == DECODE and target <= NO_GROUP:
        return _decode(target, count, position)
    if kind in (PREFILL, SCORED):
        return Prefill(target, position, count, kind == SCORED)
    if kind == IDLE and not (target or position or count):
        return NO_WORK
    raise RemoteProtocolError("a step's work has a field out of range")


def decode_done(reader: Reader) -> StepDone:
    """Read STEP_DONE."""
    _, instance, counter, n, spent, idents, tensors, failed = reader.unpack(DONE)
    times = _spent(reader, spent) if spent else ()
    ids = read_ids(reader, idents) if idents else ()
    found = _tensors(reader, tensors) if tensors else ()
    failure = _read_failure(reader, failed) if failed else None
    return StepDone(_epoch(instance, counter), n, ids, found, failure, times)


def decode_cannot(reader: Reader) -> CannotServe:
    """Read CANNOT_SERVE."""
    _, instance, counter, n, code = reader.unpack(CANNOT)
    return CannotServe(_epoch(instance, counter), _kind(code), _printable(reader), n)


def decode_checked(reader: Reader) -> Checked:
    """Read CHECKED."""
    _, instance, counter, n, closing, tensors = reader.unpack(CHECKED)
    if closing > 1 or tensors != 2:
        raise RemoteProtocolError("CHECKED has a field out of range")
    return Checked(
        _epoch(instance, counter), n, closing == 1, decode_tensor(reader), decode_tensor(reader)
    )


_EVENTS: Final = {int(event): event for event in TunnelEvent}


def decode_tunnel(reader: Reader) -> Tunnel:
    """Read TUNNEL."""
    _, instance, counter, stream, code = reader.unpack(TUNNEL)
    event = _EVENTS.get(code)
    if event is None:
        raise RemoteProtocolError(f"unknown tunnel event {code}")
    return Tunnel(_epoch(instance, counter), stream, event, reader.rest())


_HINDRANCES: Final = {int(hindrance): hindrance for hindrance in Hindrance}


def decode_waiting(reader: Reader) -> Waiting:
    """Read WAITING."""
    _, count = reader.unpack(WAITING)
    if count > MAX_REASONS:
        raise LimitExceeded(f"WAITING declares {count} reasons")
    return Waiting(tuple(_read_reason(reader) for _ in range(count)))


def _read_reason(reader: Reader) -> Reason:
    code, rank = reader.unpack(REASON)
    hindrance = _HINDRANCES.get(code)
    if hindrance is None:
        raise RemoteProtocolError(f"unknown hindrance {code}")
    return Reason(hindrance, rank, _printable(reader))


def decode_get(reader: Reader) -> Get:
    """Read GET."""
    _, offset, length, size = reader.unpack(GET)
    if length > MAX_PIECE:
        raise LimitExceeded(f"a GET asks for {length} bytes; the limit is {MAX_PIECE}")
    return Get(reader.words(size, MAX_FILE_NAME), offset, length)


def decode_piece(reader: Reader) -> Piece:
    """Read PIECE."""
    _, whole, length, words = reader.unpack(PIECE)
    if length > MAX_PIECE:
        raise LimitExceeded(f"a PIECE declares {length} bytes; the limit is {MAX_PIECE}")
    return Piece(whole, reader.view(length), plain(reader.words(words, MAX_REASON)))

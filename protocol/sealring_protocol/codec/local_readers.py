"""One decoder per local message, which accepts only what `local_writers` produces."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

from sealring_protocol.codec.layouts import (
    GROUP,
    GROUPED,
    HOP,
    INFO,
    LIKELIEST,
    LOADED,
    LOGPROB,
    LOGPROBS,
    ROW_OVER,
    ROW_READY,
    SCORE,
    SCORES,
)
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    HopKey,
    Loaded,
    Logprobs,
    RowOver,
    RowReady,
    Scores,
)
from sealring_protocol.codec.messages import Epoch
from sealring_protocol.codec.readers import BACKENDS, DTYPES, read_hosts
from sealring_protocol.codec.wire import Reader, plain
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import (
    MAX_LAYERS,
    MAX_LOGPROBS,
    MAX_REASON,
    MAX_SCORES,
    MAX_WORLD,
)


def decode_info(reader: Reader) -> EngineInfo:
    """Read ENGINE_INFO."""
    fields = reader.unpack(INFO)
    _, model, dtype, hidden, vocabulary, context, trim, batches, *rest = fields
    splits, backends, room, ends, head, hop, ahead, count, joined_count, pinned, size = rest
    if (most := max(count, joined_count, pinned - 2)) > MAX_LAYERS:
        raise LimitExceeded(f"ENGINE_INFO declares {most} layers")
    if dtype not in DTYPES or max(trim, batches) > 1:
        raise RemoteProtocolError("ENGINE_INFO has a field out of range")
    layers = tuple(reader.u64() for _ in range(count))
    joined = tuple(reader.u16() for _ in range(joined_count))
    if joined and any(a >= b for a, b in pairwise((0, *joined, count))):
        raise RemoteProtocolError("ENGINE_INFO joins layers that are not there, or out of order")
    pins = tuple(reader.u64() for _ in range(pinned))
    return EngineInfo(
        model,
        DTYPES[dtype],
        hidden,
        vocabulary,
        context,
        trim == 1,
        room,
        ends,
        layers,
        splits,
        backends,
        joined,
        plain(reader.words(size, MAX_REASON)),
        batches == 1,
        pins,
        head,
        hop,
        ahead,
    )


def decode_hop(reader: Reader) -> HopKey:
    """Read HOP_KEY."""
    _, outgoing, suite, cluster, secret = reader.unpack(HOP)
    if outgoing > 1:
        raise RemoteProtocolError("HOP_KEY has a field out of range")
    return HopKey(outgoing == 1, suite, cluster, secret)


def decode_logprobs(reader: Reader) -> Logprobs:
    """Read LOGPROBS."""
    _, n, uid, chosen, count = reader.unpack(LOGPROBS)
    if count > MAX_LOGPROBS:
        raise LimitExceeded(f"{count} log probabilities; the limit is {MAX_LOGPROBS}")
    pairs = [reader.unpack(LOGPROB) for _ in range(count)]
    ids, values = (tuple(part) for part in zip(*pairs, strict=True)) if pairs else ((), ())
    return Logprobs(n, uid, chosen, ids, values)


def decode_scores(reader: Reader) -> Scores:
    """Read SCORES."""
    _, n, uid, position, count, likeliest = reader.unpack(SCORES)
    if count > MAX_SCORES or likeliest > MAX_SCORES * MAX_LOGPROBS:
        raise LimitExceeded(f"SCORES declares {count} tokens, and {likeliest} likeliest ones")
    scores = _columns(reader, SCORE, count)
    return Scores(n, uid, position, *scores, *_columns(reader, LIKELIEST, likeliest))


def _columns(reader: Reader, layout: struct.Struct, count: int) -> tuple[tuple[Any, ...], ...]:
    """The first and the second fields of *count* entries."""
    pairs = layout.iter_unpack(reader.view(count * layout.size))
    return tuple(zip(*pairs, strict=True)) if count else ((), ())


def decode_row_over(reader: Reader) -> RowOver:
    """Read ROW_OVER."""
    _, n, uid = reader.unpack(ROW_OVER)
    return RowOver(n, uid, plain(reader.text(MAX_REASON)))


def decode_row_ready(reader: Reader) -> RowReady:
    """Read ROW_READY."""
    _, instance, counter, uid = reader.unpack(ROW_READY)
    return RowReady(Epoch(instance, counter), uid, plain(reader.text(MAX_REASON)))


def decode_loaded(reader: Reader) -> Loaded:
    """Read LOADED."""
    _, *fields = reader.unpack(LOADED)
    return Loaded(*fields)


def decode_group(reader: Reader) -> Group:
    """Read GROUP."""
    _, backend, rank, size, deadline, hosted = reader.unpack(GROUP)
    if size > MAX_WORLD or hosted > MAX_WORLD:
        raise LimitExceeded(f"GROUP declares {size} members and {hosted} hosts")
    if backend not in BACKENDS:
        raise RemoteProtocolError("GROUP has a field out of range")
    return Group(BACKENDS[backend], rank, size, deadline, read_hosts(reader, hosted))


def decode_grouped(reader: Reader) -> Grouped:
    """Read GROUPED."""
    _, *fields = reader.unpack(GROUPED)
    return Grouped(*fields)

"""One encoder per local message, as in `writers`."""

from __future__ import annotations

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
from sealring_protocol.codec.wire import U16, U64, Buffer, at_most, clip, sized, text
from sealring_protocol.codec.writers import write_hosts
from sealring_protocol.limits import MAX_LAYERS, MAX_REASON, MAX_WORLD


def encode_info(message: EngineInfo) -> list[Buffer]:
    """The parts of ENGINE_INFO."""
    at_most(len(message.layers), MAX_LAYERS, "layers")
    reason = clip(message.reason, MAX_REASON).encode()
    head = INFO.pack(
        message.CODE,
        sized(message.model, 32),
        message.dtype,
        message.hidden,
        message.vocabulary,
        message.context,
        message.trimmable,
        message.batches,
        message.splits,
        message.backends,
        message.room,
        message.ends,
        message.head,
        message.hop,
        message.ahead,
        len(message.layers),
        len(message.joined),
        len(message.pins),
        len(reason),
    )
    sizes = b"".join(U64.pack(size) for size in message.layers)
    joined = b"".join(U16.pack(layer) for layer in message.joined)
    pins = b"".join(U64.pack(pin) for pin in message.pins)
    return [head + sizes + joined + pins + reason]


def encode_hop(message: HopKey) -> list[Buffer]:
    """The parts of HOP_KEY."""
    cluster, secret = sized(message.cluster, 32), sized(message.secret, 32)
    return [HOP.pack(message.CODE, message.outgoing, message.suite, cluster, secret)]


def encode_logprobs(m: Logprobs) -> list[Buffer]:
    """The parts of LOGPROBS."""
    head = LOGPROBS.pack(m.CODE, m.n, m.uid, m.chosen, len(m.ids))
    pairs = zip(m.ids, m.values, strict=True)
    return [head + b"".join(LOGPROB.pack(token, value) for token, value in pairs)]


def encode_scores(m: Scores) -> list[Buffer]:
    """The parts of SCORES."""
    head = SCORES.pack(m.CODE, m.n, m.uid, m.position, len(m.chosen), len(m.ids))
    scores = zip(m.chosen, m.ranks, strict=True)
    likeliest = zip(m.ids, m.values, strict=True)
    parts = (
        *(SCORE.pack(*pair) for pair in scores),
        *(LIKELIEST.pack(*pair) for pair in likeliest),
    )
    return [head + b"".join(parts)]


def encode_row_over(message: RowOver) -> list[Buffer]:
    """The parts of ROW_OVER."""
    head = ROW_OVER.pack(message.CODE, message.n, message.uid)
    return [head + text(clip(message.reason, MAX_REASON), MAX_REASON)]


def encode_row_ready(message: RowReady) -> list[Buffer]:
    """The parts of ROW_READY."""
    epoch = message.epoch
    head = ROW_READY.pack(message.CODE, epoch.instance, epoch.counter, message.uid)
    return [head + text(clip(message.reason, MAX_REASON), MAX_REASON)]


def encode_loaded(message: Loaded) -> list[Buffer]:
    """The parts of LOADED."""
    return [LOADED.pack(message.CODE, message.read, message.held, message.load_us)]


def encode_group(m: Group) -> list[Buffer]:
    """The parts of GROUP."""
    at_most(m.size, MAX_WORLD, "members")
    head = GROUP.pack(m.CODE, m.backend, m.rank, m.size, m.deadline_ms, len(m.hosts))
    return [head + write_hosts(m.hosts)]


def encode_grouped(message: Grouped) -> list[Buffer]:
    """The parts of GROUPED."""
    return [GROUPED.pack(message.CODE, message.size, message.sum_us, message.token_us)]

"""One encoder per message, which returns its bytes as parts. Limits are checked before packing. A
field that exceeds its width is a `struct.error`, which `encoding.encode` turns into an error of the
caller."""

from __future__ import annotations

import struct

from sealring_protocol.codec.layouts import (
    BACK,
    BOOTSTRAP,
    CANNOT,
    CHECKED,
    CLOSE,
    DECODE,
    DIGEST,
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
    Accept,
    Bootstrap,
    CannotServe,
    Checked,
    Close,
    Decode,
    Failure,
    Get,
    Hello,
    Piece,
    Ping,
    Pong,
    Prefill,
    Prepared,
    Ready,
    Step,
    StepDone,
    Tunnel,
    Waiting,
)
from sealring_protocol.codec.tensor import encode_tensor
from sealring_protocol.codec.wire import U16, U64, Buffer, at_most, clip, sized, text, vector
from sealring_protocol.errors import LocalProtocolError
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
)


def _failure(failed: Failure) -> bytes:
    return FAILURE.pack(failed.rank, failed.kind) + _reason(failed.message)


def _reason(words: str) -> bytes:
    return text(clip(words, MAX_REASON), MAX_REASON)


def _add_tail(parts: list[Buffer], message: Step | StepDone) -> None:
    if message.spent:
        at_most(len(message.spent), MAX_SPENT, "entries of times")
        parts += [SPENT.pack(s.compute_us, s.wait_us, s.seal_us) for s in message.spent]
    if message.ids:
        parts.append(write_ids(message.ids))
    if message.tensors:
        at_most(len(message.tensors), MAX_TENSORS, "tensors")
        for tensor in message.tensors:
            parts += encode_tensor(tensor)
    if message.failed is not None:
        parts.append(_failure(message.failed))


def write_ids(ids: tuple[int, ...]) -> bytes:
    """*ids* as u32."""
    at_most(len(ids), MAX_IDS, "token ids")
    return struct.pack(f">{len(ids)}I", *ids)


def encode_progress(message: Ping | Pong) -> list[Buffer]:
    """The parts of PING or PONG."""
    p = message.progress
    return [
        PROGRESS.pack(
            message.CODE,
            message.echo,
            p.steps_received,
            p.steps_answered,
            p.compute_us,
            p.seal_us,
            p.rows,
            p.memory,
            p.cache,
            p.starved_us,
            p.fetched_bytes,
            p.fetch_bytes,
        )
    ]


def encode_accept(message: Accept) -> list[Buffer]:
    """The parts of ACCEPT."""
    if len(message.transcript) != 32:
        raise LocalProtocolError("a transcript hash has 32 bytes")
    head = bytes([message.CODE]) + message.transcript + U64.pack(message.serial)
    return [head + vector(message.roster, MAX_ROSTER)]


def encode_close(message: Close) -> list[Buffer]:
    """The parts of CLOSE."""
    return [CLOSE.pack(message.CODE, message.code) + _reason(message.reason)]


def encode_hello(message: Hello) -> list[Buffer]:
    """The parts of HELLO."""
    at_most(message.layers, MAX_LAYERS, "layers")
    model = sized(message.model, 32)
    about = message.layers, message.dtype, message.hidden, message.room, message.build
    head = HELLO.pack(message.CODE, model, *about, len(message.pins))
    return [head + b"".join(U64.pack(pin) for pin in message.pins)]


def encode_prepared(message: Prepared) -> list[Buffer]:
    """The parts of PREPARED."""
    epoch = message.epoch
    return [PREPARED.pack(message.CODE, epoch.instance, epoch.counter, message.port)]


def encode_ready(message: Ready) -> list[Buffer]:
    """The parts of READY."""
    cost = message.cost
    at_most(len(cost.windows), MAX_WINDOWS, "windows")
    at_most(message.last, MAX_LAYERS, "layers")
    head = READY.pack(
        message.CODE,
        message.epoch.instance,
        message.epoch.counter,
        message.first,
        message.last,
        message.trimmable,
        message.room,
        cost.fixed,
        cost.per_token,
        message.sum_us,
        message.token_us,
        len(cost.windows),
    )
    return [head + b"".join(WINDOW.pack(*window) for window in cost.windows)]


def encode_bootstrap(message: Bootstrap) -> list[Buffer]:
    """The parts of BOOTSTRAP."""
    at_most(message.world, MAX_WORLD, "ranks")
    at_most(message.bounds[-1], MAX_LAYERS, "layers")
    at_most(len(message.hosts), MAX_WORLD, "hosts")
    head = BOOTSTRAP.pack(
        message.CODE,
        message.epoch.instance,
        message.epoch.counter,
        message.backend,
        message.rank,
        message.inner_seal,
        message.trusted,
        message.checked,
        message.deadline_ms,
        sized(message.model, 32),
        len(message.bounds),
        len(message.hosts),
    )
    bounds = b"".join(U16.pack(bound) for bound in message.bounds)
    return [head + bounds + write_hosts(message.hosts)]


def write_hosts(hosts: tuple[tuple[str, int], ...]) -> bytes:
    """An address and a port for each of *hosts*."""
    return b"".join(text(host, MAX_ADDRESS) + U16.pack(port) for host, port in hosts)


def encode_step(message: Step) -> list[Buffer]:
    """The parts of STEP."""
    work = message.work
    if isinstance(work, Decode):
        kind, target, position, count = DECODE, work.group, work.ahead, work.guessed
    elif isinstance(work, Prefill):
        kind = SCORED if work.scored else PREFILL
        target, position, count = work.uid, work.position, work.count
    else:
        kind = target = position = count = IDLE
    head = STEP.pack(
        message.CODE,
        message.epoch.instance,
        message.epoch.counter,
        message.n,
        sized(message.digest, DIGEST),
        len(message.back),
        len(message.save),
        len(message.evict),
        len(message.drop),
        len(message.open),
        len(message.join),
        kind,
        target,
        position,
        count,
        len(message.spent),
        len(message.ids),
        len(message.tensors),
        message.failed is not None,
    )
    parts: list[Buffer] = [head]
    # Most steps of a running ring change no row.
    if message.changes:
        parts += _composition(message)
    _add_tail(parts, message)
    return parts


def _composition(message: Step) -> list[Buffer]:
    lists = (message.back, message.save, message.evict, message.drop, message.open, message.join)
    for entries in lists:
        at_most(len(entries), MAX_ROWS, "entries in one list of a step")
    parts: list[Buffer] = [BACK.pack(b.uid, b.count) for b in message.back]
    parts += [SAVE.pack(s.uid, s.handle) for s in message.save]
    parts += [U64.pack(uid) for uid in message.evict]
    parts += [U64.pack(number) for number in message.drop]
    parts += [OPEN.pack(o.uid, o.handle, o.keep) for o in message.open]
    parts += [JOIN.pack(j.uid, j.group) for j in message.join]
    return parts


def encode_done(message: StepDone) -> list[Buffer]:
    """The parts of STEP_DONE."""
    head = DONE.pack(
        message.CODE,
        message.epoch.instance,
        message.epoch.counter,
        message.n,
        len(message.spent),
        len(message.ids),
        len(message.tensors),
        message.failed is not None,
    )
    parts: list[Buffer] = [head]
    _add_tail(parts, message)
    return parts


def encode_cannot(message: CannotServe) -> list[Buffer]:
    """The parts of CANNOT_SERVE."""
    epoch = message.epoch
    head = CANNOT.pack(message.CODE, epoch.instance, epoch.counter, message.n, message.kind)
    return [head + _reason(message.reason)]


def encode_checked(message: Checked) -> list[Buffer]:
    """The parts of CHECKED."""
    epoch, tensors = message.epoch, (message.received, message.given)
    numbers = epoch.instance, epoch.counter, message.n, message.closing, len(tensors)
    return [
        CHECKED.pack(message.CODE, *numbers),
        *(part for tensor in tensors for part in encode_tensor(tensor)),
    ]


def encode_tunnel(message: Tunnel) -> list[Buffer]:
    """The parts of TUNNEL."""
    epoch = message.epoch
    head = TUNNEL.pack(message.CODE, epoch.instance, epoch.counter, message.stream, message.event)
    return [head, message.data] if message.data else [head]


def encode_waiting(message: Waiting) -> list[Buffer]:
    """The parts of WAITING."""
    at_most(len(message.reasons), MAX_REASONS, "reasons")
    head = WAITING.pack(message.CODE, len(message.reasons))
    told = (REASON.pack(r.hindrance, r.rank) + _reason(r.text) for r in message.reasons)
    return [head + b"".join(told)]


def encode_get(message: Get) -> list[Buffer]:
    """The parts of GET."""
    name = message.name.encode()
    at_most(len(name), MAX_FILE_NAME, "bytes of a file's name")
    return [GET.pack(message.CODE, message.offset, message.length, len(name)) + name]


def encode_piece(message: Piece) -> list[Buffer]:
    """The parts of PIECE."""
    at_most(len(message.data), MAX_PIECE, "bytes of a piece")
    words = clip(message.reason, MAX_REASON).encode()
    head = PIECE.pack(message.CODE, message.size, len(message.data), len(words))
    return [head, message.data, words] if message.data else [head + words]

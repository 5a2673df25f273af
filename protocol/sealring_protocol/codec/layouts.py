"""Every fixed-size part of the encodings, field by field.

`FIELDS` alone defines how bytes are laid out. The `struct` layouts of readers and writers are made
from it (`layout`), a test compares the specification's tables with it, and ``spec/sealring-1.json``
gives it to other runtimes. All numbers are big-endian, without padding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

TYPES: Final[Mapping[str, str]] = {
    "u8": "B",
    "bool": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f64": "d",
}
"""The `struct` letter of each type. ``bytes N`` is N bytes."""

FIELDS: Final[Mapping[str, str]] = {
    "FRAME": "version u8, kind u8, zero u16, length u32",
    "INIT": "code u8, wall_ms u64, suites u32, x_I bytes 32, ek_I bytes 1184, tag bytes 32",
    "RESP": "code u8, suite u8, x_R bytes 32, ct bytes 1088",
    "RESP.claims": "id_R bytes 32, instance u64, serial u64, digest bytes 32",
    "FIN": "code u8",
    "FIN.claims": "id_I bytes 32, id_R bytes 32, instance u64, serial u64, digest bytes 32, "
    "purpose u8, roster u32",
    "ROSTER": "serial u64, issued_ms u64, expires_ms u64, policy u8, members u16",
    "ROSTER.member": "public_key bytes 65, trust u8, attestation bytes 32",
    "EVIDENCE": "version u8, kind u8, subject bytes 65, issued_ms u64, expires_ms u64, "
    "attester bytes 65, claims u32",
    "TENSOR": "dtype u8, sealed bool, dimensions u8, zero u8, counter u64",
    "INNER": "cluster bytes 32, instance u64, counter u64, n u64, group u16, boundary u16, "
    "dtype u8, dimensions u8, rows u32",
    "PING": "code u8, echo u64, steps_received u64, steps_answered u64, compute_us u64, "
    "seal_us u64, rows u64, memory u64, cache u64, starved_us u64, fetched_bytes u64, "
    "fetch_bytes u64",
    "ACCEPT": "code u8, transcript bytes 32, serial u64, roster u32",
    "CLOSE": "code u8, why u16, reason u16",
    "HELLO": "code u8, model bytes 32, layers u16, dtype u8, hidden u32, room u64, build u64, "
    "pins u16",
    "PREPARED": "code u8, instance u64, counter u64, port u16",
    "READY": "code u8, instance u64, counter u64, first u16, last u16, trimmable bool, room u64, "
    "fixed u64, per_token u64, sum_us u32, token_us u32, windows u16",
    "READY.windows": "tokens u32, bytes u64",
    "BOOTSTRAP": "code u8, instance u64, counter u64, backend u8, rank u16, inner_seal bool, "
    "trusted bool, checked bool, deadline_ms u32, model bytes 32, bounds u16, hosts u16",
    "STEP": "code u8, instance u64, counter u64, n u64, digest bytes 16, back u16, save u16, "
    "evict u16, drop u16, open u16, join u16, work u8, target u64, position u32, count u32, "
    "spent u8, ids u32, tensors u8, failed bool",
    "STEP.back": "uid u64, count u8",
    "STEP.save": "uid u64, handle u64",
    "STEP.open": "uid u64, handle u64, keep u32",
    "STEP.join": "uid u64, group u16",
    "STEP.spent": "compute u32, wait u32, seal u32",
    "STEP.failed": "rank u16, kind u8",
    "STEP_DONE": "code u8, instance u64, counter u64, n u64, spent u8, ids u32, tensors u8, "
    "failed bool",
    "CANNOT_SERVE": "code u8, instance u64, counter u64, n u64, kind u8, reason u16",
    "CHECKED": "code u8, instance u64, counter u64, n u64, closing bool, tensors u8",
    "TUNNEL": "code u8, instance u64, counter u64, stream u8, event u8",
    "ROW": "code u8, uid u64, seed u64, choice u16, temperature f64, top_p f64, top_k u32, "
    "min_p f64, repetition f64, presence f64, frequency f64, logprobs u8, bias u16, "
    "generated u32, history u32, least u32, ends u16, bad u16, grammar u32",
    "ROW.bias": "token u32, value f64",
    "ROW.bad": "token u32, last bool",
    "WAITING": "code u8, reasons u8",
    "WAITING.reasons": "hindrance u8, rank u16",
    "GET": "code u8, offset u64, length u32, name u16",
    "PIECE": "code u8, size u64, data u32, reason u16",
    "ENGINE_INFO": "code u8, model bytes 32, dtype u8, hidden u32, vocabulary u32, context u32, "
    "trimmable bool, batches bool, splits u16, backends u8, room u64, ends u64, head u32, "
    "hop u32, ahead u8, layers u16, joined u16, pins u16, reason u16",
    "HOP_KEY": "code u8, outgoing bool, suite u8, cluster bytes 32, secret bytes 32",
    "LOADED": "code u8, read u64, held u64, load_us u64",
    "LOGPROBS": "code u8, n u64, uid u64, chosen f64, alternatives u8",
    "LOGPROBS.alternatives": "token u32, value f64",
    "SCORES": "code u8, n u64, uid u64, position u32, scores u16, likeliest u16",
    "SCORES.scores": "chosen f64, rank u32",
    "SCORES.likeliest": "token u32, value f64",
    "ROW_OVER": "code u8, n u64, uid u64, reason u16",
    "ROW_READY": "code u8, instance u64, counter u64, uid u64, reason u16",
    "GROUP": "code u8, backend u8, rank u16, size u16, deadline_ms u32, hosts u16",
    "GROUPED": "code u8, size u16, sum_us u32, token_us u32",
}
"""The name and type of each field, in order. A list's field has the number of its entries; the
field of a text or byte string has its length. ``NAME.list`` is the layout of one entry."""


def fields(name: str) -> list[tuple[str, str]]:
    """The fields of `FIELDS` under *name*, each with its type."""
    return [
        (field, kind) for field, _, kind in (e.partition(" ") for e in FIELDS[name].split(", "))
    ]


def layout(name: str, *, but: int = 0) -> struct.Struct:
    """The `struct` layout of the fields under *name*, without the last *but*: a text or byte string
    writes its own length."""
    kinds = [kind for _, kind in fields(name)]
    return struct.Struct(">" + "".join(map(_letter, kinds[: len(kinds) - but])))


def _letter(kind: str) -> str:
    return f"{kind.removeprefix('bytes ')}s" if kind.startswith("bytes ") else TYPES[kind]


PROGRESS: Final = layout("PING")
"""The layout of PING and PONG."""

CLOSE: Final = layout("CLOSE", but=1)

HELLO: Final = layout("HELLO")
PREPARED: Final = layout("PREPARED")
READY: Final = layout("READY")
WINDOW: Final = layout("READY.windows")
BOOTSTRAP: Final = layout("BOOTSTRAP")
STEP: Final = layout("STEP")
BACK: Final = layout("STEP.back")
SAVE: Final = layout("STEP.save")
OPEN: Final = layout("STEP.open")
JOIN: Final = layout("STEP.join")
SPENT: Final = layout("STEP.spent")
FAILURE: Final = layout("STEP.failed")
DONE: Final = layout("STEP_DONE")
CANNOT: Final = layout("CANNOT_SERVE", but=1)
CHECKED: Final = layout("CHECKED")
TUNNEL: Final = layout("TUNNEL")
ROW: Final = layout("ROW")
BIAS: Final = layout("ROW.bias")
BAD: Final = layout("ROW.bad")
WAITING: Final = layout("WAITING")
REASON: Final = layout("WAITING.reasons")
GET: Final = layout("GET")
PIECE: Final = layout("PIECE")

INFO: Final = layout("ENGINE_INFO")
HOP: Final = layout("HOP_KEY")
LOADED: Final = layout("LOADED")
LOGPROBS: Final = layout("LOGPROBS")
LOGPROB: Final = layout("LOGPROBS.alternatives")
SCORES: Final = layout("SCORES")
SCORE: Final = layout("SCORES.scores")
LIKELIEST: Final = layout("SCORES.likeliest")
ROW_OVER: Final = layout("ROW_OVER", but=1)
ROW_READY: Final = layout("ROW_READY", but=1)
GROUP: Final = layout("GROUP")
GROUPED: Final = layout("GROUPED")

DIGEST: Final = 16
"""Bytes of a ledger's digest."""

IDLE, PREFILL, DECODE, SCORED = 0, 1, 2, 3
"""The values of STEP's *work*."""

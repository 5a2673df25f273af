"""Messages between a node and its engine (appendix A)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sealring_protocol.codec.encoding import to_fields
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
from sealring_protocol.codec.messages import Accept, Admit, Backend, Close, Joined
from sealring_protocol.codec.tensor import DType

from spec.vectors.model import LIMIT, MALFORMED, Vector, refused, valid
from spec.vectors.plaintexts import NAN, flat, grown, plaintext_input, put, u16, u32
from spec.vectors.whole_messages import (
    BOOTSTRAP,
    CHECKED,
    DATA,
    EPOCH,
    FULL,
    HELLO,
    MODEL,
    PENALISED,
    PREPARED,
    READY,
    SCORED,
    WAITING,
)
from spec.vectors.world import CLUSTER, entropy

GIVEN: Final[Mapping[str, bytes]] = {}
SECRET: Final = entropy("activation secret", 32)
INFO: Final = EngineInfo(
    MODEL, DType.F32, 160, 1024, 2048, True, 1 << 34, 655360, (1, 2, 2**64 - 1), 8, 0b10100
)
COLD: Final = put(flat(PENALISED), 19, NAN)
SHARE: Final = Group(Backend.RING, 1, 2, 60000)
MEETING: Final = Group(Backend.NCCL, 0, 2, 20000, (("10.0.0.1", 40001), ("127.0.0.1", 1)))
GOOD: Final[dict[str, tuple[str, LocalMessage]]] = {
    "engine-info": ("what an engine says of its model", INFO),
    "hop-key-out": ("the key of the hop to the next rank", HopKey(True, 1, CLUSTER, SECRET)),
    "hop-key-in": ("the key of the hop from the rank before", HopKey(False, 2, CLUSTER, SECRET)),
    "row": ("ROW to an engine", PENALISED),
    "logprobs": ("the log probability of a token alone", Logprobs(4, 7, -0.25)),
    "logprobs-full": (
        "log probabilities with alternatives",
        Logprobs(2**64 - 1, 7, -0.25, (5, 6), (-0.25, -3.5)),
    ),
    "logprobs-20": (
        "20 alternatives",
        Logprobs(3, 7, -0.25, tuple(range(20)), tuple(-0.5 * at for at in range(20))),
    ),
    "scores": ("the score of one token", Scores(4, 7, 1, (-0.25,), (1,))),
    "scores-full": (
        "scores of two tokens, with the likeliest in their places",
        Scores(2**64 - 1, 7, 2**32 - 1, (-0.25, -9.5), (1, 2**32 - 1), (5, 6), (-0.25, -3.5)),
    ),
    "scores-256": ("scores of 256 tokens", Scores(3, 7, 2, (-0.5,) * 256, tuple(range(1, 257)))),
    "scores-20": (
        "20 likeliest tokens",
        Scores(3, 7, 2, (-0.25,), (2,), tuple(range(20)), tuple(-0.5 * at for at in range(20))),
    ),
    "step-scored": ("a prefill that is scored, to an engine", SCORED),
    "row-over": ("a row that cannot go on", RowOver(4, 7, "its grammar cannot be followed")),
    "row-complete": ("a row that is complete", RowOver(2**64 - 1, 2**64 - 1)),
    "row-over-256": ("a reason of 256 bytes", RowOver(1, 2, "é" * 128)),
    "row-ready": ("a row whose grammar is made", RowReady(EPOCH, 7)),
    "row-not-ready": ("a row whose grammar cannot be made", RowReady(EPOCH, 7, "too costly")),
    "row-ready-256": ("a reason of 256 bytes", RowReady(EPOCH, 2, "é" * 128)),
    "loaded": ("what loading cost", Loaded(1, 2, 2**64 - 1)),
    "group-share": ("the share that is to be loaded", SHARE),
    "group-join": ("a group to join, and where", MEETING),
    "group-16": (
        "the last of 16 members",
        Group(Backend.JACCL, 15, 16, 2**32 - 1, (("h", 65535),) * 16),
    ),
    "grouped": ("a group that stands", Grouped(2, 57, 2**32 - 1)),
    "info-whole": (
        "an engine that takes part in no collective",
        EngineInfo(MODEL, DType.BF16, 4096, 1024, 2048, False, 0, 0, ()),
    ),
    "info-alone": (
        "a model whose rows are decoded one by one",
        EngineInfo(
            MODEL,
            DType.F32,
            160,
            1024,
            2048,
            True,
            1,
            2,
            (3,),
            batches=False,
            head=1500,
            hop=640,
            ahead=4,
        ),
    ),
    "info-1024": (
        "a model of 1,024 layers",
        EngineInfo(MODEL, DType.BF16, 4096, 1024, 2048, False, 0, 0, (0,) * 1024),
    ),
    "info-pins": (
        "an engine that holds the second of two layers",
        EngineInfo(
            MODEL, DType.F32, 160, 1024, 2048, True, 1, 2, (3, 4), pins=(0, 5, 0, 2**64 - 1)
        ),
    ),
    "info-joined": (
        "a model whose layers 2 and 3 share a cache",
        EngineInfo(
            MODEL,
            DType.BF16,
            4096,
            1024,
            2048,
            False,
            0,
            0,
            (9,) * 4,
            0,
            0,
            (2, 3),
            "layers 1 and 3 share a cache",
        ),
    ),
    "ready": ("READY from an engine", READY),
    "bootstrap": ("BOOTSTRAP to an engine", BOOTSTRAP),
    "step": ("STEP to an engine", FULL),
    "checked": ("fingerprints from an engine", CHECKED),
}


def vectors() -> Iterator[Vector]:
    """Local messages, whole and faulty."""
    for name, (about, message) in GOOD.items():
        given = plaintext_input(flat(message))
        fields = {"fields": to_fields(message)}
        yield valid(f"local/{name}", "local-message", "CV-01", about, given, fields)
    info, hop = flat(INFO), flat(GOOD["hop-key-out"][1])
    logs, join = flat(GOOD["logprobs-full"][1]), flat(MEETING)
    bare = flat(Logprobs(4, 7, -0.25))
    over = put(flat(RowOver(1, 2, "a" * 256)), 17, u16(257)) + b"a"
    hidden = flat(RowOver(1, 2, "a"))[:-1] + b"\n"
    unready = put(flat(RowReady(EPOCH, 2, "a" * 256)), 25, u16(257)) + b"a"
    veiled = flat(RowReady(EPOCH, 2, "a"))[:-1] + b"\n"
    many, hosts = grown(bare, 25, b"\x15", 21 * 12), flat(GOOD["group-16"][1])
    hosts = put(hosts, 10, u16(17)) + u16(1) + b"h" + u16(65535)
    score, full = flat(GOOD["scores"][1]), flat(GOOD["scores-full"][1])
    uneven, wide = grown(full, 23, u16(3), 12), grown(score, 23, u16(21), 21 * 12)
    widest = grown(score, 23, u16(5121), 5121 * 12)
    long = grown(info, 76, u16(1025), 1022 * 8)
    joined, pinned = flat(GOOD["info-joined"][1]), flat(GOOD["info-pins"][1])
    swapped = put(joined, 116, u16(3) + u16(2))
    worded = put(joined, 82, u16(257)) + b"a" * (257 - 28)
    for name, ids, about, data, why in [
        ("accept", "LM-01", "ACCEPT", flat(Accept(bytes(32), 1, b"")), MALFORMED),
        ("admit", "LM-01", "ADMIT", flat(Admit(b"", "")), MALFORMED),
        ("joined", "LM-01", "JOINED", flat(Joined()), MALFORMED),
        ("close", "LM-01", "CLOSE", flat(Close(0, "")), MALFORMED),
        ("tunnel", "LM-01", "TUNNEL", flat(DATA), MALFORMED),
        ("hello", "LM-01", "HELLO", flat(HELLO), MALFORMED),
        ("prepared", "LM-01", "PREPARED", flat(PREPARED), MALFORMED),
        ("waiting", "LM-01", "WAITING", flat(WAITING), MALFORMED),
        ("empty", "MS-01", "no bytes at all", b"", MALFORMED),
        ("unknown", "MS-01", "code 0x8b", b"\x8b", MALFORMED),
        ("info-dtype", "CV-01", "ENGINE_INFO with dtype 9", put(info, 33, b"\x09"), MALFORMED),
        ("info-trimmable", "CV-05", "ENGINE_INFO, trimmable 2", put(info, 46, b"\2"), MALFORMED),
        ("info-batches", "CV-05", "ENGINE_INFO, batches 2", put(info, 47, b"\2"), MALFORMED),
        ("info-layers", "CV-02", "1,025 layers", long, LIMIT),
        ("info-pins-few", "MS-15", "2 layers, 3 pins", put(pinned, 80, u16(3))[:-8], MALFORMED),
        ("info-pins-many", "CV-02", "1,027 pins", grown(info, 80, u16(1027), 1027 * 8), LIMIT),
        ("info-joined-many", "LM-03", "4 of 4 layers joined", put(joined, 78, u16(4)), MALFORMED),
        ("info-joined-order", "LM-03", "layers 3 and 2 joined", swapped, MALFORMED),
        ("info-joined-0", "LM-03", "layer 0 joined", put(joined, 116, u16(0)), MALFORMED),
        ("info-joined-4", "LM-03", "layer 4 of 4 joined", put(joined, 118, u16(4)), MALFORMED),
        ("info-reason", "MS-05", "a reason with a line feed", put(joined, 120, b"\n"), MALFORMED),
        ("info-reason-long", "CV-02", "a reason of 257 bytes", worded, LIMIT),
        ("row-nan", "MS-08", "a temperature that is no number", COLD, MALFORMED),
        ("logprobs-many", "CV-02", "21 alternatives", many, LIMIT),
        ("row-over-long", "CV-02", "257 bytes of words", over, LIMIT),
        ("row-over-hidden", "CV-01", "a hidden character", hidden, MALFORMED),
        ("row-ready-long", "CV-02", "257 bytes of words", unready, LIMIT),
        ("row-ready-hidden", "CV-01", "a hidden character", veiled, MALFORMED),
        ("logprobs-cut", "CV-01", "an alternative missing", logs[:-12], MALFORMED),
        ("scores-none", "LM-04", "no score", put(score, 21, u16(0))[:25], MALFORMED),
        (
            "scores-first",
            "LM-04",
            "a score of a row's first token",
            put(score, 17, u32(0)),
            MALFORMED,
        ),
        ("scores-many", "LM-04 CV-02", "257 scores", grown(score, 21, u16(257), 256 * 12), LIMIT),
        ("scores-uneven", "LM-04", "3 likeliest tokens for 2 scores", uneven, MALFORMED),
        ("scores-21", "LM-04", "21 likeliest tokens for a score", wide, MALFORMED),
        ("scores-5121", "LM-04 CV-02", "5,121 likeliest tokens", widest, LIMIT),
        ("scores-cut", "CV-01", "a likeliest token missing", full[:-12], MALFORMED),
        ("hop-outgoing", "CV-05", "HOP_KEY with outgoing 2", put(hop, 1, b"\2"), MALFORMED),
        ("group-backend", "LM-02 CV-01", "back end 5", put(join, 1, b"\5"), MALFORMED),
        ("group-pipeline", "LM-02", "a pipeline as a back end", put(join, 1, b"\1"), MALFORMED),
        ("group-rank", "LM-02", "member 2 of 2", put(join, 2, u16(2)), MALFORMED),
        ("group-hosts", "LM-02", "2 hosts for 3 members", put(join, 4, u16(3)), MALFORMED),
        ("group-cut", "CV-01", "a host missing", put(join, 10, u16(3)), MALFORMED),
        ("group-17", "LM-02 CV-02", "17 members", put(flat(SHARE), 4, u16(17)), LIMIT),
        ("group-hosts-17", "LM-02 CV-02", "17 hosts", hosts, LIMIT),
    ]:
        given = plaintext_input(data)
        yield refused(f"local/{name}", "local-message", ids, about, given, why)

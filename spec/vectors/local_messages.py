"""Messages between a node and its engine (appendix A)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sealring_protocol.codec.local_messages import (
    EngineInfo,
    HopKey,
    Loaded,
    LocalMessage,
    Logprobs,
)
from sealring_protocol.codec.messages import Accept, Close, Row
from sealring_protocol.codec.tensor import DType
from sealring_trio.conformance.fields import to_fields

from spec.vectors.messages import BOOTSTRAP, FULL, MODEL, READY, flat, put, u16
from spec.vectors.model import LIMIT, MALFORMED, Vector, refused, valid
from spec.vectors.world import CLUSTER, entropy

GIVEN: Final[Mapping[str, bytes]] = {}
NAN: Final = b"\x7f\xf8"
INFINITE: Final = b"\x7f\xf0".ljust(8, b"\0")
SECRET: Final = entropy("activation secret", 32)
INFO: Final = EngineInfo(
    MODEL, DType.F32, 160, 1024, 2048, True, 1 << 34, 655360, (1, 2, 2**64 - 1)
)
GOOD: Final[dict[str, tuple[str, LocalMessage]]] = {
    "engine-info": ("what an engine says of its model", INFO),
    "hop-key-out": ("the key of the hop to the next rank", HopKey(True, 1, CLUSTER, SECRET)),
    "hop-key-in": ("the key of the hop from the rank before", HopKey(False, 2, CLUSTER, SECRET)),
    "row-greedy": ("a greedy row", Row(5)),
    "row-full": ("a row that samples", Row(6, 2**64 - 1, 3, 0.75, 0.9375, 40, 0.0625)),
    "row-penalised": (
        "a row with penalties, biases, log probabilities and a history",
        Row(
            7,
            repetition=1.25,
            presence=-0.5,
            frequency=2.0,
            logprobs=20,
            bias=((3, -100.0), (2**32 - 1, 0.5)),
            history=(9, 8, 7),
            generated=2,
        ),
    ),
    "logprobs": ("the log probability of a token alone", Logprobs(4, 7, -0.25)),
    "logprobs-full": (
        "log probabilities with alternatives",
        Logprobs(2**64 - 1, 7, -0.25, (5, 6), (-0.25, -3.5)),
    ),
    "logprobs-20": (
        "20 alternatives",
        Logprobs(3, 7, -0.25, tuple(range(20)), tuple(-0.5 * at for at in range(20))),
    ),
    "loaded": ("what loading cost", Loaded(1, 2, 2**64 - 1)),
    "ready": ("READY from an engine", READY),
    "bootstrap": ("BOOTSTRAP to an engine", BOOTSTRAP),
    "step": ("STEP to an engine", FULL),
}


def vectors() -> Iterator[Vector]:
    """Local messages, whole and faulty."""
    for name, (about, message) in GOOD.items():
        given = {"plaintext": flat(message).hex()}
        fields = {"fields": to_fields(message)}
        yield valid(f"local/{name}", "local-message", "CV-01", about, given, fields)
    info, hop, row = flat(INFO), flat(GOOD["hop-key-out"][1]), flat(GOOD["row-full"][1])
    full, logs = flat(GOOD["row-penalised"][1]), flat(GOOD["logprobs-full"][1])
    for name, ids, about, data, why in [
        ("accept", "LM-01", "ACCEPT", flat(Accept(bytes(32), 1, b"")), MALFORMED),
        ("close", "LM-01", "CLOSE", flat(Close(0, "")), MALFORMED),
        ("empty", "MS-01", "no bytes at all", b"", MALFORMED),
        ("unknown", "MS-01", "code 0x86", b"\x86", MALFORMED),
        ("info-dtype", "CV-01", "ENGINE_INFO with dtype 9", put(info, 33, b"\x09"), MALFORMED),
        ("info-trimmable", "CV-05", "ENGINE_INFO, trimmable 2", put(info, 46, b"\2"), MALFORMED),
        ("info-layers", "CV-02", "1,025 layers declared", put(info, 63, u16(1025)), LIMIT),
        ("row-nan", "LM-02", "a temperature that is no number", put(row, 19, NAN), MALFORMED),
        ("row-cold", "LM-02", "a temperature below 0", put(row, 19, b"\xbf\xf0"), MALFORMED),
        ("row-infinite", "LM-02", "an infinite temperature", put(row, 19, INFINITE), MALFORMED),
        ("row-top-p", "LM-02", "top_p 0", put(row, 27, bytes(8)), MALFORMED),
        ("row-min-p", "LM-02", "min_p 2", put(row, 39, b"\x40\0"), MALFORMED),
        ("row-repetition", "LM-02", "a repetition penalty of 0", put(row, 47, bytes(8)), MALFORMED),
        ("row-presence", "LM-02", "an infinite penalty", put(row, 55, INFINITE), MALFORMED),
        ("row-frequency", "LM-02", "a penalty that is no number", put(row, 63, NAN), MALFORMED),
        ("row-logprobs", "LM-02", "21 alternatives", put(row, 71, b"\x15"), MALFORMED),
        ("row-biases", "CV-02", "1,025 biases declared", put(row, 72, u16(1025)), LIMIT),
        ("row-bias", "LM-02", "an infinite bias", put(full, 86, INFINITE), MALFORMED),
        ("row-generated", "LM-02", "4 of 3 tokens generated", put(full, 77, b"\x04"), MALFORMED),
        ("row-history-cut", "CV-01", "a token missing", full[:-4], MALFORMED),
        ("logprobs-many", "CV-02", "21 alternatives declared", put(logs, 25, b"\x15"), LIMIT),
        ("logprobs-cut", "CV-01", "an alternative missing", logs[:-12], MALFORMED),
        ("hop-outgoing", "CV-05", "HOP_KEY with outgoing 2", put(hop, 1, b"\2"), MALFORMED),
    ]:
        given = {"plaintext": data.hex()}
        yield refused(f"local/{name}", "local-message", ids, about, given, why)

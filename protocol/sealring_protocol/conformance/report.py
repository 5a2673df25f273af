"""Runs vectors in every way (`ways`), and counts the results by family (`Family`).

The expected result of each way follows from the vector itself:

``whole``      unchanged
``bytewise``   a stream byte by byte: the same result
``pieces``     cut at random places, most of them near the edges of a frame: the same result
``truncated``  cut off at every length. The beginning of a stream of frames gives its first frames
               and no failure of its own. A link whose stream ends there is lost, without CLOSE. A
               message, a roster, evidence or a sealed frame is refused.
``trailing``   with a further byte: refused (except TUNNEL's data, which has no length)

For links and encodings the last two apply only to valid vectors. An input longer than 700 bytes is
truncated at about 700 lengths, evenly spread. The deliveries of a link are truncated at their edges
and in the middle, because each length costs a handshake.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from sealring_protocol.codec.messages import TunnelEvent
from sealring_protocol.conformance.files import Json
from sealring_protocol.conformance.kinds import ENGINE_KINDS, KINDS, run, run_frames
from sealring_protocol.conformance.result import (
    VALID,
    Cut,
    Given,
    Kinds,
    Mismatch,
    Result,
    VectorAnswer,
    compare,
    must,
    plaintext,
    raw,
    run_end,
)
from sealring_protocol.errors import ConnectionLost, RemoteProtocolError

SEEDS: Final = (1, 2)
"""Seeds of the random cuts."""

_LEAST_TUNNEL_DATA: Final = 20  # code, epoch, stream, event, and a byte of data

LENGTHS: Final = 700
"""The most lengths at which one input is truncated, evenly spread."""


def bytewise(data: bytes) -> list[bytes]:
    """Cut after every byte."""
    return [data[at : at + 1] for at in range(len(data))]


def in_pieces(seed: int) -> Cut:
    """Cuts at random places, most of them near the start of a frame or its end."""
    choose = random.Random(seed)  # noqa: S311 - to be the same each time

    def cut(data: bytes) -> list[bytes]:
        near = [at for at in (1, 7, 8, 9, 10, len(data) - 1) if 0 < at < len(data)]
        far = [choose.randrange(len(data)) for _ in range(3)] if data else []
        edges = sorted({0, len(data), *choose.sample(near, len(near) // 2), *far})
        return [data[a:b] for a, b in itertools.pairwise(edges)]

    return cut


# ------------------------------------------------------------------ the same


def _cut(vector: Given, cut: Cut) -> None:
    """Run *vector* with its stream cut by *cut*."""
    given = vector["input"]
    streams = vector["kind"] == "frames"
    result = run_frames(given, cut(raw(given["stream"]))) if streams else run_end(given, cut)
    result.compare(vector)


def _whole(vector: Given, kinds: Kinds) -> int:
    run(vector, kinds).compare(vector)
    return 1


def _bytewise(vector: Given) -> int:
    _cut(vector, bytewise)
    return 1


def _pieces(vector: Given) -> int:
    for seed in SEEDS:
        _cut(vector, in_pieces(seed))
    return len(SEEDS)


# ------------------------------------------------------------------- cut off


def _beginnings(vector: Given) -> int:
    stream, frames = raw(vector["input"]["stream"]), vector.get("output", {}).get("frames", [])
    for size in range(len(stream)):
        result = run_frames(vector["input"], [stream[:size]])
        got = result.output["frames"]
        must(result.error is None or vector["result"] != "valid", f"{size} bytes were refused")
        must(got == frames[: len(got)], f"{size} bytes gave other frames")
    return len(stream)


def _lost(vector: Given) -> int:
    given, times = vector["input"], 0
    pieces = [raw(delivery["data"]) for delivery in given["deliveries"]]
    closes = vector["output"]["closed"] is not None
    for number, (delivery, piece) in enumerate(zip(given["deliveries"], pieces, strict=True)):
        if not piece or (closes and number == len(pieces) - 1):
            continue  # what CLOSE ends is not lost
        for size in sorted({0, 1, 8, 9, len(piece) // 2, len(piece) - 1}):
            last = {**delivery, "data": piece[:size].hex()}
            deliveries = [*given["deliveries"][:number], last]
            end = run_end({**given, "deliveries": deliveries, "end": True})
            where = f"delivery {number} cut off after {size} bytes"
            must(isinstance(end.error, ConnectionLost), f"{where}: {end.error}")
            must(end.output["told"] is None, f"{where}: CLOSE was sent")
            times += 1
    return times


def _refuses(kind: str, given: Given, what: str) -> None:
    try:
        KINDS[kind](given, Result())
    except RemoteProtocolError:
        return
    raise Mismatch(f"{what}: it was taken")


def _shorter(vector: Given, field: str = "") -> int:
    field = field or vector["kind"]
    given, data = vector["input"], raw(vector["input"][field])
    sizes = range(0, len(data), 1 + len(data) // LENGTHS)
    for size in sizes:
        _refuses(vector["kind"], {**given, field: data[:size].hex()}, f"{size} bytes")
    return len(sizes)


def _longer(vector: Given, field: str = "") -> int:
    given, field = vector["input"], field or vector["kind"]
    _refuses(vector["kind"], {**given, field: given[field] + "00"}, "a byte more")
    return 1


def _sealed_frame(vector: Given, body: bytes) -> None:
    framed = raw(vector["input"]["frames"][0])[:4] + len(body).to_bytes(4, "big") + body
    result = run({**vector, "input": {**vector["input"], "frames": [framed.hex()]}}, KINDS)
    must(isinstance(result.error, RemoteProtocolError), f"a body of {len(body)} bytes was taken")
    must(not result.released, f"a body of {len(body)} bytes gave something out")


def _sealed_shorter(vector: Given) -> int:
    body = raw(vector["input"]["frames"][0])[8:]
    for size in range(len(body)):
        _sealed_frame(vector, body[:size])
    return len(body)


def _sealed_longer(vector: Given) -> int:
    _sealed_frame(vector, raw(vector["input"]["frames"][0])[8:] + b"\0")
    return 1


def _spelled_out(vector: Given) -> Given:
    """*vector* with its counted zeros written out."""
    return {**vector, "input": {"plaintext": plaintext(vector["input"]).hex()}}


def _plaintext_shorter(vector: Given) -> int:
    vector = _spelled_out(vector)
    if not _is_tunnel_data(vector):
        return _shorter(vector, "plaintext")
    given = vector["input"]
    least = {**given, "plaintext": given["plaintext"][: 2 * _LEAST_TUNNEL_DATA]}
    return _shorter({**vector, "input": least}, "plaintext")


def _plaintext_longer(vector: Given) -> int:
    return 0 if _is_tunnel_data(vector) else _longer(_spelled_out(vector), "plaintext")


def _is_tunnel_data(vector: Given) -> bool:
    """True if its data extend to the end of the plaintext, so that a byte more or less is another
    valid message."""
    fields = vector["output"]["fields"]
    return (fields["message"], fields.get("event")) == ("TUNNEL", int(TunnelEvent.DATA))


def _text_shorter(vector: Given) -> int:
    words = vector["input"]["text"].strip()
    for size in range(len(words)):
        _refuses(vector["kind"], {"text": words[:size]}, f"{size} characters")
    return len(words)


def _text_longer(vector: Given) -> int:
    _refuses(vector["kind"], {"text": vector["input"]["text"].strip() + "a"}, "a letter more")
    return 1


Run = Callable[[Given], int]
"""Runs a vector in one way, and returns the number of runs. Raises `Mismatch`."""

_ENDS: Final = ("initiator", "responder", "joiner", "inviter")
_ANY: Final[dict[str, dict[str, Run]]] = {
    "frames": {"bytewise": _bytewise, "pieces": _pieces, "truncated": _beginnings},
    **{end: {"bytewise": _bytewise, "pieces": _pieces} for end in _ENDS},
}
_VALID: Final[dict[str, dict[str, Run]]] = {
    **{end: {"truncated": _lost} for end in _ENDS},
    "invitation": {"truncated": _text_shorter, "trailing": _text_longer},
    "message": {"truncated": _plaintext_shorter, "trailing": _plaintext_longer},
    "local-message": {"truncated": _plaintext_shorter, "trailing": _plaintext_longer},
    "roster": {"truncated": _shorter, "trailing": _longer},
    "evidence": {"truncated": _shorter, "trailing": _longer},
    "sealed": {"truncated": _sealed_shorter, "trailing": _sealed_longer},
}
WAYS: Final = ("whole", "bytewise", "pieces", "truncated", "trailing")


def ways(vector: Given, kinds: Kinds = KINDS) -> Iterator[tuple[str, Run]]:
    """The ways in which *vector* can be run, by name. *kinds* may have more than `KINDS`."""
    found: dict[str, Run] = {
        "whole": functools.partial(_whole, kinds=kinds),
        **_ANY.get(vector["kind"], {}),
    }
    if vector["result"] == "valid":
        found |= _VALID.get(vector["kind"], {})
    return ((name, found[name]) for name in WAYS if name in found)


@attrs.define
class Family:
    """The results of one family: runs by way, failures, and vectors that were not run."""

    vectors: int = 0
    negative: int = 0
    runs: Counter[str] = attrs.Factory(Counter)
    failed: list[dict[str, str]] = attrs.Factory(list)
    skipped: Counter[str] = attrs.Factory(Counter)
    """The number of vectors that were not run, by reason."""

    def run(self, vector: Json, kinds: Kinds) -> None:
        """Run *vector* in every way."""
        self._count(vector)
        if vector["kind"] in ENGINE_KINDS and vector["kind"] not in kinds:
            self.skipped["it takes an engine that draws tokens"] += 1
            return
        for way, runs in ways(vector, kinds):
            try:
                self.runs[way] += runs(vector)
            except Mismatch as error:
                self._fail(vector, way, str(error))
            except Exception as error:  # noqa: BLE001 - an error that nothing documents is a failure
                self._fail(vector, way, f"{type(error).__name__}: {error}")

    def compare(self, vector: Json, answer: VectorAnswer | None) -> None:
        """Compare *answer* with *vector*."""
        self._count(vector)
        if answer is None:
            self._fail(vector, "whole", "it was not answered")
        elif answer.skip:
            self.skipped[answer.skip] += 1
        else:
            try:
                compare(answer, vector)
                self.runs["whole"] += 1
            except Mismatch as error:
                self._fail(vector, "whole", str(error))

    def add(self, other: Family) -> None:
        """Add *other*'s results."""
        self.vectors += other.vectors
        self.negative += other.negative
        self.runs += other.runs
        self.failed += other.failed
        self.skipped += other.skipped

    def facts(self) -> dict[str, Any]:
        """The results as a JSON object."""
        return {
            "vectors": self.vectors,
            "negative": self.negative,
            "runs": {way: self.runs[way] for way in WAYS if self.runs[way]},
            "failed": self.failed,
            "skipped": dict(self.skipped),
        }

    def _count(self, vector: Json) -> None:
        self.vectors += 1
        self.negative += vector["result"] != VALID

    def _fail(self, vector: Json, way: str, why: str) -> None:
        self.runs[way] += 1
        self.failed.append({"id": str(vector["id"]), "way": way, "why": why})


def check(families: Mapping[str, Iterable[Json]], kinds: Kinds = KINDS) -> dict[str, Family]:
    """Run the vectors of *families*, each in every way, by their kind in *kinds*."""
    done = {name: Family() for name in families}
    for name, vectors in families.items():
        for vector in vectors:
            done[name].run(vector, kinds)
    return done


def check_answers(
    families: Mapping[str, Iterable[Json]], answers: Mapping[str, VectorAnswer]
) -> dict[str, Family]:
    """Compare *answers*, by the vector's id, with the vectors of *families*."""
    done = {name: Family() for name in families}
    for name, vectors in families.items():
        for vector in vectors:
            done[name].compare(vector, answers.get(vector["id"]))
    return done


def total(families: Iterable[Family]) -> Family:
    """The results of all *families* together."""
    everything = Family()
    for one in families:
        everything.add(one)
    return everything


def verdict(everything: Family) -> list[str]:
    """Lines that say what failed and what was not run, and a last line with the totals."""
    lines = [f"{each['id']} ({each['way']}): {each['why']}" for each in everything.failed]
    lines += [f"{count} not run: {why}" for why, count in everything.skipped.items()]
    if not everything.runs:
        return [*lines, "none of these vectors could be run"]
    end = f"{len(everything.failed)} failed" if everything.failed else "all did as they say"
    ran = everything.vectors - everything.skipped.total()
    return [*lines, f"{everything.runs.total():,} runs of {ran:,} vectors: {end}"]

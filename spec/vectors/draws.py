"""Tokens drawn from logits (section 11.4).

The logits are few and far apart, so that the rounding of binary32, which this arithmetic does not
have, decides nothing: `_clear` holds every vector to that.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spec.vectors.model import Json, Vector, u64, valid

GIVEN: Final[Mapping[str, bytes]] = {}

PLAIN: Final[dict[str, Any]] = {
    "seed": 0,
    "choice": 0,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition": 1.0,
    "presence": 0.0,
    "frequency": 0.0,
    "bias": [],
    "generated": 0,
    "history": [],
}
HILL: Final = [0.5, 2.25, -1.0, 3.0, 2.75, -0.5, 1.5]
CLOSE: Final = [2.0, 1.5, 1.75, 0.25, 1.5, -0.5, 1.0, 0.5]
LONG: Final = [((7 * i) % 23) / 4 for i in range(40)]
_KEPT: Final = {"history": [0, 2, 4], "generated": 2}
RULES: Final[list[tuple[str, str, dict[str, Any], dict[str, Any]]]] = [
    ("choice", "another choice", {"choice": 1}, {"choice": 0}),
    ("cold", "a low temperature", {"temperature": 0.25}, {"temperature": 2.0}),
    ("top-k", "the three likeliest", {"top_k": 3}, {"top_k": 0}),
    ("top-k-tie", "equals of the last one kept stay", {"top_k": 3}, {"top_k": 2}),
    ("top-p", "tokens until half of the probability is there", {"top_p": 0.5}, {"top_p": 1.0}),
    ("top-p-one", "the likeliest always stays", {"top_p": 0.01}, {"top_p": 1.0}),
    ("top-k-p", "top_p counts within top_k", {"top_k": 4, "top_p": 0.7}, {"top_k": 0}),
    ("min-p", "tokens half as likely as the likeliest", {"min_p": 0.5}, {"min_p": 0.0}),
    ("penalised", "a penalty comes first", {"presence": 2.0, **_KEPT}, {"presence": 0.0}),
    ("often", "for each time", {"frequency": 1.5, **_KEPT}, {"frequency": 0.0}),
    ("repeated", "whatever the row has", {"repetition": 3.0, **_KEPT}, {"repetition": 1.0}),
    ("biased", "a bias and a draw", {"bias": [[3, 3.0]]}, {"bias": []}),
]
"""Rules, and the row that they are left out of: the vectors are where the two differ."""

_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
_MASK: Final = 0xFFFFFFFF
_MARGIN: Final = 1e-3


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32 with 20 rounds."""
    schedule = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = ((word + add) & _MASK for word, add in zip(counter, schedule, strict=False))
    for turn in range(5):
        for bits in _ROTATIONS[turn % 2]:
            a = (a + b) & _MASK
            b = a ^ ((b << bits | b >> (32 - bits)) & _MASK)
        a = (a + schedule[(turn + 1) % 3]) & _MASK
        b = (b + schedule[(turn + 2) % 3] + turn + 1) & _MASK
    return a, b


def uniforms(key: tuple[int, int], size: int) -> list[float]:
    """u of 11.4, one for each token."""
    half, odd = divmod(size, 2)
    words = [0] * size
    for i in range(half):
        words[i], words[i + half + odd] = threefry(key, (i, i + half + odd))
    if odd:
        words[half] = threefry(key, (half, 0))[0]
    (*singles,) = struct.unpack(f"<{size}f", struct.pack(f"<{size}f", *words))
    return [min(word / 2**32, 1 - 2**-24) for word in singles]


def key_of(seed: int, choice: int, position: int) -> tuple[int, int]:
    """The key of 11.4."""
    content = struct.pack(">QHQ", seed, choice, position)
    digest = hashlib.blake2b(content, digest_size=8, person=b"sealring/row").digest()
    first, second = struct.unpack(">II", digest)
    return first, second


def draw(row: Mapping[str, Any], logits: Sequence[float], position: int) -> int:
    """The token that *row* is given at *position*."""
    adjusted = _adjusted(row, logits)
    if not row["temperature"]:
        return _first(adjusted)
    top = max(adjusted)
    scaled = [(logit - top) / row["temperature"] for logit in adjusted]
    kept = _kept(row, scaled)
    key = key_of(row["seed"], row["choice"], position)
    noise = [-math.log(-math.log(u)) for u in uniforms(key, len(scaled))]
    return _first(
        [
            z + g if i in kept else -math.inf
            for i, (z, g) in enumerate(zip(scaled, noise, strict=True))
        ]
    )


def _adjusted(row: Mapping[str, Any], logits: Sequence[float]) -> list[float]:
    adjusted = list(logits)
    for token, value in row["bias"]:
        adjusted[token] += value
    history = row["history"]
    drawn = history[len(history) - row["generated"] :]
    for token in set(history):
        logit, by = adjusted[token], row["repetition"]
        adjusted[token] = logit / by if logit > 0 else logit * by
    for token in set(drawn):
        adjusted[token] -= row["frequency"] * drawn.count(token) + row["presence"]
    return adjusted


def _kept(row: Mapping[str, Any], scaled: Sequence[float]) -> set[int]:
    falling = sorted(scaled, reverse=True)[: row["top_k"] or len(scaled)]
    total = sum(map(math.exp, falling))
    threshold, before = falling[0], 0.0
    for z in falling:
        if row["top_p"] < 1 and before >= row["top_p"] and z != falling[0]:
            _clear(before - row["top_p"])
            break
        threshold = z
        before += math.exp(z) / total
    floor = math.log(row["min_p"]) if row["min_p"] else -math.inf
    return {i for i, z in enumerate(scaled) if z >= threshold and z >= floor}


def _first(values: Sequence[float]) -> int:
    best = max(values)
    rest = [value for value in values if value != best]
    _clear(best - max(rest, default=-math.inf))
    return list(values).index(best)


def _clear(margin: float) -> None:
    if abs(margin) < _MARGIN:
        raise ValueError("rounding would decide this vector")


def _vector(name: str, about: str, logits: Sequence[float], position: int, **row: Any) -> Vector:
    told = {**PLAIN, **row}
    given: Json = {
        "row": {**told, "seed": u64(told["seed"])},
        "logits": list(logits),
        "position": u64(position),
    }
    output = {"token": draw(told, logits, position)}
    return valid(f"draw/{name}", "draw", "SA-02", about, given, output)


def vectors() -> Iterator[Vector]:
    """Greedy rows, rows that sample, and each rule where it decides."""
    yield from _greedy()
    for position in (0, 1, 2**32):
        about = "even and odd vocabularies, and positions beyond 32 bits"
        for logits, name in ((LONG, "even"), (LONG[:-1], "odd")):
            row = {"seed": 11, "temperature": 1.5}
            yield _vector(f"{name}-{position}", about, logits, position, **row)
    yield _vector("seed", "the greatest seed", HILL, 9, temperature=1.0, seed=2**64 - 1)
    for name, about, row, without in RULES:
        full = {**PLAIN, "seed": 5, "temperature": 2.0, **row}
        for position in _deciding(full, {**full, **without}):
            yield _vector(f"{name}-{position}", about, CLOSE, position, **full)


def _greedy() -> Iterator[Vector]:
    yield _vector("greedy", "the greatest logit", HILL, 3)
    yield _vector("tie", "the lowest id of two equals", [1.0, 4.0, 0.0, 4.0], 3)
    yield _vector("bias", "a bias makes another the greatest", HILL, 3, bias=[[2, 5.0], [3, -0.5]])
    low = [logit - 4 for logit in HILL]
    had = {"history": [3, 4, 4, 1], "generated": 2, "repetition": 4.0}
    yield _vector("repetition", "tokens that the row was given count too", HILL, 4, **had)
    yield _vector("negative", "a negative logit is multiplied", low, 4, **had)
    drew = {"history": [1, 3, 4], "generated": 2, "presence": 1.0}
    yield _vector("presence", "tokens that the row drew, once", HILL, 4, **drew)
    often = {"history": [1, 1, 3, 3, 4], "generated": 3, "frequency": 0.4}
    yield _vector("frequency", "tokens that the row drew, each time", HILL, 4, **often)
    order = {"repetition": 2.0, "bias": [[1, 3.0]], "history": [1]}
    yield _vector("order", "the bias comes before the penalty", HILL, 4, **order)


def _deciding(row: Mapping[str, Any], without: Mapping[str, Any]) -> list[int]:
    """Three positions at which *row* and *without* draw different tokens."""
    found: list[int] = []
    for position in range(10_000):
        try:
            if draw(row, CLOSE, position) != draw(without, CLOSE, position):
                found.append(position)
        except ValueError:
            continue  # rounding would decide
        if len(found) == 3:
            return found
    raise LookupError("the rule decides nothing")

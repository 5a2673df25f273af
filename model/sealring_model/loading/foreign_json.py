"""JSON that others wrote: a hub, another member, whoever made a model's folder.

`json.loads` holds the interpreter until it is done, and makes objects of up to a hundred bytes of
each two characters. So its values are counted before it is called: `BOUNDS` has what each kind of
file may have, and every place that parses such a file does so through `parse_foreign`.

A value takes up to 100 bytes and 0.4 us to parse, and a text up to four bytes for each of its own.
A whole tokenizer, as transformers and `Tokenizer` keep it, takes 250 bytes and 2.5 us for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

MiB: Final = 1 << 20

HUB_LISTING: Final = "a hub's listing"
MEMBER_LISTING: Final = "a member's listing"
HEADER: Final = "the header of a weight file"
HEADERS: Final = "all headers of a model"
LOG_LINE: Final = "a line of sealring.partial.log"
ANY: Final = "*.json"

BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    # what: (bytes, values)
    HUB_LISTING: (8 * MiB, 250_000),
    MEMBER_LISTING: (32 * MiB, 600_000),
    HEADER: (32 * MiB, 1_500_000),
    HEADERS: (64 * MiB, 4_000_000),
    "model.safetensors.index.json": (32 * MiB, 600_000),
    "sealring.json": (32 * MiB, 600_000),
    "sealring.partial.json": (8 * MiB, 150_000),
    "sealring.partial.fault": (MiB // 16, 100),
    LOG_LINE: (MiB // 16, 100),
    "config.json": (4 * MiB, 100_000),
    "tokenizer_config.json": (16 * MiB, 1_000_000),
    "tokenizer.json": (64 * MiB, 4_000_000),
    "vocab.json": (32 * MiB, 1_000_000),
    "tekken.json": (32 * MiB, 2_000_000),
    "added_tokens.json": (4 * MiB, 300_000),
    ANY: (4 * MiB, 100_000),
}
"""The most bytes and values of each kind of file; `ANY` is for files of other names.

Weights of 200,000 tensors fit (32 MiB of names and hashes, 12 values of a header each), a hub's
listing of 10,000 files, and a vocabulary of 500,000 with as many merges."""

_STRUCTURE: Final = b",:[{"


class ForeignFault(ValueError):
    """JSON that is none, or more than its kind may have; the text says what is wrong."""


def bound_of(what: str) -> tuple[int, int]:
    """The most bytes and values of the file, or the kind of it, that is called *what*."""
    return BOUNDS.get(what, BOUNDS[ANY])


def values_in(text: bytes | bytearray) -> int:
    """The values and keys of the JSON in *text*, or more: characters within texts count too."""
    return 1 + len(text) - len(text.translate(None, _STRUCTURE))


def check_foreign(what: str, text: bytes | bytearray) -> None:
    """Raise `ForeignFault` if *text* is larger than a *what* may be. Parses nothing."""
    size, values = bound_of(what)
    if len(text) > size:
        raise ForeignFault(f"it has more than {_bytes(size)}")
    if (found := values_in(text)) > values:
        raise ForeignFault(f"it has {found:,} values, and {values:,} are the most")


def parse_foreign(what: str, text: bytes | bytearray) -> Any:
    """The value of the JSON in *text*, which is a *what* (a name in `BOUNDS`, or of another file).
    Raises `ForeignFault`."""
    check_foreign(what, text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ForeignFault(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ForeignFault("it is nested too deep") from None


def _bytes(size: int) -> str:
    return f"{size // MiB} MiB" if size >= MiB else f"{size >> 10} KiB"

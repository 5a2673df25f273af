"""A public key as four words, which a person compares on two screens.

The words are those of BIP-39's English list, 2,048 of them: 11 bits each, 44 in all, from the
beginning of SHA-256 of the key. That is for a glance, where somebody else may have read the
invitation. It does not stand for the key: another that gives the same words can be found in about
2^44 tries.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from sealring_protocol.security.keys import sha256

WORDS: Final = 4
"""Words of a fingerprint."""

_BITS: Final = 11


@functools.cache
def _words() -> tuple[str, ...]:
    return tuple((Path(__file__).parent / "words.txt").read_text("ascii").split())


def fingerprint(public_key: bytes) -> str:
    """The four words of *public_key*, 65 bytes: ``amber-bison-chalk-dune``, say."""
    number = int.from_bytes(sha256(public_key)) >> (256 - WORDS * _BITS)
    places = (number >> (_BITS * place) & ((1 << _BITS) - 1) for place in reversed(range(WORDS)))
    return "-".join(_words()[place] for place in places)


def is_fingerprint(text: str) -> bool:
    """Whether *text* is words that `fingerprint` may give."""
    words = text.split("-")
    return len(words) == WORDS and all(word in _words() for word in words)

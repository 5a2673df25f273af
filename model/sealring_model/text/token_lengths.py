"""How many characters one token can stand for, at most: a bound that needs no tokenising.

Tokenising takes microseconds and hundreds of bytes for each character. If no token stands for more
than n characters, a text has at least its length divided by n tokens. So a text that can never fit
is refused by its length alone.

The bound is exact arithmetic over the parts of a ``tokenizer.json`` that are known not to drop or
merge characters without limit. Where a part may do so there is no bound: an unknown word that
becomes one token, a normalizer that collapses spaces, an added token that swallows the spaces
beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

_COMPOSED: Final = 4
"""Characters that composition (NFC, NFKC) makes into one, at most: four for U+1F82 and its like."""

_KEEPING: Final = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}
"""Pre-tokenizers that cut a text and drop nothing."""


def longest_token(rules: Mapping[str, Any], alphabet: Collection[str]) -> float:
    """The most characters that one token can stand for, by the *rules* of a fast tokenizer (its
    ``tokenizer.json``); infinity if they set no bound. *alphabet* has the characters that stand for
    bytes in a byte-level vocabulary."""
    added = rules.get("added_tokens") or []
    model = rules.get("model") or {}
    steps = rules.get("pre_tokenizer"), rules.get("normalizer")
    entries = model.get("vocab") or ()
    words = {entry if isinstance(entry, str) else entry[0] for entry in entries}
    words |= {token["content"] for token in added}
    if (
        not words
        or any(token.get("lstrip") or token.get("rstrip") for token in added)
        or not _keeps(steps[0])
        or not (_knows_bytes(model, steps, words, alphabet) or _tells_unknown(model))
    ):
        return math.inf
    return max(1, *map(len, words)) * _merged(steps[1])


def decoding_work(decoder: Mapping[str, Any]) -> float:
    """The steps in which the *decoder* of a fast tokenizer makes text of each character of a token,
    at most. Infinity if it searches with a regular expression."""
    work = size = 1.0
    for old, new in _replacements(decoder):
        if old is None:
            return math.inf
        work += size * max(1, len(old))
        size *= max(1.0, len(new) / len(old)) if old else 1 + len(new)
        work += size
    return work


def _replacements(decoder: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
    """The texts that each step of *decoder* replaces, and by what. None: a regular expression."""
    match decoder.get("type"):
        case "Sequence":
            for step in decoder["decoders"]:
                yield from _replacements(step)
        case "Replace":
            yield decoder["pattern"].get("String"), decoder["content"]
        case "BPEDecoder":
            yield decoder["suffix"], " "
        case "CTC":
            yield decoder["pad_token"], ""
            yield decoder["word_delimiter_token"], " "
        case _:  # it makes a text no longer but by a space for each token
            yield "", ""


def _knows_bytes(
    model: Mapping[str, Any],
    steps: Iterable[Mapping[str, Any] | None],
    words: Collection[str],
    alphabet: Collection[str],
) -> bool:
    """Whether the vocabulary has a token for every byte, so that no text has an unknown part."""
    if model.get("type") not in ("BPE", "Unigram"):
        return False
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in words for byte in range(256))
    return any(map(_to_bytes, steps)) and all(char in words for char in alphabet)


def _to_bytes(step: Mapping[str, Any] | None) -> bool:
    if step is None:
        return False
    parts = step.get("pretokenizers") or step.get("normalizers") or ()
    return step["type"] == "ByteLevel" or any(map(_to_bytes, parts))


def _tells_unknown(model: Mapping[str, Any]) -> bool:
    """Whether each unknown character has a token of its own, or makes the tokenizer fail."""
    if model.get("type") == "BPE":
        return model.get("unk_token") is not None and not model.get("fuse_unk")
    return model.get("type") == "Unigram" and model.get("unk_id") is None


def _keeps(step: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer leaves no character out."""
    if step is None or step.get("type") in _KEEPING:
        return True
    if step["type"] == "Sequence":
        return all(map(_keeps, step["pretokenizers"]))
    return step["type"] in ("Split", "Punctuation") and step.get("behavior") != "Removed"


def _merged(step: Mapping[str, Any] | None) -> float:
    """How many characters a normalizer makes into one, at most."""
    if step is None or step["type"] == "Prepend":
        return 1
    match step["type"]:
        case "Sequence":
            return math.prod(map(_merged, step["normalizers"]))
        case "NFC" | "NFKC":
            return _COMPOSED
        case "NFD" | "NFKD" | "ByteLevel":
            return 1
        case "Replace" if (literal := step["pattern"].get("String")) and step["content"]:
            return max(1.0, len(literal) / len(step["content"]))
        case _:
            return math.inf

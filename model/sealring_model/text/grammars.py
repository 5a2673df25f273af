"""Grammars that hold an answer to a form, through llguidance.

A grammar is a text: one in Lark's notation as llguidance extends it, or llguidance's JSON. A text
worker makes it of what a client asks, and tries it (`fault`); the engines that draw tokens compile
the same text again. Both know the model's tokens by one `grammar_tokenizer`.

`LIMITS` bound what a hostile grammar costs: to compile, and with each token. They count work and
not time, so that engines which draw the same row agree on what exceeds them.
"""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path
from typing import Final

import attrs
import tokenizers
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from sealring_model.errors import LoadError
from sealring_model.text.eos import eos_ids
from sealring_model.text.mask_time import MaskTime
from sealring_model.text.tokens import Tokenizer

LIMITS: Final = LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=10_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""What a grammar may cost: to compile, with each token, and in states that are kept.

An object with 200 optional names takes less than 10,000 items for a token, in a vocabulary of
150,000. The worst grammar that was found takes 100 ms for as many."""


def matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """What follows one row's tokens by *grammar*. Its `get_error` tells a fault of the grammar."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)


def fault(tokenizer: LLTokenizer, grammar: str) -> str:
    """What is wrong with *grammar*, in the library's words; empty if nothing is."""
    wrong, told = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=LIMITS)
    if wrong:
        return "; ".join(told)
    first = matcher(tokenizer, grammar)
    began = time.process_time()
    first.compute_bitmask()  # some limits show with the first token alone
    return str(first.get_error()) or MaskTime().add(time.process_time() - began)


def warnings(tokenizer: LLTokenizer, grammar: str) -> list[str]:
    """What the library says of *grammar*, in which there is no fault."""
    _, told = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=LIMITS)
    return list(told)


def grammar_tokenizer(folder: Path, vocabulary: int) -> LLTokenizer:
    """The tokens of the model in *folder*, whose output has *vocabulary* numbers; those beyond the
    tokenizer's stand for nothing. Raises `LoadError`."""
    file = folder / "tokenizer.json"
    try:
        ends = [end for end in sorted(eos_ids(folder)) if end < vocabulary] or None
        if file.exists():
            known = file.read_text("utf-8")
            # The tokenizer may know more tokens than the model gives, or make its texts in a way
            # that the library does not know.
            for size in (vocabulary, None):
                with contextlib.suppress(ValueError):
                    return LLTokenizer(known, n_vocab=size, eos_token=ends)
        return LLTokenizer(_wrapped(folder), n_vocab=vocabulary, eos_token=ends)
    except LoadError:
        raise
    except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        what = f"no grammar can be held with the tokenizer of {folder}: {error}"
        raise LoadError(what) from None


def _wrapped(folder: Path) -> TokenizerWrapper:
    """Its tokenizer by the bytes of each token."""
    file = folder / "tokenizer.json"
    if file.exists():
        inner = tokenizers.Tokenizer.from_file(str(file))
        added = inner.get_added_tokens_decoder()
        special = sorted(token for token, about in added.items() if about.special)
        count = inner.get_vocab_size()
        tokens = [
            inner.decode([token], skip_special_tokens=False).encode() for token in range(count)
        ]
    else:
        words = Tokenizer(folder)
        special = sorted(words.special)
        tokens = [*map(words.token_bytes, range(max(words.ids().values(), default=-1) + 1))]
    return TokenizerWrapper(_Words(0, None, tokens, special))


@attrs.define(slots=False)
class _Words:
    """A tokenizer as llguidance takes one. It is asked which tokens a text that a grammar forces is
    made of: the longest that there are."""

    eos_token_id: int
    bos_token_id: int | None
    tokens: list[bytes]
    special_token_ids: list[int]

    @functools.cached_property
    def _known(self) -> dict[bytes, int]:
        return {data: token for token, data in enumerate(self.tokens) if data}

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self._known), default=0)

    def __call__(self, text: str) -> list[int]:
        left, found = text.encode(), []
        known, longest = self._known, self._longest
        while left:
            fits = (size for size in range(longest, 0, -1) if left[:size] in known)
            if (size := next(fits, 0)) == 0:
                break
            found.append(known[left[:size]])
            left = left[size:]
        return found

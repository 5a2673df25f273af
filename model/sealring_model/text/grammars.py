"""Grammars that hold an answer to a form, through llguidance.

A grammar is a text: one in Lark's notation as llguidance extends it, or llguidance's JSON. A text
worker makes it of what a client asks, and tries it (`fault`); the engines that draw tokens compile
the same text again. Both know the model's tokens by one `grammar_tokenizer`.

`LIMITS` bound what a hostile grammar costs: to compile, and with each token. They count work and
not time, so that engines which draw the same row agree on what exceeds them.

They do not bound it closely: the same work takes 2 ms for one grammar and 100 ms for another. A
mask is made by the compute thread while the device makes the logits, and all rows of a batch wait
for the last of both. So a row whose masks take too long ends (`MaskTime`). Its tokens are drawn as
ever until then: ranks that draw the same row agree on them, though each has a clock of its own, and
only the head's says that the row is over. Of forms that people use, in a vocabulary of 150,000, a
mask takes 0.02 to 0.8 ms on average, and 3 ms at most.
"""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path
from typing import Final

import attrs
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from sealring_model.errors import LoadError

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

MASK_SECONDS: Final = 0.05
"""Seconds that one mask may take."""

MEAN_SECONDS: Final = 0.003
"""Seconds that a row's masks may take on average, beyond `BURST_SECONDS` in all."""

BURST_SECONDS: Final = 0.05


def grammar_tokenizer(folder: Path, vocabulary: int) -> LLTokenizer:
    """The tokens of the model in *folder*, whose output has *vocabulary* numbers; those beyond the
    tokenizer's stand for nothing. Raises `LoadError`."""
    from sealring_model.text.tokens import eos_ids  # noqa: PLC0415 - 40 ms, only for such rows

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


def matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """What follows one row's tokens by *grammar*. Its `get_error` has a fault of the grammar."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)


def fault(tokenizer: LLTokenizer, grammar: str) -> str:
    """What is wrong with *grammar*, in the library's words; empty if nothing is."""
    wrong, faults = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=LIMITS)
    if wrong:
        return "; ".join(faults)
    first = matcher(tokenizer, grammar)
    began = time.process_time()
    first.compute_bitmask()  # some limits show with the first token alone
    return str(first.get_error()) or MaskTime().add(time.process_time() - began)


def warnings(tokenizer: LLTokenizer, grammar: str) -> list[str]:
    """What the library says of *grammar*, in which there is no fault."""
    _, found = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=LIMITS)
    return list(found)


class MaskTime:
    """The time that the masks of one row have taken."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._masks = 0

    def add(self, seconds: float, masks: int = 1) -> str:
        """So many *masks* took *seconds* more. Why the row must end, or nothing."""
        self._seconds += seconds
        self._masks += masks
        if seconds > MASK_SECONDS * max(1, masks):
            return (
                f"its grammar took {_ms(seconds)} ms of a processor to find what may follow one "
                f"token; {_ms(MASK_SECONDS)} ms is the limit"
            )
        if self._seconds > BURST_SECONDS + MEAN_SECONDS * self._masks:
            return (
                f"its grammar took {_ms(self._seconds)} ms of a processor for {self._masks} "
                f"tokens; {_ms(MEAN_SECONDS)} ms for each is the limit, and "
                f"{_ms(BURST_SECONDS)} ms in all are free"
            )
        return ""


def _wrapped(folder: Path) -> TokenizerWrapper:
    """Its tokenizer by the bytes of each token."""
    file = folder / "tokenizer.json"
    if file.exists():
        from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - for such tokenizers alone

        inner = Backend.from_file(str(file))
        added = inner.get_added_tokens_decoder()
        special = sorted(token for token, about in added.items() if about.special)
        count = inner.get_vocab_size()
        tokens = [
            inner.decode([token], skip_special_tokens=False).encode() for token in range(count)
        ]
    else:
        from sealring_model.text.tokens import Tokenizer, check_tokenizer  # noqa: PLC0415

        check_tokenizer(folder)  # a folder without one takes no second of a processor
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


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"

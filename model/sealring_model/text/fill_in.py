"""Fill-in-the-middle: how a model that knows it is asked for the text between two others.

Such a model was trained on texts whose middle was moved to the end, with tokens of its own before
each part (Bavarian et al., https://arxiv.org/abs/2207.14255). Nothing but those tokens' names says
that a model knows it; the names here are of the families that have documented them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

_MARKS: Final = (
    # before the text that comes first, before the one that comes last, before the middle
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder 2, Granite 3
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
_SUFFIX_FIRST: Final = ("[PREFIX]", "[SUFFIX]")  # Codestral: the middle just follows the prefix

_ENDS: Final = (
    "<|endoftext|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<fim_pad>",
    "<fim-pad>",
    "<file_sep>",
    "<filename>",
    "<|cursor|>",
    "▁<EOT>",
    "<EOT>",
)
"""Tokens that end a middle: what separated files in the training data."""


@attrs.frozen
class FillIn:
    """The ids of the marks before each part, and the *ends* of a middle. *middle* is None if the
    middle follows the first part, which comes last then."""

    prefix: int
    suffix: int
    middle: int | None
    ends: frozenset[int]

    @classmethod
    def of(cls, ids: Mapping[str, int]) -> FillIn | None:
        """That of a vocabulary; None if its model knows none."""
        for marks in (*_MARKS, _SUFFIX_FIRST):
            if all(mark in ids for mark in marks):
                prefix, suffix, *rest = (ids[mark] for mark in marks)
                ends = {ids[end] for end in _ENDS if end in ids} | {prefix, suffix, *rest}
                return cls(prefix, suffix, rest[0] if rest else None, frozenset(ends))
        return None

    def prompt(self, encode: Callable[[str], list[int]], before: str, after: str) -> list[int]:
        """The ids that ask for what comes between *before* and *after*."""
        first, last = [self.prefix, *encode(before)], [self.suffix, *encode(after)]
        return last + first if self.middle is None else [*first, *last, self.middle]

"""Texts of a stated length in tokens, for prompts."""

from __future__ import annotations

from typing import Final

from sealring_model.text.tokens import Tokenizer

_WORDS: Final = ("the", "fox", "went", "to", "the", "river", "and", "saw", "a", "boat")


def text_of(tokenizer: Tokenizer, tokens: int) -> str:
    """A text of about *tokens* tokens."""
    count = tokens * len(_WORDS) // len(tokenizer.encode(" ".join(_WORDS)))
    return " ".join(_WORDS[index % len(_WORDS)] for index in range(count))

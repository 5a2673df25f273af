"""What a device has done often enough that it will do the like of it at once.

CUDA waits for the whole device to do what it has not done before, so the device must not wait in
such a graph. It sees other graphs when the rows of a batch change, and for another number of tokens
of a row. (Those whose caches grow are known as they are built: `BuiltDecode.is_new`.)

So a decode of guesses gets a graph of as many tokens as any had in this epoch, and never one of
fewer again. That costs little: on an H100 16 layers of 8B take 3.7 ms for 5 tokens and 4.2 ms for
17. To change to another graph means to drop the one that the device waits in: 10 ms and more.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from sealring_model.lookahead.graphs import BuiltClosing, BuiltDecode, Due

_AFTER: Final = 3
"""Decodes of a batch with the same rows after which the next graph has nothing new to CUDA."""
_AHEAD_AFTER: Final = 1
"""The same of decodes, and of closing passes, of as many tokens of one row."""


class Steadiness:
    """The decodes and closing passes of one rank so far."""

    def __init__(self) -> None:
        self._plain: Final[Counter[int]] = Counter()  # by batch, since its rows changed
        self._unplaced: Final[Counter[int]] = Counter()  # by tokens
        self._closings: Final[Counter[int]] = Counter()  # by tokens
        self.most_tokens = 1
        """The most tokens of a row that a decode has read."""

    def rows_change(self, batch: int) -> None:
        """The next decodes of *batch* have other rows."""
        self._plain.pop(batch, None)

    def tokens_for(self, due: Due) -> int:
        """How many tokens a graph is to have for what is *due*, and for others like it."""
        return max(self.most_tokens, due.tokens) if due.unplaced and due.guesses else 1

    def decoded(self, due: Due, built: BuiltDecode | None) -> None:
        """What was *due* is under way, by the graph *built* ahead if there was one."""
        self.most_tokens = max(self.most_tokens, due.tokens)
        if built is not None and built.unplaced is not None:
            self._unplaced[built.tokens] += 1
        elif self.tokens_for(due) == 1:
            self._plain[due.batch] += 1

    def closed(self, tokens: int) -> None:
        """A closing pass of *tokens* tokens of each row is under way."""
        self._closings[tokens] += 1

    def has_seen(self, batch: int, tokens: int) -> bool:
        """Whether a decode of *batch* with *tokens* of each row has nothing new to the device."""
        if tokens > 1:
            return self._unplaced[tokens] >= _AHEAD_AFTER
        return self._plain[batch] >= _AFTER

    def knows(self, built: BuiltDecode | BuiltClosing) -> bool:
        """Whether the graph *built* has nothing new to the device."""
        if isinstance(built, BuiltDecode):
            return not built.is_new and self.has_seen(built.batch, built.tokens)
        if built.tokens > 1:
            return self._closings[built.tokens] >= _AHEAD_AFTER
        return self.has_seen(built.batch, 1)

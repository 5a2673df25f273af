"""What a device has done often enough that it will do the like of it at once.

CUDA waits for the whole device to do what it has not done before, so the device must not wait in
such a graph. It sees other graphs when the rows of a batch change, and for another number of tokens
of a row.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from sealring_model.lookahead.graphs import Due

_AFTER: Final = 3
"""Decodes of a batch with the same rows after which the next graph has nothing new to CUDA."""
_AHEAD_AFTER: Final = 1
"""The same of decodes of as many tokens of one row, which were tried before (see `unplaced`)."""


class Steadiness:
    """The decodes of one rank so far."""

    def __init__(self) -> None:
        self._by_batch: Final[Counter[int]] = Counter()  # of one token, since its rows changed
        self._by_tokens: Final[Counter[int]] = Counter()  # of more
        self.width = 1
        """The most tokens of a row that a decode has read."""

    def rows_change(self, batch: int) -> None:
        """The next decodes of *batch* have other rows."""
        self._by_batch.pop(batch, None)

    def comes(self, due: Due) -> int:
        """How many tokens a graph is to have for what is *due*, and others like it: so many that
        steps with fewer guesses need no other graph."""
        self.width = max(self.width, due.tokens)
        return self.width if due.unplaced and due.guesses else 1

    def issued(self, due: Due) -> int:
        """The same, and a decode that was *due* has been issued."""
        tokens = self.comes(due)
        if tokens == 1:
            self._by_batch[due.batch] += 1
        else:
            self._by_tokens.update({tokens, due.tokens})
        return tokens

    def reached(self, batch: int, tokens: int) -> bool:
        """Whether a graph of *batch* with *tokens* of each row has nothing new to the device."""
        if tokens > 1:
            return self._by_tokens[tokens] >= _AHEAD_AFTER
        return self._by_batch[batch] >= _AFTER

"""What rank 0 knows of rows besides their caches: how each is sampled, and its last token.

Sampling parameters come as ROW messages before the step that opens the row, perhaps before the
epoch begins. They are forgotten when the row is gone. Those of rows that the end of an epoch left
behind are forgotten an epoch later. The number of rows that no step has opened is limited.

A decode reads the last token of each row. A joiner's comes with the step. After that it is what the
batch's last decode sampled, an array that the device may still compute. As long as a batch keeps
its rows, that array is the next input as it is, and nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import mlx.core as mx
from sealring_protocol.codec.messages import NO_EPOCH, Epoch, Row
from sealring_protocol.limits import MAX_IDS, MAX_ROWS

from sealring_model.channel import ChannelBroken
from sealring_model.errors import LedgerError
from sealring_model.sampling.matchers import Matchers

MAX_UNOPENED: Final = 4 * MAX_ROWS
"""Rows that are announced and not opened, at most: more than the steps in flight can open."""

MAX_HISTORY_IDS: Final = 4 * MAX_IDS
"""Token ids in the histories of rows that are not opened, at most; four bytes of a grammar count as
one. Memory: 160 MiB."""


class RowParams:
    """Sampling parameters by row, and the *matchers* that follow the grammars of rows."""

    def __init__(self, matchers: Matchers | None = None) -> None:
        self.matchers: Final = matchers
        self._epoch = NO_EPOCH
        self._now: dict[int, Row] = {}
        self._before: dict[int, Row] = {}
        self._unopened: dict[int, int] = {}  # to the length of their histories
        self._history_ids = 0  # their sum

    def add(self, row: Row) -> None:
        """Remember how row ``row.uid`` is sampled, and begin to prepare its grammar. Raises
        `ChannelBroken` if too much is announced."""
        self._now[row.uid] = row
        self.opened([row.uid])
        self._unopened[row.uid] = told = len(row.history) + len(row.grammar) // 4
        self._history_ids += told
        if len(self._unopened) > MAX_UNOPENED or self._history_ids > MAX_HISTORY_IDS:
            raise ChannelBroken("more rows are announced than steps may open")
        if row.grammar and self.matchers is not None:
            self.matchers.begin(row, self._epoch)

    def opened(self, uids: Iterable[int]) -> None:
        """A step has opened rows *uids*."""
        for uid in uids:
            self._history_ids -= self._unopened.pop(uid, 0)

    def get(self, uids: Iterable[int]) -> tuple[Row, ...]:
        """The parameters of *uids*, in order. Raises `LedgerError` for a row that was not
        announced."""
        return tuple(map(self._get, uids))

    def _get(self, uid: int) -> Row:
        row = self._now.get(uid) or self._before.get(uid)
        if row is None:
            raise LedgerError(f"row {uid} was opened and its sampling was never announced")
        return row

    def forget(self, uid: int) -> None:
        """Row *uid* is gone."""
        self._now.pop(uid, None)
        self._before.pop(uid, None)
        self.opened([uid])
        if self.matchers is not None:
            self.matchers.forget(uid)

    def new_epoch(self, epoch: Epoch = NO_EPOCH) -> None:
        """A new *epoch* begins. Parameters from before the last one are forgotten."""
        self._epoch = epoch
        for uid in self._before.keys() - self._now.keys():
            self.forget(uid)
        self._before, self._now = self._now, {}
        self.opened(list(self._unopened))


class LastTokens:
    """The last token of every row of every batch."""

    def __init__(self) -> None:
        self._given: dict[int, int] = {}
        self._sampled: dict[int, tuple[tuple[int, ...], mx.array]] = {}
        self._answered: dict[int, tuple[mx.array, int]] = {}  # what was sampled, and its last token

    def give(self, uid: int, token: int) -> None:
        """Row *uid* joins with *token* as its last."""
        self._given[uid] = token

    def forget(self, uid: int) -> None:
        """Row *uid* is gone."""
        self._given.pop(uid, None)

    def forget_batch(self, batch: int) -> None:
        """*batch* is empty."""
        self._sampled.pop(batch, None)
        self._answered.pop(batch, None)

    def sampled(self, batch: int, uids: Sequence[int], tokens: mx.array) -> None:
        """The last decode of *batch* sampled *tokens*, one for each of *uids*, in order."""
        self._sampled[batch] = (tuple(uids), tokens)

    def answered(self, batch: int, tokens: mx.array, last: int) -> None:
        """The decode of *batch* that sampled *tokens* was answered, with *last* as the last of
        them. Another thread may say so, and later than the next decode samples."""
        self._answered[batch] = tokens, last

    def known(self, batch: int, uids: tuple[int, ...]) -> int | None:
        """The last token of *uids*, which is one row, if it is known without the device."""
        before, sampled = self._sampled.get(batch, ((), _NONE))
        tokens, last = self._answered.get(batch, (_NONE, 0))
        is_last = tokens is sampled and before == uids
        return last if is_last and self._given.keys().isdisjoint(uids) else None

    def take(self, batch: int, uids: tuple[int, ...]) -> mx.array:
        """The input of *batch*'s next decode, of rows *uids*: uint32 ``(rows,)``.

        Raises `LedgerError` if a row has no last token: its decode came before the answer to the
        decode before.
        """
        before, tokens = self._sampled.get(batch, ((), _NONE))
        if before == uids and self._given.keys().isdisjoint(uids):
            return tokens
        places = {uid: at for at, uid in enumerate(before)}
        parts: list[mx.array] = []
        for uid in uids:
            if uid in self._given:
                parts.append(mx.array([self._given.pop(uid)], mx.uint32))
            elif uid in places:
                parts.append(tokens[places[uid] : places[uid] + 1])
            else:
                raise LedgerError(f"row {uid} decodes, and its last token is not known")
        return mx.concatenate(parts)


_NONE = mx.array([], mx.uint32)

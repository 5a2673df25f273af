"""Rank 0's sampling: which tokens a decode reads, and which tokens come out.

A decode's `SamplerState` is made when the decode is launched, and sampled from once there are
logits: at once on a single rank, in a pipeline when the hidden states have come back. Rows may
leave in between, or come back under their old number, so the state holds all that sampling needs.
`Sampler.end` builds a graph only; the caller launches it.

A decode reads the last token of each row (`LastTokens`). A joiner's comes with the step. After that
it is what the batch's last decode sampled, an array that the device may still compute. As long as a
batch keeps its rows, that array is the next input as it is, and nobody reads it.

How a row is sampled (`RowParams`) comes as a ROW message before the step that opens the row,
perhaps before the epoch begins. It is forgotten when the row is gone, or an epoch later if the end
of its epoch left it behind. The number of rows that no step has opened is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Logprobs, RowOver
from sealring_protocol.codec.messages import NO_EPOCH, NO_LOGPROBS, Epoch, Row
from sealring_protocol.control.scheduler.rows import right_ones
from sealring_protocol.limits import MAX_IDS, MAX_ROWS

from sealring_model.channel import ChannelBroken
from sealring_model.errors import LedgerError
from sealring_model.sampling.constraints import Constraint, Constraints, Masks, Matchers
from sealring_model.sampling.draw import LogitProcessor, LogitProcessors, sample
from sealring_model.sampling.scores import LogprobArrays, logprobs_of
from sealring_model.stage.device import DeviceIO, Outlet

MAX_UNOPENED: Final = 4 * MAX_ROWS
"""Rows that are announced and not opened, at most: more than the steps in flight can open."""

MAX_HISTORY_IDS: Final = 4 * MAX_IDS
"""Token ids in the histories of rows that are not opened, at most; four bytes of a grammar count as
one. Memory: 160 MiB."""


class Sampler:
    """Samples the tokens of every batch. Each sampling of a batch follows the one before."""

    def __init__(self, params: RowParams, vocabulary: int, device_io: DeviceIO) -> None:
        self._device_io: Final = device_io
        self._params: Final = params
        self._last: Final = LastTokens()
        self._processors: Final = LogitProcessors(vocabulary)
        self._begun: Final[dict[int, SamplerState]] = {}  # by batch, the last
        self._constraints: Final = Constraints(vocabulary, params.matchers)

    def give(self, uid: int, token: int) -> None:
        """Row *uid* joins with *token* as its last."""
        self._last.give(uid, token)

    def forget(self, uids: Iterable[int]) -> None:
        """Rows *uids* are gone."""
        for uid in uids:
            self._last.forget(uid)
            self._constraints.forget(uid)

    def forget_batch(self, batch: int) -> None:
        """*batch* is empty."""
        self._last.forget_batch(batch)
        self._processors.forget_batch(batch)
        self._begun.pop(batch, None)

    def inputs(self, batch: int, uids: tuple[int, ...]) -> mx.array:
        """What a decode of *batch* reads: the last tokens of *uids*, uint32 ``(rows,)``."""
        return self._last.take(batch, uids)

    def answered(self, batch: int, sampled: SampledTokens, ids: Sequence[int]) -> None:
        """What was *sampled* for *batch* was answered with *ids*. For the thread that answers."""
        self._last.answered(batch, sampled.last, ids[-1])

    def last_id(self, batch: int, uids: tuple[int, ...]) -> int | None:
        """The last token of *uids*, which is one row, if it was drawn and answered here."""
        return self._last.known(batch, uids)

    def begin(
        self,
        batch: int,
        uids: tuple[int, ...],
        positions: tuple[int, ...],
        guesses: tuple[int, ...] = (),
        *,
        on_guess: bool = False,
    ) -> SamplerState:
        """The state that the decode of *batch* is sampled with; *positions* are those of the new
        tokens, the first one's where *guesses* are read ahead."""
        rows = self._params.get(uids)
        of = self._constraints.of
        constraints = tuple([of(row) if row.constrained else None for row in rows])
        processor = None if on_guess else self._processors.take(batch, rows)
        before = self._begun.get(batch) if on_guess else None
        state = SamplerState(
            batch,
            uids,
            rows,
            positions,
            processor,
            before,
            on_guess=on_guess,
            guesses=guesses,
            constraints=constraints,
        )
        self._begun[batch] = state
        return state

    def make_masks(self, state: SamplerState) -> None:
        """Make the masks that *state* lacks; the decode before must have been sampled. Waits for
        its tokens."""
        state.masks = self._constraints.masks(state.constraints, state.positions, state.guesses)

    def end(self, state: SamplerState, logits: mx.array) -> SampledTokens:
        """Sample from *logits* ``(rows, vocabulary)``; builds a graph and launches nothing. *state*
        must not lack masks."""
        before, state.before = state.before, None
        processor = state.processor
        if before is not None:  # rows may have left in between
            processor = self._processors.following(before.after, state.rows)
        if state.guesses:
            return self._end_ahead(state, processor, logits)
        adjusted = logits if processor is None else processor.apply(logits)
        tokens = sample(_masked(adjusted, state), state.rows, state.positions)
        after = None if processor is None else processor.after(tokens)
        wanted = {row.logprobs for row in state.rows} != {NO_LOGPROBS}
        logprobs = logprobs_of(logits, state.rows, tokens) if wanted else None
        return self._ended(state, tokens, tokens, after, logprobs)

    def _end_ahead(
        self, state: SamplerState, processor: LogitProcessor | None, logits: mx.array
    ) -> SampledTokens:
        """Sample the tokens of one row from *logits* ``(1 + guesses, vocabulary)``.

        Each is drawn as if the guesses before it were right. The next decode reads the last one
        that was drawn before, or in place of, the first wrong guess.
        """
        (first,) = state.positions
        places, guesses = len(state.guesses) + 1, mx.array(state.guesses, mx.uint32)
        adjusted = logits
        if processor is not None:
            adjusted = processor.apply_ahead(logits, guesses)
        positions = range(first, first + places)
        tokens = sample(_masked(adjusted, state), state.rows * places, positions)
        right = mx.cumprod((tokens[:-1] == guesses).astype(mx.int32)).sum(keepdims=True)
        after = None if processor is None else processor.after_ahead(tokens, right)
        # Not by an index: CUDA would have to compile that, when the first guesses come.
        last = mx.where(mx.arange(places) == right, tokens, 0).sum(keepdims=True)
        return self._ended(state, tokens, last, after, None)

    def _ended(
        self,
        state: SamplerState,
        tokens: mx.array,
        last: mx.array,
        after: LogitProcessor | None,
        logprobs: LogprobArrays | None,
    ) -> SampledTokens:
        """What was sampled. Nothing can fail any more: from now on the next sampling follows this
        one, which drew *last*."""
        changed = () if after is None else after.arrays
        over = () if state.masks is None else state.masks.over
        following = [(at, one) for at, one in enumerate(state.constraints) if one and one.follows]
        followed = []
        if following:
            outlet = self._device_io.outlet(tokens)  # for this thread to read
            changed = (*changed, outlet.ready)
            read = partial(_drawn, outlet, guesses=state.guesses)
            followed = [(constraint, partial(read, at)) for at, constraint in following]
        answered = self._device_io.outlet(tokens)
        sampled = SampledTokens(
            answered, last, logprobs, changed, state.guesses, over, tuple(followed)
        )
        self._last.sampled(state.batch, state.uids, last)
        state.after = after
        if after is not None:
            self._processors.put(state.batch, after)
        return sampled


@attrs.define(eq=False)
class SamplerState:
    """What sampling needs for one decode of *batch*: its rows in order, the positions of their new
    tokens, and the processor of their logits.

    A decode on a guess begins before the token that it reads is drawn, by the decode *before*. Its
    processor follows the one *after* that.

    A decode that reads *guesses* ahead, after its first token, has one row. A token is drawn for
    the place of each of these guesses, and one more. *positions* has that of the first.

    If some of the rows have *constraints*, it is sampled with *masks*, which cannot be made before
    the tokens before are known here.
    """

    batch: int
    uids: tuple[int, ...]
    rows: tuple[Row, ...]
    positions: tuple[int, ...]
    processor: LogitProcessor | None
    before: SamplerState | None = None
    after: LogitProcessor | None = None
    on_guess: bool = False
    guesses: tuple[int, ...] = ()
    constraints: tuple[Constraint | None, ...] = ()
    masks: Masks | None = None

    @property
    def lacks_masks(self) -> bool:
        """Whether masks are still to be made."""
        return self.masks is None and any(self.constraints)

    @property
    def is_sure(self) -> bool:
        """Whether all is known of how it is sampled, and it is sure to be."""
        return not (self.on_guess or self.lacks_masks)


@attrs.frozen(eq=False)
class SampledTokens:
    """What was sampled: *tokens*, uint32, one for each row, and their log probabilities. If
    *guesses* were read ahead, one for the place of each, and one more.

    Both are for the answer alone, as the next decode reads an array of its own, *last*. *changed*
    is what the next sampling starts from, to be evaluated with them. Rows that are *over* are those
    of `Masks`. *followed* has the constraints that follow the tokens, and what reads those.
    """

    tokens: Outlet
    last: mx.array
    logprobs: LogprobArrays | None
    changed: tuple[mx.array, ...]
    guesses: tuple[int, ...] = ()
    over: tuple[tuple[int, int, str], ...] = ()
    followed: tuple[tuple[Constraint, Callable[[], Sequence[int]]], ...] = ()

    def come_true(self) -> None:
        """They are what was drawn, so the constraints of their rows follow them. What was built
        ahead, and then dropped, is not."""
        for constraint, read in self.followed:
            constraint.drawn(read)

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays that the answer waits for."""
        return (self.tokens.ready, *(self.logprobs.arrays if self.logprobs else ()))

    def ids(self) -> tuple[int, ...]:
        """The tokens, which must have been computed, up to the first that is not the guess in its
        place."""
        tokens = tuple(self.tokens.data().cast("I"))
        return tokens[: 1 + right_ones(self.guesses, tokens)] if self.guesses else tokens

    def messages(self, n: int) -> tuple[Logprobs | RowOver, ...]:
        """The LOGPROBS and ROW_OVER messages that go before the answer to step *n*."""
        found: tuple[Logprobs | RowOver, ...] = self.logprobs.messages(n) if self.logprobs else ()
        if not self.over:
            return found
        places = len(self.ids()) if self.guesses else 1
        return found + tuple(RowOver(n, uid, why) for uid, at, why in self.over if at < places)


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
        self._unopened[row.uid] = ids = len(row.history) + len(row.grammar) // 4
        self._history_ids += ids
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


def _drawn(tokens: Outlet, row: int, guesses: tuple[int, ...]) -> tuple[int, ...]:
    """The *tokens* that were drawn for a *row*, of which there is one if *guesses* were read. Waits
    for the device."""
    mx.eval(tokens.ready)
    ids = tuple(tokens.data().cast("I"))
    return ids[: 1 + right_ones(guesses, ids)] if guesses else ids[row : row + 1]


def _masked(logits: mx.array, state: SamplerState) -> mx.array:
    return logits if state.masks is None else state.masks.apply(logits)


_NONE = mx.array([], mx.uint32)

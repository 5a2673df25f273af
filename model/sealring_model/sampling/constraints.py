"""Which tokens a row may have next: the end not too early, no bad sequence, and only what its
grammar allows.

That depends on the row's tokens so far, so it is found out on the CPU: a `Constraint` for each such
row follows its tokens, and gives one bit for each number of the vocabulary. The device then takes
minus infinity for the logits of all others, after bias and penalties. Log probabilities are of the
logits as the model gave them.

The rules:

- a token in the row's ends is forbidden before its least length, and while a grammar does not
  accept what there is;
- the last token of a bad sequence is forbidden after the others;
- a grammar forbids all that cannot go on to a text of it. If it allows nothing but to end, the row
  ends, be it too early; a bad sequence may forbid the only way on, and then the row fails.

A row that reads guesses ahead gets one set of bits for the place of each, as if the guesses before
it had been drawn, from a copy of its matcher. So a guess that the grammar forbids is never drawn,
and the guesses after it do not count. A row whose grammar takes more than its limits, takes too
long (`mask_time`), or allows nothing, is over: its engine says why (ROW_OVER), and no other row is
touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import mlx.core as mx
from llguidance import LLMatcher
from sealring_protocol.codec.messages import Row

from sealring_model.errors import LedgerError
from sealring_model.sampling.matchers import Matchers, trouble
from sealring_model.text.mask_time import MaskTime

_COMPLETE: Final = ""
_NOTHING: Final = "its grammar, bad words and least length leave no token that may follow"


class _Over(Exception):
    """The row cannot go on; the text says why, and is empty if the row is complete."""


class Constraint:
    """What *row* may have next, as bits of *words* words of 32."""

    def __init__(self, row: Row, words: int, matchers: Matchers | None) -> None:
        """Raises `LedgerError` for a grammar where there are no *matchers*."""
        if row.grammar and matchers is None:
            raise LedgerError(f"row {row.uid} has a grammar, and nothing here follows one")
        self.row: Final = row
        self._all: Final = b"\xff" * (4 * words)
        self._matchers: Final = matchers if row.grammar else None
        self._prepared: Final = matchers.take(row) if matchers and row.grammar else None
        self._tokens: Final = list(row.history[len(row.history) - row.generated :])
        self._ended = False
        self._matcher: LLMatcher | None = None  # taken when it is needed: compiling takes long
        self._stops: Sequence[int] = ()  # what the matcher takes for ends
        self._time: Final = MaskTime()
        self._adding = 0.0  # seconds that the tokens since the last mask took
        self._drawn: list[Callable[[], Sequence[int]]] = []  # tokens that are still to be read

    @property
    def follows(self) -> bool:
        """Whether it needs to know the tokens that are drawn."""
        return bool(self.row.bad or self.row.grammar)

    def drawn(self, read: Callable[[], Sequence[int]]) -> None:
        """Tokens were drawn, which *read* gives. It waits for the device, so it is called when they
        are needed."""
        self._drawn.append(read)

    def add(self, token: int) -> None:
        """*token* was drawn."""
        if self._ended:
            return
        if token in self.row.ends:
            self._ended = True
            return
        self._tokens.append(token)
        if self._matcher is not None:
            began = time.thread_time()
            self._matcher.consume_token(token)  # a fault shows when it is asked next
            self._adding += time.thread_time() - began

    def allowed(self, position: int, guesses: Sequence[int]) -> tuple[list[bytes], int, str | None]:
        """The bits for the token at absolute *position*, and for the place after each of *guesses*;
        then the place from which on the row is over, and why: see `_Over`. None for a row that goes
        on."""
        read, self._drawn = self._drawn, []
        for tokens in read:
            for token in tokens():
                self.add(token)
        if self._matchers is None or self._prepared is None:  # both, or neither
            return self._allowed(position, guesses)
        if self._matcher is None:
            self._matcher, self._stops = self._prepared.result(), self._matchers.ends
            self._matcher.consume_tokens(self._tokens[self.row.generated :])
        began, self._adding = time.thread_time() - self._adding, 0.0
        bits, place, why = self._allowed(position, guesses)
        slow = self._time.add(time.thread_time() - began, len(bits))
        return bits, place, slow or None if why is None else why

    def _allowed(
        self, position: int, guesses: Sequence[int]
    ) -> tuple[list[bytes], int, str | None]:
        bits: list[bytes] = []
        tokens, matcher = list(self._tokens[-_longest(self.row) :]), self._matcher
        for place in range(len(guesses) + 1):
            if self._ended or (bits and not _holds(bits[-1], guesses[place - 1])):
                return self._filled(bits, guesses), 0, None
            if place:
                if guesses[place - 1] in self.row.ends:
                    return self._filled(bits, guesses), 0, None
                tokens.append(guesses[place - 1])
                if matcher is not None:
                    matcher = matcher.deep_copy()
                    matcher.consume_token(guesses[place - 1])
            try:
                bits.append(self._bits(position + place, tokens, matcher))
            except _Over as over:
                # No guess is drawn in this place, so that this token is the step's last.
                final = bytearray(self._all)
                if place < len(guesses):
                    _clear(final, guesses[place])
                return self._filled([*bits, bytes(final)], guesses), place, str(over)
        return bits, 0, None

    def _bits(self, position: int, tokens: Sequence[int], matcher: LLMatcher | None) -> bytes:
        row, early = self.row, position < self.row.least
        bits = bytearray(self._all)
        if matcher is not None:
            mask = matcher.compute_bitmask()
            if why := trouble(matcher):
                raise _Over(why)
            bits = bytearray(mask[: len(bits)].ljust(len(bits), b"\0"))
            for stop in self._stops:
                _clear(bits, stop)
        accepting = matcher is None or matcher.is_accepting()
        for end in row.ends:
            _clear(bits, end)
        stuck = matcher is not None and _none(bits)
        if accepting and (stuck or not early):
            if stuck and not row.ends:
                raise _Over(_COMPLETE)
            for end in row.ends:
                _set(bits, end)
        for sequence in row.bad:
            before = sequence[:-1]
            if not before or tuple(tokens[-len(before) :]) == before:
                _clear(bits, sequence[-1])
        if _none(bits):
            raise _Over(_NOTHING)
        return bytes(bits)

    def _filled(self, bits: list[bytes], guesses: Sequence[int]) -> list[bytes]:
        """*bits*, and all of them for the places that no token is drawn for."""
        return bits + [self._all] * (len(guesses) + 1 - len(bits))


def _longest(row: Row) -> int:
    return max(map(len, row.bad), default=1)


def _none(bits: bytearray) -> bool:
    return bits.count(0) == len(bits)


def _holds(bits: bytes, token: int) -> bool:
    at, bit = divmod(token, 8)
    return at < len(bits) and bool(bits[at] >> bit & 1)


def _set(bits: bytearray, token: int) -> None:
    at, bit = divmod(token, 8)
    if at < len(bits):
        bits[at] |= 1 << bit


def _clear(bits: bytearray, token: int) -> None:
    at, bit = divmod(token, 8)
    if at < len(bits):
        bits[at] &= ~(1 << bit)


@attrs.frozen(eq=False)
class Masks:
    """The bits of one sampling, one line of *words* for each row or place, and which rows are
    *over*: at which place, and why."""

    words: mx.array
    over: tuple[tuple[int, int, str], ...] = ()

    def apply(self, logits: mx.array) -> mx.array:
        """*logits* ``(lines, vocabulary)``, minus infinity where a token is forbidden."""
        bits = (self.words[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
        allowed = bits.reshape(len(bits), -1)[:, : logits.shape[-1]].astype(mx.bool_)
        return mx.where(allowed, logits, -mx.inf)


class Constraints:
    """The constraints of all rows that have some, over a *vocabulary* of tokens.

    A decode takes those of its rows when it begins, and keeps them: a row may leave, or come back
    under its old number, before its token is drawn.
    """

    def __init__(self, vocabulary: int, matchers: Matchers | None) -> None:
        self._words: Final = (vocabulary + 31) // 32
        self._matchers: Final = matchers
        self._by_uid: Final[dict[int, Constraint]] = {}

    def begin(self, rows: Sequence[Row]) -> tuple[Constraint | None, ...]:
        """A decode of *rows* begins: the constraint of each that has one. Raises `LedgerError` for
        a grammar where nothing follows one."""
        return tuple([self._of(row) if row.constrained else None for row in rows])

    def _of(self, row: Row) -> Constraint:
        known = self._by_uid.get(row.uid)
        if known is None or known.row is not row:
            known = self._by_uid[row.uid] = Constraint(row, self._words, self._matchers)
        return known

    def forget(self, uid: int) -> None:
        """Row *uid* is gone: no further decode of it begins."""
        self._by_uid.pop(uid, None)

    def masks(
        self,
        constraints: Sequence[Constraint | None],
        positions: Sequence[int],
        guesses: Sequence[int],
    ) -> Masks:
        """What rows with these *constraints* may have at *positions*; a single row that reads
        *guesses*, what it may have from its position on."""
        lines: list[bytes] = []
        over: list[tuple[int, int, str]] = []
        for constraint, position in zip(constraints, positions, strict=True):
            if constraint is None:
                lines += [b"\xff" * (4 * self._words)] * (len(guesses) + 1)
                continue
            bits, place, why = constraint.allowed(position, guesses)
            lines += bits
            if why is not None:
                over.append((constraint.row.uid, place, why))
        words = memoryview(b"".join(lines)).cast("I", (len(lines), self._words))
        return Masks(mx.array(words), tuple(over))  # type: ignore[arg-type]

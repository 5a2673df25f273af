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
long (`MaskTime`), or allows nothing, is over: its engine says why (ROW_OVER), and no other row is
touched.

`Matchers` prepares what follows a grammar, beside the compute thread. When a ROW comes, a thread of
its own compiles the row's grammar, follows the tokens that the row has so far, and makes a first
mask, which takes longer than later ones. Then ROW_READY says that the row may decode: the head lets
no row decode before that, so that no step waits for a grammar. A rank of tensor parallelism other
than the head's makes the same at the same time, and the head does not wait for it: there a step may
wait for what such a rank takes longer.

The tokenizer is made in that thread, too, before there is a row. Rows with equal grammars share
what has been compiled, by copies; the head marks each with its owner, so no two owners have equal
ones. Nothing is made for a row that has gone meanwhile: its ROW_READY comes at once, so rows that
come and go keep no other waiting.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs
import mlx.core as mx
from llguidance import LLMatcher, LLTokenizer
from sealring_protocol.codec.local_messages import RowReady
from sealring_protocol.codec.messages import NO_EPOCH, Epoch, Row

from sealring_model.channel import ChannelClosed
from sealring_model.errors import LedgerError, LoadError
from sealring_model.text import grammars
from sealring_model.text.grammars import MaskTime

_COMPLETE: Final = ""
_NOTHING: Final = "its grammar, bad words and least length leave no token that may follow"

_KEPT: Final = 8
"""Compiled grammars that are kept. One may take 20 MiB."""

_NICE: Final = 5
"""How much nicer the thread is than the one that computes."""


class Constraints:
    """The constraints of all rows that have some, over a *vocabulary* of tokens.

    A decode takes those of its rows when it begins, and keeps them: a row may leave, or come back
    under its old number, before its token is drawn.
    """

    def __init__(self, vocabulary: int, matchers: Matchers | None) -> None:
        self._words: Final = (vocabulary + 31) // 32
        self._matchers: Final = matchers
        self._by_uid: Final[dict[int, Constraint]] = {}

    def of(self, row: Row) -> Constraint:
        """The constraint of *row*, which has one. Raises `LedgerError` for a grammar where nothing
        follows one."""
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


class Matchers:
    """Matchers of grammars over *vocabulary* tokens of the model in *folder*. *report* is called
    for each that is prepared, in that thread."""

    def __init__(
        self,
        folder: Path,
        vocabulary: int,
        report: Callable[[RowReady], None] = lambda ready: None,
    ) -> None:
        self._folder: Final = folder
        self._vocabulary: Final = vocabulary
        self._report: Final = report
        self._thread: Final = ThreadPoolExecutor(1, "grammars", _give_way)
        self._compiled: Final[dict[bytes, LLMatcher]] = {}  # that thread's alone
        self._prepared: Final[dict[int, _Preparing]] = {}  # by uid

    def load(self) -> Future[LLTokenizer]:
        """Make the tokenizer, so that the first grammar need not wait for it. Returns at once."""
        return self._thread.submit(lambda: self._tokenizer)

    @functools.cached_property
    def _tokenizer(self) -> LLTokenizer:
        return grammars.grammar_tokenizer(self._folder, self._vocabulary)

    def begin(self, row: Row, epoch: Epoch = NO_EPOCH) -> Future[LLMatcher]:
        """Prepare *row*, which came in *epoch* and has a grammar. Returns at once."""
        self.forget(row.uid)
        self._prepared[row.uid] = coming = self._submit(_Preparing(row, epoch))
        return coming.matcher

    def _submit(self, coming: _Preparing) -> _Preparing:
        coming.matcher = self._thread.submit(self._prepare, coming)
        return coming

    def forget(self, uid: int) -> None:
        """Row *uid* is gone."""
        if (coming := self._prepared.pop(uid, None)) is not None:
            coming.gone = True

    def take(self, row: Row) -> Future[LLMatcher]:
        """A matcher for *row* after the tokens that its ROW has, which is there once ROW_READY
        was sent. The caller has it even if the row is forgotten. A fault of the grammar is the
        matcher's. The future has `LoadError` if the model's tokenizer cannot be read."""
        coming = self._prepared.pop(row.uid, None)
        if coming is None or coming.row is not row:
            coming = self._submit(_Preparing(row))
        return coming.matcher

    @property
    def ends(self) -> list[int]:
        """The ids that every matcher takes for ends; there must have been one."""
        return list(self._tokenizer.eos_tokens)

    def _prepare(self, coming: _Preparing) -> LLMatcher:
        row, epoch, gone = coming.row, coming.epoch, coming.gone
        why = "" if gone else "what follows its grammar could not be made"
        try:
            if gone:
                raise CancelledError
            matcher = self._compile(row.grammar).deep_copy()
            for token in row.history[len(row.history) - row.generated :]:
                matcher.consume_token(token)  # one by one, so that other threads have their turns
            began = time.thread_time()
            matcher.compute_bitmask()
            why = trouble(matcher) or MaskTime().add(time.thread_time() - began)
        except LoadError as error:
            why = str(error)
            raise
        finally:
            if epoch is not None:
                with contextlib.suppress(ChannelClosed):
                    self._report(RowReady(epoch, row.uid, why))
        return matcher

    def _compile(self, grammar: bytes) -> LLMatcher:
        known = self._compiled.pop(grammar, None)
        if known is None:
            known = grammars.matcher(self._tokenizer, grammar.decode("utf-8", "replace"))
        self._compiled[grammar] = known  # the latest is last
        for text in list(self._compiled)[:-_KEPT]:
            del self._compiled[text]
        return known


@attrs.define(eq=False)
class _Preparing:
    """The matcher of *row*, on its way; not made once the row is *gone*."""

    row: Row
    epoch: Epoch | None = None
    gone: bool = False  # set by the compute thread, read by the other
    matcher: Future[LLMatcher] = attrs.field(init=False)


class _Over(Exception):
    """The row cannot go on; the text says why, and is empty if the row is complete."""


def trouble(matcher: LLMatcher) -> str:
    """Why *matcher* cannot go on, in llguidance's words; empty if it can."""
    if not matcher.is_error():
        return ""
    said = " ".join(str(matcher.get_error()).replace("<non-verbose/>", "").split())
    return f"its grammar cannot be followed: {said.rstrip('.') or 'it is too costly'}"


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


def _give_way() -> None:
    """Let the other threads of this process go first, where a thread can."""
    if sys.platform == "linux":  # elsewhere it would be the whole process
        os.nice(_NICE)

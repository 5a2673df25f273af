"""Prepares what follows the grammars of rows, beside the compute thread.

When a ROW comes, a thread of its own compiles the row's grammar, follows the tokens that the row
has so far, and makes a first mask, which takes longer than later ones. Then ROW_READY says that the
row may decode: the head lets no row decode before that, so that no step waits for a grammar. A rank
of tensor parallelism other than the head's makes the same at the same time, and the head does not
wait for it: there a step may wait for what such a rank takes longer.

The tokenizer is made in that thread, too, before there is a row. Rows with equal grammars share
what has been compiled, by copies; the head marks each with its owner, so no two owners have equal
ones. Nothing is made for a row that has gone meanwhile: its ROW_READY comes at once, so rows that
come and go keep no other waiting. The tokenizers' libraries are imported in that thread: only
engines that draw need them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs
from llguidance import LLMatcher, LLTokenizer
from sealring_protocol.codec.local_messages import RowReady
from sealring_protocol.codec.messages import NO_EPOCH, Epoch, Row

from sealring_model.channel import ChannelClosed
from sealring_model.errors import LoadError
from sealring_model.text.mask_time import MaskTime

_KEPT: Final = 8
"""Compiled grammars that are kept. One may take 20 MiB."""


_NICE: Final = 5
"""How much nicer the thread is than the one that computes."""


def _give_way() -> None:
    """Let the other threads of this process go first, where a thread can."""
    if sys.platform == "linux":  # elsewhere it would be the whole process
        os.nice(_NICE)


def trouble(matcher: LLMatcher) -> str:
    """Why *matcher* cannot go on, in llguidance's words; empty if it can."""
    if not matcher.is_error():
        return ""
    said = " ".join(str(matcher.get_error()).replace("<non-verbose/>", "").split())
    return f"its grammar cannot be followed: {said.rstrip('.') or 'it is too costly'}"


@attrs.define(eq=False)
class _Preparing:
    """The matcher of *row*, on its way; not made once the row is *gone*."""

    row: Row
    epoch: Epoch | None = None
    gone: bool = False  # set by the compute thread, read by the other
    matcher: Future[LLMatcher] = attrs.field(init=False)


class Matchers:
    """Matchers of grammars over *vocabulary* tokens of the model in *folder*. *tell* is told of
    each that is prepared, in that thread."""

    def __init__(
        self, folder: Path, vocabulary: int, tell: Callable[[RowReady], None] = lambda ready: None
    ) -> None:
        self._folder: Final = folder
        self._vocabulary: Final = vocabulary
        self._tell: Final = tell
        self._thread: Final = ThreadPoolExecutor(1, "grammars", _give_way)
        self._compiled: Final[dict[bytes, LLMatcher]] = {}  # that thread's alone
        self._prepared: Final[dict[int, _Preparing]] = {}  # by uid

    def load(self) -> Future[LLTokenizer]:
        """Make the tokenizer, so that the first grammar need not wait for it. Returns at once."""
        return self._thread.submit(lambda: self._tokenizer)

    @functools.cached_property
    def _tokenizer(self) -> LLTokenizer:
        from sealring_model.text.grammars import grammar_tokenizer  # noqa: PLC0415  see above

        return grammar_tokenizer(self._folder, self._vocabulary)

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
        """A matcher for *row* after the tokens that its ROW tells of, which is there once ROW_READY
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
                    self._tell(RowReady(epoch, row.uid, why))
        return matcher

    def _compile(self, grammar: bytes) -> LLMatcher:
        from sealring_model.text.grammars import matcher  # noqa: PLC0415  see above

        known = self._compiled.pop(grammar, None)
        if known is None:
            known = matcher(self._tokenizer, grammar.decode("utf-8", "replace"))
        self._compiled[grammar] = known  # the latest is last
        for text in list(self._compiled)[:-_KEPT]:
            del self._compiled[text]
        return known

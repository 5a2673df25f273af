"""Rank 0's end of a decode: which tokens its rows read, and which tokens they are given.

A decode begins a `SamplerState` when it is launched and ends it when there are logits: at once on a
single rank, in a pipeline when the hidden states have come round. In between, rows may leave or
come back under their old number, so all that the draw needs is in the `SamplerState`. To end it is to
build a graph; when the device is set to work on it is up to who ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.codec.messages import Row

from sealring_model.lookahead.device_io import DeviceIO, Outlet
from sealring_model.sampling.logit_processors import LogitProcessor, LogitProcessors
from sealring_model.sampling.logprobs import LogprobArrays, logprobs_of
from sealring_model.sampling.rows import LastTokens, RowParams
from sealring_model.sampling.sampler import sample


@attrs.frozen(eq=False)
class SamplerState:
    """A decode of *batch* under way: its rows in order, where their tokens will stand, and what
    is done to their logits."""

    batch: int
    uids: tuple[int, ...]
    rows: tuple[Row, ...]
    positions: tuple[int, ...]
    processor: LogitProcessor | None


@attrs.frozen(eq=False)
class Sampled:
    """*tokens*, one for each row, uint32, and what is told of them, for the answer alone: the next
    decode reads an array of its own, and the next draw starts from what has *changed*."""

    tokens: Outlet
    logprobs: LogprobArrays | None
    changed: tuple[mx.array, ...]

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """What an answer waits for."""
        return (self.tokens.ready, *(self.logprobs.arrays if self.logprobs else ()))

    def ids(self) -> tuple[int, ...]:
        """The tokens, which must have come."""
        return tuple(self.tokens.data().cast("I"))

    def messages(self, n: int) -> tuple[Logprobs, ...]:
        """The messages that go before the answer to step *n*."""
        return self.logprobs.messages(n) if self.logprobs else ()


class Sampler:
    """The draws of every group, each following the one before."""

    def __init__(self, params: RowParams, vocabulary: int, device_io: DeviceIO) -> None:
        self._device_io: Final = device_io
        self._params: Final = params
        self._last: Final = LastTokens()
        self._processors: Final = LogitProcessors(vocabulary)

    def give(self, uid: int, token: int) -> None:
        """Row *uid* joins with *token* as its last."""
        self._last.give(uid, token)

    def forget(self, uids: Iterable[int]) -> None:
        """Rows *uids* have left."""
        for uid in uids:
            self._last.forget(uid)

    def forget_batch(self, batch: int) -> None:
        """*batch* has no rows left."""
        self._last.forget_batch(batch)
        self._processors.forget_batch(batch)

    def inputs(self, batch: int, uids: tuple[int, ...]) -> mx.array:
        """What a decode of *batch* reads: the last tokens of *uids*, uint32 ``(rows,)``."""
        return self._last.take(batch, uids)

    def begin(self, batch: int, uids: tuple[int, ...], positions: tuple[int, ...]) -> SamplerState:
        """The draw that ends a decode of *batch*."""
        rows = self._params.get(uids)
        return SamplerState(batch, uids, rows, positions, self._processors.take(batch, rows))

    def end(self, state: SamplerState, logits: mx.array) -> Sampled:
        """Draw, from *logits* ``(rows, vocabulary)``."""
        processor = state.processor
        adjusted = logits if processor is None else processor.apply(logits)
        tokens = sample(adjusted, state.rows, state.positions)
        after = None if processor is None else processor.after(tokens)
        changed = () if after is None else after.arrays
        sampled = Sampled(
            self._device_io.outlet(tokens), logprobs_of(logits, state.rows, tokens), changed
        )
        # Last, when nothing can fail any more: from now on the next draws follow this one.
        self._last.sampled(state.batch, state.uids, tokens)
        if after is not None:
            self._processors.put(state.batch, after)
        return sampled

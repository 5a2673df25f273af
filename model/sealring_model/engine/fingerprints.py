"""Fingerprints of what a stage takes and gives: three numbers for each row and position.

Of a vector *v* of *w* elements they are ``s·v / sqrt(w)``, ``t·v / sqrt(w)`` and the root mean
square of *v*, computed in f32. *s* and *t* are fixed and of +1 and -1, by a hash of the element's
place. So a projection of noise whose root mean square is *e* differs by about *e*, wherever in the
vector it is, and another vector of the same size has other projections.

The specification has the hash (appendix A.8): whoever verifies a ring computes the same numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import FINGERPRINT, Checked, Epoch
from sealring_protocol.codec.tensor import DType, Tensor

from sealring_model.stage.outline import Axis, HopTensor

_SEEDS: Final = (0x9E3779B9, 0x85EBCA6B)


@lru_cache(maxsize=8)
def _signs(width: int) -> mx.array:
    """*s* and *t* for vectors of *width* elements, f32 ``(2, width)``."""
    places = mx.arange(1, width + 1, dtype=mx.uint32)
    rows = []
    for seed in _SEEDS:
        mixed = places * mx.array(seed, mx.uint32)
        mixed = (mixed ^ (mixed >> 15)) * mx.array(0xC2B2AE35, mx.uint32)
        mixed = mixed ^ (mixed >> 13)
        rows.append(1.0 - 2.0 * (mixed & 1).astype(mx.float32))
    signs = mx.stack(rows)
    mx.eval(signs)
    return signs


def fingerprint(vectors: mx.array) -> mx.array:
    """The fingerprints of *vectors* ``(..., width)``: f32 ``(..., 3)``."""
    exact = vectors.astype(mx.float32)
    width = exact.shape[-1]
    sums = [(exact * sign).sum(axis=-1) / width**0.5 for sign in _signs(width)]
    return mx.stack([*sums, mx.sqrt(exact.square().mean(axis=-1))], axis=-1)


def of_hop(tensors: Sequence[HopTensor], arrays: Sequence[mx.array]) -> mx.array | None:
    """The fingerprints of *arrays*, which are *tensors* of a hop: ``(tensors, rows, tokens, 3)``.
    Tensors without a vector for each position are left out; None if nothing is left."""
    found = []
    for tensor, array in zip(tensors, arrays, strict=True):
        dims = tensor.spec.dims
        if Axis.ROWS in dims and Axis.TOKENS in dims:
            first = [dims.index(Axis.ROWS), dims.index(Axis.TOKENS)]
            moved = array.transpose(*first, *(at for at in range(len(dims)) if at not in first))
            found.append(fingerprint(moved.reshape(*moved.shape[:2], -1)))
    return mx.stack(found) if found else None


def of_logits(logits: mx.array) -> mx.array:
    """The fingerprints of *logits* ``(rows, vocabulary)``: ``(1, rows, 1, 3)``."""
    return fingerprint(logits)[None, :, None, :]


@attrs.frozen(eq=False)
class Fingerprints:
    """Those of one pass over *tokens* tokens of each of *rows* rows, on the device: of what was
    *received* and what was *given*, None where there is nothing to report."""

    epoch: Epoch
    n: int
    rows: int
    tokens: int
    received: mx.array | None
    given: mx.array | None
    closing: bool = False

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays to launch and to wait for."""
        return tuple(each for each in (self.received, self.given) if each is not None)

    def messages(self) -> tuple[Checked, ...]:
        """The CHECKED that goes before the answer; the arrays must have been computed."""
        received, given = self._tensor(self.received), self._tensor(self.given)
        return (Checked(self.epoch, self.n, self.closing, received, given),)

    def _tensor(self, array: mx.array | None) -> Tensor:
        if array is None:
            return Tensor(DType.F32, (0, self.rows, self.tokens, FINGERPRINT), b"")
        shape = tuple(array.shape)
        numbers: Any = array.reshape(-1).tolist()
        return Tensor(DType.F32, shape, struct.pack(f"<{prod(shape)}f", *numbers))

"""How far the numbers of a ring may be from those of one process, by dtype and strategy.

A deviation is relative to the root mean square of the vector. Rounding makes some: a ring decodes
in batches and in other chunks, and another device adds in another order. How much that is depends
on the model. So each row is computed twice without a ring, in different pieces. The ring may
deviate by a multiple of what those two do, or by the least tolerance of its dtype if that is more.
`docs/models.md` has what was measured. A fault is larger by orders of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs
from sealring_protocol.codec.tensor import DType

_FACTOR: Final = 16.0
"""How many times as far as by reading in other pieces the ring may deviate."""

_GREATEST: Final = 0.3
"""No tolerance is greater: a deviation of that size is wrong in any dtype."""

_STRAYS: Final = 4
"""How many times as many positions as by reading in other pieces may be beyond the tolerance."""


@attrs.frozen
class Tolerance:
    """Layers and logits may always deviate by *numbers*. A share of positions (*stray*) may deviate
    by more: rounding may send a token to another expert."""

    numbers: float
    stray: float

    def limit(self, noise: Sequence[float]) -> float:
        """The tolerance where reading in other pieces makes deviations of *noise*. What is no
        number tells nothing."""
        told = sorted(filter(math.isfinite, noise))
        if not told:
            return self.numbers
        usual = told[int(0.99 * (len(told) - 1))]
        return max(self.numbers, min(_GREATEST, _FACTOR * usual))

    def strays(self, noise: Sequence[float], limit: float) -> float:
        """How many positions may be beyond *limit*, of as many as there are in *noise*."""
        further = sum(size > limit for size in noise if math.isfinite(size))
        return self.stray * len(noise) + _STRAYS * further


HOP: Final = Tolerance(1e-5, 0.0)
"""What a rank received is what the one before gave, bit by bit. Only the sum of the fingerprint
itself may be rounded in another order."""

_PIPELINE: Final = {
    DType.F32: Tolerance(1e-3, 0.002),
    DType.F16: Tolerance(2e-2, 0.01),
    DType.BF16: Tolerance(5e-2, 0.01),
}

_TENSOR: Final = {
    DType.F32: Tolerance(4e-3, 0.002),
    DType.F16: Tolerance(4e-2, 0.01),
    DType.BF16: Tolerance(1e-1, 0.01),
}


def tolerance_of(dtype: DType, *, tensor: bool) -> Tolerance:
    """The tolerance for hidden states of *dtype*; looser in *tensor* parallelism, which sums in
    another order. A quantized model has the dtype of its hidden states."""
    return (_TENSOR if tensor else _PIPELINE)[dtype]

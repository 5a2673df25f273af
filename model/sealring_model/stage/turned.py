"""f32 on a CPU under Linux: matrices lie in memory as they are multiplied.

MLX multiplies there with the reference BLAS. Its product with a matrix that lies transposed is one
sum after the other, each term by term. With one that lies row by row it adds up whole rows, in
vector registers, in less than half the time (`sealring bench solo`, `sealring bench prefill`). Each
number is the sum of the same terms in the same order, so the bits are the same.

Weights are multiplied transposed, and so are keys. The weights are turned once, as they are loaded
(`loading/weight_reader.py`). The keys are turned for each forward of several tokens: to turn them
takes about as long as the product with one.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import mlx.core as mx
from mlx import nn

_TOKENS: Final = 8
"""Tokens of a row from which on its keys are turned. It gained 14 % or more there; with fewer it
gained less, or lost, by the number of heads."""


def is_reference_blas() -> bool:
    """Whether products of f32 are computed by that BLAS."""
    return sys.platform == "linux" and mx.default_device() == mx.Device(mx.cpu)


def pays(array: mx.array) -> bool:
    """Whether products with *array* transposed take longer on this device."""
    return array.dtype == mx.float32 and is_reference_blas()


def turned(array: mx.array) -> mx.array:
    """*array*, whose last two axes lie in memory the other way round."""
    return mx.contiguous(array.swapaxes(-1, -2)).swapaxes(-1, -2)


class TurnedLinear(nn.Linear):
    """A linear layer with a bias. `nn.Linear` has MLX begin each sum with the bias where the weight
    is turned, and end it with the bias where it is not: here it always ends with it."""

    def __call__(self, inputs: mx.array) -> mx.array:
        """*inputs* ``(..., in)``; returns ``(..., out)``."""
        product: mx.array = inputs @ self["weight"].T
        return product + self["bias"]


def turn_weight(module: nn.Module) -> bool:
    """Turn the weight of *module*, if that pays and gives the same bits. Returns whether it did."""
    weight = module.get("weight")
    if not isinstance(weight, mx.array) or weight.ndim != 2 or not pays(weight):
        return False
    if "bias" in module:
        if type(module) is not nn.Linear:
            return False
        module.__class__ = TurnedLinear
    module["weight"] = turned(weight)
    return True


def attention(theirs: Any) -> Any:
    """*theirs*, which is MLX's attention, with keys that are turned where that pays."""

    def attend(queries: mx.array, keys: mx.array, values: mx.array, **others: Any) -> mx.array:
        """Takes the arguments of MLX's own."""
        if queries.shape[2] >= _TOKENS and pays(keys):
            keys = turned(keys)
        found: mx.array = theirs(queries, keys, values, **others)
        return found

    return attend

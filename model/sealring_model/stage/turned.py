"""f32 on a CPU under Linux: matrices lie in memory as they are multiplied.

MLX's wheels multiply there with the reference BLAS. Its product with a matrix that lies transposed
is one sum after the other, each term by term. With one that lies row by row it adds up whole rows,
in vector registers, in 0.4 to 0.65 of the time (`python -m tests.turned_times`). Each number is the
sum of the same terms in the same order, so the bits are the same.

A linear layer multiplies by its weight transposed, and attention by the keys transposed. Weights
are turned once, as they are loaded (`loading/weight_reader.py`). Keys are turned for each forward
of eight tokens or more of a row: turning them takes about as long as the product with one token's
queries.

An embedding is turned, too, for it may be the output head; a look-up then takes some microseconds
more for each token. Experts, and layers with a bias that are not `nn.Linear` itself (shards of
tensor parallelism), stay as they are.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import mlx.core as mx
from mlx import nn

_TOKENS: Final = 8
"""Tokens of a row from which on its keys are turned. With fewer it gains less, or loses, by the
number of heads (`python -m tests.turned_times`)."""


def is_reference_blas() -> bool:
    """Whether this is a CPU under Linux, where MLX's own wheels bring that BLAS."""
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


def is_turnable(module: nn.Module) -> bool:
    """Whether it pays to turn the weight of *module*, and gives the same bits."""
    weight = module.get("weight")
    if not isinstance(weight, mx.array) or weight.ndim != 2 or not pays(weight):
        return False
    return "bias" not in module or type(module) in (nn.Linear, TurnedLinear)


def turn_weight(module: nn.Module) -> bool:
    """Turn the weight of *module*, if it `is_turnable`. Returns whether it is."""
    if not is_turnable(module):
        return False
    if "bias" in module:
        module.__class__ = TurnedLinear
    module["weight"] = turned(module["weight"])
    return True


def attention(theirs: Any) -> Any:
    """*theirs*, which is MLX's attention, with keys that are turned where that pays."""

    def attend(queries: mx.array, keys: mx.array, values: mx.array, **others: Any) -> mx.array:
        """Takes the arguments of MLX's own, the first three by position."""
        if queries.shape[2] >= _TOKENS and pays(keys):
            keys = turned(keys)
        found: mx.array = theirs(queries, keys, values, **others)
        return found

    return attend

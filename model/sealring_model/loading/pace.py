"""What this machine takes for a layer of a model, by running some of its layers.

The model is built from made-up weights of the same shapes, so its own need not be here. As many
layers are run as fit a small part of memory, since others take as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import attrs
import mlx.core as mx

from sealring_model.errors import FORWARD_ERRORS, LoadError
from sealring_model.loading.assemble import build_model
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.structure import Structure
from sealring_model.stage.outline import Outline
from sealring_model.stage.stage import PartStage

MOST: Final = 1 << 30
"""Bytes of layers and ends that are made to be run, at most, if two layers take no more."""

_CHUNK: Final = 64
"""Tokens of a prompt that are timed."""

_VALUE: Final = 1 / 64
"""Of each weight: processors take longer for values that are no numbers."""

SECONDS: Final = 0.6
"""Of each figure, after which no other run begins. On a busy machine the processor is another's for
many milliseconds in a row, so a few short runs would all be slow."""


@attrs.frozen
class LayerPace:
    """Seconds of one layer for a token of one row (*layer*), of several rows (*rows*), and for a
    token of a prompt (*prompt*); and of the norm and the output head for a token (*head*)."""

    layer: float
    rows: float
    prompt: float
    head: float


def measure_pace(info: ModelInfo, found: Structure, rows: int) -> LayerPace:
    """The pace of this machine with the model *info*, whose structure was *found*, for one row and
    for *rows*. Takes seconds, and the processors or the GPU meanwhile.

    Raises `LoadError` if no part of the model can be run by itself.
    """
    last = _enough(info, found)
    try:
        model = build_model(info, _made)
        stage = PartStage(model, Outline.of(model), 0, last)
        mx.eval(_run(stage, 1, 1))  # the first run also makes the weights
        layer = _fastest(lambda: _run(stage, 1, 1)) / last
        several = _fastest(lambda: _run(stage, rows, 1)) / last
        prompt = _fastest(lambda: _run(stage, 1, _CHUNK)) / last / _CHUNK
        back = stage.run(stage.dummy_inputs(1, 1), stage.new_caches())
        mx.eval(back)
        head = _fastest(lambda: [stage.logits(back)])
    except FORWARD_ERRORS as error:
        raise LoadError(f"its layers cannot be run by themselves: {error}") from None
    finally:
        mx.clear_cache()
    return LayerPace(layer, several, prompt, head)


def _made(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """An array like each of *weights*, which are not evaluated. A layer that never runs takes no
    memory."""
    return {
        name: mx.contiguous(mx.full(lazy.shape, _VALUE, lazy.dtype))
        if mx.issubdtype(lazy.dtype, mx.floating)
        else mx.zeros(lazy.shape, lazy.dtype)
        for name, lazy in weights.items()
    }


def _enough(info: ModelInfo, found: Structure) -> int:
    """The number of layers to run."""
    count = len(info.layers)
    free = [cut for cut in range(2, count) if cut not in found.joined] or [count]
    fitting = [cut for cut in free if found.held(0, cut) <= MOST]
    return max(fitting, default=free[0])


def _run(stage: PartStage, rows: int, tokens: int) -> list[mx.array]:
    return list(stage.run(stage.dummy_inputs(rows, tokens), stage.new_caches()))


def _fastest(make: Callable[[], list[mx.array]]) -> float:
    """The fewest seconds of what *make* gives: whatever else the machine does only adds some."""
    took: list[float] = []
    while sum(took) < SECONDS:
        begin = time.perf_counter()
        mx.eval(make())
        took.append(time.perf_counter() - begin)
    return min(took)

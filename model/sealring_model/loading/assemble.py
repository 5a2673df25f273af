"""Loads one rank's stage: its tensors, its memory, what its rows will cost.

mlx-lm's own loader builds the model, renames weights and quantizes. This module steps in at the one
place where that loader has the weights by name, before they are renamed, and has `WeightReader`
choose those of this rank.

Then the stage runs twice. The first run, of two tokens, measures the dtype of its hidden states and
what its caches cost a row. The second one is traced only, and tells whether its forward looks at
values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import mlx.core as mx
from mlx import nn
from sealring_protocol.codec.messages import CacheCost
from sealring_protocol.codec.tensor import DType

from sealring_model.errors import FORWARD_ERRORS, LoadError
from sealring_model.loading.mlx_lm_import import model_loader
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.weight_reader import WeightReader
from sealring_model.stage.caches import cost_of, is_trimmable
from sealring_model.stage.stage import FirstStage, LaterStage, Stage, WholeStage
from sealring_model.stage.tensors import MLX_DTYPES


@attrs.frozen
class LoadedStage:
    """A stage of layers *first* to *last* (excluded) that is ready to run.

    *read* bytes came from disk, *held* bytes are its weights, loading took *load_us* microseconds.
    *hidden* is the width of its hidden states, *dtype* their dtype. Its caches cost *cost*, and can
    be cut to any length if they are *trimmable*. A forward that is *blind* never looks at a value.
    """

    stage: Stage
    first: int
    last: int
    hidden: int
    vocabulary: int
    dtype: DType
    cost: CacheCost
    trimmable: bool
    blind: bool
    read: int
    held: int
    load_us: int


def load_stage(info: ModelInfo, first: int, last: int) -> LoadedStage:
    """Load layers *first* to *last* (excluded), and the ends too when *first* is 0.

    Raises `LoadError` if a tensor does not match the manifest, or the model cannot be built or
    split like this.
    """
    start = time.perf_counter_ns()
    reader = WeightReader(info, first, last)
    model = build_model(info, reader.placeholders)
    reader.read(model)
    stage = stage_of(info, model, first, last)
    mx.eval(stage.parameters())
    return measured(info, stage, (first, last), reader.bytes_read, start)


def measured(
    info: ModelInfo, stage: Stage, bounds: tuple[int, int], read: int, start: int
) -> LoadedStage:
    """Measure *stage*, of layers *bounds*, whose loading began at *start* and read *read* bytes."""
    held = held_by(stage)
    cost, trimmable = _measure(info, stage, bounds[0])
    return LoadedStage(
        stage=stage,
        first=bounds[0],
        last=bounds[1],
        hidden=info.hidden,
        vocabulary=info.vocabulary,
        dtype=info.dtype,
        cost=cost,
        trimmable=trimmable,
        blind=_is_blind(info, stage, bounds[0]),
        read=read,
        held=held,
        load_us=(time.perf_counter_ns() - start) // 1000,
    )


def held_by(stage: Stage) -> int:
    """Bytes of *stage*'s weights; an array that is used twice counts once."""
    return sum(a.nbytes for a in {id(a): a for a in _leaves(stage.parameters())}.values())


def stage_of(info: ModelInfo, model: nn.Module, first: int, last: int) -> Stage:
    """A stage of layers *first* to *last* (excluded) of *model*."""
    if first == 0 and last == len(info.layers):
        return WholeStage(model)
    if first == 0:
        return FirstStage(model, last)
    return LaterStage(model, first, last, info.hidden, MLX_DTYPES[info.dtype])


Fill = Callable[[dict[str, mx.array]], dict[str, mx.array]]
"""Makes the weights that a model is built with from those that mlx-lm loads lazily. Both have the
same names."""


def build_model(info: ModelInfo, fill: Fill) -> nn.Module:
    """mlx-lm's model of *info*, with the weights that *fill* gives. Nothing is evaluated."""
    loader = model_loader()
    real: list[Any] = []

    def classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
        model_class, args_class = loader._get_classes(config)
        real.append(model_class)

        def sanitize(self: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            if weights.keys() != info.entries.keys():
                raise LoadError("the weights changed while they were loaded")
            filled = fill(weights)
            clean = getattr(model_class, "sanitize", None)
            return filled if clean is None else clean(self, filled)

        return type(model_class.__name__, (model_class,), {"sanitize": sanitize}), args_class

    try:
        model, _ = loader.load_model(info.folder, lazy=True, get_model_classes=classes)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise LoadError(f"mlx-lm cannot load this {info.kind} model: {error}") from error
    model.__class__ = real[0]
    return model


def _measure(info: ModelInfo, stage: Stage, first: int) -> tuple[CacheCost, bool]:
    """Run two tokens: what the caches cost a row, and whether they are trimmable. Raises
    `LoadError` if the stage needs other layers, or its hidden states have another dtype than
    expected."""
    slots = stage.new_caches()
    dtype = MLX_DTYPES[info.dtype]
    inputs = mx.zeros((1, 2), mx.int32) if first == 0 else mx.zeros((1, 2, info.hidden), dtype)
    outputs = stage.run(inputs, slots)
    if not mx.isfinite(outputs).all().item():
        raise LoadError("this stage depends on tensors of other layers; it cannot be split so")
    if outputs.dtype != dtype and not isinstance(stage, WholeStage):
        raise LoadError(f"hidden states are {outputs.dtype}, not the {info.dtype.name} expected")
    owned = slots[: stage.layout.owned]
    return cost_of(owned), is_trimmable(owned)


def _is_blind(info: ModelInfo, stage: Stage, first: int) -> bool:
    """Whether the graph of a forward depends on shapes alone. MLX refuses to evaluate anything
    while it traces. Launches nothing."""
    hidden = mx.zeros((1, 1, info.hidden), MLX_DTYPES[info.dtype])
    inputs = hidden if first else mx.zeros((1, 1), mx.uint32)
    slots = stage.new_caches()
    return (
        _can_be_traced(lambda given: stage.run(given, slots), inputs)
        and (not isinstance(stage, FirstStage) or _can_be_traced(stage.logits, hidden))
        # With tracing switched off this would succeed, and nothing is known.
        and not _can_be_traced(lambda given: given * given.sum().item(), hidden)
    )


def _can_be_traced(function: Callable[[mx.array], mx.array], given: mx.array) -> bool:
    try:
        mx.compile(function)(given)
    except FORWARD_ERRORS:
        return False
    return True


def _leaves(tree: Any) -> list[mx.array]:
    if isinstance(tree, mx.array):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree
    return [leaf for child in children for leaf in _leaves(child)]

"""Loads one rank's stage: its tensors, its memory, what its rows will cost.

mlx-lm's own loader builds the model, renames weights and quantizes. This module steps in at the one
place where that loader has the weights by name, before they are renamed, and has `WeightReader`
choose those of this rank.

Then the stage runs. The first run, of two tokens, measures what its caches cost a row. Further ones
do what rows will ask for: MLX has other kernels for a long chunk, a token and a batch, and what it
cannot compute is told here, before any row is there. The last one is traced only, and tells whether
a forward looks at values.
"""

from __future__ import annotations

import gc
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import mlx.core as mx
from mlx import nn
from sealring_protocol.codec.local_messages import Loaded
from sealring_protocol.codec.messages import CacheCost
from sealring_protocol.codec.tensor import DType

from sealring_model.errors import FORWARD_ERRORS, LoadError, ReadError, lacks_memory
from sealring_model.loading.adapter import put_into
from sealring_model.loading.kernel_cache import drop_unloadable
from sealring_model.loading.model_folder import ModelInfo, other_quantization
from sealring_model.loading.weight_reader import WeightReader
from sealring_model.loading.weights import read_json
from sealring_model.mlx_lm_import import model_loader
from sealring_model.stage.caches import cost_of, is_trimmable
from sealring_model.stage.outline import Outline
from sealring_model.stage.stage import PartStage, Stage, WholeStage, dummy_inputs
from sealring_model.stage.views import leaves

_CHUNK: Final = 64
"""Tokens of a chunk for which a GPU takes the kernels that it has for long ones. On a CPU few
tokens do, and take less time."""
_CHUNK_ON_CPU: Final = 3

_MAX_WORDS: Final = 400
"""Characters of mlx-lm's words for a fault: it names every tensor that it misses."""


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


def load_stage(
    info: ModelInfo, first: int, last: int, has_read: Callable[[Loaded], None] | None = None
) -> LoadedStage:
    """Load layers *first* to *last* (excluded), and the ends too when *first* is 0. *has_read* is
    called once the weights are read, before the first run.

    Raises `LoadError` if a tensor does not match the manifest, or the model cannot be built or
    split like this.
    """
    start = time.perf_counter_ns()
    reader = WeightReader(info, first, last)
    model = build_model(info, reader.placeholders)
    outline = outline_of(info, model, first, last)
    reader.read(model)
    stage = stage_of(model, outline, first, last)
    mx.eval(stage.parameters())
    if has_read is not None:
        took = (time.perf_counter_ns() - start) // 1000
        has_read(Loaded(reader.bytes_read, held_by(stage), took))
    try:
        try:
            return measured(info, stage, (first, last), reader.bytes_read, start)
        except RuntimeError as error:  # MLX's
            if not drop_unloadable(error):
                raise
        return measured(info, stage, (first, last), reader.bytes_read, start)
    except LoadError:
        if name := reader.not_a_number():
            raise LoadError(
                f"tensor {name} has values that are no numbers (NaN or infinite): the model in "
                f"{info.folder} is damaged, or was converted wrongly"
            ) from None
        raise
    except RuntimeError as error:  # MLX's
        if lacks_memory(error):
            raise
        raise LoadError(lacks(info, error)) from error


def lacks(info: ModelInfo, error: RuntimeError) -> str:
    """The words for *error*, in which MLX says that it cannot compute the model *info*."""
    return (
        f"MLX cannot run this {info.kind} model in {info.dtype.name} on this machine: "
        f"{str(error).rstrip('.')}. It may run in another dtype, or quantized: convert it with "
        "`mlx_lm.convert`"
    )


def measured(
    info: ModelInfo, stage: Stage, bounds: tuple[int, int], read: int, start: int
) -> LoadedStage:
    """Measure *stage*, of layers *bounds*, whose loading began at *start* and read *read* bytes."""
    held = held_by(stage)
    cost, trimmable = _measure(stage)
    mx.clear_cache()
    return LoadedStage(
        stage=stage,
        first=bounds[0],
        last=bounds[1],
        hidden=info.hidden,
        vocabulary=info.vocabulary,
        dtype=info.hop_dtype,
        cost=cost,
        trimmable=trimmable,
        blind=_is_blind(stage),
        read=read,
        held=held,
        load_us=(time.perf_counter_ns() - start) // 1000,
    )


def held_by(stage: Stage) -> int:
    """Bytes of *stage*'s weights; an array that is used twice counts once."""
    return sum(a.nbytes for a in {id(a): a for _, a in leaves(stage.parameters())}.values())


def outline_of(info: ModelInfo, model: nn.Module, first: int, last: int) -> Outline | None:
    """The outline that layers *first* to *last* (excluded) of *model* are cut by; None for all of
    them. Raises `LoadError` if the model cannot be cut there."""
    if first == 0 and last == len(info.layers):
        return None
    outline = Outline.of(model)
    for cut in (first, last):
        outline.hop(cut)
    gc.collect()  # the trials' classes, for their closures hold the weights as they were read
    return outline.narrowed() if info.narrow else outline


def stage_of(model: nn.Module, outline: Outline | None, first: int, last: int) -> Stage:
    """A stage of layers *first* to *last* (excluded) of *model*, which `outline_of` gave
    *outline* for."""
    return WholeStage(model) if outline is None else PartStage(model, outline, first, last)


Fill = Callable[[dict[str, mx.array]], dict[str, mx.array]]
"""Makes the weights that a model is built with from those that mlx-lm loads lazily. Both have the
same names."""


def build_model(info: ModelInfo, fill: Fill) -> nn.Module:
    """mlx-lm's model of *info*, with the weights that *fill* gives, and its adapter. Nothing is
    evaluated."""
    loader = model_loader()
    real: list[Any] = []

    def classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
        model_class, args_class = loader._get_classes(config)
        real.append(model_class)

        def sanitize(self: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            if weights.keys() != info.entries.keys():
                raise ReadError("the weights changed while they were loaded")
            filled = fill(weights)
            clean = getattr(model_class, "sanitize", None)
            return filled if clean is None else clean(self, filled)

        return type(model_class.__name__, (model_class,), {"sanitize": sanitize}), args_class

    try:
        model, _ = loader.load_model(info.folder, lazy=True, get_model_classes=classes)
    except LoadError:
        raise
    except OSError as error:
        raise ReadError(f"cannot read the model: {error}") from error
    except FORWARD_ERRORS as error:
        told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        words = textwrap.shorten(told, _MAX_WORDS, placeholder=" ...")
        if form := other_quantization(read_json(info.folder / "config.json")):
            words = f"{form}. Its own words: {words}"
        raise LoadError(f"mlx-lm cannot load this {info.kind} model: {words}") from error
    except SystemExit:  # a class that needs another package says so on stderr, and exits
        raise LoadError(
            f"mlx-lm cannot load this {info.kind} model: its class stopped the process; what it "
            "needs is in the engine's log"
        ) from None
    model.__class__ = real[0]
    _check_weights(info, model)
    if info.adapter is not None:
        put_into(model, info.adapter)
    return model


def _check_weights(info: ModelInfo, model: nn.Module) -> None:
    """Raise `LoadError` if a layer of *model* that multiplies as it is has packed weights: mlx-lm
    took them for others than they are."""
    for path, module in model.named_modules():
        weight = module.get("weight") if type(module) in (nn.Linear, nn.Embedding) else None
        if weight is not None and not mx.issubdtype(weight.dtype, mx.floating):
            form = other_quantization(read_json(info.folder / "config.json"))
            raise LoadError(
                f"{path}.weight has whole numbers ({weight.dtype}), which mlx-lm takes for weights "
                f"that are not quantized: {form or 'nothing says how they are quantized'}"
            )


def _measure(stage: Stage) -> tuple[CacheCost, bool]:
    """Run two tokens: what the caches cost a row, and whether they are trimmable. Raises
    `LoadError` if the stage needs other layers."""
    slots = stage.new_caches()
    outputs = stage.run(stage.dummy_inputs(1, 2), slots)
    if not all(mx.isfinite(output).all().item() for output in outputs):
        raise LoadError(
            "its first run gives values that are no numbers, though its weights are: the "
            "configuration is wrong, the dtype too narrow, or this stage depends on tensors of "
            "other layers, so that it cannot be split so"
        )
    if isinstance(stage, PartStage):
        _check_independence(stage)
    _try_steps(stage)
    return cost_of(slots), is_trimmable(slots)


def _try_steps(stage: Stage) -> None:
    """Run *stage* as steps will: a chunk of a prompt, a token after it, and a token of two rows in
    merged caches, with their logits. Raises what MLX raises."""
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    chunk = _CHUNK_ON_CPU if on_cpu else _CHUNK
    rows = [stage.new_caches(), stage.new_caches()]
    for tokens, slots in zip((chunk, 2), rows, strict=True):
        mx.eval(stage.run(stage.dummy_inputs(1, tokens), slots))
        mx.eval(stage.run(stage.dummy_inputs(1, 1), slots))
    if stage.hop_back:
        mx.eval(stage.logits(dummy_inputs(stage.hop_back, 2, 1)))
    try:
        merged = [type(pair[0]).merge(list(pair)) for pair in zip(*rows, strict=True)]
        outputs = stage.run(stage.dummy_inputs(2, 1), merged)
    except FORWARD_ERRORS:
        return  # a model whose rows are decoded one by one (`can_batch`)
    mx.eval(outputs)


def _check_independence(stage: PartStage) -> None:
    """Raise `LoadError` if what *stage* gives depends on what stands in for other ranks' parts: run
    it with one filler, and with another."""
    runs = []
    for stage.filler in (1, 0):
        slots = stage.new_caches()
        outputs: list[mx.array] = []
        for tokens in (3, 1):
            outputs += stage.run(stage.dummy_inputs(1, tokens), slots)
        if stage.hop_back:
            outputs.append(stage.logits(dummy_inputs(stage.hop_back, 1, 1)))
        runs.append(outputs)
    if not all(mx.array_equal(one, other).item() for one, other in zip(*runs, strict=True)):
        raise LoadError("this stage depends on what other ranks hold; it cannot be split so")


def _is_blind(stage: Stage) -> bool:
    """Whether the graph of a forward depends on shapes alone. MLX refuses to evaluate anything
    while it traces. Launches nothing."""
    slots = stage.new_caches()
    returned = dummy_inputs(stage.hop_back, 1, 1)
    return (
        _can_be_traced(lambda *given: stage.run(given, slots), stage.dummy_inputs(1, 1))
        and (not stage.hop_back or _can_be_traced(lambda *given: stage.logits(given), returned))
        # With tracing switched off this would succeed, and nothing is known.
        and not _can_be_traced(lambda given: given * given.sum().item(), [mx.zeros(1)])
    )


def _can_be_traced(function: Callable[..., Any], given: Sequence[mx.array]) -> bool:
    try:
        mx.compile(function)(*given)
    except FORWARD_ERRORS:
        return False
    return True

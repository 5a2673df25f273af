"""What a model allows and what it takes, found by building and tracing it without its weights.

The model is built by mlx-lm from placeholders of the checkpoint's shapes, so what is found is what
loading will find: a class that is not there, a tensor that is missing, a cut that is not possible.
MLX knows the shape and dtype of an array before it computes it. So the sizes are those that a rank
will hold, also where mlx-lm makes something else of a checkpoint's tensors (fp8 becomes bf16,
experts are stacked), and those of the caches that its own forward has filled.

What this machine takes for a layer is measured by running some layers (`measure_pace`). They are
built from made-up weights of the same shapes, so the model's own need not be here. As many are run
as fit a small part of memory, since others take as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import mlx.core as mx
from mlx import nn
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Backend, CacheCost

from sealring_model.errors import FORWARD_ERRORS, LoadError
from sealring_model.loading.assemble import build_model, lacks, placeholders, splits_of
from sealring_model.loading.model_folder import ModelInfo, pins_of
from sealring_model.loading.weights import ENDS, owner
from sealring_model.stage.caches import cost_of
from sealring_model.stage.outline import Outline, can_batch, new_caches
from sealring_model.stage.stage import PartStage

_BETWEEN: Final = 5
"""What mlx-lm's dequantizing takes at most, in sizes of its result. Measured with fp8 experts: 5 on
an H100, 3 on a CPU."""


AHEAD: Final = 4
"""Guesses that a row reads with one step on a CPU, at most, if nobody says otherwise. There a
forward of several tokens gives the bits of one token at a time, which `tests/model/test_stage.py`
holds it to, and takes less time for each. On CUDA it gives others, and was slower."""

_PACE_BYTES: Final = 1 << 30
"""Bytes of the layers and ends that are run for a pace, at most, if two layers take no more."""

_CHUNK: Final = 64
"""Tokens of a prompt that are timed."""

_VALUE: Final = 1 / 64
"""Of each weight: processors take longer for values that are no numbers."""

PACE_SECONDS: Final = 0.6
"""Seconds of each figure of a pace, after which no other run begins. On a busy machine the
processor is another's for many milliseconds in a row, so a few short runs would all be slow."""


@attrs.frozen
class PartSize:
    """Bytes of a layer, or of the ends: what its rank *held* once it is loaded, and the most that
    *loading* takes beside, while it is read."""

    held: int
    loading: int


@attrs.frozen
class Structure:
    """What a model allows: it cannot be cut before the layers *joined*, for a *reason*, and several
    rows can be decoded together if it *batches*.

    What it takes, in bytes: the *ends* and each of the *layers*, and what a row costs in the caches
    of each layer (*costs*; those of no layer are with the first). The output head reads *head*
    thousandths of what a layer reads for a token, on average. The hidden states of a token take
    *hop* bytes between two ranks, at most; 0 if the model cannot be cut. *lacks* says what
    MLX seems to lack for it on this machine; it is empty if nothing is known.
    """

    joined: tuple[int, ...]
    reason: str
    batches: bool
    ends: PartSize
    layers: tuple[PartSize, ...]
    costs: tuple[CacheCost, ...]
    head: int
    hop: int
    lacks: str = ""

    def held(self, first: int, last: int) -> int:
        """Bytes that a rank with layers *first* to *last* (excluded) holds."""
        return sum(part.held for part in self._parts(first, last))

    def peak(self, first: int, last: int) -> int:
        """The most that it holds while it loads."""
        most = held = 0
        for part in self._parts(first, last):
            most = max(most, held + part.held + part.loading)
            held += part.held
        return most

    def cache(self, first: int, last: int, tokens: int) -> int:
        """Bytes of a row of *tokens* in the caches of layers *first* to *last* (excluded)."""
        return sum(cost.of(tokens) for cost in self.costs[first:last])

    def _parts(self, first: int, last: int) -> tuple[PartSize, ...]:
        return (*(() if first else (self.ends,)), *self.layers[first:last])


def structure_of(info: ModelInfo) -> Structure:
    """The structure of *info*'s model. Reads no weights.

    Raises `LoadError` if the model cannot be built.
    """
    loaded: list[mx.array] = []

    def fill(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        filled = placeholders(weights)
        loaded.extend(filled.values())
        return filled

    model = build_model(info, fill)
    count = len(info.layers)
    sizes = _sizes(info, model, loaded)
    outline, why = None, ""
    if count > 1:
        try:
            outline = Outline.of(model)
            outline = outline.narrowed() if info.narrow else outline
        except LoadError as error:
            why = str(error)
    joined = tuple(range(1, count)) if why else ()
    if outline is not None:
        joined = tuple(sorted(layer for layer in outline.reasons if 0 < layer < count))
        why = outline.reasons[joined[0]] if joined else ""
    return Structure(
        joined=joined,
        reason=why,
        batches=can_batch(model),
        ends=sizes[ENDS],
        layers=tuple(sizes[layer] for layer in range(count)),
        costs=_costs(model, outline, count),
        head=_head(info, model, sizes),
        hop=0 if outline is None else _hop(outline, count),
        lacks=_lacks(info, model),
    )


def describe_engine(info: ModelInfo, found: Structure, room: int) -> EngineInfo:
    """ENGINE_INFO of an engine with the model *info*, whose structure was *found*, and *room* bytes
    for weights and caches. Of the weights a sample is read.

    Raises `LoadError` if a file of weights cannot be read.
    """
    return EngineInfo(
        info.digest,
        info.hop_dtype,
        info.hidden,
        info.vocabulary,
        info.context,
        info.trimmable,
        room,
        found.ends.held,
        tuple(layer.held for layer in found.layers),
        splits=splits_of(info),
        backends=backends(),
        joined=found.joined,
        reason=found.reason,
        batches=found.batches,
        head=found.head,
        hop=found.hop,
        ahead=AHEAD if mx.default_device().type == mx.DeviceType.cpu else 0,
        pins=pins_of(info),
    )


def backends() -> int:
    """The collective back ends that this MLX has: a bit (1 << `Backend`) for each."""
    collectives = (Backend.RING, Backend.JACCL, Backend.NCCL)
    have = (b for b in collectives if mx.distributed.is_available(b.name.lower()))
    return sum(1 << backend for backend in have)


def _sizes(info: ModelInfo, model: nn.Module, loaded: Sequence[mx.array]) -> dict[int, PartSize]:
    """The size of each layer, and of the ends, by their numbers. The arrays *loaded* are the
    checkpoint's: one that *model* has as it is takes no room twice."""
    count = len(info.layers)
    given = {id(array) for array in loaded}
    held = dict.fromkeys((ENDS, *range(count)), 0)
    made, largest = dict(held), dict(held)
    seen: set[int] = set()
    for path, module in model.named_modules():
        part = owner(f"{path}.", count)
        for name, value in module.items():
            fresh = isinstance(value, mx.array) and id(value) not in seen
            if part in held and fresh and not name.startswith("_"):
                seen.add(id(value))
                held[part] += value.nbytes
                if id(value) not in given:
                    made[part] += value.nbytes
                    largest[part] = max(largest[part], value.nbytes)
    read = (info.ends, *info.layers)
    sizes = {}
    for part, size in zip((ENDS, *range(count)), read, strict=True):
        # While a part is read there are its tensors and what is made of them. Beside those there
        # are, for one of them, temporary arrays in f32 where tensors become wider (fp8).
        between = _BETWEEN * largest[part] if held[part] > size else 0
        sizes[part] = PartSize(held[part], max(0, size + made[part] - held[part]) + between)
    return sizes


def _head(info: ModelInfo, model: nn.Module, sizes: dict[int, PartSize]) -> int:
    """What the output head reads for a token, in thousandths of a layer's. Of a layer's experts a
    token reads some."""
    count = len(info.layers)
    experts, read = 0, 0.0
    heads: list[tuple[bool, int]] = []
    for path, module in model.named_modules():
        part = owner(f"{path}.", count)
        arrays = [value for value in module.values() if isinstance(value, mx.array)]
        size = sum(array.nbytes for array in arrays)
        if part in range(count):
            if of := getattr(module, "num_experts", 0):  # mlx-lm's SwitchLinear has all of them
                experts += size
                read += size * min(1.0, info.experts / of)
        elif part == ENDS and "weight" in module and len(module["weight"]) == info.vocabulary:
            heads.append((isinstance(module, nn.Embedding | nn.QuantizedEmbedding), size))
    held = sum(sizes[layer].held for layer in range(count))
    mean = (held - experts + read) / count
    # An embedding is the output head too, unless there is one beside it.
    _, size = min(heads, default=(True, 0))
    return min(round(1000 * size / mean), 1 << 31) if mean else 0


def _hop(outline: Outline, count: int) -> int:
    """The most bytes that a token's hidden states take at any cut, or on their way back."""
    cuts = (outline.hop(cut) for cut in range(1, count + 1) if cut not in outline.reasons)
    sizes = [
        sum(math.prod(t.spec.shape(1, 1)) * t.spec.dtype.size for t in tensors) for tensors in cuts
    ]
    return max(sizes, default=0)


def _lacks(info: ModelInfo, model: nn.Module) -> str:
    """What MLX lacks here for the experts of *model*, by a product of one number. A class may
    compute in another dtype than its experts have, so this is no refusal: loading finds out."""
    kinds = {
        module["weight"].dtype
        for _, module in model.named_modules()
        if "weight" in module and getattr(module, "num_experts", None)  # mlx-lm's SwitchLinear
    }
    for kind in kinds:
        if mx.issubdtype(kind, mx.floating):
            one = mx.zeros((1, 1, 1), kind)
            try:
                mx.eval(mx.gather_mm(one, one, rhs_indices=mx.array([0])))
            except RuntimeError as error:
                return f"this machine may refuse the model once it is loaded: {lacks(info, error)}"
    return ""


def _costs(model: nn.Module, outline: Outline | None, count: int) -> tuple[CacheCost, ...]:
    """What a row costs in the caches of each of *count* layers: a run of two tokens shows it, which
    is not computed."""
    caches = new_caches(model)
    try:
        model(mx.zeros((1, 2), mx.uint32), cache=caches)
        found = [cost_of([cache]) for cache in caches]
    except FORWARD_ERRORS:
        return (CacheCost(0, 0),) * count
    users = outline.caches if outline is not None else (None,) * len(caches)
    by_layer: list[list[CacheCost]] = [[] for _ in range(count)]
    for user, cost in zip(users, found, strict=True):
        by_layer[user or 0].append(cost)
    return tuple(_sum(costs) for costs in by_layer)


def _sum(costs: list[CacheCost]) -> CacheCost:
    windows = tuple(sorted(window for cost in costs for window in cost.windows))
    return CacheCost(
        sum(cost.fixed for cost in costs), sum(cost.per_token for cost in costs), windows
    )


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
    fitting = [cut for cut in free if found.held(0, cut) <= _PACE_BYTES]
    return max(fitting, default=free[0])


def _run(stage: PartStage, rows: int, tokens: int) -> list[mx.array]:
    return list(stage.run(stage.dummy_inputs(rows, tokens), stage.new_caches()))


def _fastest(make: Callable[[], list[mx.array]]) -> float:
    """The fewest seconds of what *make* gives: whatever else the machine does only adds some."""
    took: list[float] = []
    while sum(took) < PACE_SECONDS:
        begin = time.perf_counter()
        mx.eval(make())
        took.append(time.perf_counter() - begin)
    return min(took)

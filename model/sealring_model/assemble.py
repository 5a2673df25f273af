"""Loading one rank's stage: its tensors, its memory, what its rows will cost.

mlx-lm's own loader builds the model, renames and quantizes; this module stands in at the one
place where it has the weights by name, before they are renamed. There each tensor that this rank
owns is read (see `weights`) and verified, and every other becomes a lazy placeholder that costs
nothing and that no layer kept here may depend on: its value is not a number, which the first run
would show.

That first run, of two tokens, also measures what the stage really does: the dtype of its hidden
states, and what its caches cost a row.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Any, Final

import attrs
import mlx.core as mx
from mlx import nn
from sealring_protocol.codec.messages import CacheCost
from sealring_protocol.codec.tensor import DType

from sealring_model.caches import cost_of, is_trimmable
from sealring_model.errors import LoadError
from sealring_model.loading import ModelInfo
from sealring_model.stage import FirstStage, LaterStage, Stage, WholeStage
from sealring_model.tensors import MLX_DTYPES, memory_of
from sealring_model.upstream import mlx_lm
from sealring_model.weights import ENDS, TensorEntry, owner, read_pieces

_DTYPES: Final = {
    "F64": mx.float64,
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "I64": mx.int64,
    "I32": mx.int32,
    "I16": mx.int16,
    "I8": mx.int8,
    "U64": mx.uint64,
    "U32": mx.uint32,
    "U16": mx.uint16,
    "U8": mx.uint8,
    "BOOL": mx.bool_,
    "F8_E4M3": mx.uint8,
    "F8_E8M0": mx.uint8,
}


@attrs.frozen
class LoadedStage:
    """A stage that is ready to run: *read* bytes came from disk, *held* bytes are its weights.

    *dtype* is that of its hidden states; *cost* and *trimmable* are its caches'.
    """

    stage: Stage
    first: int
    last: int
    hidden: int
    vocabulary: int
    dtype: DType
    cost: CacheCost
    trimmable: bool
    read: int
    held: int
    load_us: int


def load_stage(info: ModelInfo, first: int, last: int) -> LoadedStage:
    """Load layers *first* to *last* (excluded), and the ends too when *first* is 0.

    Raises `LoadError` when a tensor does not match the manifest, or the model cannot be built or
    split like this.
    """
    start = time.perf_counter_ns()
    reading = _Reading(info, first, last)
    stage = _build(info, first, last, reading)
    mx.eval(stage.parameters())
    held = sum(a.nbytes for a in {id(a): a for a in _leaves(stage.parameters())}.values())
    cost, trimmable = _measure(info, stage, first)
    return LoadedStage(
        stage=stage,
        first=first,
        last=last,
        hidden=info.hidden,
        vocabulary=info.vocabulary,
        dtype=info.dtype,
        cost=cost,
        trimmable=trimmable,
        read=reading.read,
        held=held,
        load_us=(time.perf_counter_ns() - start) // 1000,
    )


class _Reading:
    """Reads and verifies the tensors of one rank, and counts the bytes."""

    def __init__(self, info: ModelInfo, first: int, last: int) -> None:
        self._entries = info.entries
        self._manifest = info.manifest
        kept = {*range(first, last), *([ENDS] if first == 0 else [])}
        self._owned = {n for n in info.entries if owner(n, len(info.layers)) in kept}
        self.read = 0

    def fill(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """*weights* with every owned tensor read and every other one a placeholder."""
        if weights.keys() != self._entries.keys():
            raise LoadError("the weights changed while they were loaded")
        return {
            name: self._tensor(self._entries[name]) if name in self._owned else _absent(lazy)
            for name, lazy in weights.items()
        }

    def _tensor(self, entry: TensorEntry) -> mx.array:
        memory = mx.zeros((max(1, entry.size),), mx.uint8)
        mx.eval(memory)
        content = hashlib.sha256()
        update = _nothing if self._manifest is None else content.update
        for piece in read_pieces(entry, memory_of(memory)):
            update(piece)
        self._verify(entry.name, content.hexdigest())
        self.read += entry.size
        return memory[: entry.size].view(_DTYPES[entry.dtype]).reshape(entry.shape)

    def _verify(self, name: str, digest: str) -> None:
        if self._manifest is not None and not hmac.compare_digest(
            self._manifest.get(name, ""), digest
        ):
            raise LoadError(f"tensor {name} does not match the manifest")


def _nothing(_: memoryview) -> None:
    """Hash nothing: there is no manifest."""


def _absent(lazy: mx.array) -> mx.array:
    if mx.issubdtype(lazy.dtype, mx.floating):
        return mx.full(lazy.shape, float("nan"), lazy.dtype)
    return mx.zeros(lazy.shape, lazy.dtype)


def _build(info: ModelInfo, first: int, last: int, reading: _Reading) -> Stage:
    model = _load_model(info, reading)
    count = len(info.layers)
    if first == 0 and last == count:
        return WholeStage(model)
    if first == 0:
        return FirstStage(model, last)
    return LaterStage(model, first, last, info.hidden, MLX_DTYPES[info.dtype])


def _load_model(info: ModelInfo, reading: _Reading) -> nn.Module:
    """mlx-lm's model of *info*, its weights as *reading* gives them, nothing evaluated."""
    utils = mlx_lm("utils")
    real: list[Any] = []

    def classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
        model_class, args_class = utils._get_classes(config)
        real.append(model_class)

        def sanitize(self: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            filled = reading.fill(weights)
            clean = getattr(model_class, "sanitize", None)
            return filled if clean is None else clean(self, filled)

        return type(model_class.__name__, (model_class,), {"sanitize": sanitize}), args_class

    try:
        model, _ = utils.load_model(info.folder, lazy=True, get_model_classes=classes)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise LoadError(f"mlx-lm cannot load this {info.kind} model: {error}") from error
    model.__class__ = real[0]
    return model


def _measure(info: ModelInfo, stage: Stage, first: int) -> tuple[CacheCost, bool]:
    """Run two tokens: what the caches cost and can do. Refuses another dtype than expected."""
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


def _leaves(tree: Any) -> list[mx.array]:
    if isinstance(tree, mx.array):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree
    return [leaf for child in children for leaf in _leaves(child)]

"""Loads one member's shard of a stage, for tensor parallelism.

mlx-lm's models divide themselves: `shard` of their class replaces each projection by the part of it
that belongs to one member of a collective, and remembers the collective for the sums between. It
asks the collective for rank and size only. So it gets a `StandInCollective`, and the shard is on
the device before anybody has to wait for a peer. Once the collective stands, it takes the
stand-in's place in every module (`TpShard.join`); until then the stage cannot run.

Most families leave the output head whole. A head of its own (not one that is the embedding again)
is divided too, by lines of the vocabulary, and the logits are gathered. Every member holds the
whole embedding.

The model is built and divided before any weight is read, so a load never holds more than the shard
and one layer (`WeightReader`).
"""

from __future__ import annotations

import time
from typing import Any, Final

import attrs
import mlx.core as mx
from mlx import nn
from mlx.nn.layers.distributed import shard_linear

from sealring_model.errors import LoadError
from sealring_model.loading.assemble import (
    LoadedStage,
    build_model,
    held_by,
    measured,
    outline_of,
    stage_of,
)
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.weight_reader import WeightReader
from sealring_model.loading.weights import read_json
from sealring_model.mlx_lm_import import model_loader
from sealring_model.stage.stage import Stage

_HEADS: Final = (nn.Linear, nn.QuantizedLinear)


@attrs.frozen(eq=False)
class StandInCollective:
    """In place of a collective that is not there yet: tells `shard` which member's part to keep."""

    _rank: int
    _size: int

    def rank(self) -> int:
        """This member's number."""
        return self._rank

    def size(self) -> int:
        """Members of the collective."""
        return self._size


@attrs.frozen(eq=False)
class TpShard:
    """The shard of member *rank* of *size*, of layers *first* to *last* (excluded). It runs once it
    has joined.

    *read* bytes came from disk, *held* bytes are its weights, loading took *load_us* microseconds.
    """

    info: ModelInfo
    stage: Stage
    first: int
    last: int
    rank: int
    size: int
    read: int
    held: int
    load_us: int
    _stand_in: StandInCollective

    def join(self, collective: mx.distributed.Group) -> LoadedStage:
        """The stage as a part of *collective*, measured. Every member must call this at the same
        time."""
        start = time.perf_counter_ns() - 1000 * self.load_us
        for module in self.stage.modules():
            for name, value in list(vars(module).items()):
                if value is self._stand_in:
                    setattr(module, name, collective)
        return measured(self.info, self.stage, (self.first, self.last), self.read, start)


class ShardedHead(nn.Module):
    """An output head of which each member of *collective* has some lines. Gives every member all
    logits."""

    def __init__(self, head: nn.Module, collective: Any) -> None:
        super().__init__()
        self.part = shard_linear(head, "all-to-sharded", group=collective)
        self.collective = collective

    def __call__(self, hidden: mx.array) -> mx.array:
        """The logits of *hidden*."""
        part = self.part(hidden)
        parts = mx.distributed.all_gather(part[None], group=self.collective)
        return mx.moveaxis(parts, 0, -2).reshape(*part.shape[:-1], -1)


def splits_of(info: ModelInfo) -> int:
    """A number whose divisors are the sizes that a collective may have; 0 if the model cannot be
    sharded: its class cannot, or it has an adapter."""
    if info.adapter is not None:
        return 0
    try:
        model_class, _ = model_loader()._get_classes(read_json(info.folder / "config.json"))
    except (AttributeError, LookupError, TypeError, ValueError):
        return 0  # loading tells what is wrong
    return info.even if hasattr(model_class, "shard") else 0


def load_shard(info: ModelInfo, first: int, last: int, rank: int, size: int) -> TpShard:
    """Load the shard of member *rank* of *size*, of layers *first* to *last* (excluded), and of the
    ends too when *first* is 0.

    Raises `LoadError` if a tensor does not match the manifest, or the model cannot be built,
    divided or split like this.
    """
    start = time.perf_counter_ns()
    _check(info, size)
    stand_in = StandInCollective(rank, size)
    reader = WeightReader(info, first, last)
    model = build_model(info, reader.placeholders)
    outline = outline_of(info, model, first, last)
    _divide(info, model, stand_in)
    reader.read(model)
    stage = stage_of(model, outline, first, last)
    mx.eval(stage.parameters())
    took = (time.perf_counter_ns() - start) // 1000
    held = held_by(stage)
    return TpShard(info, stage, first, last, rank, size, reader.bytes_read, held, took, stand_in)


def _check(info: ModelInfo, size: int) -> None:
    if info.adapter is not None:
        raise LoadError(
            "mlx-lm cannot share out a model with an adapter; fuse the two with mlx_lm.fuse, or "
            "use a pipeline"
        )
    if not splits_of(info):
        raise LoadError(
            f"mlx-lm has no sharding for {info.kind} models; they cannot be shared by several "
            "ranks, but a pipeline can split their layers"
        )
    if any(heads % size for heads in info.heads):
        heads = ", ".join(map(str, info.heads))
        raise LoadError(
            f"the model's heads ({heads}) do not divide among {size} ranks; a divisor of "
            f"{info.even} would do, and so would a pipeline"
        )


def _divide(info: ModelInfo, model: nn.Module, stand_in: StandInCollective) -> None:
    divided: Any = model
    try:
        divided.shard(stand_in)
        for module in model.modules():
            head = module.get("lm_head")
            if type(head) in _HEADS and not head["weight"].shape[0] % stand_in.size():
                module["lm_head"] = ShardedHead(head, stand_in)
    except (AssertionError, ValueError, TypeError, LookupError, RuntimeError) as error:
        raise LoadError(
            f"mlx-lm cannot share this {info.kind} model among {stand_in.size()} ranks: {error}"
        ) from error

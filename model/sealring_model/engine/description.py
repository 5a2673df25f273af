"""What an engine says of its model before it reads any weights."""

from __future__ import annotations

from typing import Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import EngineInfo

from sealring_model.engine.collective import backends
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.pins import pins_of
from sealring_model.loading.structure import Structure
from sealring_model.loading.tp_shards import splits_of

AHEAD: Final = 4
"""Guesses that a row reads with one step on a CPU, at most, if nobody says otherwise. There a
forward of several tokens gives the bits of one token at a time, which `tests/model/test_stage.py`
holds it to, and takes less time for each. On CUDA it gives others, and was slower."""


def describe_engine(info: ModelInfo, found: Structure, room: int) -> EngineInfo:
    """ENGINE_INFO of an engine with the model *info*, whose structure was *found*, and *room* bytes
    for weights and caches. Of the weights a sample is read.

    Raises `LoadError` if a file of weights cannot be read.
    """
    return attrs.evolve(
        info.engine_info(room),
        ends=found.ends.held,
        layers=tuple(layer.held for layer in found.layers),
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

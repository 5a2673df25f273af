"""What an engine says of its model before it reads any weights."""

from __future__ import annotations

import attrs
from sealring_protocol.codec.local_messages import EngineInfo

from sealring_model.engine.collective import backends
from sealring_model.loading.assemble import structure_of
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.tp_shards import splits_of


def describe_engine(info: ModelInfo, room: int) -> EngineInfo:
    """ENGINE_INFO of an engine with the model *info* and *room* bytes for weights and caches.

    The model is built and traced with placeholders in place of its weights. Raises `LoadError` if
    it cannot be built: its class is unknown, or a tensor is missing or has another shape.
    """
    found = structure_of(info)
    return attrs.evolve(
        info.engine_info(room),
        splits=splits_of(info),
        backends=backends(),
        joined=found.joined,
        reason=found.reason,
        batches=found.batches,
    )

"""What a draft model takes of the memory of a head."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sealring_model.loading.model_folder import ModelInfo, describe, memory_budget
from sealring_model.loading.structure import structure_of

MOST_TOKENS: Final = 16_384
"""Tokens of all rows that a draft model follows, at most. A row that would exceed them is followed
no more."""


def memory_of(info: ModelInfo) -> int:
    """Bytes of the draft model *info*: its weights, and the caches of as many tokens as it may
    follow, in one row. Raises `LoadError` if it cannot be built."""
    found = structure_of(info)
    layers = len(info.layers)
    return found.held(0, layers) + found.cache(0, layers, min(MOST_TOKENS, info.context))


def limit_beside(draft: Path | None, limit: int) -> int:
    """What an engine may take beside the model in the folder *draft*, if there is one: of *limit*
    bytes, or of what the device has free if that is 0. 0 if nothing limits it. Raises
    `LoadError`."""
    if draft is None:
        return limit
    return max(1, memory_budget(limit) - memory_of(describe(draft)))

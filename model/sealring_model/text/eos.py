"""Which tokens end an answer."""

from __future__ import annotations

from pathlib import Path

from sealring_model.errors import LoadError
from sealring_model.loading.weights import read_json


def eos_ids(folder: Path) -> frozenset[int]:
    """The ids that end an answer, as the model's generation settings or configuration say."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        value = read_json(file).get("eos_token_id") if file.exists() else None
        if isinstance(value, int):
            return frozenset((value,))
        if isinstance(value, list) and value:
            if not all(isinstance(token, int) for token in value):
                raise LoadError(f"{file} has {value} for eos_token_id, which are no token ids")
            return frozenset(value)
    return frozenset()

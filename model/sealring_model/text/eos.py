"""What a model's makers say of its answers: which tokens end them, and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sealring_protocol.limits import MAX_ENDS

from sealring_model.errors import LoadError
from sealring_model.loading.weights import read_json

_GREATEST: Final = (1 << 32) - 1
_MOST: Final = MAX_ENDS // 4
"""Ids that may end all answers: the tokenizer and each request add some to them."""


def eos_ids(folder: Path) -> frozenset[int]:
    """The ids that end an answer, as the model's generation settings or configuration say. Raises
    `LoadError` for what are no ids, or too many."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        value = read_json(file).get("eos_token_id") if file.exists() else None
        ids = value if isinstance(value, list) else [value] if type(value) is int else []
        if not ids:
            continue
        if not all(type(token) is int for token in ids):
            raise LoadError(f"{file} has {ids!r:.80} for eos_token_id, which are no token ids")
        # No token has another id, so it ends nothing: -1 says that no token ends an answer.
        ends = frozenset(token for token in ids if 0 <= token <= _GREATEST)
        if len(ends) > _MOST:
            raise LoadError(
                f"{file} has {len(ends)} token ids for eos_token_id, of {_MOST} at most"
            )
        return ends
    return frozenset()


_SETTINGS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 2),
    "top_p": (1e-6, 1),
    "top_k": (0, (1 << 32) - 1),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, 10),
}
"""What may be said of drawing, with the least and the most of it."""


def own_sampling(folder: Path) -> dict[str, float]:
    """How the makers of the model in *folder* have its answers drawn, by the names of the API; with
    temperature 0 if not at random. What they do not say, or what makes no sense, is left out."""
    file = folder / "generation_config.json"
    try:
        said = read_json(file) if file.exists() else {}
    except LoadError:
        return {}  # the tokenizer says so
    found: dict[str, float] = {}
    for name, (least, most) in _SETTINGS.items():
        value = said.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if least <= value <= most:  # which NaN is not
            found[name] = int(value) if name == "top_k" else float(value)
    if said.get("do_sample") is False:
        found["temperature"] = 0.0
    return found

"""An adapter: a small fine-tuning (LoRA, DoRA) in a folder of its own, used with its base model.

It is in the form that ``mlx_lm.lora`` writes: ``adapter_config.json`` and ``adapters.safetensors``.
mlx-lm itself puts it into the model that it has built, before the weights are read, so each rank
reads of the adapter what belongs to its layers. All ranks must have the same: the model digest
covers its configuration and all of its weights.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from sealring_model.errors import FORWARD_ERRORS, LoadError
from sealring_model.loading.weights import open_file, read_json
from sealring_model.mlx_lm_import import mlx_lm

if TYPE_CHECKING:
    from mlx import nn

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapters.safetensors"


@attrs.frozen
class Adapter:
    """The adapter in *folder*, with its configuration and the SHA-256 of its weights, in
    hexadecimal."""

    folder: Path
    config: dict[str, Any]
    sha256: str


def read_adapter(folder: Path) -> Adapter:
    """The adapter in *folder*. Reads all of it once, to hash it.

    Raises `LoadError`, which says what to do, if it is none of mlx-lm's.
    """
    if not folder.is_dir():
        raise LoadError(f"there is no folder {folder} with an adapter")
    if not (folder / CONFIG).exists():
        raise LoadError(f"{folder} has no {CONFIG}, so it is no adapter")
    config = read_json(folder / CONFIG)
    if "peft_type" in config or not (folder / WEIGHTS).exists():
        raise LoadError(
            f"{folder} is no adapter of mlx-lm's, which has {WEIGHTS}; merge it into its base "
            "model with the library that made it (PEFT: merge_and_unload), and convert the result"
        )
    with open_file(folder / WEIGHTS) as stream:
        return Adapter(folder, config, hashlib.file_digest(stream, "sha256").hexdigest())


def put_into(model: nn.Module, adapter: Adapter) -> None:
    """Put *adapter* into *model*. Evaluates nothing.

    Raises `LoadError` if it does not belong to this model.
    """
    try:
        mlx_lm("tuner.utils").load_adapters(model, str(adapter.folder))
    except (OSError, *FORWARD_ERRORS) as error:
        words = " ".join(str(error).split())[:300]
        raise LoadError(
            f"the adapter in {adapter.folder} does not fit this model: {words}"
        ) from error
    model.eval()

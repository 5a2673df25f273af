"""Writes a small random checkpoint for a configuration, in f32 or quantized."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from sealring_model.mlx_lm_import import mlx_lm

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "configs.json").read_text("utf-8")
)
GROUP = 32


def write(
    folder: Path, family: str, *, bits: int = 0, config: dict[str, Any] | None = None
) -> Path:
    """A checkpoint of *family* in *folder*; with *bits*, quantized. A *config* is in place of the
    family's own."""
    config = dict(config or CONFIGS[family])
    model_class, args_class = mlx_lm("utils")._get_classes(config)
    model = model_class(args_class.from_dict(config))
    key = mx.random.key(7)
    weights = []
    for name, old in tree_flatten(model.parameters()):
        key, own = mx.random.split(key)
        weights.append((name, _random(name, old, own)))
    if bits:
        model.load_weights(weights)
        config["quantization"] = {"group_size": GROUP, "bits": bits}
        nn.quantize(
            model,
            GROUP,
            bits,
            class_predicate=lambda path, module: (
                hasattr(module, "to_quantized") and not module.weight.shape[-1] % GROUP
            ),
        )
        weights = tree_flatten(model.parameters())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights))
    return folder


def _random(name: str, old: mx.array, key: mx.array) -> mx.array:
    """Weights with which greedy text wanders, and every layer matters."""
    if not mx.issubdtype(old.dtype, mx.floating):
        return old
    noise = mx.random.normal(old.shape, key=key)
    if "norm" in name and name.endswith("weight"):
        return 1.0 + 0.1 * noise
    if len(old.shape) < 2:
        return 0.1 * noise
    return (0.3 if "embed" in name else 1.5 / math.sqrt(old.shape[-1])) * noise

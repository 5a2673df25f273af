"""Folders and files that are models in another format: what they are, and what to do with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ADAPTER_FILES = ("adapters.safetensors", "adapter_model.safetensors", "adapter_config.json")


def other_format(path: Path) -> str | None:
    """What *path* is, if it is a model or part of one in a format that is not read here, and what
    to do; None if it is nothing known. A folder with weights that are read is not asked about."""
    if path.is_file():
        return _file(path)
    try:
        names = sorted(file.name for file in path.iterdir())
    except OSError:
        return None
    if any(name in ADAPTER_FILES for name in names):
        return (
            f"{path} is a LoRA adapter without its base model; fuse the two with "
            f"`mlx_lm.fuse --model BASE --adapter-path {path}` and take the result"
        )
    for name in names:
        if name.endswith((".bin", ".pt", ".pth")):
            return (
                f"{path} has PyTorch weights ({name}), which are not read here; convert them with "
                f"`mlx_lm.convert --hf-path {path} --mlx-path FOLDER` and take FOLDER"
            )
        if name.endswith(".gguf"):
            return _file(path / name)
        if name.startswith("consolidated") and name.endswith(".safetensors"):
            return (
                f"{path} has its weights in Mistral's own layout ({name}), which is not read here; "
                "take the model in Hugging Face's layout, or its conversion for MLX (on the hub: "
                "mlx-community)"
            )
    for name in names:
        if name.endswith(".safetensors"):
            return (
                f"{path} has no model*.safetensors, the name by which weights are known; rename "
                f"{name} if it is them"
            )
    return None


def other_quantization(config: Mapping[str, Any]) -> str | None:
    """What to say of a model with this *config* that mlx-lm cannot load, if it is quantized in a
    form that is not MLX's; None otherwise. mlx-lm converts some of GPTQ, AWQ and others itself."""
    text = config.get("text_config")
    told = config.get("quantization_config")
    if told is None and isinstance(text, dict):
        told = text.get("quantization_config")
    method = told.get("quant_method") if isinstance(told, dict) else None
    if not isinstance(method, str) or config.get("quantization") is not None:
        return None
    return (
        f"its weights are quantized by {method} (quantization_config in config.json), in a form "
        "that mlx-lm does not convert; take the model that it was made from, quantized with "
        "`mlx_lm.convert -q`, or its conversion for MLX (on the hub: mlx-community)"
    )


def _file(path: Path) -> str | None:
    if path.suffix == ".gguf":
        return (
            f"{path} is a GGUF file, which is not read here; take the model that it was made from, "
            "or its conversion for MLX (on the hub: mlx-community)"
        )
    if path.suffix == ".safetensors":
        return f"{path} is one file of a model; give the folder that it is in"
    return None

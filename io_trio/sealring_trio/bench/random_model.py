"""A random model to measure with: 25 million parameters, f32, and nothing to download.

It has the shapes of a small Llama and the tiny model's tokenizer. Weights are random signs and
mantissas under one exponent, which big integers make in a moment: their values do not matter, as
long as they are neither zeros nor infinities.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any, Final

from sealring_model import tiny

LAYERS: Final = 8
HIDDEN: Final = 512
FEED_FORWARD: Final = 1376
HEADS: Final = 8
CONTEXT: Final = 4096

# The bytes of a little-endian float: 16 mantissa bits, the exponent's last bit and 7 mantissa
# bits, the sign and the exponent's other bits. Exponent 121 makes values of 1/64 to 1/32.
_RANDOM_BITS: Final = bytes([0xFF, 0xFF, 0x7F, 0x80])
_EXPONENT: Final = bytes([0x00, 0x00, 0x80, 0x3C])
_ONE: Final = struct.pack("<f", 1.0)


def write_random_model(folder: Path) -> Path:
    """Write the model to *folder*; the same one each time."""
    source = tiny.path()
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": CONTEXT,
    }
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja") and file.name != "sealring.json":
            shutil.copyfile(file, folder / file.name)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(folder / "model.safetensors", _shapes(config["vocab_size"]))
    return folder


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    square, up, down = (HIDDEN, HIDDEN), (FEED_FORWARD, HIDDEN), (HIDDEN, FEED_FORWARD)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{prefix}.self_attn.{name}.weight"] = square
        shapes[f"{prefix}.mlp.gate_proj.weight"] = up
        shapes[f"{prefix}.mlp.up_proj.weight"] = up
        shapes[f"{prefix}.mlp.down_proj.weight"] = down
        shapes[f"{prefix}.input_layernorm.weight"] = (HIDDEN,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (HIDDEN,)
    return shapes | {"model.norm.weight": (HIDDEN,)}


def _write_weights(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    source = random.Random(7)  # noqa: S311 - weights, not secrets
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in header.values():
            first, last = entry["data_offsets"]
            count = (last - first) // 4
            file.write(_values(source, count) if len(entry["shape"]) > 1 else _ONE * count)


def _values(source: random.Random, count: int) -> bytes:
    noise = int.from_bytes(source.randbytes(4 * count), "little")
    mask = int.from_bytes(_RANDOM_BITS * count, "little")
    exponent = int.from_bytes(_EXPONENT * count, "little")
    return (noise & mask | exponent).to_bytes(4 * count, "little")

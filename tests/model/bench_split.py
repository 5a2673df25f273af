"""Resident memory and bytes read of the stages of a 500 MB model, each in its own process.

python tests/model/bench_split.py
"""

import sys
import tempfile
from pathlib import Path

import mlx.core as mx
from model_families import config_of, random_weights, write_model
from test_reading import measured

LAYERS = 13
SPLITS = [[(0, 13)], [(0, 6), (6, 13)], [(0, 4), (4, 8), (8, 13)]]


def big_model(folder: Path) -> Path:
    config = config_of(
        "llama",
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=LAYERS,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=8192,
    )
    write_model(folder, config, random_weights(config), shards=3)
    mx.clear_cache()
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = big_model(Path(root) / "m")
        size = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
        print(f"checkpoint {size / 1e6:.1f} MB")
        for split in SPLITS:
            for first, last in split:
                m = measured(folder, first, last)
                print(
                    f"layers {first:2} to {last:2}: weights {m['held'] / 1e6:6.1f} MB, "
                    f"read {m['rchar'] / 1e6:6.2f} MB, resident {m['resident'] / 1e6:6.1f} MB "
                    f"(peak {m['peak'] / 1e6:6.1f}), {m['imported'] / 1e6:.1f} of it imports"
                )


if __name__ == "__main__":
    sys.exit(main())

"""What hashing the files of weights costs a load: `python -m tests.hash_cost [SIZE]`.

A random model is written as the hub's cache has it, and each half of its layers loaded in turn with
and without the hub's hashes, its files in the page cache.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
from pathlib import Path

from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import describe
from sealring_tools.bench.random_model import write_random_model

TURNS = 7


def main(size: str) -> None:
    """Print the median seconds of a load, either way."""
    with tempfile.TemporaryDirectory() as made:
        folder = write_random_model(Path(made), size, "bf16")
        for file in folder.glob("model*.safetensors"):
            blob = folder.parent / hashlib.sha256(file.read_bytes()).hexdigest()
            file.rename(blob)
            file.symlink_to(blob)
        count = len(describe(folder).layers)
        took: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * TURNS):
            trusted = bool(turn % 2)
            for first, last in ((0, count // 2), (count // 2, count)):
                info = describe(folder, trusted=trusted)
                took[trusted].append(load_stage(info, first, last).load_us / 1e6)
        whole = describe(folder).size
    with_hashes, without = statistics.median(took[False]), statistics.median(took[True])
    print(
        f"{size}, {whole / 1e9:.2f} GB: half of its layers in {with_hashes:.2f} s with the hub's "
        f"hashes, {without:.2f} s without"
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "450m")

"""A rank reads its own tensors and no others, and holds no more than them in memory.

What a process reads is counted by the kernel (``rchar`` of /proc/self/io), which sees every read
call whether the page cache or the disk serves it; loading maps nothing into memory. What it
holds is its resident memory. Both are measured in processes of their own.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from model_families import config_of, random_weights, write_model
from sealring_model.loading.model_folder import describe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/io").exists(), reason="needs Linux's accounting of reads"
    ),
]

MEASURE = """
import gc, json, sys
from pathlib import Path
import mlx.core as mx
from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import describe
from sealring_model.mlx_lm_import import mlx_lm

def read():
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])

def resident(name="VmRSS"):
    return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0]) * 1024

mlx_lm("utils"); mlx_lm("models.llama"); mlx_lm("models.cache")
info = describe(Path(sys.argv[1]))
import sealring_model.engine.main
imported, before = resident(), read()
loaded = load_stage(info, int(sys.argv[2]), int(sys.argv[3]))
after = read()
gc.collect()
print(json.dumps({
    "imported": imported, "resident": resident(), "peak": resident("VmHWM"),
    "rchar": after - before, "read": loaded.read, "held": loaded.held,
}))
"""


@functools.cache
def measured(folder: Path, first: int, last: int) -> dict[str, int]:
    command = [sys.executable, "-c", MEASURE, str(folder), str(first), str(last)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """About 120 MB of weights in two files."""
    config = config_of(
        "llama",
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=6,
        head_dim=128,
        vocab_size=4096,
    )
    folder = tmp_path_factory.mktemp("big") / "llama"
    write_model(folder, config, random_weights(config), shards=2)
    mx.clear_cache()
    return folder


@pytest.fixture(scope="module")
def whole(big):
    return measured(big, 0, 6)


@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 3), (2, 4), (3, 6)],
)
def test_a_rank_reads_and_holds_its_own_tensors(big, whole, first, last):
    info = describe(big)
    own = sum(info.layers[first:last]) + (info.ends if first == 0 else 0)
    part = measured(big, first, last)
    assert part["read"] == part["held"] == own
    # Beside the tensors: two headers, /proc itself, and a module or two.
    assert own <= part["rchar"] <= own * 1.01 + 64 * 1024
    grown = part["resident"] - part["imported"]
    assert grown <= own * 1.1 + (16 << 20)


def test_two_halves_are_each_far_from_the_whole(big, whole):
    """Without the interpreter and its imports, each half is under 60 % of the whole, beside the
    4 MB that it takes to find out what passes between layers, whatever their size."""
    info = describe(big)
    assert whole["held"] == info.size
    weights = whole["resident"] - whole["imported"]
    for first, last in ((0, 3), (3, 6)):
        part = measured(big, first, last)
        assert part["resident"] - part["imported"] < 0.6 * weights + (4 << 20)
        # Nor is it ever more on the way there.
        assert part["peak"] - part["imported"] < 0.6 * weights + (4 << 20)

"""Rings to be verified: real nodes, one of which may have an engine with a fault."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
from sealring.local.ring import LocalNode, running_node, wait_until_up, write_cluster
from sealring.verify.judge import Options, Verified, verify
from sealring_model import tiny

from tests.families.checkpoints import CONFIGS, write
from tests.verify.faults import VARIABLE

ROOT = Path(__file__).parent.parent.parent


def family(
    folder: Path, name: str, *, dtype: mx.Dtype = mx.float32, bits: int = 0, context: int = 0
) -> Path:
    """A small random checkpoint of family *name*, in *dtype* or quantized, with a *context* of so
    many tokens (0: the family's); with a tokenizer: that of the tiny model, for nobody asks it
    anything."""
    config = CONFIGS[name] | ({"max_position_embeddings": context} if context else {})
    model = write(folder / name, name, bits=bits, config=config)
    if dtype != mx.float32:
        file = str(model / "model.safetensors")
        weights = mx.load(file)
        assert isinstance(weights, dict)
        mx.save_safetensors(file, {key: value.astype(dtype) for key, value in weights.items()})
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny.path() / file, model / file)
    return model


@contextlib.contextmanager
def ring(
    model: Path, ranks: int = 2, *, fault: tuple[int, str] | None = None, layers: Sequence[int] = ()
) -> Iterator[list[LocalNode]]:
    """A ring of *model*; with a *fault*, that of a rank. A busy machine breaks no link of it, which
    would begin an epoch."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        configs = write_cluster(folder, ranks, model, layers, options={"patience": 20})
        nodes = []
        for rank, config in reversed(list(enumerate(configs))):
            place, program = {}, "sealring"
            if fault is not None and fault[0] == rank:
                place = {VARIABLE: fault[1], "PYTHONPATH": str(ROOT)}
                program = "tests.verify.faulty_node"
            nodes.insert(0, stack.enter_context(running_node(config, (), place, program)))
        for node in nodes:
            wait_until_up(node)
        yield nodes


def verified(
    model: Path,
    ranks: int = 2,
    *,
    fault: tuple[int, str] | None = None,
    layers: Sequence[int] = (),
    by_stage: bool = False,
) -> Verified:
    """The verification of such a ring, with the same rows each time."""
    with ring(model, ranks, fault=fault, layers=layers) as nodes:
        options = Options(seed=1, by_stage=by_stage)
        return verify(nodes[0].ask, model, options, lambda _: None)

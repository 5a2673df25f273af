"""An adapter is used with its base model, split like the weights, as mlx-lm uses it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from model_families import config_of, random_weights, write_model
from sealring_model.errors import LoadError
from sealring_model.loading.assemble import load_shard, load_stage, splits_of
from sealring_model.loading.model_folder import describe
from sealring_model.loading.structure import structure_of
from sealring_model.mlx_lm_import import mlx_lm

from tests.rows import rows

IDS = ([3, 9, 27, 81, 243, 5], [7], [11])
FAMILIES = ("llama", "qwen3", "gpt-oss")


@pytest.fixture(scope="module", params=rows(FAMILIES, "llama", "gpt-oss"))
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of(request.param)
    folder = tmp_path_factory.mktemp("adapters") / request.param
    return write_model(folder, config, random_weights(config))


def adapter(base: Path, folder: Path, kind: str = "lora", layers: int = 2, **more: Any) -> Path:
    """A random adapter for the last *layers* of *base*, written as mlx-lm writes it."""
    utils, tuner = mlx_lm("utils"), mlx_lm("tuner.utils")
    model, _ = utils.load_model(base)
    asked = {"rank": 4, "scale": 2.0, "dropout": 0.1, "keys": ["self_attn.q_proj"], **more}
    tuner.linear_to_lora_layers(model, layers, asked, use_dora=kind == "dora")
    weights = {
        name: 0.3 * mx.random.normal(value.shape, key=mx.random.key(n))
        for n, (name, value) in enumerate(tree_flatten(model.parameters()))
        if name.endswith((".lora_a", ".lora_b", ".m"))
    }
    assert weights
    folder.mkdir(exist_ok=True)
    told = {"fine_tune_type": kind, "num_layers": layers, "lora_parameters": asked}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    return folder


def logits_of_mlx_lm(base: Path, used: Path | None) -> list[mx.array]:
    model, _ = mlx_lm("utils").load_model(base)
    if used is not None:
        mlx_lm("tuner.utils").load_adapters(model, str(used))
        model.eval()
    cache = mlx_lm("models.cache").make_prompt_cache(model)
    return [model(mx.array([ids]), cache=cache)[:, -1] for ids in IDS]


def logits(base: Path, used: Path | None, bounds: tuple[int, ...]) -> list[mx.array]:
    info = describe(base, used)
    stages = [load_stage(info, first, last).stage for first, last in pairwise(bounds)]
    slots = [stage.new_caches() for stage in stages]
    found = []
    for ids in IDS:
        values: Any = [mx.array([ids], mx.uint32)]
        for stage, caches in zip(stages, slots, strict=True):
            values = stage.run(values, caches)
        found.append(stages[0].logits(values))
    return found


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_at_every_cut_the_logits_are_mlx_lms(base, tmp_path, kind):
    used = adapter(base, tmp_path / "adapter", kind)
    expected = logits_of_mlx_lm(base, used)
    assert not mx.allclose(expected[0], logits_of_mlx_lm(base, None)[0])
    count = len(describe(base).layers)
    for bounds in [(0, count), *((0, cut, count) for cut in range(1, count))]:
        for one, other in zip(logits(base, used, bounds), expected, strict=True):
            assert mx.array_equal(one, other).item()


def test_a_rank_holds_its_part_of_it_and_the_plan_says_so(base, tmp_path):
    used = adapter(base, tmp_path / "adapter", layers=1)
    info, alone = describe(base, used), describe(base)
    found = structure_of(info)
    count = len(info.layers)
    for bounds in pairwise((0, 1, count - 1, count)):
        held = load_stage(info, *bounds).held
        assert held == found.held(*bounds)
        assert (held > load_stage(alone, *bounds).held) == (bounds[1] == count)


def test_the_digest_covers_the_adapter(base, tmp_path):
    used = adapter(base, tmp_path / "adapter")
    digests = {describe(base).digest, describe(base, used).digest}
    weights = used / "adapters.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    digests.add(describe(base, used).digest)
    assert len(digests) == 3


def test_a_model_with_an_adapter_is_not_shared_out(base, tmp_path):
    info = describe(base, adapter(base, tmp_path / "adapter"))
    assert splits_of(info) == 0
    with pytest.raises(LoadError, match="use a pipeline"):
        load_shard(info, 0, len(info.layers), 0, 2)


def test_an_adapter_of_another_model_is_refused(base, tmp_path):
    used = adapter(base, tmp_path / "adapter")
    weights = dict(mx.load(str(used / "adapters.safetensors")))
    name = next(iter(weights))
    wider = mx.zeros((7, 7))
    mx.save_safetensors(str(used / "adapters.safetensors"), {**weights, name: wider})
    with pytest.raises(LoadError, match="does not fit this model"):
        structure_of(describe(base, used))


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no adapter_config.json"),
        ({"adapter_config.json": "{}"}, "no adapter of mlx-lm's"),
        ({"adapter_config.json": '{"peft_type": "LORA"}'}, "PEFT: merge_and_unload"),
        ({"adapter_config.json": "5"}, "does not hold a JSON object"),
        ({"adapter_config.json": "{}", "adapters.safetensors": "x"}, "does not fit this model"),
    ],
)
def test_what_is_no_adapter_is_told(base, tmp_path, files, why):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(LoadError, match=why):
        structure_of(describe(base, tmp_path))


def test_an_adapter_beside_the_model_is_named_as_ignored(tmp_path):
    config = config_of("llama")
    base = write_model(tmp_path, config, random_weights(config))
    adapter(base, base)
    assert "adapters.safetensors beside the model is ignored" in describe(base).notes[1]
    assert len(describe(base, base).notes) == 1

"""A member's share of a stage: what is read, held and verified, and what is refused. No group."""

import gc
import json
import shutil

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from model_families import (
    SHARDED,
    config_of,
    make_model,
    random_weights,
    reference_model,
    write_model,
)
from sealring_model.errors import LoadError
from sealring_model.loading.assemble import load_shard, splits_of
from sealring_model.loading.model_folder import describe
from sealring_model.loading.weights import write_manifest

WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "num_hidden_layers": 6,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model of which each weight is larger than what MLX may share with a buffer beyond it."""
    folder = tmp_path_factory.mktemp("wide") / "m"
    make_model(folder, "llama", shards=3, **WIDE)
    write_manifest(folder)
    return folder


def loaded(info, *args):
    """A share, what it made MLX hold, and the most that MLX held meanwhile."""
    gc.collect()  # or what other tests have left might go meanwhile
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    shard = load_shard(info, *args)
    return shard, mx.get_active_memory() - before, mx.get_peak_memory() - before


@pytest.mark.parametrize("member", [0, 1])
def test_a_member_holds_half_and_never_more_than_a_layer_beside_it(wide, member):
    info = describe(wide)
    shard, held, peak = loaded(info, 0, 6, member, 2)
    embedding = 4 * info.vocabulary * info.hidden
    shardable = info.size - embedding
    assert held == shard.held
    assert shard.held - embedding <= 0.51 * shardable
    assert shard.read == info.size
    # The largest thing that is read whole is a layer; its share is copied while it is there.
    assert peak <= shard.held + 1.6 * max(info.layers)


def test_members_of_a_later_stage_read_their_layers_only(wide):
    info = describe(wide)
    shard, held, _ = loaded(info, 4, 6, 1, 2)
    assert shard.read == sum(info.layers[4:])
    assert shard.held <= held <= 0.51 * shard.read


def test_all_shares_together_are_the_model(wide):
    """Every divided weight is cut in two; the halves of the head are its two halves."""
    info = describe(wide)
    whole = dict(tree_flatten(reference_model(wide).parameters()))
    one, two = (
        dict(tree_flatten(load_shard(info, 0, 6, member, 2).stage.parameters()))
        for member in (0, 1)
    )
    assert one.keys() == two.keys()
    for name, part in one.items():
        known = whole[name.replace("lm_head.part", "lm_head")]
        if part.shape == known.shape:
            assert "norm" in name or "embed" in name
            assert mx.array_equal(part, known)
        else:
            axis = next(i for i, n in enumerate(part.shape) if n != known.shape[i])
            assert mx.array_equal(mx.concatenate([part, two[name]], axis=axis), known)


@pytest.mark.parametrize("family", SHARDED)
def test_stages_of_every_family_can_be_shared(sharded, family):
    info = describe(sharded[family])
    count = len(info.layers)
    for cut in range(1, count):
        first, last = load_shard(info, 0, cut, 0, 2), load_shard(info, cut, count, 1, 2)
        assert first.read + last.read == info.size
        assert last.held < 0.6 * last.read


def test_a_quantized_head_is_divided_too(tmp_path):
    source = make_model(tmp_path / "f32", "llama", **WIDE)
    model = reference_model(source)
    nn.quantize(model, group_size=32, bits=4)
    config = {**config_of("llama", **WIDE), "quantization": {"group_size": 32, "bits": 4}}
    weights = dict(tree_flatten(model.parameters()))
    info = describe(write_model(tmp_path / "q", config, weights))
    shard = load_shard(info, 0, 6, 0, 2)
    embedding = sum(e.size for name, e in info.entries.items() if "embed" in name)
    assert shard.held - embedding <= 0.51 * (info.size - embedding)
    names = {name for name, _ in tree_flatten(shard.stage.parameters())}
    assert "lm_head.part.scales" in names


def test_a_head_that_does_not_divide_is_held_whole(tmp_path):
    folder = make_model(tmp_path / "m", "llama", vocab_size=251)
    shard = load_shard(describe(folder), 0, 5, 0, 2)
    shapes = {name: a.shape for name, a in tree_flatten(shard.stage.parameters())}
    assert shapes["lm_head.weight"] == (251, 64)


@pytest.mark.parametrize("tensor", ["model.layers.3.mlp.down_proj.weight", "lm_head.weight"])
def test_a_weight_that_is_not_the_manifests(wide, tmp_path, tensor):
    folder = tmp_path / "m"
    shutil.copytree(wide, folder)
    manifest = json.loads((folder / "sealring.json").read_text())
    manifest["tensors"][tensor] = "0" * 64
    (folder / "sealring.json").write_text(json.dumps(manifest))
    with pytest.raises(LoadError, match=f"tensor {tensor} does not match the manifest"):
        load_shard(describe(folder), 0, 6, 1, 2)


REFUSED = {
    "heads that do not divide": (
        "llama",
        {},
        4,
        r"heads \(4, 2\) do not divide among 4 ranks; a divisor of 2 would do",
    ),
    "a class without shard": ("gemma3", {}, 2, "no sharding for gemma3_text models"),
    "a hybrid without shard": ("qwen3-next", {}, 2, "no sharding for qwen3_next models"),
    "projections that do not divide": (
        "llama",
        {"intermediate_size": 97},
        2,
        "cannot share this llama model among 2 ranks: ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared(tmp_path, case):
    family, changes, size, message = REFUSED[case]
    info = describe(make_model(tmp_path / "m", family, **changes))
    with pytest.raises(LoadError, match=message):
        load_shard(info, 0, len(info.layers), 0, size)


@pytest.mark.parametrize(
    ("family", "changes", "splits"),
    [
        ("llama", {}, 2),
        ("llama", {"num_key_value_heads": 4}, 4),
        ("gpt-oss", {}, 2),
        ("gemma3", {}, 0),
        ("llama", {"model_type": "nobody_knows"}, 0),
    ],
)
def test_into_how_many_shares_a_model_divides(tmp_path, family, changes, splits):
    config = config_of(family, **changes)
    known = {**config, "model_type": config_of(family)["model_type"]}
    info = describe(write_model(tmp_path / "m", config, random_weights(known)))
    assert splits_of(info) == splits

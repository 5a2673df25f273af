"""Chains of stages give what mlx-lm's whole model gives, to the last bit."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from model_families import EVERY_FAMILY, FAMILIES, TWINS, reference_tokens
from model_rings import Ring, StepFailed, bounds_for, stage_of
from sealring_model.errors import LoadError
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.stage.stage import Layout, Stage

from tests.rows import rows

PROMPT = [(7 * i * i + 3 * i) % 251 for i in range(40)]
COUNT = 24

CUTS = [
    (family, cut)
    for family, fields in FAMILIES.items()
    for cut in range(1, fields["num_hidden_layers"])
]


def layers_of(family: str) -> int:
    return FAMILIES[family]["num_hidden_layers"]


@pytest.mark.parametrize("family", EVERY_FAMILY)
@pytest.mark.parametrize("world", rows([1, 2, 3, 4], 1, 3))
def test_tokens_of_any_chain_are_those_of_one_process(models, references, family, world):
    ring = Ring(models[family], bounds_for(layers_of(family), world))
    expected = reference_tokens(references[family], PROMPT, COUNT)
    assert len(set(expected)) > 8, "text that does not wander tests nothing"
    assert ring.generate(PROMPT, COUNT) == expected


def chain_logits(stages: list[Stage], caches: list, ids: list[int]) -> mx.array:
    hidden = [mx.array([ids], mx.uint32)]
    for stage, slots in zip(stages, caches, strict=True):
        hidden = stage.run(hidden, slots)
    return stages[0].logits(hidden)


@pytest.mark.parametrize(
    ("family", "cut"), rows(CUTS, *(each for each in CUTS if each[0] not in TWINS))
)
def test_logits_of_every_cut_are_equal_to_the_bit(models, references, family, cut):
    model = references[family]
    cache = mlx_lm("models.cache").make_prompt_cache(model)
    folder, layers = models[family], layers_of(family)
    stages = [stage_of(folder, 0, cut).stage, stage_of(folder, cut, layers).stage]
    caches = [stage.new_caches() for stage in stages]
    for part in (PROMPT[:25], PROMPT[25:], PROMPT[:1], PROMPT[1:2]):
        expected = model(mx.array([part]), cache=cache)[:, -1, :]
        assert mx.array_equal(chain_logits(stages, caches, part), expected)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_ranks_of_one_layer_each(models, references, family):
    ring = Ring(models[family], range(layers_of(family) + 1))
    assert ring.generate(PROMPT, COUNT) == reference_tokens(references[family], PROMPT, COUNT)


@pytest.mark.parametrize("family", EVERY_FAMILY)
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_of_any_size_give_the_same_text(models, references, family, chunk):
    ring = Ring(models[family], bounds_for(layers_of(family), 2))
    expected = reference_tokens(references[family], PROMPT, COUNT)
    assert ring.generate(PROMPT, COUNT, chunk=chunk) == expected


def test_the_same_with_the_inner_seal(models, references):
    ring = Ring(models["qwen3"], (0, 1, 3, 4), seal=True)
    assert ring.generate(PROMPT, COUNT) == reference_tokens(references["qwen3"], PROMPT, COUNT)


def test_a_stage_holds_its_own_layers_only(models):
    whole = stage_of(models["llama"], 0, 5)
    first, last = stage_of(models["llama"], 0, 2), stage_of(models["llama"], 2, 5)
    assert first.held + last.held == whole.held
    assert first.held > last.held * 2 / 3


class Plain:
    pass


class Window:
    def __init__(self, size):
        self.max_size = size


@pytest.mark.parametrize(
    ("caches", "first", "last", "picked", "spread"),
    [
        ([Plain(), Plain(), Plain()], 1, 2, (1,), (0, 0, 0)),
        ([Window(4), Plain(), Window(4), Plain()], 2, 4, (2, 3), (0, 1, 0, 1)),
        # No owned cache of the other's class: it gets an empty one of its own.
        ([Window(4), Plain(), Window(4), Plain()], 2, 3, (2, 1), (0, 1, 0, 1)),
        # Windows of two sizes are two kinds.
        ([Window(4), Window(8), Window(4)], 0, 1, (0, 1), (0, 1, 0)),
    ],
)
def test_caches_of_other_ranks_stand_in_by_class_and_window(caches, first, last, picked, spread):
    layout = Layout(caches, range(len(caches)), first, last)
    assert layout.picked == picked
    assert layout.spread(range(len(picked))) == list(spread)


def test_without_the_stand_ins_windows_break(models, references, monkeypatch):
    """The aliasing has a reason: give every other layer an empty cache, and masks go wrong."""
    expected = reference_tokens(references["gpt-oss"], PROMPT, COUNT)
    folder = models["gpt-oss"]
    assert Ring(folder, (0, 1, 4)).generate(PROMPT, COUNT, chunk=7) == expected
    stage = stage_of(folder, 1, 4).stage
    monkeypatch.setattr(
        stage.layout,
        "spread",
        lambda slots: [mlx_lm("models.cache").KVCache(), *slots[:3]],
    )
    with pytest.raises(StepFailed, match="broadcast"):
        Ring(folder, (0, 1, 4)).generate(PROMPT, COUNT, chunk=7)


def test_a_model_that_needs_more_than_its_layers_is_refused(models, monkeypatch):
    from sealring_model.loading import assemble, weights
    from sealring_model.loading.model_folder import describe

    real = weights.owner

    def stolen(name, layers):
        return 0 if name.endswith("layers.3.mlp.up_proj.weight") else real(name, layers)

    monkeypatch.setattr(weights, "owner", stolen)
    with pytest.raises(LoadError, match="depends on tensors of other layers"):
        assemble.load_stage(describe(models["llama"]), 3, 5)


@pytest.mark.parametrize("reads", ["ids", "stand-ins", "head"])
def test_a_stage_that_depends_on_what_stands_in_for_others_is_refused(models, monkeypatch, reads):
    """A loop that looks at token ids, at another rank's cache, or a head that does."""
    from sealring_model.loading import assemble
    from sealring_model.loading.model_folder import describe

    llama = mlx_lm("models.llama")
    body, model = llama.LlamaModel.__call__, llama.Model.__call__

    def looking(self, inputs, *args):
        outputs = body(self, inputs, *args)
        return outputs + inputs[..., None] if reads == "head" else outputs

    def layer(self, hidden, mask=None, cache=None):
        return real(self, hidden, mask, cache) + extra["now"]

    real, extra = llama.TransformerBlock.__call__, {"now": 0}

    def entering(self, inputs, cache=None, **kwargs):
        extra["now"] = inputs[..., None] if reads == "ids" else 0
        if reads == "stand-ins" and cache and cache[0].keys is not None:
            extra["now"] = cache[0].keys[..., :1, :1].sum()
        return model(self, inputs, cache, **kwargs)

    monkeypatch.setattr(llama.Model, "__call__", entering)
    monkeypatch.setattr(llama.LlamaModel, "__call__", looking)
    monkeypatch.setattr(llama.TransformerBlock, "__call__", layer)
    info = describe(models["llama-sliding"])
    first, last = (0, 2) if reads == "head" else (2, 3)
    with pytest.raises(LoadError, match="depends on what other ranks hold"):
        assemble.load_stage(info, first, last)


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("model.layers.1.mlp.down_proj.weight", (0, 2)),
        ("model.norm.weight", (0, 2)),
        ("model.layers.4.self_attn.q_proj.weight", (3, 5)),
        ("model.layers.4.self_attn.q_proj.weight", (0, 5)),
    ],
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_no_numbers_are_named(models, tmp_path, name, bounds, value):
    """And the cut is not blamed for them."""
    from sealring_model.loading.assemble import load_stage
    from sealring_model.loading.model_folder import describe

    folder = Path(shutil.copytree(models["llama"], tmp_path / "model"))
    (folder / "sealring.json").unlink(missing_ok=True)
    weights = dict(mx.load(str(folder / "model.safetensors")))
    weights[name] = weights[name] * float(value)
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(LoadError, match=f"tensor {name} has values that are no numbers"):
        load_stage(describe(folder), *bounds)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_first_run_that_gives_no_numbers(models, tmp_path, ranks):
    from sealring_model.loading.assemble import load_stage
    from sealring_model.loading.model_folder import describe

    folder = Path(shutil.copytree(models["llama"], tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": float("nan")}))
    with pytest.raises(LoadError, match="values that are no numbers, though its weights are"):
        load_stage(describe(folder), 0, 5 // ranks)


def test_what_mlx_cannot_compute_is_told_in_words(models, monkeypatch):
    """As experts in bf16 on a CPU, where MLX multiplies them in f32 alone."""
    from sealring_model.loading import assemble
    from sealring_model.loading.model_folder import describe

    def raising(*_):
        raise RuntimeError("[GatherMM::eval] Currently only supports float32.")

    monkeypatch.setattr(mlx_lm("models.llama").MLP, "__call__", raising)
    words = r"MLX cannot run this llama model in F32 on this machine: \[GatherMM::eval\]"
    with pytest.raises(LoadError, match=words):
        assemble.load_stage(describe(models["llama"]), 0, 5)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("what", ["a chunk", "a token", "two rows"])
def test_what_mlx_cannot_compute_in_steps_is_told_at_load(models, monkeypatch, what, ranks):
    """A first run of two tokens does not show it: a chunk, a token and a batch take other
    kernels."""
    from sealring_model.loading import assemble
    from sealring_model.loading.model_folder import describe

    mlp = mlx_lm("models.llama").MLP
    computes = mlp.__call__
    shapes = {"a chunk": (1, assemble._CHUNK_ON_CPU), "a token": (1, 1), "two rows": (2, 1)}

    def call(self, x):
        output = computes(self, x)
        if x.shape[:2] == shapes[what]:  # in bf16 this raises once it is computed, on a CPU
            experts = mx.zeros((1, 1, 1), mx.bfloat16)
            output += mx.gather_mm(experts, experts, rhs_indices=mx.array([0])).sum()
        return output

    monkeypatch.setattr(mlp, "__call__", call)
    with pytest.raises(LoadError, match="MLX cannot run this llama model in F32"):
        assemble.load_stage(describe(models["llama"]), 0, 5 // ranks)


@pytest.mark.skipif(mx.default_device().type != mx.DeviceType.cpu, reason="is about CPUs")
@pytest.mark.parametrize("tokens", [2, 3, 5, 17])
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_on_a_cpu_several_tokens_at_once_give_the_bits_of_one_after_the_other(
    models, family, tokens
):
    """So a model in f32 may read guesses ahead (`loading/structure.py`)."""
    loaded = stage_of(models[family], 0, layers_of(family))
    if not loaded.trimmable:
        pytest.skip("its caches cannot be cut, so it reads nothing ahead")
    stage = loaded.stage
    slots = [stage.new_caches(), stage.new_caches()]
    for each in slots:
        stage.run([mx.array([PROMPT[:20]], mx.uint32)], each)
    ids = PROMPT[20 : 20 + tokens]
    many = stage.logits(stage.run([mx.array([ids], mx.uint32)], slots[0]), tokens)
    single = [stage.logits(stage.run([mx.array([[each]], mx.uint32)], slots[1])) for each in ids]
    assert mx.array_equal(many.reshape(tokens, -1), mx.concatenate(single))

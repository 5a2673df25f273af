"""What a plan says a rank holds is what it holds, and what it takes while it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest
from model_families import config_of, random_weights, write_model
from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import describe
from sealring_model.loading.structure import structure_of

from tests.families.checkpoints import CONFIGS, write
from tests.rows import rows

SIZES = {"hidden_size": 512, "moe_intermediate_size": 512, "n_routed_experts": 16}
LAYERS = 4
TOKENS = 5000

MEASURE = """
import json, sys
from pathlib import Path
import mlx.core as mx
from sealring_model.loading.assemble import build_model
from sealring_model.loading.model_folder import describe
from sealring_model.loading.assemble import WeightReader

info = describe(Path(sys.argv[1]))
first, last = int(sys.argv[2]), int(sys.argv[3])
reader = WeightReader(info, first, last)
model = build_model(info, reader.placeholders)
mx.reset_peak_memory()
reader.read(model)
print(json.dumps({"held": mx.get_active_memory(), "peak": mx.get_peak_memory()}))
"""


def deepseek(folder: Path, *, fp8: bool) -> Path:
    """A checkpoint as DeepSeek publishes its own: each expert by itself, and with *fp8* in blocks
    with a scale each."""
    config = {**CONFIGS["deepseek_v3"], **SIZES, "num_hidden_layers": LAYERS}
    write(folder, "deepseek_v3", config=config)
    stacked = mx.load(str(folder / "model.safetensors"))
    assert isinstance(stacked, dict)
    weights: dict[str, mx.array] = {}
    for name, value in stacked.items():
        start, found, end = name.partition("switch_mlp.")
        wide = value.astype(mx.bfloat16)
        if found:
            for expert, part in enumerate(wide):
                weights[f"{start}experts.{expert}.{end}"] = part
        elif "embed_q" not in name and "unembed_out" not in name:
            weights[name] = wide
    heads = config["num_attention_heads"]
    rows = heads * (config["qk_nope_head_dim"] + config["v_head_dim"])
    for layer in range(LAYERS):
        name = f"model.layers.{layer}.self_attn.kv_b_proj.weight"
        weights[name] = mx.zeros((rows, config["kv_lora_rank"]), mx.bfloat16)
    for name, value in list(weights.items()) if fp8 else ():
        if value.ndim == 2 and ".experts." in name:
            weights[name] = mx.to_fp8(value)
            blocks = [(size + 127) // 128 for size in value.shape]
            weights[f"{name}_scale_inv"] = mx.ones(blocks, mx.float32)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def measure(folder: Path, bounds: tuple[int, int]) -> dict[str, int]:
    """Bytes that a process has of layers *bounds*, and had at most while it read them."""
    run = [sys.executable, "-c", MEASURE, str(folder), *map(str, bounds)]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fp8", [False, True])
def test_experts_that_are_stacked_and_fp8_that_is_widened_are_counted(tmp_path, fp8):
    info = describe(deepseek(tmp_path, fp8=fp8))
    found = structure_of(info)
    assert (sum(part.held for part in found.layers) > 1.5 * sum(info.layers)) == fp8
    for bounds in ((0, LAYERS), (1, LAYERS), (1, 2)):
        measured = measure(tmp_path, bounds)
        assert measured["held"] == pytest.approx(found.held(*bounds), rel=0.02)
        # What comes between where fp8 is widened is less on a CPU than on a GPU.
        peak = found.peak(*bounds)
        assert (0.7 if fp8 else 0.95) * peak < measured["peak"] < 1.01 * peak


@pytest.mark.parametrize("bias", [False, True])
def test_what_is_there_while_a_part_is_read_is_counted(tmp_path, bias):
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 512}
    config = config_of("llama", **sizes, num_hidden_layers=LAYERS, attention_bias=bias)
    write_model(tmp_path, config, random_weights(config))
    info = describe(tmp_path)
    found = structure_of(info)
    for bounds in ((0, LAYERS), (1, LAYERS)):
        measured = measure(tmp_path, bounds)
        assert measured["held"] == pytest.approx(found.held(*bounds), rel=0.02)
        assert 0.95 * found.peak(*bounds) < measured["peak"] < 1.01 * found.peak(*bounds)


@pytest.mark.parametrize(
    "family",
    rows(["llama", "gemma3n", "qwen3_next", "deepseek_v3", "mamba2"], "deepseek_v3", "mamba2"),
)
@pytest.mark.parametrize("bits", rows([0, 4], 4))
def test_weights_and_caches_are_what_a_loaded_rank_says(tmp_path, family, bits):
    info = describe(write(tmp_path, family, bits=bits))
    found = structure_of(info)
    count = len(info.layers)
    cuts = [cut for cut in range(1, count) if cut not in found.joined][-1:]
    bounds = [0, *cuts, count]
    for first, last in pairwise(bounds):
        loaded = load_stage(info, first, last)
        assert found.held(first, last) == loaded.held
        # A rank of recurrent layers also keeps a cache of 8 bytes a token, to know the offset.
        offsets = 8 * (TOKENS + 256)
        assert found.cache(first, last, TOKENS) == pytest.approx(
            loaded.cost.of(TOKENS), rel=0.02, abs=offsets
        )


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("llama", 250),  # its embedding, 320 x 128 of f32; a layer has 656,384 bytes
        ("qwen3_moe", 22),  # 320 x 128, and 4 of 16 experts of 3 x 1,024 x 128 beside attention
        ("gemma4", 1043),  # the embedding of each layer is looked up, and never multiplied
    ],
)
def test_the_head_is_what_a_token_reads_of_it(family, head, tmp_path):
    assert structure_of(describe(write(tmp_path / family, family))).head == head


@pytest.mark.parametrize(
    "family", rows(["llama", "gemma3n", "gemma4", "kimi_k3"], "gemma3n", "kimi_k3")
)
def test_the_hop_is_what_stages_send(family, tmp_path):
    """A hop may carry several tensors, and a prompt's chunk must fit a frame with all of them."""
    info = describe(write(tmp_path / family, family))
    found = structure_of(info)
    sent = []
    for cut in range(1, len(info.layers)):
        if cut not in found.joined:
            stage = load_stage(info, 0, cut).stage
            outputs = stage.run(stage.dummy_inputs(1, 1), stage.new_caches())
            sent.append(sum(output.nbytes for output in outputs))
    assert found.hop == max(sent)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_plan_names_experts_that_mlx_cannot_multiply_here(
    tmp_path: Path, dtype: mx.Dtype
) -> None:
    folder = write(tmp_path / "mixtral", "mixtral")
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    mx.save_safetensors(
        str(folder / "model.safetensors"), {name: a.astype(dtype) for name, a in weights.items()}
    )
    told = structure_of(describe(folder)).lacks
    fails = dtype == mx.bfloat16 and mx.default_device() == mx.Device(mx.cpu)
    assert ("MLX cannot run this mixtral model in BF16" in told) is fails

"""Small random models of several families, written to disk as Hugging Face does it.

Their weights are f32 and large enough that greedy text wanders and every layer matters, and their
windows are small enough that short prompts run past them.
"""

import json
import math
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from sealring_model.mlx_lm_import import mlx_lm

from tests.rows import rows

VOCABULARY = 256
HIDDEN = 64

_COMMON = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}

FAMILIES = {
    "llama": {"model_type": "llama", "num_hidden_layers": 5, "tie_word_embeddings": False},
    "llama-tied": {"model_type": "llama", "num_hidden_layers": 4, "tie_word_embeddings": True},
    "llama-sliding": {
        "model_type": "llama",
        "num_hidden_layers": 5,
        "tie_word_embeddings": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    },
    "qwen3": {"model_type": "qwen3", "num_hidden_layers": 4, "tie_word_embeddings": True},
    "gpt-oss": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "sliding_window": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 16,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 16,
    },
    # Every other layer keeps a recurrent state in place of keys and values.
    "qwen3-next": {
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
    },
}

TWINS = ("llama-tied", "qwen3", "gemma3")
"""Families each of whose kinds of layer, window and cache another one has, too."""

EVERY_FAMILY = rows([*FAMILIES], *(family for family in FAMILIES if family not in TWINS))
"""As the values of a parameter: those that others stand for are slow."""

EVERY_KIND = rows([*FAMILIES], *(family for family in FAMILIES if family not in TWINS), ci=())
"""The same for what depends on kinds of layer, window and cache alone: twins are long."""

SHARDED = {
    "llama": ("llama", {"num_hidden_layers": 3}),
    "qwen3": ("qwen3", {"num_hidden_layers": 2}),
    "gpt-oss": ("gpt-oss", {"num_hidden_layers": 2}),
    # The layers of its forerunner, dense, of a class that knows how to divide them.
    "qwen3-5": (
        "qwen3-next",
        {"model_type": "qwen3_5", "num_experts": 0, "num_hidden_layers": 2},
    ),
}
"""Families that tensor parallelism takes, as changes of others. Few layers, for members that wait
for each other in each of them take long where they share a core."""


def config_of(family: str, **changes: object) -> dict:
    config = {**_COMMON, **FAMILIES[family], **changes}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]]
    return config


def random_weights(config: dict, seed: int = 7) -> dict[str, mx.array]:
    """Weights for every parameter that mlx-lm's model of *config* has."""
    utils = mlx_lm("utils")
    model_class, args_class = utils._get_classes(config)
    model = model_class(args_class.from_dict(config))
    if config["model_type"] == "gemma3_text":
        model.pop("lm_head")
    key = mx.random.key(seed)
    weights = {}
    for name, old in tree_flatten(model.parameters()):
        key, own = mx.random.split(key)
        weights[name] = _random(name, old.shape, own)
    if config["model_type"] == "gemma3_text":
        # Its embedding is scaled up, and tied: left as it is, every token would repeat itself.
        weights["model.embed_tokens.weight"] *= 0.05
    return weights


def _random(name: str, shape: tuple[int, ...], key: mx.array) -> mx.array:
    noise = mx.random.normal(shape, key=key)
    if "norm" in name and name.endswith("weight"):
        return 1.0 + 0.1 * noise
    if len(shape) < 2:
        return 0.1 * noise
    scale = 0.3 if "embed" in name else 1.5 / math.sqrt(shape[-1])
    return scale * noise


def write_model(folder: Path, config: dict, weights: dict[str, mx.array], shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(weights)
    if shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), weights)
        return folder
    places = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        mx.save_safetensors(str(folder / file), part)
        places.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def make_model(folder: Path, family: str, shards: int = 1, **changes: object) -> Path:
    config = config_of(family, **changes)
    return write_model(folder, config, random_weights(config), shards)


def reference_model(folder: Path):
    """mlx-lm's own model, whole, in this process."""
    return mlx_lm("utils").load_model(folder)[0]


_KNOWN: dict[tuple[int, tuple[int, ...]], tuple[object, list[int]]] = {}


def reference_tokens(model, prompt: list[int], count: int) -> list[int]:
    """What mlx-lm generates, greedily, with its own loop and caches; kept for other tests."""
    key = (id(model), tuple(prompt))
    known = _KNOWN.get(key, (None, []))[1]
    if len(known) < count:
        generate_step = mlx_lm("generate").generate_step
        steps = generate_step(mx.array(prompt), model, max_tokens=max(count, 24))
        known = [int(token) for token, _ in steps]
        _KNOWN[key] = (model, known)
    return known[:count]


def nested(weights: dict[str, mx.array]):
    return tree_unflatten(list(weights.items()))

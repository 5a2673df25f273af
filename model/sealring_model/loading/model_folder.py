"""Finds a model and describes it, without loading it.

A model is a folder in Hugging Face layout. `describe` reads ``config.json`` and the headers of the
weights and nothing else, so it takes milliseconds, and no MLX. `ModelInfo` has the bytes of every
layer and of the ends (embedding, final norm, output head).

All ranks of a ring must have the same model digest: SHA-256 over the canonical config, the headers,
and the manifest's hashes if there is a manifest (see `weights`). Without a manifest the digest
covers names, dtypes and shapes but no weights, and `ModelInfo.notes` says so; the weights are then
told apart by samples alone (see `pins`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.tensor import DType
from sealring_protocol.limits import MAX_LAYERS

from sealring_model.errors import LoadError
from sealring_model.loading.adapter import WEIGHTS, Adapter, read_adapter
from sealring_model.loading.cgroups import memory_available
from sealring_model.loading.hub_hashes import hub_hashes
from sealring_model.loading.weights import (
    ENDS,
    FOREIGN,
    TensorEntry,
    header_lines,
    owner,
    read_json,
    read_manifest,
    read_weights,
)

# ---------------------------------------------------------------------- formats
# Folders and files that are models in another format: what they are, and what to do with them.


ADAPTER_FILES = ("adapters.safetensors", "adapter_model.safetensors", "adapter_config.json")


def other_format(path: Path) -> str | None:
    """What *path* is, if it is a model or part of one in a format that is not read here, and what
    to do; None if it is nothing known. A folder with weights that are read is not asked about."""
    if path.is_file():
        return _file(path)
    try:
        names = sorted(file.name for file in path.iterdir())
    except OSError:
        return None
    if any(name in ADAPTER_FILES for name in names):
        return (
            f"{path} is a LoRA adapter without its base model; fuse the two with "
            f"`mlx_lm.fuse --model BASE --adapter-path {path}` and take the result"
        )
    for name in names:
        if name.endswith((".bin", ".pt", ".pth")):
            return (
                f"{path} has PyTorch weights ({name}), which are not read here; convert them with "
                f"`mlx_lm.convert --hf-path {path} --mlx-path FOLDER` and take FOLDER"
            )
        if name.endswith(".gguf"):
            return _file(path / name)
        if name.startswith("consolidated") and name.endswith(".safetensors"):
            return (
                f"{path} has its weights in Mistral's own layout ({name}), which is not read here; "
                "take the model in Hugging Face's layout, or its conversion for MLX (on the hub: "
                "mlx-community)"
            )
    for name in names:
        if name.endswith(".safetensors"):
            return (
                f"{path} has no model*.safetensors, the name by which weights are known; rename "
                f"{name} if it is them"
            )
    return None


def other_quantization(config: Mapping[str, Any]) -> str | None:
    """What to say of a model with this *config* that mlx-lm cannot load, if it is quantized in a
    form that is not MLX's; None otherwise. mlx-lm converts some of GPTQ, AWQ and others itself."""
    text = config.get("text_config")
    told = config.get("quantization_config")
    if told is None and isinstance(text, dict):
        told = text.get("quantization_config")
    method = told.get("quant_method") if isinstance(told, dict) else None
    if not isinstance(method, str) or config.get("quantization") is not None:
        return None
    return (
        f"its weights are quantized by {method} (quantization_config in config.json), in a form "
        "that mlx-lm does not convert; take the model that it was made from, quantized with "
        "`mlx_lm.convert -q`, or its conversion for MLX (on the hub: mlx-community)"
    )


def _file(path: Path) -> str | None:
    if path.suffix == ".gguf":
        return (
            f"{path} is a GGUF file, which is not read here; take the model that it was made from, "
            "or its conversion for MLX (on the hub: mlx-community)"
        )
    if path.suffix == ".safetensors":
        return f"{path} is one file of a model; give the folder that it is in"
    return None


NEEDED_FILES: Final = (
    "*.json",
    "model*.safetensors",
    "tokenizer.model",
    "*.tiktoken",
    "*.jinja",
    "merges.txt",
    "vocab.txt",
)
"""Files that are fetched from the hub: weights, configuration and tokenizer, but no code."""

_DTYPES: Final = {"F32": DType.F32, "F16": DType.F16, "BF16": DType.BF16}
_NAMED: Final = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16}
_FULL_ATTENTION: Final = frozenset(
    ("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "granite", "olmo2")
)
"""Model types without sliding windows, unless their configuration names sliding layers."""

_EXPERTS: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
"""What configurations call the number of experts that a token takes in a layer. It is used for the
split alone; where it is called otherwise, all of them count."""
_ALL: Final = 1 << 31

NO_LIMIT: Final = 1 << 31
"""The context of a model whose configuration tells no limit of it."""

_CONTEXT: Final = (
    "model_max_length",  # Cohere's real one: its max_position_embeddings is a quarter, or less
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
)
"""What configurations call the tokens that a row may have; the first that is a number counts."""

_LAYERS: Final = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_transformer_layers",
)
_MOST: Final = {
    re.compile(r"layers?$|depth$|blocks$"): MAX_LAYERS,
    re.compile(r"experts$|heads$|codebooks$"): 1 << 14,
    re.compile(r"labels$"): 1 << 17,
}
"""The most that keys of a configuration may say whose numbers become so many objects."""

_WIDTH: Final = ("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim")

_HEADS: Final = (
    "num_attention_heads",
    "num_key_value_heads",
    "num_attention_groups",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
"""Keys of a configuration that give numbers of heads, of each kind."""

_EMBEDDINGS: Final = ("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embedding")


@attrs.frozen
class ModelInfo:
    """What a model is, from its configuration and headers. Sizes are bytes.

    *layers* has the size of each layer's weights on the disk; *ends* that of embedding, final norm
    and output head. What they take in memory may be another (`structure`). *heads* are the numbers
    of heads that tensor parallelism would divide: of attention, of keys and values, of any other
    kind. A token takes *experts* of each layer's. *hub_hashes* are of the files of weights, by name
    (see `hub_hashes`); if the weights are *trusted*, nothing is held to them. *notes* are for the
    user. The model is used with its *adapter*, if it has one. With *narrow* hops, hidden states in
    F32 pass between ranks in BF16.
    """

    folder: Path
    digest: bytes
    unpinned: bytes
    kind: str
    dtype: DType
    hidden: int
    vocabulary: int
    experts: int
    context: int
    trimmable: bool
    ends: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    entries: dict[str, TensorEntry] = attrs.field(repr=False)
    manifest: dict[str, str] | None = attrs.field(repr=False)
    hub_hashes: dict[str, str] = attrs.field(repr=False)
    trusted: bool = False
    notes: tuple[str, ...] = ()
    adapter: Adapter | None = None
    narrow: bool = False

    @property
    def hop_dtype(self) -> DType:
        """The dtype of hidden states between ranks."""
        return DType.BF16 if self.narrow and self.dtype is DType.F32 else self.dtype

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return self.ends + sum(self.layers)

    @property
    def even(self) -> int:
        """The largest number that divides every number of heads."""
        return math.gcd(*self.heads)

    def engine_info(self, room: int) -> EngineInfo:
        """This for the node, from an engine with *room* bytes for weights and caches.

        The rest takes MLX to find out, see `engine.description`.
        """
        return EngineInfo(
            self.digest,
            self.hop_dtype,
            self.hidden,
            self.vocabulary,
            self.context,
            self.trimmable,
            room,
            self.ends,
            self.layers,
        )


def find(model: str) -> Path:
    """The folder of *model*, a local path.

    Raises `LoadError`, which says what to do, if there is no such folder.
    """
    try:
        folder = Path(model).expanduser()
    except RuntimeError:
        raise LoadError(f"{model} is in the home of a user whom this machine has not") from None
    try:
        if folder.is_dir():
            return folder.resolve()
        there = folder.exists()
    except OSError as error:
        raise LoadError(f"cannot look at {model}: {error.strerror}") from None
    if there:
        raise LoadError(
            other_format(folder)
            or f"{model} is a file; a model is a folder with config.json and weights"
        )
    raise LoadError(f"there is no folder {model}")


def describe(folder: Path, adapter: Path | None = None, *, trusted: bool = False) -> ModelInfo:
    """Describe the model in *folder* by its configuration, headers and manifest, to be used with
    the *adapter* in another folder, if there is one; *trusted* is the user's word for the weights.

    Raises `LoadError` if a part is missing or does not fit.
    """
    _check_files(folder)
    if not any(folder.glob("model*.safetensors")) and (found := other_format(folder)):
        raise LoadError(found)
    try:
        used = None if adapter is None else read_adapter(adapter)
        info = _describe(folder, read_json(folder / "config.json"), used)
        return attrs.evolve(info, trusted=trusted)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise LoadError(
            f"{folder / 'config.json'} has values of another kind than a model's"
        ) from None


def _check_files(folder: Path) -> None:
    """Raise `LoadError` if *folder* has a special file: a library that opens it might wait for
    ever."""
    try:
        files = list(folder.iterdir())
    except OSError as error:
        raise LoadError(f"cannot look into {folder}: {error.strerror}") from None
    for file in files:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise LoadError(f"{file} is no regular file")


def _describe(folder: Path, config: dict[str, Any], adapter: Adapter | None) -> ModelInfo:
    _check_kind(folder, config)
    entries, odd = read_weights(folder)
    manifest = read_manifest(folder)
    text = _text_config(config)
    embedding = _embedding(entries)
    count = _positive(text, _LAYERS, _last_layer(entries) + 1)
    if count > MAX_LAYERS:
        raise LoadError(f"the model has {count} layers; the limit is {MAX_LAYERS}")
    _check_counts(config)
    sizes = _sizes(entries, count)
    notes = [f"{folder}: {note}" for note in odd]
    known = hub_hashes({entry.file for entry in entries.values()})
    if manifest is None and not all(known.values()):
        notes.append(
            "no sealring.json: of the weights a sample is compared (see: sealring digest --help)"
        )
    elif unknown := sorted((manifest or {}).keys() - entries.keys()):
        raise LoadError(f"the manifest names tensor {unknown[0]}, which the weights lack")
    if adapter is None and (folder / WEIGHTS).exists():
        notes.append(
            f"{WEIGHTS} beside the model is ignored; adapter = '{folder}' in the config uses it"
        )
    context = _context(text)
    if context == NO_LIMIT:
        notes.append("config.json tells no length of the context: no limit of it is known")
    dtype = _hidden_dtype(config, text, entries)
    return ModelInfo(
        folder=folder,
        digest=_digest(config, entries, manifest, adapter),
        unpinned=b"" if manifest is None else _digest(config, entries, None, adapter),
        kind=str(config.get("model_type", "")),
        dtype=dtype,
        hidden=_positive(text, _WIDTH, embedding[1]),
        vocabulary=_positive(text, ("vocab_size", "num_vocab"), embedding[0]),
        experts=next((n for name in _EXPERTS if isinstance(n := text.get(name), int)), _ALL),
        context=context,
        trimmable=_trimmable(text),
        ends=sizes.pop(ENDS),
        layers=tuple(sizes[layer] for layer in range(count)),
        heads=_heads(text),
        entries=entries,
        manifest=manifest,
        hub_hashes=known,
        notes=tuple(notes),
        adapter=adapter,
    )


def _check_kind(folder: Path, config: dict[str, Any]) -> None:
    """Raise `LoadError` if *config* names no class of mlx-lm's, or code of its own."""
    if not isinstance(config.get("model_type"), str):
        raise LoadError(f"{folder / 'config.json'} has no model_type, which names the model's kind")
    if config.get("model_file") is not None:
        raise LoadError(
            f"the model in {folder} is to be computed by code of its own ({config['model_file']}), "
            "which sealring does not run; take a model of a kind that mlx-lm knows"
        )


def _check_counts(config: dict[str, Any]) -> None:
    """Raise `LoadError` if *config*, or a part of it, counts more layers or experts than a model
    has. mlx-lm and transformers make an object of each before they look at the weights, and not all
    look at the same part."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_counts(value)
        elif isinstance(value, int | float):
            for keys, most in _MOST.items():
                if value > most and keys.search(name):
                    raise LoadError(f"config.json has {value:.6g} for {name}; the limit is {most}")


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a configuration, which may describe more."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _positive(config: dict[str, Any], names: tuple[str, ...], found: int) -> int:
    """The number under one of *names*. A configuration may leave out what is its class's default
    (Gemma 3's does); then it is what was *found* in the weights, unless that is 0."""
    given = [config[name] for name in names if name in config]
    for value in given:
        if isinstance(value, int) and value > 0:
            return value
    if found and not any(given):
        return found
    for name in names:
        if config.get(name) is not None:
            raise LoadError(
                f"config.json has {json.dumps(config[name])} for {name}, which is no whole number "
                "above 0"
            )
    raise LoadError(f"config.json has no {names[0]}")


def _embedding(entries: dict[str, TensorEntry]) -> tuple[int, int]:
    """The shape of the embedding: tokens, and elements if it is not quantized; 0 for what is not
    known."""
    for name, entry in entries.items():
        *_, module, kind = ("", *name.split("."))
        if module in _EMBEDDINGS and kind == "weight" and len(entry.shape) == 2:
            rows, width = entry.shape
            return rows, 0 if entry.dtype == "U32" else width
    return 0, 0


def _last_layer(entries: dict[str, TensorEntry]) -> int:
    """The highest number of a layer in the names of *entries*; -1 if there is none."""
    return max((owner(name, MAX_LAYERS) for name in entries), default=-1)


def _context(text: dict[str, Any]) -> int:
    """The tokens that a row may have: the first number under one of `_CONTEXT`, or what YaRN makes
    of the length that the model was trained with; `NO_LIMIT` if the configuration tells none."""
    found = next((length for name in _CONTEXT if (length := _length(text.get(name)))), 0)
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if isinstance(scaling, dict) and "yarn" in (scaling.get("rope_type"), scaling.get("type")):
        factor, trained = scaling.get("factor"), scaling.get("original_max_position_embeddings")
        if isinstance(factor, int | float) and isinstance(trained, int | float):
            found = max(found, _length(factor * trained))
    return found or NO_LIMIT


def _length(value: object) -> int:
    """*value* as a number of tokens; 0 if it is none. Some tools write it as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 1 <= value < NO_LIMIT else 0


def _sizes(entries: dict[str, TensorEntry], count: int) -> dict[int, int]:
    sizes = dict.fromkeys((ENDS, FOREIGN, *range(count)), 0)
    for entry in entries.values():
        sizes[owner(entry.name, count)] += entry.size
    empty = [layer for layer in range(count) if not sizes[layer]]
    if empty:
        raise LoadError(f"the weights have no tensor of layer {empty[0]}")
    return sizes


def _hidden_dtype(
    config: dict[str, Any], text: dict[str, Any], entries: dict[str, TensorEntry]
) -> DType:
    """The dtype of the embedding, or of its scales if it is quantized."""
    found = {}
    for name, entry in entries.items():
        parts = name.split(".")
        if len(parts) > 1 and parts[-2] in _EMBEDDINGS and parts[-1] in ("scales", "weight"):
            found[parts[-1]] = entry.dtype
    named = text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype")
    for candidate in (found.get("scales"), found.get("weight")):
        if candidate in _DTYPES:
            return _DTYPES[candidate]
    return _NAMED.get(str(named), DType.BF16)


def _trimmable(text: dict[str, Any]) -> bool:
    """Whether snapshots can be trimmed, by the configuration. READY tells it from the caches."""
    kinds = text.get("layer_types") or ()
    plain = all(kind == "full_attention" for kind in kinds)
    return text.get("model_type") in _FULL_ATTENTION and plain


def _heads(text: dict[str, Any]) -> tuple[int, ...]:
    found = (text.get(name) for name in _HEADS)
    return tuple(number for number in found if isinstance(number, int) and number > 0) or (1,)


def _digest(
    config: dict[str, Any],
    entries: dict[str, TensorEntry],
    manifest: dict[str, str] | None,
    adapter: Adapter | None,
) -> bytes:
    value = {"config": config, "headers": header_lines(entries.values()), "manifest": manifest}
    if adapter is not None:
        value["adapter"] = {"config": adapter.config, "weights": adapter.sha256}
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(b"sealring model 1\n" + canonical.encode()).digest()


def memory_budget(limit: int) -> int:
    """Bytes for weights and caches: *limit* unless that is 0, else what the device has free."""
    if limit:
        return limit
    import mlx.core as mx  # noqa: PLC0415 - only the process that computes needs it

    device = mx.device_info()
    for key in ("max_recommended_working_set_size", "free_memory", "memory_size", "total_memory"):
        if isinstance(device.get(key), int):
            return int(device[key])
    return _free_memory()


def _free_memory() -> int:
    """On Linux the bytes that this host can give without swapping and that control groups allow;
    elsewhere all that it has."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    allowed = memory_available()
    return free if allowed is None else min(free, allowed)

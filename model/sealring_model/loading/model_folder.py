"""Finds a model and describes it, without loading it.

A model is a folder in Hugging Face layout. `describe` reads ``config.json`` and the headers of the
weights and nothing else, so it takes milliseconds, and no MLX. `ModelInfo` has the bytes of every
layer and of the ends (embedding, final norm, output head).

An adapter is a small fine-tuning (LoRA, DoRA) in a folder of its own, used with its base model. It
is in the form that ``mlx_lm.lora`` writes: ``adapter_config.json`` and ``adapters.safetensors``.
mlx-lm itself puts it into the model that it has built, before the weights are read, so each rank
reads of the adapter what belongs to its layers.

All ranks of a ring must have the same model digest: SHA-256 over the canonical config, the headers,
the manifest's hashes if there is a manifest (see `weights`), and the adapter's configuration and
weights. Without a manifest the digest covers names, dtypes and shapes but no weights, and
`ModelInfo.notes` says so. Two fine-tunings of one model then share it. They differ in pins
alone, short hashes of what they differ in (`pins_of`; the specification, 8.15). A pin reads a
sample of the weights, at most 64 pieces of 4 KiB of each layer, so it takes a fraction of a second
where hashing all would take as long as loading. Two models of other weights have other pins unless
all that differs lies outside of the sample; a manifest has no such gap.

The hub's own tools keep the SHA-256 of each file (`hub_hashes`). In their cache a file is a link to
one that is named by its hash. In a folder of `hf download --local-dir` a text file beside it has
the hash.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
from sealring_protocol.codec.tensor import DType
from sealring_protocol.limits import MAX_LAYERS

from sealring_model.errors import LoadError
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import (
    ENDS,
    FOREIGN,
    TensorEntry,
    header_lines,
    open_file,
    owner,
    read_json,
    read_manifest,
    read_weights,
)

if TYPE_CHECKING:
    pass


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

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapters.safetensors"
ADAPTER_FILES = ("adapters.safetensors", "adapter_model.safetensors", "adapter_config.json")

NO_LIMIT: Final = 1 << 31
"""The context of a model whose configuration has no limit of it."""

_ALL: Final = 1 << 31
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

_NOTES: Final = Path(".cache", "huggingface", "download")
"""Where `hf download --local-dir` keeps, for each file, its commit, its hash and a time: a line
each."""

_MAX_NOTE: Final = 4096
_PIECE: Final = 4096

_PIECES: Final = 64
"""Pieces of one part, at most."""

_OF_TENSOR: Final = 4
"""Pieces of one tensor, at most."""

_ZEROS: Final = 0.3
"""The share of a layer's matrices that may be zeros. A layer that was added to a model and is not
trained yet (LLaMA Pro) has two of seven; of a file that was not fetched whole it is half or all."""

_NUMBER: Final = re.compile("[0-9]+")
"""Tensors whose names differ in numbers alone are of one kind, as those of experts are."""

_SHA256: Final = re.compile("[0-9a-f]{64}")
_Thing = TypeVar("_Thing")


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


@attrs.frozen
class Adapter:
    """The adapter in *folder*, with its configuration and the SHA-256 of its weights, in
    hexadecimal."""

    folder: Path
    config: dict[str, Any]
    sha256: str


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


def read_adapter(folder: Path) -> Adapter:
    """The adapter in *folder*. Reads all of it once, to hash it.

    Raises `LoadError`, which says what to do, if it is none of mlx-lm's.
    """
    if not folder.is_dir():
        raise LoadError(f"there is no folder {folder} with an adapter")
    if not (folder / CONFIG).exists():
        raise LoadError(f"{folder} has no {CONFIG}, so it is no adapter")
    config = read_json(folder / CONFIG)
    if "peft_type" in config or not (folder / WEIGHTS).exists():
        raise LoadError(
            f"{folder} is no adapter of mlx-lm's, which has {WEIGHTS}; merge it into its base "
            "model with the library that made it (PEFT: merge_and_unload), and convert the result"
        )
    with open_file(folder / WEIGHTS) as stream:
        return Adapter(folder, config, hashlib.file_digest(stream, "sha256").hexdigest())


def hub_hashes(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each of *files* in hex by its name, as the hub has it; "" if unknown."""
    return {file.name: _of_link(file) or _of_note(file) for file in files}


def pins_of(info: ModelInfo) -> tuple[int, ...]:
    """The pins of *info*'s model: of its files, its ends, and each layer. A pin is 0 if it cannot
    be known: of a model that is here in part, those of other layers, unless its source gave them.

    Raises `LoadError` if a file cannot be read.
    """
    count = len(info.layers)
    partial = PartialModel.open(info.folder)
    parts: dict[int, list[TensorEntry]] = {part: [] for part in (ENDS, *range(count))}
    for name in sorted(info.entries):
        parts.get(owner(name, count), []).append(info.entries[name])
    if partial is None:
        files = _files_pin(info.hub_hashes)
        return files, *(_part_pin(found, info) for found in parts.values())
    files = _files_pin({name: file.sha256 for name, file in partial.origin.files.items()})
    known = partial.origin.pins if len(partial.origin.pins) == count + 2 else (0,) * (count + 2)
    here = (not partial.missing([entry.name for entry in found]) for found in parts.values())
    return files or known[0], *(
        _part_pin(found, info) if complete else pin
        for found, complete, pin in zip(parts.values(), here, known[1:], strict=True)
    )


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
    named = config.get("quantization_config")
    if named is None and isinstance(text, dict):
        named = text.get("quantization_config")
    method = named.get("quant_method") if isinstance(named, dict) else None
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
        notes.append("config.json has no length of the context: no limit of it is known")
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
    return max((owner(name, MAX_LAYERS) for name in entries), default=-1)


def _context(text: dict[str, Any]) -> int:
    """The tokens that a row may have: the first number under one of `_CONTEXT`, or what YaRN makes
    of the length that the model was trained with; `NO_LIMIT` if the configuration has none."""
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
    """Whether snapshots can be trimmed, by the configuration. READY has it from the caches."""
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


def _of_link(file: Path) -> str:
    return _plain(Path(os.path.realpath(file)).name) if file.is_symlink() else ""


def _of_note(file: Path) -> str:
    note = file.parent / _NOTES / f"{file.name}.metadata"
    try:
        with open_file(note) as stream:
            lines = stream.read(_MAX_NOTE).decode("ascii", "replace").splitlines()
        _commit, known, when = lines[:3]
        # A file that was written again after its download is no longer the hub's.
        return _plain(known) if float(when) > file.stat().st_mtime - 1 else ""
    except (LoadError, OSError, ValueError):
        return ""


def _plain(text: str) -> str:
    return text if _SHA256.fullmatch(text) else ""


def _files_pin(hashes: Mapping[str, str]) -> int:
    """The pin of the SHA-256 of each file; 0 if one is not known."""
    if not all(map(_SHA256.fullmatch, hashes.values())):
        return 0
    lines = (f"{name} {hashes[name]}\n".encode() for name in sorted(hashes))
    return _pin([b"sealring files 1\n", *lines])


def _part_pin(entries: Sequence[TensorEntry], info: ModelInfo) -> int:
    """The pin of the sample of *entries*, which are ordered by name. Raises `LoadError` if too many
    matrices are zeros in all of their sample, unless the user vouches for the weights."""
    chosen = _chosen(entries)
    content = [b"sealring sample 1\n"]
    matrices, zeros = 0, []
    for entry in chosen:
        count = max(1, min(_OF_TENSOR, _PIECES // len(chosen)))
        content.append(f"{entry.name}\n".encode())
        pieces = list(_read(entry, _places(entry.size, count)))
        content += pieces
        if len(entry.shape) > 1 and entry.size:
            matrices += 1
            if not any(piece.strip(b"\0") for piece in pieces):
                zeros.append(entry)
    if len(zeros) > _ZEROS * matrices and not info.trusted:
        first = zeros[0]
        raise LoadError(
            f"{first.name} in {first.file} is nothing but zeros, and so are {len(zeros)} of "
            f"{matrices} matrices of its layer: a part of the file is missing",
            f"fetch {first.file.name} again, or say trust_weights = true if it is so on purpose",
        )
    return _pin(content)


def _chosen(entries: Sequence[TensorEntry]) -> Sequence[TensorEntry]:
    """*entries*, or if they are many equally many of each kind: the weights of attention, which a
    fine-tuning changes, are few beside those of experts."""
    if len(entries) <= _PIECES:
        return entries
    kinds: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        kinds.setdefault(_NUMBER.sub("0", entry.name), []).append(entry)
    some = _spread([kinds[kind] for kind in sorted(kinds)], _PIECES)
    each = _PIECES // len(some)
    found = [entry for alike in some for entry in _spread(alike, each)]
    return sorted(found, key=lambda entry: entry.name)


def _spread(things: Sequence[_Thing], most: int) -> Sequence[_Thing]:
    count = len(things)
    return things if count <= most else [things[at * count // most] for at in range(most)]


def _places(size: int, count: int) -> list[int]:
    """Where *count* pieces of a tensor of *size* bytes begin: evenly from its first byte to its
    last, or one piece if it has no more."""
    last = max(0, size - _PIECE)
    if count == 1 or not last:
        return [0]
    return [at * last // (count - 1) for at in range(count)]


def _read(entry: TensorEntry, places: Iterable[int]) -> Iterable[bytes]:
    with open_file(entry.file) as stream:
        for place in places:
            size = min(_PIECE, entry.size - place)
            try:
                piece = os.pread(stream.fileno(), size, entry.offset + place)
            except OSError as error:
                raise LoadError(f"cannot read {entry.file}: {error.strerror}") from None
            if len(piece) < size:
                raise LoadError(f"{entry.file} ends within tensor {entry.name}")
            yield piece


def _pin(content: Iterable[bytes]) -> int:
    """The first 8 bytes of the SHA-256 of *content*, as a number that is not 0."""
    hashed = hashlib.sha256()
    for part in content:
        hashed.update(part)
    return int.from_bytes(hashed.digest()[:8]) or 1

"""Random models to measure with, of a stated size and dtype: nothing to download.

They are of the Qwen2 family, since it is one that mlx-lm's own pipeline splits too, and have the
tiny model's tokenizer, filled up to their vocabulary with words that no text contains. Weights are
random signs and mantissas under one exponent, which big integers make in a moment: their values do
not matter, as long as they are neither zeros nor infinities. Only the token that ends a text is
all zeros, in the embedding that is the output head too: its logit is 0, and no text ends by itself.

A *steady* one takes as long, but its layers change the hidden states so little that each token is
followed by itself. No last bit of the arithmetic makes another text of that, in whatever way the
tokens are batched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import attrs
from sealring_model import tiny
from sealring_trio.files.models import find_whole_model

DType = Literal["f32", "bf16"]
SizeName = Literal["5m", "25m", "25m-even", "450m", "8b", "32b"]


@attrs.frozen
class Size:
    """The shapes of one model."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int


SIZES: Final[Mapping[SizeName, Size]] = {
    # 25m-even has as many parameters as 25m, in layers that two and four ranks can share equally.
    "5m": Size(6, 256, 640, 4, 2, 4096),
    "25m": Size(7, 512, 1408, 8, 4, 8192),
    "25m-even": Size(8, 512, 1184, 8, 4, 8192),
    "450m": Size(26, 1024, 4096, 16, 8, 32_000),
    "8b": Size(32, 4096, 14_336, 32, 8, 128_256),
    "32b": Size(64, 5120, 27_648, 40, 8, 152_064),
}
CONTEXT: Final = 16_384
POOL: Final = 1_000_003
"""Random values to cut weights from; a prime, so that no row of a matrix falls on another."""

_EMBEDDING: Final = "model.embed_tokens.weight"
_END: Final = 0
"""The token that ends a text: the embedding's first line."""

_ADDED: Final = ("o_proj.weight", "down_proj.weight")
"""What gives the values that a layer adds to the hidden states."""

_STEP: Final = 70_001  # between the beginnings of two tensors


@attrs.frozen
class _Format:
    """How a dtype is written. Of each value, *noise* says which bits are random; *exponent* makes
    it one of 1/64 to 1/32, and *faint* one of 2^-22 to 2^-21. All are little-endian, as the file
    is."""

    code: str
    torch: str
    noise: bytes
    exponent: bytes
    faint: bytes
    one: bytes

    @property
    def size(self) -> int:
        return len(self.one)


_FORMATS: Final[Mapping[DType, _Format]] = {
    "f32": _Format(
        "F32",
        "float32",
        b"\xff\xff\x7f\x80",
        b"\x00\x00\x80\x3c",
        b"\x00\x00\x80\x34",
        struct.pack("<f", 1.0),
    ),
    "bf16": _Format("BF16", "bfloat16", b"\x7f\x80", b"\x80\x3c", b"\x80\x34", b"\x80\x3f"),
}


@contextlib.contextmanager
def model_or_random(
    model: str | None, size: SizeName | Literal["tiny"], dtype: DType, *, steady: bool = False
) -> Iterator[tuple[Path, str]]:
    """*model*, a folder or hub id, and what to call it; or, for None, the tiny one, or a random
    one, *steady* or not, which is gone when the block ends."""
    if model is not None:
        folder = find_whole_model(model)
        yield folder, folder.name
        return
    if size == "tiny":
        yield tiny.path(), size
        return
    with tempfile.TemporaryDirectory(prefix="sealring-") as temporary:
        yield write_random_model(Path(temporary), size, dtype, steady=steady), f"{size} {dtype}"


def write_random_model(
    folder: Path, size: SizeName = "25m", dtype: DType = "f32", *, steady: bool = False
) -> Path:
    """Write the model to *folder*; the same one each time."""
    shape, form = SIZES[size], _FORMATS[dtype]
    source = tiny.path()
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, folder / name)
    _write_tokenizer(source / "tokenizer.json", folder / "tokenizer.json", shape.vocabulary)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "eos_token_id": _END,
        "torch_dtype": form.torch,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(folder, dict(_shapes(shape)), form, steady=steady)
    return folder


def _write_tokenizer(source: Path, target: Path, vocabulary: int) -> None:
    tokenizer: dict[str, Any] = json.loads(source.read_text("utf-8"))
    pieces = tokenizer["model"]["vocab"]
    pieces += [[f"#{number}", -1000.0] for number in range(len(pieces), vocabulary)]
    target.write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")


def _shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = size.hidden, size.feed_forward
    narrow = hidden // size.heads * size.kv_heads
    yield _EMBEDDING, (size.vocabulary, hidden)
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}"
        for name, width in (("q", hidden), ("k", narrow), ("v", narrow)):
            yield f"{prefix}.self_attn.{name}_proj.weight", (width, hidden)
            yield f"{prefix}.self_attn.{name}_proj.bias", (width,)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, hidden)
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)


def _write_weights(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], form: _Format, *, steady: bool
) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        end = offset + form.size * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": form.code, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    usual = _make_pool(form, form.exponent)
    faint = _make_pool(form, form.faint) if steady else usual
    file_name = "model.safetensors"
    with (folder / file_name).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for index, (name, entry) in enumerate(header.items()):
            first, last = entry["data_offsets"]
            pool = faint if name.endswith(_ADDED) else usual
            if name.endswith("norm.weight"):
                file.write(form.one * ((last - first) // form.size))
            elif name == _EMBEDDING:
                end = form.size * shapes[name][1]
                file.write(bytes(end))
                file.writelines(_cut(pool, 0, last - first - end))
            else:
                file.writelines(_cut(pool, index * _STEP % POOL * form.size, last - first))
    # mlx-lm's pipeline looks up there which file has which layer.
    places = {"metadata": {"total_size": offset}, "weight_map": dict.fromkeys(shapes, file_name)}
    (folder / f"{file_name}.index.json").write_text(json.dumps(places))


def _make_pool(form: _Format, exponent: bytes) -> bytes:
    size = POOL * form.size
    noise = int.from_bytes(hashlib.shake_128(b"random model").digest(size), "little")
    mask = int.from_bytes(form.noise * POOL, "little")
    exponents = int.from_bytes(exponent * POOL, "little")
    return (noise & mask | exponents).to_bytes(size, "little")


def _cut(pool: bytes, start: int, size: int) -> Iterator[bytes]:
    """*size* bytes from the *pool*, which is read round and round from *start* on."""
    while size:
        yield (part := pool[start : start + size])
        size -= len(part)
        start = 0

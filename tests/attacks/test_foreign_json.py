"""JSON that a hub, a member or a model's folder gives: nothing that is small on its way becomes
large in the node, and what models have in fact can still be read."""

from __future__ import annotations

import json
import re
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sealring_model import tiny
from sealring_model.errors import LoadError
from sealring_model.loading.foreign_json import (
    ANY,
    BOUNDS,
    HEADER,
    HUB_LISTING,
    MEMBER_LISTING,
    ForeignFault,
    parse_foreign,
)
from sealring_model.loading.model_folder import describe
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import read_entries
from sealring_model.text.tokens import Tokenizer, check_tokenizer, has_chat_template
from sealring_trio.fetching.hub import Hub
from sealring_trio.fetching.members import read_listing
from sealring_trio.fetching.source import FetchFault

from tests.attacks.test_hub import MODEL, hostile, whole

ROOT = Path(__file__).parents[2]


def many(values: int) -> bytes:
    """An object with so many lists, of three bytes each, which take 60 in memory."""
    return b'{"a":[' + b"[]," * (values - 1) + b"[]]}"


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Within the block Python's objects take *size* bytes more, at most, at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size


def test_a_listing_of_the_hubs(tmp_path: Path) -> None:
    body = many(2_000_000)
    fault = pytest.raises(FetchFault, match=r"listing of .* cannot be read: it has .* values")
    with hostile(whole(body)) as url, at_most(4 * len(body)), fault:
        Hub(endpoint=url).list(MODEL, "main")


def test_a_listing_of_a_members() -> None:
    body = many(4_000_000)
    with at_most(2 * len(body)), pytest.raises(ValueError, match="values"):
        read_listing(body)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the model that ships with sealring."""
    return Path(shutil.copytree(tiny.path(), tmp_path / "model"))


def with_header(folder: Path, text: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


LIBRARY = 32 << 20
"""Bytes that transformers takes when it is imported."""

FILES: dict[str, tuple[int, Callable[[Path], Any]]] = {
    "config.json": (1_000_000, describe),
    "model.safetensors.index.json": (1_000_000, read_entries),
    "sealring.json": (1_000_000, describe),
    "sealring.partial.json": (1_000_000, PartialModel.open),
    "tokenizer_config.json": (1_000_000, has_chat_template),
    "tokenizer.json": (5_000_000, Tokenizer),
    "vocab.json": (2_000_000, check_tokenizer),
    "special_tokens_map.json": (1_000_000, Tokenizer),
    "generation_config.json": (1_000_000, Tokenizer),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_models_folder(folder: Path, name: str) -> None:
    count, read = FILES[name]
    body = many(count)
    (folder / name).write_bytes(body)
    with at_most(3 * len(body) + LIBRARY), pytest.raises(LoadError, match=rf"{name} .* values"):
        read(folder)


def test_the_header_of_a_weight_file(folder: Path) -> None:
    text = many(3_000_000)
    with_header(folder, text)
    with at_most(3 * len(text)), pytest.raises(LoadError, match=r"headers? of .* values"):
        read_entries(folder)


def test_headers_that_are_too_many_together(folder: Path) -> None:
    text = b'{"__metadata__":{' + b'"":"",' * 700_000 + b'"":""}}'
    for number in range(3):
        with_header(folder, text)
        (folder / "model.safetensors").rename(folder / f"model-{number}.safetensors")
    with pytest.raises(LoadError, match=r"headers of .* too many values"):
        read_entries(folder)


def tensors(count: int) -> list[str]:
    return [f"model.layers.{n // 1000}.mlp.experts.{n % 1000}.w_packed" for n in range(count)]


def vocabulary(count: int) -> bytes:
    """That of Gemma 3, but for its words: as many tokens, merges, and added tokens."""
    added = {"content": "x", "single_word": False, "lstrip": False, "special": True, "id": 1}
    words = {f"{n:x}": n for n in range(count)}
    merges = [[f"{n:x}", "y"] for n in range(2 * count)]
    told = {"added_tokens": [added] * 6400, "model": {"vocab": words, "merges": merges}}
    return json.dumps(told).encode()


def listing(count: int) -> bytes:
    lfs = {"sha256": "0" * 64, "size": 1 << 40, "pointerSize": 135}
    files = [
        {"rfilename": f"model-{n:05}-of-02000.safetensors", "size": 1, "blobId": "0", "lfs": lfs}
        for n in range(count)
    ]
    return json.dumps({"siblings": files, "sha": "0" * 40}).encode()


ADDED = {
    "content": "<|s_1|>",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
    "special": True,
}
LARGE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "an index of 200,000 tensors": (
        "model.safetensors.index.json",
        lambda: json.dumps(
            {"weight_map": dict.fromkeys(tensors(200_000), "model-00001-of-02000.safetensors")}
        ).encode(),
    ),
    "what a member has of 200,000 tensors": (
        MEMBER_LISTING,
        lambda: json.dumps({"tensors": dict.fromkeys(tensors(200_000), "0" * 64)}).encode(),
    ),
    "a header of 100,000 tensors": (
        HEADER,
        lambda: json.dumps(
            {
                name: {"dtype": "BF16", "shape": [1, 1], "data_offsets": [0, 2]}
                for name in tensors(100_000)
            }
        ).encode(),
    ),
    "the largest vocabulary that there is": ("tokenizer.json", lambda: vocabulary(262_144)),
    "a listing of 10,000 files": (HUB_LISTING, lambda: listing(10_000)),
    "65,536 added tokens, as transformers wrote them": (
        "tokenizer_config.json",
        lambda: json.dumps({"added_tokens_decoder": dict.fromkeys(range(65536), ADDED)}).encode(),
    ),
    "131,072 added tokens": (
        "added_tokens.json",
        lambda: json.dumps({f"<|{n}|>": n for n in range(131_072)}).encode(),
    ),
    "a configuration with a quantization for each of 5,000 tensors": (
        "config.json",
        lambda: json.dumps(
            {"quantization": {name: {"group_size": 64, "bits": 4} for name in tensors(5000)}}
        ).encode(),
    ),
}


@pytest.mark.parametrize("case", LARGE)
def test_what_models_have_can_be_read(case: str) -> None:
    what, make = LARGE[case]
    assert parse_foreign(what, make())


@pytest.mark.parametrize("what", [HUB_LISTING, "config.json", "any.json"])
def test_texts_that_are_none(what: str) -> None:
    for text in (b"", b"{", b"\xff\xfe", b"[" * 99_000, b"1" * 5000, b" " * (9 << 20)):
        with pytest.raises(ForeignFault):
            parse_foreign(what, text)


def test_the_table_of_bounds_is_the_documented_one() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    rows = re.findall(r"^  \| (.+?) \| ([\d.]+) MiB \| ([\d,]+) \|$", text, re.M)
    told = {
        what.replace("`", ""): (float(size) * (1 << 20), int(most.replace(",", "")))
        for what, size, most in rows
    }
    assert told == {("any other .json" if what == ANY else what): BOUNDS[what] for what in BOUNDS}

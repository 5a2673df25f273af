"""A verification passes on rings of families that together use every mechanism."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from sealring.verify.judge import Verified, as_json

from tests.verify.rings import family, verified

FAMILIES = {
    "llama": "plain attention",
    "gemma3_text": "sliding windows, tied ends",
    "qwen3_5": "recurrent layers between others",
    "deepseek_v3": "compressed keys and values, experts",
    "gpt_oss": "sliding windows with sinks, experts",
    "kimi_k3": "an object with arrays between layers: several tensors in a hop",
    "mamba2": "recurrent layers alone",
    "ministral3": "windows on some layers, and a scale by the offset",
    "rwkv7": "two arrays between layers",
    "recurrent_gemma": "recurrent layers and windows",
    "llama4": "rows that are decoded alone",
}
"""By family, what it is here for."""


def check(found: Verified, ranks: int) -> None:
    told = as_json(found)
    assert found.passed, told
    assert len(found.answers.names) == ranks
    places = {(each["what"], each["rank"]) for each in told["places"]}
    assert places >= {("layers", rank) for rank in range(ranks)} | {("head", 0), ("draw", 0)}
    assert told["cached_tokens"] > 0, "a second turn read again what was there"


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_a_ring_of_a_family_is_right(name: str, tmp_path: Path) -> None:
    ranks = 3 if name in ("gpt_oss", "ministral3") else 2
    found = verified(family(tmp_path, name), ranks)
    check(found, ranks)
    assert found.answers.batches > 1 or name == "llama4"


@pytest.mark.long
def test_several_tensors_in_a_hop_are_all_compared(tmp_path: Path) -> None:
    found = verified(family(tmp_path, "rwkv7"))
    check(found, 2)
    assert {claim.part for claim in found.answers.claims} == {0, 1}


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "bits"), [(mx.bfloat16, 0), (mx.float16, 0), (mx.float32, 4)])
def test_other_dtypes_are_right(dtype: mx.Dtype, bits: int, tmp_path: Path) -> None:
    check(verified(family(tmp_path, "gemma3_text", dtype=dtype, bits=bits)), 2)


@pytest.mark.long
def test_one_part_in_memory_at_a_time_gives_the_same(tmp_path: Path) -> None:
    model = family(tmp_path, "llama")
    found = verified(model, 3, by_stage=True)
    assert found.by_stage
    check(found, 3)

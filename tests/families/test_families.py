"""The families that together use every mechanism, split in every way, beside mlx-lm itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families.check import ALONE, SAME, check
from tests.rows import rows

SAMPLE = {
    "gemma4": "keys and values that later layers share, embeddings for each layer",
    "gemma3n": "caches that later layers share, several streams",
    "rwkv7": "layers that give two arrays",
    "kimi_k3": "an object with arrays between layers, recurrent states",
    "bailing_moe_linear": "ranks that know the offset and have no keys",
    "ministral3": "windows on some layers, and a scale by the offset",
    "exaone4": "a loop that looks into its layers",
    "nemotron-nas": "layers without a cache",
    "longcat_flash_ngram": "a cache that the loop itself writes",
    "falcon_h1": "parameters beside the layers",
    "plamo2": "a list of layers in a module of its own",
}
"""By family, what it is here for."""

IN_CI = [family for family in SAMPLE if family not in ("gemma3n", "ministral3")]
"""gemma4 shares caches too, and tests/verify has ministral3."""


@pytest.mark.parametrize("family", rows([*SAMPLE], "exaone4", ci=IN_CI))
def test_a_family_is_the_same_in_every_split(family: str, tmp_path: Path) -> None:
    outcome = check(family, tmp_path)
    assert outcome.is_right, outcome
    assert outcome.cuts == outcome.whole == SAME


@pytest.mark.parametrize(
    ("family", "why"),
    [
        pytest.param(
            "iquestloopcoder", "does not run its layers one by one", marks=pytest.mark.slow
        ),
        ("nanbeige", "more than once"),
    ],
)
def test_what_cannot_be_cut_is_held_whole_and_says_why(
    family: str, why: str, tmp_path: Path
) -> None:
    outcome = check(family, tmp_path)
    assert (outcome.whole, outcome.batch) == (SAME, SAME)
    assert why in outcome.cuts


@pytest.mark.slow
def test_rows_that_cannot_share_caches_are_decoded_alone(tmp_path: Path) -> None:
    outcome = check("llama4", tmp_path)
    assert (outcome.whole, outcome.cuts, outcome.batch) == (SAME, SAME, ALONE)
    assert (outcome.prefix, outcome.quantized) == (SAME, SAME)

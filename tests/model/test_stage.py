"""Chains of stages give what mlx-lm's whole model gives."""

import pytest
from model_families import FAMILIES, reference_tokens
from model_rings import Ring, bounds_for

PROMPT = [(7 * i * i + 3 * i) % 251 for i in range(40)]
COUNT = 24


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_tokens_of_any_chain_are_those_of_one_process(models, references, family, world):
    layers = FAMILIES[family]["num_hidden_layers"]
    ring = Ring(models[family], bounds_for(layers, world))
    expected = reference_tokens(references[family], PROMPT, COUNT)
    assert len(set(expected)) > 3, "text that does not wander tests nothing"
    assert ring.generate(PROMPT, COUNT) == expected

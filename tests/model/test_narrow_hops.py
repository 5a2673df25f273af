"""Hidden states in F32 that pass between ranks in BF16, where their owners ask for it."""

from __future__ import annotations

import attrs
import mlx.core as mx
import pytest
from sealring.local.ring import local_ring
from sealring_model import tiny
from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import describe
from sealring_model.loading.structure import structure_of
from sealring_protocol.codec.tensor import DType

QUESTION = {"prompt": "Count to fifty.", "max_tokens": 32}


def logits(info, cut):
    """Of three tokens, through two stages; and what passed between them."""
    count = len(info.layers)
    first, rest = load_stage(info, 0, cut).stage, load_stage(info, cut, count).stage
    (hidden,) = first.run([mx.array([[5, 6, 7]], mx.uint32)], first.new_caches())
    (back,) = rest.run([hidden], rest.new_caches())
    return first.logits([back]), hidden


def test_half_as_many_bytes_pass_and_logits_differ_by_rounding_alone(models):
    info = describe(models["llama"])
    assert info.dtype is DType.F32
    narrow = attrs.evolve(info, narrow=True)
    exact, hidden = logits(info, 2)
    rounded, carried = logits(narrow, 2)
    assert carried.dtype == mx.bfloat16
    assert 2 * carried.nbytes == hidden.nbytes
    assert 2 * structure_of(narrow).hop == structure_of(info).hop
    assert narrow.hop_dtype is DType.BF16
    assert mx.any(exact != rounded)
    assert mx.allclose(exact, rounded, rtol=0.05, atol=0.05 * float(mx.max(mx.abs(exact))))


def test_a_model_in_16_bits_passes_as_it_is(models):
    info = attrs.evolve(describe(models["llama"]), dtype=DType.F16, narrow=True)
    assert info.hop_dtype is DType.F16


@pytest.fixture(scope="module")
def answers():
    """Greedy tokens of rings of two, without and with narrow hops."""
    found = []
    for options in ({}, {"hop_dtype": "bf16"}):
        with local_ring(2, tiny.path(), options=options) as nodes:
            *_, done = nodes[0].ask("generate", QUESTION)
            found.append(done["token_ids"])
    return found


@pytest.mark.slow
def test_a_ring_with_narrow_hops_answers(answers):
    plain, narrow = answers
    assert narrow == plain

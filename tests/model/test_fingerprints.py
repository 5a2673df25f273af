"""Fingerprints of hidden states, beside the specification's words in plain Python."""

from __future__ import annotations

import math
import struct

import attrs
import mlx.core as mx
import pytest
from model_child import Child
from sealring_model import tiny
from sealring_model.engine.fingerprints import fingerprint, of_hop, of_logits
from sealring_model.stage.outline import Axis, HopTensor, Spec
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    Checked,
    Decode,
    Epoch,
    Join,
    Open,
    Prefill,
    Row,
    Step,
    StepDone,
)
from sealring_protocol.control.epoch.ledger import Ledger

MASK = (1 << 32) - 1
EPOCH = Epoch(7, 1)


def sign(place: int, seed: int) -> int:
    """The sign of the element at *place*, from 1, as section 11.12 has it."""
    mixed = place * seed & MASK
    mixed = (mixed ^ (mixed >> 15)) * 0xC2B2AE35 & MASK
    return 1 - 2 * ((mixed ^ (mixed >> 13)) & 1)


def in_words(vector: list[float]) -> list[float]:
    """The fingerprint of *vector*."""
    root = math.sqrt(len(vector))
    seeds = (0x9E3779B9, 0x85EBCA6B)
    sums = [sum(sign(i, seed) * v for i, v in enumerate(vector, 1)) / root for seed in seeds]
    return [*sums, math.sqrt(sum(v * v for v in vector)) / root]


@pytest.mark.parametrize("width", [1, 2, 3, 64, 1000])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_a_fingerprint_is_what_the_specification_says(width: int, dtype: mx.Dtype) -> None:
    vectors = mx.random.normal((2, width), key=mx.random.key(width)).astype(dtype)
    found = fingerprint(vectors).tolist()
    for row, numbers in enumerate(found):
        expected = in_words(vectors[row].astype(mx.float32).tolist())
        assert numbers == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_signs_are_even_and_unlike_each_other() -> None:
    pairs = [(sign(i, 0x9E3779B9), sign(i, 0x85EBCA6B)) for i in range(1, 4097)]
    for pair in [(1, 1), (1, -1), (-1, 1), (-1, -1)]:
        assert 900 < pairs.count(pair) < 1150


def test_rounding_to_bf16_is_seen() -> None:
    vector = mx.random.normal((1, 512), key=mx.random.key(1))
    there = fingerprint(vector.astype(mx.bfloat16).astype(mx.float32))
    off = mx.abs(there - fingerprint(vector)).max().item()
    assert 1e-4 < off < 1e-2


def test_tensors_are_told_by_row_and_token_however_they_lie() -> None:
    plain = HopTensor((), Spec((Axis.ROWS, Axis.TOKENS, 8), mx.float32))
    stacked = HopTensor((), Spec((3, Axis.ROWS, Axis.TOKENS, 8), mx.float32))
    timeless = HopTensor((), Spec((Axis.ROWS, 8), mx.float32))
    one = mx.random.normal((2, 5, 8), key=mx.random.key(1))
    many = mx.random.normal((3, 2, 5, 8), key=mx.random.key(2))
    found = of_hop([plain, timeless, stacked], [one, mx.zeros((2, 8)), many])
    assert found is not None
    assert found.shape == (2, 2, 5, 3)
    for row in range(2):
        for token in range(5):
            expected = in_words(one[row, token].tolist())
            assert found[0, row, token].tolist() == pytest.approx(expected, abs=1e-5)
            expected = in_words(many[:, row, token].reshape(-1).tolist())
            assert found[1, row, token].tolist() == pytest.approx(expected, abs=1e-5)
    assert of_hop([timeless], [mx.zeros((2, 8))]) is None


# ------------------------------------------------------------------ an engine in a checked epoch


def place(rank: int, model: bytes, *, checked: bool, alone: bool = False) -> Bootstrap:
    bounds = (0, 8) if alone else (0, 4, 8)
    return Bootstrap(EPOCH, Backend.PIPELINE, rank, False, 60000, model, bounds, checked=checked)


def steps(ledger: Ledger) -> list[Step]:
    """A row is read in, joins and decodes."""
    made = []
    for plain in [
        Step(EPOCH, 1, b"", open=(Open(5),), work=Prefill(5, 0, 3), ids=(11, 12, 13)),
        Step(EPOCH, 2, b"", join=(Join(5, 0),), work=Decode(0), ids=(14,)),
    ]:
        ledger.apply(plain)
        made.append(attrs.evolve(plain, digest=ledger.digest(plain.n)))
    return made


def numbers(message: Checked) -> list[tuple[float, ...]]:
    return list(struct.iter_unpack("<3f", message.given.data))


def test_an_engine_tells_what_it_gives_in_a_checked_epoch_alone() -> None:
    told = {}
    for checked in (False, True):
        with Child(tiny.path()) as first, Child(tiny.path()) as last:
            for rank, child in enumerate((first, last)):
                child.start(place(rank, child.info().model, checked=checked))
            first.send(Row(5))
            answers = []
            for step in steps(Ledger()):
                for child, message in ((first, step), (last, None)):
                    child.send(message or answers[-1])
                    if checked:
                        told[step.n, child is last] = child.receive()
                    answers.append(child.receive())
            first.send(answers[-1])
            if checked:
                told["closing"] = first.receive()
            done = first.receive()
            assert isinstance(done, StepDone)
            assert len(done.ids) == 1
    assert all(isinstance(each, Checked) for each in told.values())
    assert told[1, False].received.shape == (0, 1, 3, 3)
    for n, tokens in ((1, 3), (2, 1)):
        assert told[n, False].given.shape == (1, 1, tokens, 3)
        assert told[n, True].received == told[n, False].given
        assert told[n, True].given.shape == (1, 1, tokens, 3)
    closing = told["closing"]
    assert closing.closing
    assert closing.received == told[2, True].given
    assert closing.given.shape == (1, 1, 1, 3)
    assert numbers(closing)[0][2] > 0


def test_a_rank_alone_tells_its_logits() -> None:
    with Child(tiny.path()) as child:
        child.start(place(0, child.info().model, checked=True, alone=True))
        child.send(Row(5, logprobs=0))
        read, decoded = steps(Ledger())
        child.send(read)
        prefill = child.receive()
        assert isinstance(prefill, Checked)
        assert prefill.given.shape == prefill.received.shape == (0, 1, 3, 3)
        child.receive()
        child.send(decoded)
        kinds = [child.receive() for _ in range(3)]
        (checked,) = (each for each in kinds if isinstance(each, Checked))
        assert checked.given.shape == (1, 1, 1, 3)
        assert not checked.closing


def test_logits_are_told_as_one_array() -> None:
    logits = mx.random.normal((2, 16), key=mx.random.key(3))
    found = of_logits(logits)
    assert found.shape == (1, 2, 1, 3)
    assert found[0, 1, 0].tolist() == pytest.approx(in_words(logits[1].tolist()), abs=1e-5)

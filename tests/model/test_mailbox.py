"""Doors of a CUDA device; on others there is nothing of this to try.

While the device waits, CUDA neither loads a kernel that it has not had before nor makes a graph. So
what is timed has been done before, and without graphs.
"""

import os

import mlx.core as mx
import pytest
from model_rings import Ring
from sealring_model.doors import Doors
from sealring_model.mailbox import Mailbox, doors
from sealring_model.tensors import MLX_DTYPES, data_of, outgoing
from sealring_protocol.codec.tensor import DType

os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")
cuda = pytest.mark.skipif(not mx.cuda.is_available(), reason="needs a CUDA device")
SHAPES = [(1, 1, 1), (1, 1, 3), (3, 1, 7), (1, 1, 4096), (32, 1, 4096)]


def data_for(dtype: DType, shape: tuple[int, ...]) -> bytes:
    block = outgoing(mx.random.normal(shape).astype(MLX_DTYPES[dtype]))
    mx.eval(block)
    return bytes(data_of(block))


def made() -> Doors:
    found = doors(DType.F32, wait=True)
    assert isinstance(found, Mailbox)
    return found


@pytest.mark.skipif(mx.cuda.is_available(), reason="has one")
def test_without_cuda_there_are_ordinary_doors():
    assert type(doors(DType.F32, wait=True)) is Doors
    with pytest.raises((OSError, AttributeError)):
        Mailbox(waits=True)


@cuda
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_goes_in_while_the_device_waits_comes_out(dtype, shape):
    ways = doors(dtype, wait=True)
    data = data_for(dtype, shape)
    for _ in range(3):  # a box is used again
        inlet = ways.inlet(dtype, shape)
        outlet = ways.outlet(inlet.array * 1)
        inlet.hold()
        ways.start(outlet.ready)
        assert inlet.fill(data)
        mx.eval(outlet.ready)
        assert inlet.was_filled
        assert bytes(outlet.data()) == data


@cuda
def test_what_is_too_large_for_a_box_goes_out_all_the_same():
    array = mx.random.normal((1, 300, 4096))
    outlet = made().outlet(array)
    mx.eval(outlet.ready)
    assert bytes(outlet.data()) == bytes(data_of(outgoing(array)))


@cuda
def test_a_slice_goes_out_row_major():
    array = mx.arange(4 * 6, dtype=mx.uint32).reshape(4, 6)[:, 1:4]
    outlet = made().outlet(array)
    mx.eval(outlet.ready)
    assert outlet.data().cast("I").tolist() == [
        6 * row + at for row in range(4) for at in (1, 2, 3)
    ]


@cuda
def test_the_device_does_not_wait_for_ever():
    ways = made()
    inlet = ways.inlet(DType.F32, (1, 1, 8))
    outlet = ways.outlet(inlet.array + 1)
    inlet.hold()
    ways.start(outlet.ready)
    mx.eval(outlet.ready)
    assert not inlet.was_filled
    assert not inlet.fill(bytes(32))
    assert outlet.data().cast("f").tolist() == [1.0] * 8


@cuda
@pytest.mark.parametrize("how", ["shut", "dropped"])
def test_an_inlet_that_will_not_be_filled_holds_nothing_up(how):
    ways = made()
    first, second = (ways.inlet(DType.F32, (1, 1, 8)) for _ in range(2))
    outlets = [ways.outlet(inlet.array) for inlet in (first, second)]
    first.hold()
    ways.start(outlets[0].ready)
    if how == "shut":
        first.shut()
    del first
    second.hold()
    ways.start(outlets[1].ready)
    data = data_for(DType.F32, (1, 1, 8))
    assert second.fill(data)
    mx.eval(*(outlet.ready for outlet in outlets))
    assert second.was_filled
    assert bytes(outlets[1].data()) == data


@cuda
def test_much_can_be_done_while_the_device_waits():
    """None of it waits for the device."""
    ways = made()
    data = bytes(data_of(mx.zeros((8,))))
    weights = mx.random.normal((512, 512))
    for holds in (False, True):
        before = mx.random.normal((40, 100)) + 1
        mx.eval(before)
        inlet = ways.inlet(DType.F32, (1, 1, 8))
        outlet = ways.outlet(inlet.array)
        if holds:
            inlet.hold()
            ways.start(outlet.ready)
        assert len(before.tolist()) == 40
        mx.array([1.0, 2.0, 3.0])
        other = ways.inlet(DType.F32, (3, 1, 8192 << holds))
        ways.outlet(other.array)
        others = [weights @ weights + at for at in range(200)]
        ways.start(*others)
        mx.clear_cache()
        assert inlet.fill(data)
        mx.eval(outlet.ready, *others)
        assert inlet.was_filled


@cuda
@pytest.mark.parametrize("idle", [0, 3, 9])
def test_a_ring_through_mailboxes_says_the_same(models, idle):
    folder = models["llama"]
    prompt = [(5 * i * i + 11 * i) % 251 for i in range(40)]
    expected = Ring(folder, (0, 2, 5)).generate(prompt, 24)
    ring = Ring(folder, (0, 2, 5), idle=lambda: idle, doors=made)
    assert ring.generate(prompt, 24) == expected

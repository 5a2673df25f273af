import mlx.core as mx
import pytest
from sealring_model.errors import IntegrityError
from sealring_model.stage.device import (
    MLX_DTYPES,
    DeviceIO,
    data_of,
    from_data,
    memory_of,
    outgoing,
)
from sealring_protocol.codec.tensor import DType

FLOATS = [DType.F32, DType.F16, DType.BF16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 5, 16), (2, 1, 1)])
def test_out_and_in_again_is_the_same_to_the_bit(dtype, shape):
    array = outgoing((mx.random.normal(shape) * 1000).astype(MLX_DTYPES[dtype]))
    mx.eval(array)
    data = data_of(array)
    assert len(data) == array.size * dtype.width
    back = from_data(dtype, shape, bytes(data))
    assert back.dtype == array.dtype
    assert mx.array_equal(back, array)


def test_strided_arrays_go_out_row_major():
    array = mx.arange(24, dtype=mx.float32).reshape(2, 3, 4)[:, ::2, 1:3]
    out = outgoing(array)
    mx.eval(out)
    back = from_data(DType.F32, (2, 2, 2), data_of(out))
    assert mx.array_equal(back, array)


def test_out_is_not_a_copy():
    array = outgoing(mx.zeros((4, 4), mx.uint16))
    mx.eval(array)
    view = data_of(array)
    memory_of(array).cast("B")[0] = 7
    assert view[0] == 7


def test_in_is_a_copy():
    data = bytearray(16)
    array = from_data(DType.F32, (4,), data)
    data[3] = 0x40
    assert array.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("size", [0, 31, 33])
def test_data_of_another_size_is_refused(size):
    with pytest.raises(IntegrityError):
        from_data(DType.F32, (2, 4), bytes(size))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_graph_sees_what_its_inlet_is_filled_with(dtype):
    array = outgoing((mx.random.normal((2, 1, 8)) * 10).astype(MLX_DTYPES[dtype]))
    mx.eval(array)
    inlet = DeviceIO().inlet(dtype, (2, 1, 8))
    doubled = inlet.array + inlet.array
    data = bytearray(data_of(array))
    inlet.fill(data)
    data[:] = bytes(len(data))  # what it has is a copy
    assert doubled.dtype == array.dtype
    assert mx.array_equal(doubled, array + array)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_inlet_takes_no_data_of_another_size(size):
    with pytest.raises(IntegrityError):
        DeviceIO().inlet(DType.F32, (2, 4)).fill(bytes(size))

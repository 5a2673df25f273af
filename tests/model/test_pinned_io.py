"""Inlets and outlets in pinned memory, on a CUDA device; skipped on others.

While the device waits, CUDA neither loads a new kernel nor makes a graph. So what is timed here has
run before, and without CUDA graphs.
"""

import os
import threading
import time

import mlx.core as mx
import pytest
from model_rings import Ring, place_of, stage_of
from sealring_model.engine.executor import Executor
from sealring_model.engine.hidden_io import PlainActivations
from sealring_model.loading.model_folder import describe
from sealring_model.sampling.rows import RowParams
from sealring_model.stage import device
from sealring_model.stage.device import (
    MLX_DTYPES,
    DeviceIO,
    PinnedIO,
    best_device_io,
    data_of,
    outgoing,
)
from sealring_protocol.codec.tensor import DType

os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")
SHAPES = [(1, 1, 1), (1, 1, 3), (3, 1, 7), (1, 1, 4096), (32, 1, 4096)]


def data_for(dtype: DType, shape: tuple[int, ...]) -> bytes:
    block = outgoing(mx.random.normal(shape).astype(MLX_DTYPES[dtype]))
    mx.eval(block)
    return bytes(data_of(block))


def made() -> DeviceIO:
    found = best_device_io(DType.F32, wait=True)
    assert isinstance(found, PinnedIO)
    return found


@pytest.mark.skipif(mx.cuda.is_available(), reason="has one")
def test_without_cuda_input_and_output_are_ordinary():
    assert type(best_device_io(DType.F32, wait=True)) is DeviceIO
    with pytest.raises((OSError, AttributeError)):
        PinnedIO(device_waits=True)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_goes_in_while_the_device_waits_comes_out(dtype, shape):
    device_io = best_device_io(dtype, wait=True)
    data = data_for(dtype, shape)
    for _ in range(3):  # a buffer is used again
        inlet = device_io.inlet(dtype, shape)
        outlet = device_io.outlet(inlet.array * 1)
        inlet.starts_waiting()
        device_io.start(outlet.ready)
        assert inlet.fill(data)
        mx.eval(outlet.ready)
        assert inlet.was_filled
        assert bytes(outlet.data()) == data


@pytest.mark.cuda
def test_what_is_too_large_for_a_buffer_goes_out_all_the_same():
    array = mx.random.normal((1, 300, 4096))
    outlet = made().outlet(array)
    mx.eval(outlet.ready)
    assert bytes(outlet.data()) == bytes(data_of(outgoing(array)))


@pytest.mark.cuda
def test_a_slice_goes_out_row_major():
    array = mx.arange(4 * 6, dtype=mx.uint32).reshape(4, 6)[:, 1:4]
    outlet = made().outlet(array)
    mx.eval(outlet.ready)
    assert outlet.data().cast("I").tolist() == [
        6 * row + at for row in range(4) for at in (1, 2, 3)
    ]


@pytest.mark.cuda
def test_the_device_does_not_wait_for_ever():
    device_io = made()
    inlet = device_io.inlet(DType.F32, (1, 1, 8))
    outlet = device_io.outlet(inlet.array + 1)
    inlet.starts_waiting()
    device_io.start(outlet.ready)
    mx.eval(outlet.ready)
    assert not inlet.was_filled
    assert not inlet.fill(bytes(32))
    assert outlet.data().cast("f").tolist() == [1.0] * 8


@pytest.mark.cuda
def test_an_inlet_that_is_filled_by_another_thread_holds_up_until_then_what_depends_on_it():
    device_io = PinnedIO(device_waits=True, timeout_ns=1_000_000_000)
    for _ in range(2):  # once to warm up
        gate = device_io.inlet(DType.F32, (1, 1, 1))
        outlet = device_io.outlet(mx.depends(mx.arange(8, dtype=mx.uint32), gate.array) * 2)
        gate.starts_waiting()
        device_io.start(outlet.ready)
        begun = time.perf_counter_ns()
        other = threading.Timer(0.1, gate.fill, [bytes(4)])
        other.start()
        mx.eval(outlet.ready)
        took = time.perf_counter_ns() - begun
        other.join()
    assert 100_000_000 < took < 400_000_000
    assert outlet.data().cast("I").tolist() == list(range(0, 16, 2))
    assert gate.was_filled
    assert gate.fill(b"what is said again is not looked at")


@pytest.mark.cuda
@pytest.mark.parametrize("launched", [True, False])
def test_an_inlet_that_is_released_gives_zeros_whatever_its_memory_was_used_for(launched):
    device_io = made()
    for data in (b"\x7f" * 32, None):
        inlet = device_io.inlet(DType.F32, (1, 1, 8))
        outlet = device_io.outlet(inlet.array)
        if launched:
            inlet.starts_waiting()
            device_io.start(outlet.ready)
        if data is None:
            inlet.release()
        else:
            assert inlet.fill(data)
        mx.eval(outlet.ready)
        del inlet
    assert bytes(outlet.data()) == bytes(32)


@pytest.mark.cuda
@pytest.mark.parametrize("how", ["release", "dropped"])
def test_an_inlet_that_will_not_be_filled_holds_nothing_up(how):
    device_io = made()
    for _ in range(2):  # once to warm up
        inlet = device_io.inlet(DType.F32, (1, 1, 8))
        outlet = device_io.outlet(inlet.array)
        inlet.starts_waiting()
        begun = time.perf_counter_ns()
        device_io.start(outlet.ready)
        if how == "release":
            inlet.release()
        del inlet
        mx.eval(outlet.ready)
        took = time.perf_counter_ns() - begun
    assert took < device._TIMEOUT_NS / 2


WEIGHTS = (512, 512)


def read(_: DeviceIO, __: mx.array, evaluated: mx.array) -> list[mx.array]:
    assert len(evaluated.tolist()) == 512
    return []


def made_of_host_memory(_: DeviceIO, __: mx.array, ___: mx.array) -> list[mx.array]:
    return [mx.array([1.0, 2.0, 3.0])]


def locked_memory(device_io: DeviceIO, _: mx.array, __: mx.array) -> list[mx.array]:
    return [device_io.inlet(DType.F32, (3, 1, 8192)).array]


def in_flight(device_io: DeviceIO, weights: mx.array, _: mx.array) -> list[mx.array]:
    others = [weights @ weights + at for at in range(200)]
    device_io.start(*others)
    return others


@pytest.mark.cuda
@pytest.mark.parametrize("do", [read, made_of_host_memory, locked_memory, in_flight])
def test_what_does_not_wait_for_a_device_that_waits(do):
    """Or it would return only when the device has stopped waiting."""
    device_io = PinnedIO(device_waits=True, timeout_ns=1_000_000_000)
    data = bytes(data_of(mx.zeros((8,))))
    weights, evaluated = mx.random.normal(WEIGHTS), mx.random.normal(WEIGHTS)
    mx.eval(weights, evaluated)
    do(device_io, weights, evaluated)  # CUDA loads what it has not had before
    inlet = device_io.inlet(DType.F32, (1, 1, 8))
    outlet = device_io.outlet(inlet.array)
    inlet.starts_waiting()
    device_io.start(outlet.ready)
    others = do(device_io, weights, evaluated)
    assert inlet.fill(data)
    mx.eval(outlet.ready)
    assert inlet.was_filled
    del others


class Recorded:
    """An executor, what it was given and what it answered."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.given, self.answers = [], []

    def launch(self, step):
        self.given.append(step)
        return self._executor.launch(step)

    def finish(self, in_flight):
        self.answers.append(self._executor.finish(in_flight))
        return self.answers[-1]

    def work_ahead(self):
        return False


@pytest.mark.cuda
def test_a_rank_with_pinned_memory_answers_the_same(models, monkeypatch):
    """The last rank of a ring, given once more what it was given before: two ranks that share a
    device would wait for each other."""
    bounds = (0, 2, 5)
    ring = Ring(models["llama"], bounds)
    ring.executors[1] = recorded = Recorded(ring.executors[1])
    ring.generate([(5 * i * i + 11 * i) % 251 for i in range(40)], 40)

    waited = []
    fill = device._WaitingInlet.fill

    def watched(inlet, data):
        in_time = fill(inlet, data)
        waited.append(in_time and inlet._launched_at is not None)
        return in_time

    monkeypatch.setattr(device._WaitingInlet, "fill", watched)
    place = place_of(describe(models["llama"]), bounds, 1)
    stage = stage_of(models["llama"], 2, 5)
    executor = Executor(stage, place, RowParams(), PlainActivations(), 1 << 40, device_io=made())
    for step, expected in zip(recorded.given, recorded.answers, strict=True):
        while executor.work_ahead():
            pass
        assert executor.finish(executor.launch(step)).tensors == expected.tensors
    assert sum(waited) > 20

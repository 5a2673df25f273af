"""A thread that builds while another launches."""

import gc
import subprocess
import sys
import threading
import weakref

import mlx.core as mx
import pytest
from model_families import reference_tokens
from model_rings import StepFailed
from sealring_model import lookahead
from sealring_model.lookahead import GraphBuilder
from waiting_device import PROMPT, ThoroughBuilder, decoding_ring, waiting_ring


def nothing() -> bool:
    return False


def test_what_is_built_beside_is_evaluated_where_it_is_launched():
    """Also on arrays that are being evaluated at the time."""
    thread, weights = GraphBuilder(), mx.random.normal((64, 64)) / 8
    value = expected = mx.random.normal((4, 64))
    mx.eval(weights, value)
    for _ in range(300):
        built, ended = [], threading.Event()

        def build(after=value, built=built, ended=ended) -> bool:
            assert threading.current_thread() is not threading.main_thread()
            built.append(mx.tanh(after @ weights))
            ended.set()
            return False

        def call(after=value, ended=ended) -> None:
            mx.async_eval(after)
            assert ended.wait(10)

        thread.launch(call, build)
        (value,) = built
        expected = mx.tanh(expected @ weights)
    assert mx.array_equal(value, expected)


def test_what_is_built_for_the_processor_is_evaluated_where_it_is_launched():
    thread, built, ended = GraphBuilder(), [], threading.Event()

    def build() -> bool:
        built.append(mx.add(mx.ones((4,)), 1, stream=mx.cpu))
        ended.set()
        return False

    thread.launch(lambda: ended.wait(10), build)
    assert built[0].tolist() == [2, 2, 2, 2]


def test_building_goes_on_as_long_as_the_launch_does_and_no_longer():
    thread, called, begun = GraphBuilder(), [], threading.Event()

    def build() -> bool:
        called.append(threading.get_ident())
        if len(called) == 3:
            begun.set()
        return True

    for _ in range(20):
        called.clear()
        begun.clear()
        thread.launch(lambda: begun.wait(10), build)
        count = len(called)
        assert count >= 3
        assert threading.get_ident() not in called
        thread.launch(lambda: None, nothing)
        assert len(called) == count


def test_a_launch_waits_for_what_is_being_built():
    thread, begun, ended = GraphBuilder(), threading.Event(), []

    def build() -> bool:
        begun.set()
        ended.append(sum(range(1_000_000)))
        return False

    thread.launch(lambda: begun.wait(10), build)
    assert ended


@pytest.mark.parametrize("who", [("call",), ("build",), ("call", "build")])
def test_what_either_raises_is_raised(who):
    """Of both, what the launch does."""
    thread, begun = GraphBuilder(), threading.Event()

    def build() -> bool:
        begun.set()
        if "build" in who:
            raise KeyError("build")
        return False

    def call() -> None:
        begun.wait(10)
        if "call" in who:
            raise KeyError("call")

    with pytest.raises(KeyError, match=who[0]):
        thread.launch(call, build)
    thread.launch(lambda: None, nothing)


def test_where_there_is_no_thread_it_is_launched_all_the_same(monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(lookahead, "_started", threading.Event())
    done = []
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refused)
        GraphBuilder().launch(lambda: done.append("launched"), lambda: done.append("built"))
    assert done == ["launched"]
    begun = threading.Event()
    GraphBuilder().launch(lambda: begun.wait(10), lambda: bool(begun.set()))
    assert begun.is_set()
    assert done == ["launched"]


def test_it_keeps_nothing_of_what_it_has_built():
    class Builder:
        def build(self) -> bool:
            begun.set()
            return False

    begun, builder = threading.Event(), Builder()
    gone = weakref.ref(builder)
    GraphBuilder().launch(lambda: begun.wait(10), builder.build)
    GraphBuilder().launch(lambda: None, nothing)  # is behind it
    del builder
    gc.collect()
    assert gone() is None


EXITS = """
import threading
import mlx.core as mx
from sealring_model.lookahead import GraphBuilder

compiled = [mx.compile(lambda x: {"a": mx.tanh(x) * x}, shapeless=True) for _ in range(200)]
x, built, begun = mx.ones((4, 4)), [], threading.Event()


def build():
    built.extend(each(x)["a"] for each in compiled)
    begun.set()
    return False


GraphBuilder().launch(lambda: begun.wait(10), build)
mx.eval(built)
mx.clear_streams()
"""


def test_a_process_ends_well_that_has_compiled_something_beside():
    subprocess.run([sys.executable, "-c", EXITS], check=True, timeout=60)


def test_what_comes_next_is_built_while_something_else_is_launched(models, references, monkeypatch):
    monkeypatch.setattr(lookahead, "GraphBuilder", ThoroughBuilder)
    monkeypatch.setattr(ThoroughBuilder, "built", 0)
    ring, _ = waiting_ring(models)
    batches = [ring.admit(PROMPT[:20]), ring.admit(PROMPT[3:30])]
    for batch, uid in enumerate(batches):
        ring.decode(batch, join=[uid])
    for _ in range(19):
        for batch in range(len(batches)):
            ring.decode(batch)
    assert ThoroughBuilder.built > 30
    for uid, prompt in zip(batches, (PROMPT[:20], PROMPT[3:30]), strict=True):
        assert ring.text[uid] == reference_tokens(references["llama"], prompt, 20)


def test_the_device_goes_on_before_all_is_built(models, references, monkeypatch):
    """Where there is nothing left to wait for: on rank 0, and where the hidden states are there."""
    ring, ranks = waiting_ring(models, idle=0)
    left = []

    class Slow(GraphBuilder):
        def launch(self, call, build):
            call()
            left.extend(device_io.held for device_io in ranks)
            while build():
                pass

    monkeypatch.setattr(lookahead.GraphBuilder, "launch", Slow.launch)
    ring.decode(join=[ring.admit(PROMPT[:20])])
    for _ in range(19):
        ring.decode()
    assert len(left) > 40
    assert not any(left)
    assert [device_io.missed for device_io in ranks] == [0, 0]
    assert ring.text[1] == reference_tokens(references["llama"], PROMPT[:20], 20)


def test_what_cannot_be_built_beside_tells_when_it_comes(models, monkeypatch):
    monkeypatch.setattr(lookahead, "GraphBuilder", ThoroughBuilder)
    ring, _ = decoding_ring(models)
    other = ring.admit(PROMPT[3:30])
    ring.decode(1, join=[other])

    def fails(*_):
        raise RuntimeError("no graph today")

    for executor in ring.executors:
        monkeypatch.setattr(executor._forward, "build_decode", fails)
        monkeypatch.setattr(executor._forward._stage, "run", fails)

    def decode_on() -> None:
        for batch in (0, 1) * 9:  # what was built before is used up first
            ring.decode(batch)

    with pytest.raises(StepFailed, match="no graph today"):
        decode_on()

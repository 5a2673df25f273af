"""A thread that builds while another launches."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest
from sealring_model.beside import Beside


def nothing() -> bool:
    return False


def test_what_is_built_beside_is_evaluated_where_it_is_launched():
    """Also on arrays that are being evaluated at the time."""
    beside, weights = Beside(), mx.random.normal((64, 64)) / 8
    value = expected = mx.random.normal((4, 64))
    mx.eval(weights, value)
    built: list[mx.array] = []
    for _ in range(300):
        after = value

        def build(after: mx.array = after) -> bool:
            assert threading.current_thread() is not threading.main_thread()
            built.append(mx.tanh(after @ weights))
            return False

        beside.launch(lambda after=after: mx.async_eval(after), build)
        value = built.pop() if built else mx.tanh(after @ weights)
        expected = mx.tanh(expected @ weights)
    assert mx.array_equal(value, expected)


def test_building_goes_on_as_long_as_the_launch_does_and_no_longer():
    beside, called, begun = Beside(), [], threading.Event()

    def build() -> bool:
        called.append(threading.get_ident())
        if len(called) == 3:
            begun.set()
        return True

    for _ in range(20):
        called.clear()
        begun.clear()
        beside.launch(lambda: begun.wait(10), build)
        count = len(called)
        assert count >= 3
        assert threading.get_ident() not in called
        beside.launch(lambda: None, nothing)
        assert len(called) == count


def test_a_launch_waits_for_what_is_being_built():
    beside, begun, ended = Beside(), threading.Event(), []

    def build() -> bool:
        begun.set()
        ended.append(sum(range(1_000_000)))
        return False

    beside.launch(lambda: begun.wait(10), build)
    assert ended


@pytest.mark.parametrize("who", ["call", "build"])
def test_what_either_raises_is_raised(who):
    beside, begun = Beside(), threading.Event()

    def build() -> bool:
        begun.set()
        if who == "build":
            raise KeyError(who)
        return False

    def call() -> None:
        begun.wait(10)
        if who == "call":
            raise KeyError(who)

    with pytest.raises(KeyError, match=who):
        beside.launch(call, build)
    beside.launch(lambda: None, nothing)


def test_where_there_is_no_thread_it_is_launched_all_the_same(monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    done = []
    Beside().launch(lambda: done.append(1), nothing)
    assert done == [1]


@pytest.mark.parametrize("end", [Beside.end, lambda _: None])
def test_its_thread_ends_with_it(end):
    beside, threads = Beside(), []
    begun = threading.Event()

    def build() -> bool:
        threads.append(threading.current_thread())
        begun.set()
        return False

    beside.launch(lambda: begun.wait(10), build)
    end(beside)
    beside.launch(lambda: None, build)
    del beside
    gc.collect()
    threads[0].join(10)
    assert not threads[0].is_alive()

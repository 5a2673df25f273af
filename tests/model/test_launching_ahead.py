"""What a rank launches before its hidden states come, on a device that waits for them."""

import threading
import time

import attrs
import mlx.core as mx
import pytest
import waiting_device
from model_child import InThread, until
from model_families import FAMILIES, reference_tokens
from model_rings import Ring, StepFailed, place_of
from sealring_model import lookahead
from sealring_model.channel import Channel
from sealring_model.engine import main as engine
from sealring_model.engine.executor import Executor
from sealring_model.loading.model_folder import describe
from sealring_protocol.codec.messages import Decode, Failure, FailureKind, StepDone
from waiting_device import (
    ALL,
    PROMPT,
    WaitingDeviceIO,
    decoding_ring,
    launch_eagerly,
    waiting_ring,
)


def test_where_the_device_waits_it_has_the_next_decode_before_its_hidden_states(models, references):
    ring, ranks = waiting_ring(models)
    uid = ring.admit(PROMPT[:20])
    ring.decode(join=[uid])
    while len(ring.text[uid]) < 10:
        ring.decode()
    for device_io in ranks:
        device_io.waited = 0
    for _ in range(20):
        assert ranks[1].held is not None
        ring.decode()
    assert [device_io.waited for device_io in ranks] == [20, 20]
    assert [device_io.missed for device_io in ranks] == [0, 0]
    assert ring.text[uid] == reference_tokens(references["llama"], PROMPT[:20], 30)


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("idle", [0, 1, ALL])
def test_the_device_can_be_told_before_the_message_has_its_turn(models, references, seal, idle):
    """Whatever the rank still launches in between."""
    ring, ranks = decoding_ring(models, seal=seal, idle=idle)
    ring.early_fill = lambda: True
    for _ in range(20):
        ring.decode()
    assert ranks[1].waited == 20
    assert ranks[0].waited == 20 or idle < ALL
    assert [device_io.missed for device_io in ranks] == [0, 0]
    assert ring.text[1] == reference_tokens(references["llama"], PROMPT[:20], 30)


def test_the_device_is_told_of_what_it_waits_for_and_of_nothing_else(models):
    ring, (head_doors, last_doors) = decoding_ring(models, seal=True)
    head, last = ring.executors
    message = head.finish(head.launch(ring.author.write(work=Decode(0))))
    ring._idle(head)
    for other in (
        attrs.evolve(message, n=message.n + 1),
        attrs.evolve(message, work=Decode(1)),
        attrs.evolve(message, evict=(1,)),
        attrs.evolve(message, failed=Failure(0, FailureKind.ENGINE_ERROR, "why")),
        attrs.evolve(message, tensors=()),
        attrs.evolve(message, tensors=(attrs.evolve(message.tensors[0], shape=(1, 2, 32)),)),
        StepDone(message.epoch, message.n, tensors=message.tensors),
    ):
        last.fill_early(other)
    assert last.device_waits
    assert last_doors.waited == 0
    last.fill_early(message)
    assert last_doors.waited == 1
    done = last.finish(last.launch(message))
    for other in (attrs.evolve(done, n=done.n + 1), attrs.evolve(done, tensors=()), message):
        head.fill_early(other)
    assert head.device_waits
    assert head_doors.waited == 0
    head.fill_early(done)
    assert head_doors.waited == 1
    assert head.finish(head.close(done)).failed is None


def test_what_does_not_open_fails_in_its_turn(models):
    ring, (_, device_io) = decoding_ring(models, seal=True)
    head, last = ring.executors
    message = head.finish(head.launch(ring.author.write(work=Decode(0))))
    (tensor,) = message.tensors
    forged = attrs.evolve(message, tensors=(attrs.evolve(tensor, data=bytes(len(tensor.data))),))
    last.fill_early(forged)
    assert device_io.waited == 0
    failed = last.finish(last.launch(forged)).failed
    assert failed.kind is FailureKind.INTEGRITY
    assert device_io.held is None


def test_what_was_told_has_its_times(models):
    """The device worked from when it was told on; to open it took what it took then."""
    ring, _ = decoding_ring(models, seal=True)
    head, last = ring.executors
    message = head.finish(head.launch(ring.author.write(work=Decode(0))))
    before = time.perf_counter_ns()
    last.fill_early(message)
    after = time.perf_counter_ns()
    in_flight = last.launch(message)
    assert before < in_flight.begun <= after
    assert 0 < in_flight.opening <= after - before
    assert not last.finish(in_flight).failed


def test_what_comes_too_late_has_the_times_of_what_is_done_in_its_turn(models):
    ring, (_, device_io) = decoding_ring(models, seal=True)
    head, last = ring.executors
    message = head.finish(head.launch(ring.author.write(work=Decode(0))))
    device_io.late = lambda: True
    last.fill_early(message)
    before = time.perf_counter_ns()
    in_flight = last.launch(message)
    assert in_flight.begun >= before
    assert not last.finish(in_flight).failed


def test_a_gate_is_open_even_if_nothing_could_be_launched_behind_it(models, monkeypatch):
    ring, (device_io, _) = decoding_ring(models, idle=0)
    head = ring.executors[0]

    def none(*_):
        raise MemoryError("no more")

    monkeypatch.setattr(device_io, "start", none)
    assert head.finish(head.launch(ring.author.write(work=Decode(0)))).failed
    assert (device_io.held, device_io.waited) == (None, 1)


@pytest.mark.parametrize("busy_polls", [False, True])
def test_in_an_engine_the_thread_that_reads_tells_the_device(
    models, references, monkeypatch, busy_polls
):
    """The compute thread does the rest, and whatever comes while the device does not wait."""
    launch_eagerly(monkeypatch)
    monkeypatch.setattr(engine, "PROCESSORS", 99 if busy_polls else 1)
    device_io, channels, tellers = WaitingDeviceIO(), [], []
    monkeypatch.setattr(engine, "best_device_io", lambda _, **__: device_io)
    expect, fill_early = Channel.intercept_next, Executor.fill_early

    def noted(channel, first):
        channels.append(channel)
        expect(channel, first)

    def told(executor, message):
        fill_early(executor, message)
        tellers.append((threading.current_thread().name, device_io.waited))

    monkeypatch.setattr(Channel, "intercept_next", noted)
    ring = Ring(models["llama"], (0, 2, 5))
    head, ring_done = ring.executors[0], ring._done
    with InThread(models["llama"]) as last:
        last.info()
        last.start(place_of(describe(models["llama"]), (0, 2, 5), 1))

        def done(executor, launch, message):
            if executor is head:
                return ring_done(executor, launch, message)
            last.send(message)
            return last.receive()

        monkeypatch.setattr(ring, "_done", done)
        ring.decode(join=[ring.admit(PROMPT[:20])])
        monkeypatch.setattr(Executor, "fill_early", told)
        for _ in range(10):
            until(lambda: channels and channels[-1]._interceptor is not None)
            waited = device_io.waited
            ring.decode()
            assert tellers.pop() == ("channel", waited + 1)
            assert not tellers
        assert ring.text[1] == reference_tokens(references["llama"], PROMPT[:20], 11)
        assert device_io.missed == 0


@pytest.mark.parametrize("late", [False, True])
def test_a_rank_with_no_time_to_build_ahead_has_its_device_wait_while_it_launches(
    models, references, late
):
    """What it is given is there already, and is told to the device last. Rank 0 is given nothing;
    it has a gate, and a device that has lost patience with that has done nothing wrong."""
    ring, (head, last) = decoding_ring(models, idle=0)
    head.late = last.late = lambda: late
    for _ in range(12):
        ring.decode()
    assert ring.text[1] == reference_tokens(references["llama"], PROMPT[:20], 22)
    # What comes too late is done as ever, and then left alone for twice as long each time.
    for device_io in (head, last):
        assert (device_io.waited, device_io.missed) == ((0, 3) if late else (12, 0))


@pytest.mark.parametrize("idle", [0, ALL])
def test_without_memory_for_an_inlet_a_decode_is_done_as_ever(
    models, references, monkeypatch, idle
):
    ring, (_, last) = decoding_ring(models, idle=idle)

    def none(*_):
        raise MemoryError

    monkeypatch.setattr(last, "inlet", none)
    for _ in range(12):
        ring.decode()
    assert ring.text[1] == reference_tokens(references["llama"], PROMPT[:20], 22)


def test_a_decode_is_not_launched_while_the_one_before_is_on_the_device(models):
    """MLX would have it write to copies of the caches."""
    ring, (head, last) = decoding_ring(models)
    first, second = ring.executors
    away = first.finish(first.launch(ring.author.write(work=Decode(0))))
    in_flight = second.launch(away)
    while second.work_ahead():
        pass
    assert last.held is None
    done = second.finish(in_flight)
    assert second.work_ahead()
    assert last.held is not None
    while first.work_ahead():  # the decode before the one that is to be drawn is long done
        pass
    assert head.held is not None
    assert first.finish(first.close(done)).ids


@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "llama-sliding"])
def test_what_cannot_be_cut_is_not_launched_on_a_guess(models, family):
    ring, ranks = waiting_ring(models, family, (0, 2, FAMILIES[family]["num_hidden_layers"]))
    ring.decode(join=[ring.admit(PROMPT[:20])])
    for _ in range(12):
        ring.decode()
    assert not any(executor.launches_ahead for executor in ring.executors)
    assert [device_io.waited + device_io.missed for device_io in ranks] == [0, 0]


def test_a_rank_alone_launches_nothing_on_a_guess(models):
    ring, (device_io,) = waiting_ring(models, bounds=(0, 5))
    ring.decode(join=[ring.admit(PROMPT[:20])])
    for _ in range(12):
        ring.decode()
    assert not ring.executors[0].launches_ahead
    assert device_io.waited + device_io.missed == 0


def test_at_the_end_of_an_epoch_no_device_waits(models):
    ring, ranks = waiting_ring(models)
    ring.decode(join=[ring.admit(PROMPT[:20])])
    for _ in range(12):
        ring.decode()
    assert ranks[1].held is not None
    for executor in ring.executors:
        executor.end()
    assert [device_io.held for device_io in ranks] == [None, None]


def test_a_step_that_fails_leaves_no_device_waiting(models):
    ring, (_, last) = waiting_ring(models)
    ring.decode(join=[ring.admit(PROMPT[:20])])
    for _ in range(12):
        ring.decode()
    assert last.held is not None
    second = ring.executors[1]
    step = ring.author.write(work=Decode(0))
    assert second.finish(second.launch(step)).failed  # it has no hidden states
    assert last.held is None
    assert not second.work_ahead()


def test_a_group_whose_rows_have_changed_is_left_alone_for_some_decodes(models, monkeypatch):
    """CUDA waits for the whole device to do what it has not done before."""
    monkeypatch.setattr(lookahead, "_SKIP_AFTER_CHANGE", 0)
    ring, ranks = waiting_ring(models)
    ring.decode(join=[ring.admit(PROMPT[:20])])
    for _ in range(5):
        ring.decode()
    ring.decode(join=[ring.admit(PROMPT[:9])])
    taken = []
    for _ in range(4):
        before = [device_io.waited for device_io in ranks]
        ring.decode()
        taken.append(
            [device_io.waited - waited for device_io, waited in zip(ranks, before, strict=True)]
        )
    # Rank 0 waits for the hidden states of the third, which is launched after two.
    assert taken == [[0, 0], [1, 0], [1, 1], [1, 1]]


def test_a_step_that_comes_before_a_closing_pass_keeps_none_from_being_launched(models, references):
    """It begins with a guess: rank 0 must not wait for what comes back before it reads that."""
    ring, ranks = decoding_ring(models, seal=True)
    head, last = ring.executors
    (said,) = ring.text.values()
    guess = reference_tokens(references["llama"], PROMPT[:20], 11)[10]
    first = ring.author.write(work=Decode(0))
    second = ring.author.write(work=Decode(0, 1), ids=(guess,))
    away = ring._finished(head, head.launch(first))
    back = ring._finished(last, last.launch(away))
    assert head.device_waits
    away = ring._finished(head, head.launch(second))
    assert ranks[0].missed == 1
    assert ring._finished(head, head.close(back)).ids == (guess,)
    back = ring._finished(last, last.launch(away))
    said += (guess, *ring._finished(head, head.close(back)).ids)
    for device_io in ranks:
        device_io.waited = device_io.missed = 0
    for _ in range(8):
        ring.decode()
    assert min(device_io.waited for device_io in ranks) >= 8
    assert [device_io.missed for device_io in ranks] == [0, 0]
    assert said == reference_tokens(references["llama"], PROMPT[:20], len(said))


def test_while_rows_come_nothing_is_launched_on_a_guess(models):
    ring, ranks = decoding_ring(models)
    ring.idle = lambda: 0
    ring.decode()  # nothing is launched ahead any more, so there is nothing to interrupt
    ring.admit(PROMPT[:9])
    ring.idle = lambda: ALL
    before = [device_io.waited + device_io.missed for device_io in ranks]
    for _ in range(3):
        ring.decode()
    assert [device_io.waited + device_io.missed for device_io in ranks] == before
    for _ in range(2):
        ring.decode()
    assert all(device_io.waited > waited for device_io, waited in zip(ranks, before, strict=True))


def test_memory_is_not_given_back_while_the_device_waits(models, monkeypatch):
    """CUDA might wait for it, and it for whoever gives back."""
    monkeypatch.setattr(
        "sealring_model.engine.executor._CLEAR_EVERY", 1
    )  # some is due with every step
    ring, _ = decoding_ring(models)
    given: list[bool] = []
    refresh = Executor._clear_mlx_cache

    def refreshed(rank):
        with monkeypatch.context() as now:
            now.setattr(mx, "clear_cache", lambda: given.append(rank.device_waits))
            refresh(rank)

    monkeypatch.setattr(Executor, "_clear_mlx_cache", refreshed)
    for _ in range(10):
        ring.decode()
    assert len(given) >= 10
    assert not any(given)


def test_what_the_device_has_not_seen_is_not_answered(models, monkeypatch):
    """It went on just when it was told that the hidden states are there."""
    ring, _ = decoding_ring(models)
    monkeypatch.setattr(waiting_device.WaitingInlet, "was_filled", False)
    with pytest.raises(StepFailed, match="did not wait"):
        ring.decode()


@pytest.mark.parametrize("patience", [True, False])
def test_devices_that_wait_too_short_a_time_are_left_alone_for_longer_and_longer(models, patience):
    ring, ranks = decoding_ring(models)
    for device_io in ranks:
        device_io.waited, device_io.late = 0, lambda: not patience
    for _ in range(100):
        ring.decode()
    tries = [device_io.waited + device_io.missed for device_io in ranks]
    assert all(tried == 100 if patience else 5 <= tried <= 7 for tried in tries)

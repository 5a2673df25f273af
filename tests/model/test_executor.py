"""Steps that do not fit, tensors that do not open, forwards that fail: answered, never raised."""

import attrs
import mlx.core as mx
import pytest
from model_rings import (
    CLUSTER,
    EPOCH,
    Ring,
    StepFailed,
    bounds_for,
    hop_keys,
    place_of,
    stage_of,
)
from sealring_model.engine.executor import Executor
from sealring_model.engine.hidden_io import PlainActivations, SealedActivations
from sealring_model.loading.model_folder import describe
from sealring_model.sampling.rows import RowParams
from sealring_model.stage.device import DeviceIO
from sealring_protocol.codec.local_messages import HopKey
from sealring_protocol.codec.messages import (
    Decode,
    FailureKind,
    Join,
    Open,
    Prefill,
    Row,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType, Tensor

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(30)]


def failure_of(caught) -> tuple[FailureKind, str]:
    return caught.value.args[0].kind, caught.value.args[0].message


@pytest.fixture
def ring(models) -> Ring:
    ring = Ring(models["llama"], (0, 2, 5))
    ring.decode(join=[ring.admit(PROMPT)])
    return ring


BAD_STEPS = {
    "a gap": (lambda s: attrs.evolve(s, n=s.n + 1), "came where"),
    "again": (lambda s: attrs.evolve(s, n=s.n - 1), "came where"),
    "another ledger": (lambda s: attrs.evolve(s, digest=b"x" * 16), "ledger is not the head's"),
    "a missing id": (lambda s: attrs.evolve(s, ids=()), "0 token ids, not 1"),
    "an id too many": (lambda s: attrs.evolve(s, ids=(1, 2)), "2 token ids, not 1"),
    "no such token": (lambda s: attrs.evolve(s, ids=(256,)), "beyond the vocabulary"),
    "an unknown row": (lambda s: attrs.evolve(s, evict=(99,)), "evicts row 99"),
    "an empty group": (lambda s: attrs.evolve(s, work=Decode(9)), "group 9, which is empty"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_step_that_does_not_fit_ends_the_epoch(ring, case):
    spoil, message = BAD_STEPS[case]
    uid = ring.admit(PROMPT[:9])
    good = ring.author.write(join=(Join(uid, 0),), ids=(3,), work=Decode(0))
    with pytest.raises(StepFailed, match=message) as caught:
        ring.send(spoil(good))
    kind, text = failure_of(caught)
    assert kind is FailureKind.LEDGER
    # The good step comes too late, and so does everything after it.
    with pytest.raises(StepFailed) as again:
        ring.send(good)
    assert failure_of(again) == (kind, text)


def test_a_row_without_sampling_parameters(ring):
    ring.step(open=(Open(50),))
    with pytest.raises(StepFailed, match=r"row 50 .* never announced"):
        ring.step(join=(Join(50, 1),), ids=(4,), work=Decode(1))


def test_a_decode_before_the_answer_of_the_one_before(ring):
    """With several ranks the next input is a token that is not there yet."""
    head = ring.executors[0]
    ring.step(open=(Open(50), Open(51)))
    ring.params.add(Row(50))
    first = ring.author.write(join=(Join(50, 1),), ids=(4,), work=Decode(1))
    assert not head.finish(head.launch(first)).failed
    done = head.finish(head.launch(ring.author.write(work=Decode(1))))
    assert done.failed.kind is FailureKind.LEDGER
    assert "last tokens have not come back" in done.failed.message


def test_hidden_states_that_nobody_waits_for(ring):
    head = ring.executors[0]
    tensor = Tensor(DType.F32, (1, 1, 64), bytes(256))
    done = head.finish(head.close(StepDone(EPOCH, 99, tensors=(tensor,))))
    assert done.n == 99
    assert done.failed.kind is FailureKind.LEDGER


@pytest.mark.parametrize("rank", [0, 1])
def test_a_forward_that_fails_is_told_by_type_and_message(ring, monkeypatch, rank):
    stage = stage_of(*_of(ring, rank)).stage

    def broken(*_):
        raise ValueError("[matmul] shapes do not fit")

    monkeypatch.setattr(stage, "run", broken)
    with pytest.raises(StepFailed) as caught:
        ring.decode()
    kind, text = failure_of(caught)
    assert kind is FailureKind.ENGINE_ERROR
    assert text == "ValueError: [matmul] shapes do not fit"
    assert caught.value.args[0].rank == rank


def _of(ring: Ring, rank: int):
    for key in _stages():
        if key[1:] == ring.bounds[rank : rank + 2] and key[0].name == "llama":
            return key
    raise AssertionError


def _stages():
    from model_rings import _STAGES

    return _STAGES


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no"),
        RuntimeError("[malloc] Unable to allocate 99 bytes."),
        RuntimeError("CUDA out of memory"),
    ],
)
def test_running_out_of_memory_is_told_as_that(ring, monkeypatch, error):
    def broken(*_):
        raise error

    monkeypatch.setattr(stage_of(*_of(ring, 1)).stage, "run", broken)
    with pytest.raises(StepFailed) as caught:
        ring.decode()
    assert failure_of(caught)[0] is FailureKind.MEMORY


def test_what_would_not_fit_is_refused_before_it_is_tried(models):
    limit = mx.get_active_memory() + (1 << 20)
    ring = Ring(models["llama"], (0, 5), limit=limit)
    with pytest.raises(StepFailed, match="MiB more for caches") as caught:
        ring.admit([1] * 2000)
    assert failure_of(caught)[0] is FailureKind.MEMORY


def test_a_long_failure_is_cut_to_what_the_wire_takes(ring, monkeypatch):
    def broken(*_):
        raise ValueError("x\n" * 1000)

    monkeypatch.setattr(stage_of(*_of(ring, 0)).stage, "run", broken)
    with pytest.raises(StepFailed) as caught:
        ring.decode()
    assert len(failure_of(caught)[1]) <= 256


def test_a_chunk_whose_hidden_state_fits_no_frame(models, monkeypatch):
    from sealring_model.engine import hidden_io

    monkeypatch.setattr(hidden_io, "MAX_SEALED_BODY", hidden_io.STEP_ROOM + 20 * 64 * 4)
    ring = Ring(models["llama"], (0, 2, 5))
    ring.admit(PROMPT[:21])
    with pytest.raises(StepFailed, match="smaller chunks"):
        ring.admit(PROMPT[:22])


# ------------------------------------------------------------- the inner seal


def sealed_pair(models, world: int = 2):
    """The last rank of a sealed ring, and a step for it that rank 0 has sealed."""
    ring = Ring(models["llama"], bounds_for(5, world), seal=True)
    ring.params.add(Row(1))
    opened = ring.author.write(open=(Open(1),))
    ring.send(opened)
    step = ring.author.write(work=Prefill(1, 0, 3), ids=(4, 5, 6))
    head = ring.executors[0]
    return ring, head.finish(head.launch(step))


SPOILED = {
    "a flipped bit": lambda t: attrs.evolve(t, data=bytes([t.data[0] ^ 1]) + bytes(t.data[1:])),
    "plain": lambda t: Tensor(t.dtype, t.shape, bytes(t.nbytes)),
    "another counter": lambda t: attrs.evolve(t, counter=t.counter + 1),
    "another shape": lambda t: attrs.evolve(t, shape=(3, 1, 64)),
    "another dtype": lambda t: Tensor(DType.U32, t.shape, t.data, True, t.counter),
    "half of it": lambda t: Tensor(DType.F16, t.shape, t.data[: 2 * 192 + 16], True, t.counter),
}


@pytest.mark.parametrize("case", SPOILED)
def test_hidden_states_that_are_not_what_was_sent(models, case):
    ring, step = sealed_pair(models)
    last = ring.executors[1]
    bad = attrs.evolve(step, tensors=(SPOILED[case](step.tensors[0]),))
    done = last.finish(last.launch(bad))
    assert done.failed.kind is FailureKind.INTEGRITY


def test_hidden_states_of_another_row_or_step_do_not_open(models):
    """A tensor opens in its own place only, though key and counter are right."""
    ring, step = sealed_pair(models)
    other = ring.executors[1]
    moved = attrs.evolve(
        step, open=(Open(2),), work=Prefill(2, 0, 3), digest=_digest_with_row_two(ring)
    )
    done = other.finish(other.launch(moved))
    assert (done.failed.kind, done.failed.rank) == (FailureKind.INTEGRITY, 1)


def _digest_with_row_two(ring: Ring) -> bytes:
    from sealring_protocol.control.epoch.ledger import Ledger

    ledger = Ledger()
    ledger.apply(Step(EPOCH, 1, bytes(16), open=(Open(1),)))
    ledger.apply(Step(EPOCH, 2, bytes(16), open=(Open(2),), work=Prefill(2, 0, 3)))
    return ledger.digest(2)


def test_without_a_key_nothing_goes_out(models):
    info = describe(models["llama"])
    place = place_of(info, (0, 2, 5), 0, True)
    head = Executor(
        stage_of(models["llama"], 0, 2),
        place,
        RowParams(),
        SealedActivations(),
        1 << 40,
        device_io=DeviceIO(),
    )
    ring = Ring(models["llama"], (0, 2, 5))
    assert not head.finish(head.launch(ring.author.write(open=(Open(1),)))).failed
    done = head.finish(head.launch(ring.author.write(work=Prefill(1, 0, 2), ids=(1, 2))))
    assert done.failed.kind is FailureKind.INTEGRITY


def test_a_sealed_tensor_where_no_seal_was_agreed(models):
    _, step = sealed_pair(models)
    info = describe(models["llama"])
    place = place_of(info, (0, 2, 5), 1, False)
    last = Executor(
        stage_of(models["llama"], 2, 5),
        place,
        RowParams(),
        PlainActivations(),
        1 << 40,
        device_io=DeviceIO(),
    )
    last.finish(last.launch(Ring(models["llama"]).author.write(open=(Open(1),))))
    assert last.finish(last.launch(step)).failed.kind is FailureKind.INTEGRITY


def test_a_new_key_replaces_the_old_one(models):
    activation_seal, peer = SealedActivations(), SealedActivations()
    for key in hop_keys(0, 2):
        activation_seal.set_key(key)
    from sealring_model.errors import IntegrityError
    from sealring_protocol.security.seal import InnerContext

    context = InnerContext(EPOCH, 1, 0, 2, (1,))
    peer.set_key(HopKey(False, 1, CLUSTER, b"n" * 32))
    old = activation_seal.seal(context, DType.F32, (1,), b"abcd")
    with pytest.raises(IntegrityError):
        peer.open(context, old)
    peer.set_key(HopKey(False, 1, CLUSTER, b"n" * 32))
    activation_seal.set_key(HopKey(True, 1, CLUSTER, b"n" * 32))
    assert (
        bytes(peer.open(context, activation_seal.seal(context, DType.F32, (1,), b"abcd")))
        == b"abcd"
    )
    assert activation_seal.sealing_ns > 0
    assert peer.opening_ns > 0


# ------------------------------------------------------------- what is reported


def test_each_pass_tells_its_time_along_the_chain(models):
    ring = Ring(models["llama"], (0, 1, 3, 5))
    ring.decode(join=[ring.admit(PROMPT)])
    head, middle, last = ring.executors
    step = head.finish(head.launch(ring.author.write(work=Decode(0))))
    step = middle.finish(middle.launch(step))
    done = last.finish(last.launch(step))
    final = head.finish(head.close(done))
    assert [len(message.spent) for message in (step, done, final)] == [2, 3, 4]
    assert final.spent[:3] == done.spent
    assert all(spent.compute_us > 0 for spent in final.spent)
    assert all(executor.compute_us > 0 for executor in ring.executors)


def test_token_ids_stay_on_rank_0(models):
    ring = Ring(models["llama"], (0, 2, 5))
    ring.params.add(Row(1))
    head = ring.executors[0]
    steps = [
        ring.author.write(open=(Open(1),)),
        ring.author.write(work=Prefill(1, 0, 3), ids=(4, 5, 6)),
        ring.author.write(join=(Join(1, 0),), ids=(7,), work=Decode(0)),
    ]
    assert [head.finish(head.launch(step)).ids for step in steps] == [(), (), ()]

"""The engine as a real child process."""

import os
import shutil
import signal
import subprocess
import sys
import time

import attrs
import pytest
from model_child import Child
from model_families import reference_tokens
from model_rings import Author, hop_keys, place_of
from sealring_model.draft.main import memory_of
from sealring_model.loading.model_folder import describe
from sealring_model.loading.structure import describe_engine, structure_of
from sealring_model.loading.weights import MANIFEST, write_manifest
from sealring_protocol.codec.local_messages import HopKey, Loaded, Logprobs
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    NO_WORK,
    Backend,
    CannotServe,
    Decode,
    Epoch,
    FailureKind,
    Join,
    Open,
    Ping,
    Prefill,
    Progress,
    Row,
    StepDone,
)

PROMPT = [(7 * i * i + 3 * i) % 251 for i in range(40)]


def send_round(children, step):
    message = step
    for child in children:
        child.send(message)
        message = child.receive()
        assert not message.failed, message.failed
    if len(children) > 1 and message.tensors:
        children[0].send(message)
        message = children[0].receive()
        assert not message.failed, message.failed
    return message


def generate(children, author, prompt, count):
    children[0].send(Row(1))
    send_round(children, author.write(open=(Open(1),)))
    work = Prefill(1, 0, len(prompt) - 1)
    send_round(children, author.write(work=work, ids=tuple(prompt[:-1])))
    first = author.write(join=(Join(1, 0),), ids=(prompt[-1],), work=Decode(0))
    tokens = list(send_round(children, first).ids)
    for _ in range(count - 1):
        tokens += send_round(children, author.write(work=Decode(0))).ids
    return tokens


def test_two_children_with_the_inner_seal_and_a_change_of_keys(models, references):
    """The reference's text; then the hop is set up again and both ends take its new key between
    two steps; then only one of them does."""
    folder = models["gpt-oss"]
    info = describe(folder)
    author = Author()
    with Child(folder) as head, Child(folder) as last:
        for rank, child in enumerate((head, last)):
            told = attrs.evolve(child.info(), room=0)
            assert told == describe_engine(info, structure_of(info), 0)
            assert (told.splits, told.backends) == (2, 1 << Backend.RING)
            for key in hop_keys(rank, 2):
                child.send(key)
            ready = child.start(place_of(info, (0, 2, 4), rank, True))
            assert (ready.first, ready.last) == ((0, 2), (2, 4))[rank]
        tokens = generate([head, last], author, PROMPT, 24)
        head.send(HopKey(True, 2, b"c" * 32, b"n" * 32))
        last.send(HopKey(False, 2, b"c" * 32, b"n" * 32))
        tokens += send_round([head, last], author.write(work=Decode(0))).ids
        assert tokens == reference_tokens(references["gpt-oss"], PROMPT, 25)
        last.send(HopKey(False, 2, b"c" * 32, b"o" * 32))
        head.send(author.write(work=Decode(0)))
        last.send(head.receive())
        assert last.receive().failed.kind is FailureKind.INTEGRITY
        assert head.progress().seal_us > 0
        assert head.progress().rows == 1


@pytest.fixture(scope="module")
def child(models):
    """One child for all tests that leave it in good order."""
    with Child(models["llama"]) as child:
        child.info()
        yield child


@pytest.fixture
def place(models):
    return place_of(describe(models["llama"]), (0, 5), 0)


EPOCHS = iter(range(1, 1 << 20))


def next_epoch(place):
    """The same place in an epoch that no other test has used."""
    return attrs.evolve(place, epoch=Epoch(77, next(EPOCHS)))


class EpochAuthor(Author):
    """Writes the steps of *epoch*."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def write(self, **fields):
        return attrs.evolve(super().write(**fields), epoch=self.epoch)


def begin(child, place) -> EpochAuthor:
    place = next_epoch(place)
    child.start(place)
    return EpochAuthor(place.epoch)


# ------------------------------------------------------------------ bootstrap


def test_the_same_layers_are_kept_and_the_caches_are_not(child, place, references):
    expected = reference_tokens(references["llama"], PROMPT, 8)
    assert generate([child], begin(child, place), PROMPT, 8) == expected
    assert child.progress().cache > 0
    author = begin(child, place)
    assert isinstance(child.loaded, Loaded)
    assert child.loaded.read == 0
    assert child.loaded.held == describe_size(place)
    assert child.progress().cache == child.progress().rows == 0
    assert generate([child], author, PROMPT, 8) == expected


def describe_size(place) -> int:
    return SIZES[place.model]


SIZES: dict[bytes, int] = {}


@pytest.fixture(autouse=True)
def _sizes(models):
    info = describe(models["llama"])
    SIZES[info.digest] = info.size


def test_other_layers_are_read_and_the_old_ones_go(child, place):
    info_layers = attrs.evolve(place, bounds=(0, 2, 5), rank=1)
    whole = child.start(next_epoch(place))
    held = child.progress().memory
    ready = child.start(next_epoch(info_layers))
    assert child.loaded.read == child.loaded.held < SIZES[place.model]
    assert (ready.first, ready.last) == (2, 5)
    assert child.progress().memory < held
    assert ready.room > whole.room
    child.start(next_epoch(place))


REFUSED = {
    "another model": (lambda p: attrs.evolve(p, model=b"x" * 32), "digests differ"),
    "other layers": (lambda p: attrs.evolve(p, bounds=(0, 6)), "splits 6 layers; the model has 5"),
    "another back end": (
        lambda p: attrs.evolve(p, backend=Backend.RING, hosts=(("10.0.0.1", 0),) * 2),
        "RING",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_place_that_cannot_be_taken(child, place, references, case):
    spoil, message = REFUSED[case]
    bad = spoil(next_epoch(place))
    child.send(bad)
    done = child.receive()
    assert isinstance(done, CannotServe)
    assert (done.epoch, done.kind) == (bad.epoch, FailureKind.UNSERVABLE)
    assert message in done.reason
    # The engine lives on, and takes a better place.
    expected = reference_tokens(references["llama"], PROMPT, 4)
    assert generate([child], begin(child, place), PROMPT, 4) == expected


@pytest.mark.slow
def test_a_weight_that_is_not_the_manifests(models, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(models["qwen3"], folder)
    manifest = write_manifest(folder)
    text = manifest.read_text()
    at = text.index("model.layers.3.mlp.down_proj.weight") + 40
    spoiled = text[:at] + ("1" if text[at] == "0" else "0") + text[at + 1 :]
    (folder / MANIFEST).write_text(spoiled)
    info = describe(folder)
    with Child(folder) as child:
        child.info()
        child.send(place_of(info, (0, 2, 4), 1))
        done = child.receive()
        why = "tensor model.layers.3.mlp.down_proj.weight does not match the manifest"
        assert done == CannotServe(done.epoch, FailureKind.UNSERVABLE, why)
        assert child.start(place_of(info, (0, 2, 4), 0))


# ---------------------------------------------------------------------- steps


def test_a_window_of_two_steps(child, place, references):
    author = begin(child, place)
    child.send(Row(1))
    steps = [
        author.write(open=(Open(1),)),
        author.write(work=Prefill(1, 0, len(PROMPT) - 1), ids=tuple(PROMPT[:-1])),
        author.write(join=(Join(1, 0),), ids=(PROMPT[-1],), work=Decode(0)),
        *(author.write(work=Decode(0)) for _ in range(15)),
        author.write(evict=(1,), work=NO_WORK),
    ]
    child.send(steps[0])
    answers = []
    for step in steps[1:]:
        child.send(step)
        answers.append(child.receive())
    answers.append(child.receive())
    assert [done.n for done in answers] == [step.n for step in steps]
    assert not any(done.failed for done in answers)
    tokens = [token for done in answers for token in done.ids]
    assert tokens == reference_tokens(references["llama"], PROMPT, 16)
    assert child.progress().cache == 0


def test_log_probabilities_come_before_the_answer_of_their_step(child, place):
    author = begin(child, place)
    child.send(Row(1, logprobs=3))
    child.send(Row(2))
    child.send(author.write(open=(Open(1), Open(2))))
    child.send(author.write(join=(Join(1, 0), Join(2, 0)), ids=(3, 4), work=Decode(0)))
    child.send(author.write(work=Decode(0)))
    answers = [child.receive() for _ in range(5)]
    kinds = [(type(message), message.n) for message in answers]
    assert kinds == [(StepDone, 1), *[(kind, n) for n in (2, 3) for kind in (Logprobs, StepDone)]]
    for told, done in (answers[1:3], answers[3:5]):
        assert told.uid == 1
        # The row is greedy: its token is the likeliest.
        assert (told.ids[0], told.values[0]) == (done.ids[0], told.chosen)
        assert len(told.ids) == 3


def test_a_step_tells_what_it_waited_for(child, place):
    """Sent together, the second step waits while the first is computed."""
    author = begin(child, place)
    child.send(Row(1))
    child.send(author.write(open=(Open(1),)))
    child.receive()
    chunk = tuple(PROMPT) * 5
    steps = [author.write(work=Prefill(1, at, len(chunk)), ids=chunk) for at in (0, len(chunk))]
    began = time.perf_counter()
    for step in steps:
        child.send(step)
    first, second = (child.receive().spent[0] for _ in range(2))
    took = 1e6 * (time.perf_counter() - began)
    assert second.wait_us > first.compute_us / 2 > 0
    assert second.wait_us + second.compute_us < took
    assert first.seal_us == second.seal_us == 0


def test_a_flood_of_steps_is_answered_in_order(child, place):
    author = begin(child, place)
    child.send(Row(1))
    steps = [
        author.write(open=(Open(1),)),
        author.write(join=(Join(1, 0),), ids=(3,), work=Decode(0)),
        *(author.write(work=Decode(0)) for _ in range(60)),
    ]
    for step in steps:
        child.send(step)
    child.send(Ping(9, Progress()))
    answers = [child.receive() for _ in range(len(steps) + 1)]
    pong = answers.pop(next(i for i, m in enumerate(answers) if not isinstance(m, StepDone)))
    assert [done.n for done in answers] == [step.n for step in steps]
    assert pong.echo == 9


def test_a_step_that_fails_and_the_ones_after_it_until_the_next_epoch(child, place, references):
    author = begin(child, place)
    child.send(attrs.evolve(author.write(), digest=b"x" * 16))
    assert child.receive().failed.kind is FailureKind.LEDGER
    child.send(author.write())
    assert child.receive().failed.kind is FailureKind.LEDGER
    expected = reference_tokens(references["llama"], PROMPT, 4)
    assert generate([child], begin(child, place), PROMPT, 4) == expected


def test_steps_of_another_epoch_are_nobodys(child, place):
    author = begin(child, place)
    child.send(EpochAuthor(NO_EPOCH).write())
    child.send(author.write())
    done = child.receive()
    assert (done.epoch, done.n, done.failed) == (author.epoch, 1, None)


def test_progress(child, place):
    before = child.progress()
    generate([child], begin(child, place), PROMPT, 5)
    after = child.progress()
    assert after.steps_received - before.steps_received == 7
    assert after.steps_answered - before.steps_answered == 7
    assert after.compute_us > before.compute_us
    assert after.rows == 1
    assert after.cache > 0
    assert after.memory > after.cache


# ------------------------------------------------------------- life and death


def test_an_interrupt_is_the_nodes_business(child, place, references):
    author = begin(child, place)
    os.kill(child.process.pid, signal.SIGINT)
    expected = reference_tokens(references["llama"], PROMPT, 4)
    assert generate([child], author, PROMPT, 4) == expected


def test_an_engine_leaves_the_memory_of_a_draft_model_alone(models):
    folder, draft = models["llama"], models["qwen3"]
    beside = memory_of(describe(draft))
    assert beside > describe(draft).size
    with Child(folder, "--memory-limit", str(1 << 30), "--beside", str(beside)) as child:
        assert child.info().room == (1 << 30) - beside


def test_a_limited_child_ends_with_its_channel_even_in_the_middle_of_steps(models, place):
    with Child(models["llama"], "--memory-limit", str(1 << 30)) as child:
        assert child.info().room == 1 << 30
        ready = child.start(place)
        assert (1 << 30) - (32 << 20) < ready.room <= (1 << 30) - child.loaded.held
        author = Author()
        child.send(author.write(open=(Open(1),)))
        ids = tuple([7] * 300)
        for at in range(8):
            work = Prefill(1, at * len(ids), len(ids))
            child.send(author.write(work=work, ids=ids))
        child.sock.close()
        assert child.wait() == (0, "")


def test_the_child_ends_before_it_has_said_anything(models):
    with Child(models["llama"]) as child:
        child.sock.close()
        status, said = child.wait()
        assert status in (0, 70)  # 70: it was still importing when its patience ended
        assert said == ""


def test_a_model_that_is_not_there(tmp_path):
    with Child(tmp_path / "none") as child:
        done = child.receive()
        assert isinstance(done, CannotServe)
        assert (done.epoch, done.kind) == (NO_EPOCH, FailureKind.UNSERVABLE)
        assert child.wait() == (2, f"sealring engine: {done.reason}\n")


@pytest.mark.parametrize("missing", ["No module named 'mlx'", "libmlx.so: cannot open shared"])
def test_mlx_that_cannot_be_imported_is_told_as_a_model_that_cannot_be_read(
    tmp_path, monkeypatch, missing
):
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx/core.py").write_text(f"raise ImportError({missing!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "mlx/__init__.py").touch()
    with Child("any") as child:
        done = child.receive()
        assert isinstance(done, CannotServe)
        assert (done.epoch, done.kind) == (NO_EPOCH, FailureKind.UNSERVABLE)
        assert done.reason.startswith(f"MLX cannot be loaded: {missing}; install it")
        assert child.wait() == (2, f"sealring engine: {done.reason}\n")


HALF = """
import threading
from sealring_model import machine as engine
threading.excepthook = engine.end_with_thread
threading.Thread(target=lambda: [].pop()).start()
threading.Event().wait()
"""


def test_a_thread_that_fails_takes_the_process_with_it():
    command = [sys.executable, "-c", HALF]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 70
    assert run.stderr.endswith("IndexError: pop from empty list\n")


def test_what_is_no_frame_ends_the_child_without_a_traceback(models, place):
    with Child(models["llama"]) as child:
        child.info()
        child.start(place)
        child.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        status, said = child.wait()
        assert status == 2
        assert said.startswith("sealring engine: the channel to the node broke: this is HTTP")
        assert said.count("\n") == 1

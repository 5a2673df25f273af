"""Guesses under way change no text: a real head and real engines, whatever the order of events.

The head gets guesses of every row's tokens, of which some are wrong, while rows join, are
cancelled, are preempted, reuse prefixes, and engines and links are lost.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import attrs
import pytest
from model_families import FAMILIES, TWINS
from model_rings import SAMPLING, Ring, StepFailed, hop_keys, stage_of
from sealring_model.engine.executor import Executor
from sealring_model.engine.hidden_io import SealedActivations
from sealring_model.loading.model_folder import describe
from sealring_model.loading.structure import describe_engine, structure_of
from sealring_model.sampling.rows import RowParams
from sealring_model.stage.device import DeviceIO
from sealring_protocol.codec.local_messages import EngineInfo, Loaded
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    Decode,
    Epoch,
    Join,
    Open,
    Ping,
    Pong,
    Prefill,
    Progress,
    Ready,
    Row,
    Step,
)
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.requests import (
    FinishReason,
    Request,
    SchedulerConfig,
)
from waiting_device import WaitingDeviceIO, launch_eagerly

from tests.families.checkpoints import write
from tests.rows import rows
from tests.sim.brains import AlwaysPay, Brains

LENGTH = 20
ROOM = 1 << 30


@cache
def engine_of(folder: Path) -> EngineInfo:
    """What an engine in a pipeline tells of itself and the model in *folder*."""
    info = describe(folder)
    return attrs.evolve(describe_engine(info, structure_of(info), ROOM), splits=0)


class RealEngine:
    """One rank's executor, without a process: `receive` takes a message and gives the answers."""

    def __init__(
        self, folder: Path, random: Random, device_io: Callable[[], DeviceIO] = DeviceIO
    ) -> None:
        self.device_io = device_io
        self.info = describe(folder)
        self.folder = folder
        self.random = random
        self.params = RowParams()
        self.executor: Executor | None = None
        self.held = 0

    def start(self) -> list:
        return [engine_of(self.folder)]

    def receive(self, message) -> list:
        executor = self.executor
        match message:
            case Bootstrap():
                return self.bootstrap(message)
            case Row():
                self.params.add(message)
                return []
            case Ping(echo):
                return [Pong(echo, Progress())]
        assert executor is not None
        self.work_ahead()
        if executor.device_waits and self.random.random() < 0.5:
            executor.fill_early(message)
            self.work_ahead()
        launch = executor.launch if isinstance(message, Step) else executor.close
        in_flight = launch(message)
        answer = executor.finish(in_flight)
        if executor.launches_ahead:
            self.work_ahead()
        return [*in_flight.pending_answer.preface(), answer]

    def work_ahead(self) -> None:
        assert self.executor is not None
        for _ in range(self.random.randrange(3)):
            self.executor.work_ahead()

    def bootstrap(self, place: Bootstrap) -> list:
        first, last = place.bounds[place.rank], place.bounds[place.rank + 1]
        loaded = stage_of(self.folder, first, last)
        self.params.new_epoch(place.epoch)
        seal = SealedActivations()
        for key in hop_keys(place.rank, place.world):
            seal.set_key(key)
        self.executor = Executor(
            loaded, place, self.params, seal, 1 << 40, device_io=self.device_io()
        )
        ready = Ready(place.epoch, first, last, loaded.trimmable, ROOM, loaded.cost)
        return [Loaded(loaded.read, loaded.held, 1), ready]


@pytest.mark.parametrize(
    ("family", "world", "seed"),
    rows(
        COURSES := [
            (family, world, seed)
            for family in FAMILIES
            for world in (1, 2, 3, 4)
            for seed in (0, 1)
        ],
        ("llama", 2, 0),
        ("gpt-oss", 4, 0),
        ("qwen3-next", 3, 0),
        ci=[course for course in COURSES if course[0] not in TWINS and course[2] == 0],
    ),
)
def test_guesses_change_no_text(models, alone, family, world, seed):
    random = Random(f"{family} {world} {seed}")
    run_schedule(
        models[family], random, world, lambda prompt, way: alone(family, prompt, way)[:LENGTH]
    )


OTHERS = {
    "falcon_h1": "a list of caches in each layer: a recurrent state beside keys and values",
    "baichuan_m1": "a list of caches in each layer, some with a window",
    "lfm2": "the last inputs of a convolution",
    "llama4": "chunks of keys and values",
    "rwkv7": "recurrent states alone",
}
"""Families with other caches, by what these are."""


@pytest.mark.parametrize(
    ("family", "world"),
    rows(
        [(family, world) for family in OTHERS for world in (2, 4)],
        ("falcon_h1", 2),
        ("llama4", 2),
    ),
)
def test_guesses_change_no_text_of_other_caches(tmp_path, family, world):
    folder, known = write(tmp_path / family, family), {}

    def text(prompt, way):
        if (prompt, way) not in known:
            known[prompt, way] = Ring(folder).generate(list(prompt), LENGTH, **SAMPLING[way])
        return known[prompt, way]

    run_schedule(folder, Random(f"{family} {world}"), world, text)


@pytest.mark.parametrize("seed", rows(range(3), 0))
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("family", rows(["llama", "qwen3"], "llama", ci=()))
def test_guesses_change_no_text_on_a_device_that_waits(
    models, alone, monkeypatch, family, world, seed
):
    """Its next decode may have been launched when what it follows is taken back."""
    launch_eagerly(monkeypatch)
    random, made = Random(f"{family} {world} {seed} a device that waits"), []

    def device_io() -> WaitingDeviceIO:
        made.append(WaitingDeviceIO(lambda: random.random() < 0.1))
        return made[-1]

    run_schedule(
        models[family],
        random,
        world,
        lambda prompt, way: alone(family, prompt, way)[:LENGTH],
        device_io,
    )
    assert sum(each.waited for each in made) > 5


@pytest.mark.parametrize("ahead", [0, 4])
def test_two_rows_of_a_ring_of_three_may_both_have_guesses_under_way(models, alone, ahead):
    """What comes back is opened in the order in which it was sealed, whichever is known first."""
    prompts, random = [(1, 2, 3, 4, 5), (9, 8, 7, 6)], Random(ahead)
    texts = {prompt: alone("llama", prompt, 0) for prompt in prompts}
    for _ in range(4):
        config = SchedulerConfig(groups=2, rows=1, ahead=ahead)
        ring = Brains(
            3,
            random,
            config,
            lambda: RealEngine(models["llama"], random),
            lambda r: texts[r.prompt],
        )
        ring.start()
        for prompt in prompts:
            ring.submit(Request(prompt, LENGTH, guesses=tuple(texts[prompt])))
        ring.run()
        assert list(ring.tokens.values()) == list(texts.values())
        assert not [note for note in ring.notes if "failed" in note or "open" in note]
        assert sum(done.accepted for done in ring.done.values()) > 5


def run_schedule(
    folder: Path,
    random: Random,
    world: int,
    text_of,
    device_io: Callable[[], DeviceIO] = DeviceIO,
) -> None:
    """A random course of a ring of *world* ranks with the model in *folder*. `text_of(prompt, way)`
    is what a row says alone, that is sampled in that way of `SAMPLING`."""

    def expected(request: Request) -> list[int]:
        way = next(n for n, way in enumerate(SAMPLING) if Row(0, **way) == request.sampling)
        return text_of(request.prompt, way)[: request.max_tokens]

    config = SchedulerConfig(groups=2, rows=2, chunk=9, prefixes=4, retries=50, ahead=4)
    ring = Brains(world, random, config, lambda: RealEngine(folder, random, device_io), expected)
    ring.start()
    prompts = [tuple(random.randrange(256) for _ in range(n)) for n in (3, 12, 30)]
    asked = []
    for _ in range(7):
        prompt, way = random.choice(prompts), random.randrange(3)
        length = random.randrange(4, LENGTH)
        likely = tuple(each if random.random() < 0.8 else 7 for each in text_of(prompt, way))
        request = Request(prompt, length, sampling=Row(0, **SAMPLING[way]), guesses=likely)
        uid = ring.submit(request)
        asked.append((uid, request))
        for _ in range(random.randrange(500)):
            ring.step()
        chance, live = random.random(), [one for one, _ in asked if one not in ring.done]
        if chance < 0.15 and live:
            ring.cancel(random.choice(live))
        elif chance < 0.25 and live:
            ring.head.scheduler.preempt(random.choice(live))
        elif chance < 0.35:
            rank = random.randrange(world)
            ring.kill_engine(rank)
            ring.start_engine(rank)
        elif chance < 0.45 and ring.up:
            ring.cut(random.choice(sorted(ring.up)))
    ring.run()
    guessed = 0
    for uid, request in asked:
        text = expected(request)
        if ring.finished(uid) is FinishReason.CANCELLED:
            text = text[: len(ring.tokens[uid])]
        assert ring.tokens[uid] == text, (uid, request)
        guessed += ring.done[uid].accepted + ring.done[uid].rejected
    assert guessed or world == 1
    for rank in range(world):
        assert ring.engines[rank].executor.live_rows == 0
    assert not ring.engines[0].executor._forward.awaiting_logits


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("way", range(3))
def test_a_guess_follows_a_decode_of_more_rows(models, alone, world, way):
    """A row leaves while its token is on the way, and the other one decodes on guesses: its
    penalties are counted as they would be alone."""
    prompts = [(1, 2, 3, 4, 5), (9, 8, 7, 6)]
    for seed in range(3):
        random = Random(f"{world} {seed}")
        config = SchedulerConfig(groups=1, rows=2, ahead=4)
        ring = Brains(
            world,
            random,
            config,
            lambda random=random: RealEngine(models["llama"], random),
            lambda request: alone("llama", request.prompt, 2)[: request.max_tokens],
        )
        ring.start()
        uids = [
            ring.submit(Request(prompt, LENGTH, sampling=Row(0, **SAMPLING[kind])))
            for prompt, kind in zip(prompts, (2, way), strict=True)
        ]
        while any(len(ring.tokens[uid]) < 3 for uid in uids):
            ring.step()
        for _ in range(random.randrange(20)):
            ring.step()
        expected = alone("llama", prompts[0], 2)[:LENGTH]
        ring.absorb(0, ring.head.guess(uids[0], len(prompts[0]), expected, ring.now))
        ring.cancel(uids[1])
        ring.run()
        assert ring.tokens[uids[0]] == expected
        assert not any("failed" in note for note in ring.notes)


def ask_ahead(folder: Path, world: int, request: Request, expected: list[int]) -> list[int]:
    """What a ring of *world* ranks answers to *request*, whose guesses are read as far ahead as may
    be. Returns how many were read after the first token of each decode."""
    random = Random(f"{folder.name} {world} {request}")
    ring = Brains(
        world,
        random,
        SchedulerConfig(ahead=4, prefixes=2),
        lambda: RealEngine(folder, random),
        lambda _: expected,
    )
    ring.start()
    uid = ring.submit(request)
    ring.head.scheduler._guessing.costs = AlwaysPay()
    ring.head.guess(uid, len(request.prompt), [], ring.now)  # those of the request alone
    ring.run()
    assert ring.tokens[uid] == expected
    return [step.work.ahead for step in ring.timings if isinstance(step.work, Decode)]


PROMPT = (1, 2, 3, 4, 5)


@pytest.mark.parametrize("world", rows([1, 2, 3], 2))
@pytest.mark.parametrize("way", range(3))
@pytest.mark.parametrize("family", rows(["llama", "qwen3"], "llama", ci=()))
def test_several_guesses_are_read_with_one_step(models, alone, family, way, world):
    """Right ones save steps; after a wrong one the text goes on as it would without."""
    text = alone(family, PROMPT, way)[:LENGTH]
    for wrong in ((), (2,), (0, 1, 7, 9), tuple(range(LENGTH))):
        guesses = tuple(3 if n in wrong else token for n, token in enumerate(text))
        request = Request(PROMPT, LENGTH, sampling=Row(0, **SAMPLING[way]), guesses=guesses)
        ahead = ask_ahead(models[family], world, request, text)
        assert sum(ahead) > LENGTH // 2
        assert wrong or len(ahead) <= LENGTH // 5 + 3


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("family", ["gemma3", "qwen3-next"])
def test_caches_that_cannot_be_cut_read_nothing_ahead(models, alone, family, world):
    text = alone(family, PROMPT, 0)[:LENGTH]
    request = Request(PROMPT, LENGTH, sampling=Row(0, **SAMPLING[0]), guesses=tuple(text))
    assert not sum(ask_ahead(models[family], world, request, text))


def test_a_row_with_log_probabilities_reads_nothing_ahead(models, alone):
    text = alone("llama", PROMPT, 0)[:LENGTH]
    sampling = Row(0, **SAMPLING[0], logprobs=0)
    request = Request(PROMPT, LENGTH, sampling=sampling, guesses=tuple(text))
    assert not sum(ask_ahead(models["llama"], 1, request, text))


@pytest.mark.parametrize("family", ["gemma3", "qwen3-next"])
def test_an_engine_refuses_to_read_ahead_what_it_could_not_take_back(models, family):
    engine = RealEngine(models[family], Random(1))
    epoch = Epoch(1, 1)
    bounds = (0, len(engine.info.layers))
    engine.bootstrap(Bootstrap(epoch, Backend.PIPELINE, 0, False, 1000, bytes(32), bounds))
    engine.params.add(Row(1))
    ledger = Ledger()
    for n, step in enumerate(
        (
            Step(epoch, 1, b"", open=(Open(1),), work=Prefill(1, 0, 3), ids=(1, 2, 3)),
            Step(epoch, 2, b"", join=(Join(1, 0),), work=Decode(0, 2, 2), ids=(4, 5, 6)),
        )
    ):
        ledger.apply(step)
        (answer,) = engine.receive(attrs.evolve(step, digest=ledger.digest(n + 1)))
    assert answer.failed is not None
    assert "cannot be cut" in answer.failed.message


@pytest.mark.parametrize("family", ["llama-sliding", "qwen3-next"])
def test_no_guesses_are_read_ahead_into_empty_caches_that_cannot_be_cut(models, family):
    """A head that is not ours may have a row decode before any of its prompt was read."""
    ring = Ring(models[family])
    ring.params.add(Row(1))
    ring.step(open=(Open(1),))
    with pytest.raises(StepFailed, match="cannot be cut"):
        ring.step(join=(Join(1, 0),), work=Decode(0, 4, 4), ids=(5, 1, 2, 3, 4))

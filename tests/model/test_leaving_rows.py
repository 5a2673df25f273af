"""Rows that may not have every token, and leave while their last token is on its way round: it is
held to the same as any other. The head's real engine draws after it has evicted the row."""

from functools import cache
from queue import SimpleQueue
from random import Random

import pytest
from model_rings import Ring, bounds_for
from sealring_model.loading.model_folder import describe
from sealring_model.sampling.constraints import Matchers
from sealring_model.sampling.rows import RowParams
from sealring_model.text.tokens import Tokenizer
from sealring_model.tiny import path
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig
from test_guesses import RealEngine

from tests.rows import rows
from tests.sim.brains import Brains

TINY = path()
LAYERS, VOCABULARY = len(describe(TINY).layers), describe(TINY).vocabulary
GRAMMAR = b"start: /[0-9]{2,40}/"
LONGEST = 8


@cache
def prompt() -> tuple[int, ...]:
    return tuple(Tokenizer(TINY).chat([{"role": "user", "content": "Hi."}]))


@cache
def free() -> frozenset[int]:
    """The first tokens that come of themselves."""
    return frozenset(Ring(TINY).generate(list(prompt()), LONGEST))


def request(kind: str, count: int) -> Request:
    """Digits alone; none of the first tokens that come without; or no end before the last token,
    where all of these are ends."""
    match kind:
        case "grammar":
            return Request(prompt(), count, sampling=Row(0, grammar=GRAMMAR))
        case "bad":
            return Request(prompt(), count, sampling=Row(0, bad=tuple((t,) for t in free())))
        case _:
            return Request(prompt(), count, free(), min_tokens=LONGEST)


@cache
def alone(kind: str) -> list[int]:
    """The text on one rank, which evicts no row before its token is drawn."""
    ring = Ring(TINY, bounds_for(LAYERS, 1), matchers=Matchers(TINY, VOCABULARY))
    asked = request(kind, LONGEST)
    least = len(prompt()) + asked.min_tokens if asked.min_tokens else 0
    held = {"grammar": asked.sampling.grammar, "bad": asked.sampling.bad, "least": least}
    uid = ring.admit(list(prompt()), ends=tuple(sorted(asked.eos)), **held)
    ring.decode(join=[uid])
    for _ in range(LONGEST - 1):
        ring.decode()
    return ring.text[uid]


class HoldingEngine(RealEngine):
    """One that follows grammars, and says that a row is prepared once it is."""

    def __init__(self, random: Random) -> None:
        super().__init__(TINY, random)
        self.told: SimpleQueue = SimpleQueue()
        self.params = RowParams(Matchers(TINY, VOCABULARY, self.told.put))

    def receive(self, message) -> list:
        answers = super().receive(message)
        if isinstance(message, Row) and message.grammar:
            answers.append(self.told.get(timeout=60))
        return answers


def ring(world: int, seed: int) -> Brains:
    random = Random(seed)
    config = SchedulerConfig(groups=1, rows=1)
    made = Brains(world, random, config, lambda: HoldingEngine(random), lambda _: alone("bad"))
    made.start()
    return made


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("kind", ["grammar", "bad", "least"])
@pytest.mark.parametrize("count", rows([1, 2, 5, LONGEST], LONGEST))
def test_a_rows_last_token_is_held_to_what_the_others_are(world, kind, count):
    for seed in range(4):
        cluster = ring(world, seed)
        uid = cluster.submit(request(kind, count))
        cluster.run()
        assert cluster.tokens[uid] == alone(kind)[:count]
        assert cluster.finished(uid) is FinishReason.LENGTH


@pytest.mark.parametrize("kind", rows(["grammar", "bad", "least"], "grammar"))
def test_a_token_of_a_row_that_is_preempted_meanwhile_is_held_to_the_same(kind):
    for seed in range(8):
        cluster = ring(2, seed)
        uid = cluster.submit(request(kind, LONGEST))
        for least in (1, 3, 5):
            while len(cluster.tokens[uid]) < least:
                cluster.step()
            for _ in range(cluster.random.randrange(12)):
                cluster.step()
            if uid not in cluster.done:
                cluster.head.scheduler.preempt(uid)
        cluster.run()
        assert cluster.tokens[uid] == alone(kind)

"""Random schedules with steps in flight: every row says what it says alone.

As on a real ring, ranks take their messages when they like, several groups are on their way at
once, rows leave while their tokens are away, and a group's next decode is written when its hidden
states are back at the head, before its tokens are known. The devices wait for hidden states, and
lose their patience at times.
"""

import random
from collections import Counter, deque
from functools import partial

import pytest
from model_families import FAMILIES, TWINS
from model_rings import SAMPLING, Ring, StepFailed, travelled
from sealring_model import lookahead
from sealring_protocol.codec.messages import NO_WORK, Decode, Join, Open, Prefill, Step, StepDone
from waiting_device import ThoroughBuilder, WaitingDeviceIO, launch_eagerly

from tests.rows import rows

LENGTH = 14
ON_DEVICE = 2
"""Steps launched and not answered, as in `answers`."""


class Flights:
    """One random run of *batches*."""

    def __init__(self, folder, bounds, batches: int, rng: random.Random, expected) -> None:
        self.rng = rng
        self.expected = expected
        late = partial(WaitingDeviceIO, lambda: rng.random() < 0.05)
        self.ring = Ring(folder, bounds, seal=True, device_io=late)
        self.world = len(self.ring.executors)
        self.inbox = [deque() for _ in range(self.world)]
        self.in_flight = [deque() for _ in range(self.world)]
        self.rows: dict[int, list[int]] = {batch: [] for batch in range(batches)}
        self.waiting: list[int] = []
        self.prompts: dict[int, tuple[tuple[int, ...], int]] = {}
        self.said: dict[int, list[int]] = {}
        self.away: dict[int, tuple[int, tuple[int, ...]]] = {}  # by step: group, rows
        self.back: set[int] = set()
        self.due: Counter[int] = Counter()  # tokens on their way, by row

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self._head()
            for _ in range(self.rng.choice((4, 12, 60))):
                rank = self.rng.randrange(self.world)
                self.rng.choice((self._take, self._answer, self._idle, self._idle))(rank)
            if self.rng.random() < 0.05:
                self.rng.choice(self.ring.device_io).time_out()

    # -------------------------------------------------------------------- head

    def _send(self, **fields) -> int:
        step = self.ring.author.write(**fields)
        self._arrive(0, travelled(step))
        return step.n

    def _head(self) -> None:
        if len(self.away) + sum(map(len, self.inbox)) > 6:
            return
        chance = self.rng.random()
        rows = [(batch, uid) for batch, uids in self.rows.items() for uid in uids]
        if len(self.prompts) < 3 or (chance < 0.05 and len(rows) + len(self.waiting) < 6):
            self._admit()
        elif chance < 0.1 and rows:
            batch, uid = self.rng.choice(rows)
            self.rows[batch].remove(uid)
            self._send(evict=(uid,), work=NO_WORK)
        else:
            self._decode(self.rng.choice(list(self.rows)))

    def _admit(self) -> None:
        prompt = tuple(self.rng.randrange(256) for _ in range(self.rng.choice((2, 5, 16, 40))))
        way = self.rng.choice((0, 0, 1, 2))
        uid = next(self.ring.uids)
        self.ring.announce(uid, prompt, **SAMPLING[way])
        self._send(open=(Open(uid),))
        self._send(work=Prefill(uid, 0, len(prompt) - 1), ids=prompt[:-1])
        self.prompts[uid], self.said[uid] = (prompt, way), []
        self.waiting.append(uid)

    def _decode(self, batch: int) -> None:
        if any(of == batch and n not in self.back for n, (of, _) in self.away.items()):
            return
        rows = self.rows[batch]
        over = tuple(uid for uid in rows if len(self.said[uid]) + self.due[uid] >= LENGTH)
        joining = [uid for uid in self.waiting if self.rng.random() < 0.5]
        self.waiting = [uid for uid in self.waiting if uid not in joining]
        rows[:] = [uid for uid in rows if uid not in over] + joining
        if not rows:
            if over:
                self._send(evict=over, work=NO_WORK)
            return
        joins = tuple(Join(uid, batch) for uid in joining)
        ids = tuple(self.prompts[uid][0][-1] for uid in joining)
        n = self._send(evict=over, join=joins, ids=ids, work=Decode(batch))
        self.away[n] = (batch, tuple(rows))
        self.due.update(rows)

    # ------------------------------------------------------------------- ranks

    def _arrive(self, rank: int, message: Step | StepDone) -> None:
        """It may be told at once, if nothing is to be done before it."""
        if not self.inbox[rank] and self.rng.random() < 0.5:
            self.ring.executors[rank].fill_early(message)
        self.inbox[rank].append(message)

    def _take(self, rank: int) -> None:
        if self.inbox[rank] and len(self.in_flight[rank]) < ON_DEVICE:
            executor, message = self.ring.executors[rank], self.inbox[rank].popleft()
            is_back = isinstance(message, StepDone)
            in_flight = executor.close(message) if is_back else executor.launch(message)
            # What is due must not wait for what is not.
            assert not self.ring.device_io[rank].holds(in_flight.pending_answer.arrays)
            self.in_flight[rank].append(in_flight)

    def _answer(self, rank: int) -> None:
        if not self.in_flight[rank]:
            return
        in_flight = self.in_flight[rank].popleft()
        answer = travelled(self.ring.executors[rank].finish(in_flight))
        if answer.failed:
            raise StepFailed(answer.failed)
        if isinstance(in_flight.message, StepDone):
            self._drawn(answer)
        elif rank < self.world - 1:
            self._arrive(rank + 1, answer)
        elif answer.tensors:
            self.back.add(answer.n)
            self._arrive(0, answer)

    def _idle(self, rank: int) -> None:
        if not self.inbox[rank]:
            self.ring.executors[rank].work_ahead()

    def _drawn(self, done: StepDone) -> None:
        _, rows = self.away.pop(done.n)
        self.back.discard(done.n)
        for uid, token in zip(rows, done.ids, strict=True):
            self.due[uid] -= 1
            self.said[uid].append(token)
            text = self.said[uid]
            assert text == self.expected(*self.prompts[uid])[: len(text)], (done.n, uid)


CUTS = {"llama": (2,), "qwen3": (1, 3), "qwen3-next": (3,), "gpt-oss": (2,)}
"""By family, where it is cut."""


@pytest.mark.parametrize(
    ("family", "eager", "seed"),
    [
        *rows(
            [(family, *which) for family in CUTS for which in ((True, 0), (False, 1))],
            ("llama", True, 0),
            ci=[
                (family, *which)
                for family in CUTS
                if family not in TWINS
                for which in ((True, 0), (False, 1))
            ],
        ),
        *(
            pytest.param(family, *which, marks=pytest.mark.long)
            for family in CUTS
            for which in ((True, 1), (True, 2), (False, 0), (False, 2))
        ),
    ],
)
def test_steps_in_flight(models, alone, monkeypatch, family, eager, seed):
    cuts = CUTS[family]
    if seed:
        monkeypatch.setattr(lookahead, "GraphBuilder", ThoroughBuilder)
    if eager:
        launch_eagerly(monkeypatch)
    rng = random.Random(f"{family} {cuts} {seed} {eager}")
    bounds = (0, *cuts, FAMILIES[family]["num_hidden_layers"])
    batches = rng.choice((1, 2, 4))
    flights = Flights(
        models[family], bounds, batches, rng, lambda prompt, way: alone(family, prompt, way)
    )
    flights.run(500)
    assert sum(len(text) for text in flights.said.values()) > 60
    tried = [device_io.waited + device_io.missed for device_io in flights.ring.device_io]
    able = [executor.launches_ahead for executor in flights.ring.executors]
    assert not any(tries for tries, can in zip(tried, able, strict=True) if not can)
    assert not eager or all(tries > 5 for tries, can in zip(tried, able, strict=True) if can)

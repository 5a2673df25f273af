"""Random schedules: whatever happens around a row, its text is the one it has alone.

Rows are admitted, joined to one of two groups, evicted and re-admitted with what they have said so
far, cancelled, saved (waiting or in their group) and opened again, in any order that the ledger
allows; some are greedy, some sample, some are penalised. Between its messages a rank builds ahead
as much as it has time for, none or all.
"""

import random

import pytest
from model_families import FAMILIES
from model_rings import SAMPLING, Ring
from waiting_device import WaitingDeviceIO, launch_eagerly

from tests.rows import rows

LENGTH = 16


def prompt_of(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(256) for _ in range(rng.choice((1, 2, 5, 15, 16, 17, 40))))


class Schedule:
    """One random run; every row's text is checked as it grows."""

    def __init__(self, ring: Ring, rng: random.Random, expected) -> None:
        self.ring = ring
        self.rng = rng
        self.expected = expected
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.sampling: dict[int, int] = {}
        self.said: dict[int, list[int]] = {}
        self.waiting: list[int] = []
        self.batches: dict[int, list[int]] = {0: [], 1: []}

    def run(self, ticks: int) -> None:
        moves = [self.admit, self.admit, *[self.decode] * 8, self.preempt, self.cancel, self.reuse]
        for _ in range(ticks):
            self.rng.choice(moves)()
        for batch in self.batches:
            self.decode(batch)
        texts = [text for text in self.said.values() if text]
        assert len(texts) > 4

    def admit(self) -> None:
        if len(self.waiting) + sum(map(len, self.batches.values())) < 7:
            self._admit(prompt_of(self.rng), [], self.rng.choice((0, 0, 1, 2)))

    def _admit(self, prompt: tuple[int, ...], said: list[int], way: int) -> None:
        chunk = self.rng.choice((1 if len(prompt) < 6 else 5, 7, 100))
        uid = self.ring.admit([*prompt, *said], chunk=chunk, generated=len(said), **SAMPLING[way])
        self._waits(uid, prompt, said, way)

    def _waits(self, uid: int, prompt: tuple[int, ...], said: list[int], way: int) -> None:
        self.prompts[uid], self.sampling[uid], self.said[uid] = prompt, way, list(said)
        self.waiting.append(uid)

    def decode(self, batch: int | None = None) -> None:
        batch = self.rng.randrange(2) if batch is None else batch
        rows = self.batches[batch]
        joining = [uid for uid in self.waiting if self.rng.random() < 0.7]
        leaving = [uid for uid in rows if len(self.said[uid]) >= LENGTH]
        self.waiting = [uid for uid in self.waiting if uid not in joining]
        rows[:] = [uid for uid in rows if uid not in leaving] + joining
        if not rows:
            if leaving:
                self.ring.evict(*leaving)
            return
        ids = self.ring.decode(batch, join=joining, evict=leaving)
        for uid, token in zip(rows, ids, strict=True):
            self.said[uid].append(token)
            text = self.said[uid]
            whole = self.expected(self.prompts[uid], self.sampling[uid])
            assert text == whole[: len(text)], (uid, self.prompts[uid])

    def preempt(self) -> None:
        """Evict a row and read it in again, with what it has said."""
        uid = self._leave()
        if uid is not None and len(self.said[uid]) < LENGTH:
            self._admit(self.prompts[uid], self.said[uid], self.sampling[uid])

    def cancel(self) -> None:
        self._leave()

    def _leave(self) -> int | None:
        rows = [(batch, uid) for batch, uids in self.batches.items() for uid in uids]
        if not rows:
            return None
        batch, uid = self.rng.choice(rows)
        self.batches[batch].remove(uid)
        self.ring.evict(uid)
        return uid

    def reuse(self) -> None:
        """Save a row's caches and begin another row from them."""
        rows = [*self.waiting, *self.batches[0], *self.batches[1]]
        if not rows:
            return
        uid = self.rng.choice(rows)
        prompt, said, way = self.prompts[uid], self.said[uid], self.sampling[uid]
        tokens = [*prompt, *said]
        if len(tokens) < 2:
            return
        handle = self.ring.save(uid)
        again = self.ring.open_from(handle, len(tokens) - 1, tokens, len(said), **SAMPLING[way])
        self.ring.step(drop=(handle,))
        self._waits(again, prompt, said, way)


@pytest.mark.parametrize("seed", rows(range(4), 0))
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_what_was_launched_on_a_guess_leaves_no_trace(models, alone, monkeypatch, family, seed):
    """On a device that waits for hidden states, and may have gone on without them. All that may
    be is launched ahead, whatever came of the guess before."""
    launch_eagerly(monkeypatch)
    rng = random.Random(f"{family} {seed} waits")
    bounds = (0, 2, FAMILIES[family]["num_hidden_layers"])
    ring = Ring(
        models[family],
        bounds,
        seal=True,
        idle=lambda: rng.randrange(8),
        early_fill=lambda: rng.random() < 0.5,
        device_io=lambda: WaitingDeviceIO(lambda: rng.random() < 0.1),
    )
    Schedule(ring, rng, lambda prompt, way: alone(family, prompt, way)).run(70)
    assert sum(device_io.waited for device_io in ring.device_io) > 15
    assert sum(device_io.missed for device_io in ring.device_io) > 15


@pytest.mark.parametrize(
    ("family", "seed"),
    rows(
        [
            (family, seed)
            for family in ("llama", "llama-sliding", "gpt-oss", "gemma3")
            for seed in (0, 1)
        ],
        ("llama", 0),
        ("llama-sliding", 1),
        ("gpt-oss", 0),
    ),
)
def test_any_schedule_gives_every_row_its_own_text(models, alone, family, seed):
    rng = random.Random(f"{family} {seed}")
    bounds = (0, 2, FAMILIES[family]["num_hidden_layers"])
    ring = Ring(models[family], bounds, idle=lambda: rng.randrange(4))
    Schedule(ring, rng, lambda prompt, way: alone(family, prompt, way)).run(70)

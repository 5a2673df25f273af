"""An engine whose model is integer arithmetic: it speaks the engine protocol like the real one.

Each layer keeps one 32-bit number per row, its "cache", and mixes it with the token's hidden
number, so that a wrong order, a missed or doubled step or a wrong cache changes every later
token. A row's history has these numbers after each of its tokens, so that it can be cut.
`reference` is the same model in one piece.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import attrs
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    HopKey,
    Loaded,
    LocalMessage,
    RowReady,
    Scores,
)
from sealring_protocol.codec.messages import (
    NO_LOGPROBS,
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Checked,
    Decode,
    Failure,
    FailureKind,
    NoWork,
    Open,
    Ping,
    Pong,
    Prefill,
    Progress,
    Ready,
    Row,
    Spent,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.epoch.ledger import Change, Ledger
from sealring_protocol.control.scheduler.rows import right_ones
from sealring_protocol.errors import SealringError
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import (
    PREFILL_GROUP,
    InnerContext,
    InnerOpener,
    InnerSealer,
)

MASK = 0xFFFFFFFF
VOCABULARY = 997
SCORES_AT_ONCE = 3


def mix(cache: int, hidden: int, layer: int) -> tuple[int, int]:
    cache = (cache * 2654435761 + hidden + layer + 1) & MASK
    return cache, (hidden ^ (cache >> 7) ^ (cache << 5)) & MASK


def embed(token: int) -> int:
    return (token * 40503 + 12345) & MASK


class ReferenceRow:
    """One row of the model in one piece."""

    def __init__(self, layers: int) -> None:
        self.caches = [0] * layers

    def feed(self, token: int) -> int:
        hidden = embed(token)
        for layer in range(len(self.caches)):
            self.caches[layer], hidden = mix(self.caches[layer], hidden, layer)
        return hidden


def prompts(random: Random, count: int, longest: int = 40) -> list[tuple[int, ...]]:
    """*count* prompts, each shorter than *longest*."""
    return [
        tuple(random.randrange(900) for _ in range(random.randrange(1, longest)))
        for _ in range(count)
    ]


def reference(prompt: Iterable[int], count: int, layers: int) -> list[int]:
    """The tokens that the model gives after *prompt*."""
    row = ReferenceRow(layers)
    *read, last = prompt
    for token in read:
        row.feed(token)
    out: list[int] = []
    for _ in range(count):
        last = row.feed(last) % VOCABULARY
        out.append(last)
    return out


Score = tuple[float, int, tuple[int, ...], tuple[float, ...]]
"""A token's log probability and rank, and the likeliest tokens with theirs."""


def score(value: int, token: int, alternatives: int) -> Score:
    """The score of *token* where the last layer gave *value*."""
    behind = (token - value) % VOCABULARY
    ids = tuple((value + place) % VOCABULARY for place in range(alternatives))
    return float(-behind), 1 + behind, ids, tuple(float(-place) for place in range(alternatives))


def reference_scores(prompt: Sequence[int], alternatives: int, layers: int) -> list[Score]:
    """The scores of all tokens of *prompt* but the first."""
    row = ReferenceRow(layers)
    return [
        score(row.feed(token), after, alternatives) for token, after in itertools.pairwise(prompt)
    ]


def info(
    layers: int = 6,
    context: int = 4096,
    model: bytes = b"m" * 32,
    trimmable: bool = True,
    splits: int = 0,
    pins: tuple[int, ...] = (),
    memory: int = 1 << 30,
) -> EngineInfo:
    return EngineInfo(
        model,
        DType.U32,
        1,
        VOCABULARY,
        context,
        trimmable,
        memory,
        1000,
        (1000,) * layers,
        splits,
        1 << Backend.RING,
        pins=pins,
        ahead=4,
    )


History = list[tuple[int, ...]]


class Pending(NamedTuple):
    """A decode whose hidden states are away: its rows, the greatest length of one with the token
    that it draws from, and the guesses that it reads ahead."""

    uids: tuple[int, ...]
    length: int
    guesses: tuple[int, ...]


class Scoring(NamedTuple):
    """A scored prefill whose hidden states are away: its row, the place of the first token that is
    scored, and these tokens."""

    uid: int
    position: int
    targets: tuple[int, ...]


class PoisonError(Exception):
    """The forward raised."""


@attrs.define
class FakeEngine:
    """One rank's engine. `receive` takes a message and gives the answers, at once."""

    model: EngineInfo = attrs.field(factory=info)
    poison: int | None = None  # a token whose forward raises
    order: Bootstrap | None = None
    ledger: Ledger = attrs.field(factory=Ledger)
    private: dict[int, History] = attrs.field(factory=dict)
    groups: dict[int, list[History]] = attrs.field(factory=dict)
    snaps: dict[int, History] = attrs.field(factory=dict)
    last: dict[int, int] = attrs.field(factory=dict)
    pending: dict[int, Pending] = attrs.field(factory=dict)
    scoring: dict[int, Scoring] = attrs.field(factory=dict)
    rows: dict[int, Row] = attrs.field(factory=dict)
    told: list[LocalMessage] = attrs.field(factory=list)  # to be sent before the next answer
    silent: int = 0  # scores to keep back
    sealer: InnerSealer | None = None
    opener: InnerOpener | None = None
    forwards: int = 0
    read: int = 0  # tokens of prefills
    kept: int = 0  # caches that it has kept
    dead: bool = False
    hung: bool = False
    room: int = 1 << 30  # bytes for caches
    spoil: int = 0  # tensors to flip a byte of
    doubles: int = 0  # answers to give every token of twice
    share: Group | None = None
    ready: Ready | None = None  # what it says once it has joined its group
    wrong: bool = False  # it draws other tokens than it should
    unloadable: str = ""  # why it can load no layers
    spent: Spent | None = None  # what it says that a step took, if not a few microseconds
    timeless: bool = False  # it leaves the times of all ranks out of its answers to the chain

    @property
    def empty(self) -> bool:
        return not (self.private or self.groups or self.snaps or not self.ledger.empty)

    @property
    def held(self) -> int:
        """Tokens in its caches."""
        groups = (row for rows in self.groups.values() for row in rows)
        return sum(map(len, (*self.private.values(), *groups)))

    def start(self) -> list[LocalMessage]:
        return [self.model]

    def receive(self, message: LocalMessage) -> list[LocalMessage]:
        if self.hung:
            return []
        match message:
            case Bootstrap() if self.unloadable:
                return [CannotServe(message.epoch, FailureKind.LOAD, self.unloadable)]
            case Bootstrap():
                answers = self._bootstrap(message)
                if self.share is None:
                    return answers
                *loaded, self.ready = answers
                return loaded
            case Group(hosts=()):
                assert self.ready is None, "an engine is in one group in its life"
                self.share = message
                return []
            case HopKey(outgoing, suite, cluster, secret):
                if outgoing:
                    self.sealer = InnerSealer(Suite(suite), secret, cluster)
                else:
                    self.opener = InnerOpener(Suite(suite), secret, cluster)
                return []
            case Row():
                self.rows[message.uid] = message
                if self.order is None or not message.grammar:
                    return []
                return [RowReady(self.order.epoch, message.uid)]
            case Step():
                answer = self._answer(message)
                return [*self._fingerprints(message, answer), *self._take_told(), answer]
            case StepDone():
                answer = self._close(message)
                assert isinstance(answer, StepDone)
                closes = self.order is not None and self.order.checked and answer.ids
                prints = Tensor(DType.F32, (1, len(answer.ids), 1, 3), bytes(12 * len(answer.ids)))
                told = Checked(message.epoch, message.n, True, prints, prints)
                return [told, answer] if closes else [*self._take_told(), answer]
            case Ping(echo):
                return [Pong(echo, Progress(rows=len(self.private)))]
            case _:
                raise AssertionError(message)

    def _keep(self, order: Bootstrap) -> dict[int, History]:
        """What *order* has this engine keep, by number. Raises `KeyError` for what is not here."""
        if not order.kept:
            return {}
        if self.dead:
            raise KeyError("a step failed")
        held = {**self.private, **self.snaps}
        for group, rows in self.ledger.groups.items():
            held |= zip(rows, self.groups[group], strict=True)
        for each in order.kept:
            have = len(held[each.number]) - 1
            assert have == each.length or (self.model.trimmable and have > each.length)
        return {each.number: held[each.number][: each.length + 1] for each in order.kept}

    def _bootstrap(self, order: Bootstrap) -> list[LocalMessage]:
        try:
            kept = self._keep(order)
        except KeyError as error:
            self.order = None
            return [CannotServe(order.epoch, FailureKind.LEDGER, f"{error} is not here")]
        self.order = order
        self.ledger = Ledger(order.kept)
        by_number = (self.private, self.groups, self.snaps, self.last, self.pending, self.scoring)
        for held in (*by_number, self.told):
            held.clear()
        self.snaps.update(kept)
        self.kept += len(kept)
        self.dead = False
        first, last = order.bounds[order.rank], order.bounds[order.rank + 1]
        cost = CacheCost(0, 8 * (last - first))
        model = self.model
        return [
            Loaded(1000 * (last - first), 1000 * (last - first), 5),
            Ready(
                order.epoch,
                first,
                last,
                model.trimmable,
                self.room,
                cost,
            ),
        ]

    # ------------------------------------------------------------------ steps

    @property
    def _layers(self) -> range:
        assert self.order is not None
        return range(self.order.bounds[self.order.rank], self.order.bounds[self.order.rank + 1])

    def _fail(self, step: Step | StepDone, kind: FailureKind, text: str) -> LocalMessage:
        assert self.order is not None
        self.dead = True
        failed = Failure(self.order.rank, kind, text)
        last = self.order.rank == self.order.world - 1
        if isinstance(step, StepDone) or last:
            return StepDone(step.epoch, step.n, failed=failed)
        return Step(step.epoch, step.n, step.digest, failed=failed)

    def _answer(self, step: Step) -> LocalMessage:
        assert self.order is not None
        assert step.epoch == self.order.epoch
        assert step.failed is None
        if self.dead:
            return self._fail(step, FailureKind.ENGINE_ERROR, "a step before this one failed")
        try:
            change = self.ledger.apply(step)
            if self.ledger.digest(step.n) != step.digest:
                return self._fail(step, FailureKind.LEDGER, "the ledgers differ")
            ids = self._compose(step, change)
            hidden = self._input(step, ids)
            out = self._forward(step, hidden)
        except PoisonError as error:
            return self._fail(step, FailureKind.ENGINE_ERROR, str(error))
        except SealringError as error:
            return self._fail(step, FailureKind.INTEGRITY, str(error))
        return self._output(step, out)

    def _fingerprints(self, step: Step, answer: LocalMessage) -> list[LocalMessage]:
        """In a checked epoch: numbers of the right shape, which say which rank they are of."""
        assert self.order is not None
        assert isinstance(answer, Step | StepDone)
        if not self.order.checked or answer.failed is not None:
            return []
        match step.work:
            case Prefill(_, _, count):
                rows, tokens = 1, count
            case Decode(group, _, ahead):
                rows, tokens = len(self.groups[group]), 1 + ahead
            case _:
                return []
        data = struct.pack("<f", self.order.rank) * (3 * rows * tokens)
        given = Tensor(DType.F32, (1, rows, tokens, 3), data)
        received = Tensor(DType.F32, (0, rows, tokens, 3), b"")
        return [Checked(step.epoch, step.n, False, received, given)]

    def _opened(self, row: Open) -> History:
        if not row.handle:
            return [(0,) * len(self._layers)]
        if row.handle == row.uid:
            held = self.snaps.pop(row.uid)
            assert len(held) == row.keep + 1
            return held
        held = self.snaps[row.handle]
        assert self.model.trimmable or len(held) == row.keep + 1
        return held[: row.keep + 1]

    def _compose(self, step: Step, change: Change) -> list[int]:
        for back in change.taken_back:
            (history,) = self.groups[back.group]
            del history[-back.count :]
            assert len(history) == back.length + 1
            for n, away in list(self.pending.items()):
                if away.uids == (back.uid,) and away.length > back.length:
                    del self.pending[n]  # nobody draws from a wrong guess
        for save in change.saved:
            alone = save.group is None
            held = self.private[save.uid] if alone else self.groups[save.group][save.index]
            assert len(held) == save.length + 1
            self.snaps[save.handle] = list(held)
        for uid in change.dropped_rows:
            del self.private[uid]
        for handle in change.dropped_snaps:
            del self.snaps[handle]
        for row in change.opened:
            self.private[row.uid] = self._opened(row)
        ids = list(step.ids)
        assert self.order is not None
        for group, regroup in change.regroup.items():
            rows = self.groups.pop(group, [])
            assert len(rows) == regroup.before
            rows = [rows[i] for i in regroup.kept] + [
                self.private.pop(uid) for uid in regroup.joined
            ]
            if rows:
                self.groups[group] = rows
        if self.order.rank == 0:
            for join in step.join:
                self.last[join.uid] = ids.pop(0)
        return ids

    def _input(self, step: Step, ids: list[int]) -> list[int]:
        assert self.order is not None
        if self.order.rank > 0:
            return self._open(step) if step.tensors else []
        match step.work:
            case Prefill(_, _, count, scored):
                assert len(ids) == count + scored
                return [embed(token) for token in self._safe(ids[:count])]
            case Decode(group) as work:
                assert len(ids) == work.guesses
                uids = self.ledger.groups.get(group, ())
                if not work.on_guess:
                    assert not any({*uids} & {*p.uids} for p in self.pending.values())
                    ids = [*(self.last[uid] for uid in uids), *ids]
                return [embed(token) for token in self._safe(ids)]
            case _:
                return []

    def _safe(self, ids: list[int]) -> list[int]:
        if self.poison is not None and self.poison in ids:
            raise PoisonError(f"token {self.poison} is poison")
        return ids

    def _forward(self, step: Step, hidden: list[int]) -> list[int]:
        match step.work:
            case Prefill(uid):
                self.forwards += 1
                self.read += len(hidden)
                rows = [self.private[uid]] * len(hidden)
            case Decode(group, _, ahead):
                self.forwards += 1
                rows = self.groups[group] * (1 + ahead)
                assert len(rows) == len(hidden)
                assert not ahead or self.model.trimmable
            case NoWork():
                return []
        out = []
        for history, entering in zip(rows, hidden, strict=True):
            value = entering
            caches = []
            for cache, layer in zip(history[-1], self._layers, strict=True):
                after, value = mix(cache, value, layer)
                caches.append(after)
            history.append(tuple(caches))
            out.append(value)
        return out

    def _output(self, step: Step, out: list[int]) -> LocalMessage:
        assert self.order is not None
        rank, world = self.order.rank, self.order.world
        decode = isinstance(step.work, Decode)
        if rank == 0 and decode:
            uids = self.ledger.groups.get(step.work.group, ())
            lengths = max(map(self.ledger.length, uids))
            guesses = step.ids[-step.work.ahead :] if step.work.ahead else ()
            self.pending[step.n] = Pending(uids, lengths - len(guesses), guesses)
        scored = isinstance(step.work, Prefill) and step.work.scored
        if rank == 0 and scored:
            targets = step.ids[len(step.join) + 1 :]
            self.scoring[step.n] = Scoring(step.work.uid, step.work.position + 1, targets)
        if world == 1:
            if scored:
                self._score(step.n, out)
            ids = self._sample(step.n, out) if decode else ()
            return StepDone(step.epoch, step.n, ids=ids, spent=(self.spent or Spent(3),))
        if rank < world - 1:
            tensors = self._seal(step, out) if out else ()
            return attrs.evolve(
                step, ids=(), tensors=tensors, spent=(*step.spent, self.spent or Spent(3))
            )
        tensors = self._seal(step, out) if decode or scored else ()
        spent = () if self.timeless else (*step.spent, self.spent or Spent(3))
        return StepDone(step.epoch, step.n, tensors=tensors, spent=spent)

    def _close(self, done: StepDone) -> LocalMessage:
        try:
            out = self._open(done)
        except SealringError as error:
            return self._fail(done, FailureKind.INTEGRITY, str(error))
        if done.n in self.scoring:
            self._score(done.n, out)
            return StepDone(done.epoch, done.n, spent=(*done.spent, self.spent or Spent(2)))
        ids = self._sample(done.n, out)
        return StepDone(done.epoch, done.n, ids, spent=(*done.spent, self.spent or Spent(2)))

    def _take_told(self) -> list[LocalMessage]:
        told, self.told = self.told[self.silent :], []
        return told

    def _score(self, n: int, out: list[int]) -> None:
        """Tell scores as `score` gives them, in several messages."""
        scoring = self.scoring.pop(n)
        assert len(scoring.targets) == len(out)
        alternatives = self.rows[scoring.uid].logprobs
        if alternatives == NO_LOGPROBS:
            return
        for at in range(0, len(out), SCORES_AT_ONCE):
            part = slice(at, at + SCORES_AT_ONCE)
            told = [
                score(value + self.wrong, target, alternatives)
                for value, target in zip(out[part], scoring.targets[part], strict=True)
            ]
            chosen, ranks, ids, values = zip(*told, strict=True)
            place = scoring.position + at
            flat = (tuple(itertools.chain(*ids)), tuple(itertools.chain(*values)))
            self.told.append(Scores(n, scoring.uid, place, chosen, ranks, *flat))

    def _sample(self, n: int, out: list[int]) -> tuple[int, ...]:
        uids, _, guesses = self.pending.pop(n)
        assert len(uids) + len(guesses) == len(out)
        ids = tuple((value + self.wrong) % VOCABULARY for value in out)
        if guesses:
            ids = ids[: 1 + right_ones(guesses, ids)]
            self.last[uids[0]] = ids[-1]
        else:
            self.last.update(zip(uids, ids, strict=True))
        if self.doubles:
            self.doubles -= 1
            return ids * 2
        return ids

    # ---------------------------------------------------------------- tensors

    def _context(self, step: Step | StepDone, boundary: int) -> InnerContext:
        if isinstance(step, StepDone) and step.n in self.scoring:
            uids = (self.scoring[step.n].uid,)
            return InnerContext(step.epoch, step.n, PREFILL_GROUP, boundary, uids)
        if isinstance(step, StepDone):
            return InnerContext(step.epoch, step.n, 0, boundary, self.pending[step.n].uids)
        match step.work:
            case Prefill(uid):
                return InnerContext(step.epoch, step.n, PREFILL_GROUP, boundary, (uid,))
            case Decode(group):
                uids = self.ledger.groups.get(group, ())
                return InnerContext(step.epoch, step.n, 0, boundary, uids)
            case _:
                raise AssertionError(step)

    def _seal(self, step: Step, out: list[int]) -> tuple[Tensor, ...]:
        assert self.order is not None
        data = struct.pack(f"<{len(out)}I", *out)
        shape = (len(out), 1)
        if not self.order.inner_seal:
            return (Tensor(DType.U32, shape, data),)
        assert self.sealer is not None, "no hop key for the way out"
        context = self._context(step, self._layers.stop)
        tensor = self.sealer.seal(context, DType.U32, shape, data)
        if self.spoil:
            self.spoil -= 1
            tensor = attrs.evolve(tensor, data=bytes([tensor.data[0] ^ 1]) + tensor.data[1:])
        return (tensor,)

    def _open(self, step: Step | StepDone) -> list[int]:
        assert self.order is not None
        (tensor,) = step.tensors
        data = bytes(tensor.data)
        if self.order.inner_seal:
            assert self.opener is not None, "no hop key for the way in"
            boundary = len(self.model.layers) if self.order.rank == 0 else self._layers.start
            data = self.opener.open(self._context(step, boundary), tensor)
        return list(struct.unpack(f"<{len(data) // 4}I", data))

"""A member that says anything that its rank may say, at any time, with every field at its ends.

No node ends of it, no link between the other members is lost, and once an honest machine is in its
place the ring serves, with the right tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import attrs
import pytest
from sealring_protocol.codec import messages as wire
from sealring_protocol.codec.election_messages import (
    Candidacy,
    NoVote,
    NoVoteReason,
    Renew,
    Renewed,
    Vote,
)
from sealring_protocol.codec.messages import Epoch, Hindrance, Message, Reason, Waiting
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.effects import Send
from sealring_protocol.control.head.head import Head
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.security.roles import Purpose, allowed

from tests.rows import rows
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

LAYERS = 6
MODEL = b"m" * 32
U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
SECONDS = 5.0
"""How long it goes on, in virtual time."""


class Liar:
    """The member of rank *bad* in *cluster*. It knows the epoch and the step that the head is at,
    so that much of what it says is nearly true."""

    def __init__(self, cluster: Cluster, bad: int, world: int, seed: int) -> None:
        self._cluster, self._bad, self._world = cluster, bad, world
        self._dice = Random(seed)
        self._asked: dict[int, int] = {}  # the newest stream of each API link
        self._link = 0
        self.said = 0
        self.going = True
        self._go_on()

    def _go_on(self) -> None:
        if self.going:
            self._say()
            pauses = (0.0005, 0.005, 0.02, 0.1)
            self._cluster.after(self._dice.choice(pauses), self._go_on)

    def _say(self) -> None:
        host = self._cluster.hosts[f"host{self._bad}"]
        for rank in {*range(self._world)} - {self._bad}:
            if (rank, Purpose.WEIGHTS) not in [each[:2] for each in host.node.links()]:
                host.node._links.want(rank, Purpose.WEIGHTS, self._cluster.now)
        links = [(rank, purpose, id(link)) for rank, purpose, link in host.node.links()]
        if not links:
            return
        rank, purpose, self._link = self._dice.choice(links)
        kinds = sorted(allowed(purpose, self._bad, rank, self._world), key=lambda k: k.__name__)
        try:
            message = self._make(self._dice.choice(kinds))
        except LocalProtocolError:
            return  # it has no encoding
        if message is not None:
            self.said += 1
            host.node._carry_out([Send(rank, purpose, message)], self._cluster.now)
            self._cluster.settle(host)

    def _make(self, kind: type[Any]) -> Message | None:
        makers: dict[type[Any], Callable[[], Message]] = {
            wire.Ping: lambda: wire.Ping(self._any(), self._progress()),
            wire.Hello: self._hello,
            wire.Prepared: lambda: wire.Prepared(self._epoch(), self._pick(1, 7000, U16)),
            wire.Ready: self._ready,
            wire.Bootstrap: self._bootstrap,
            wire.CannotServe: self._cannot,
            wire.Step: self._step,
            wire.StepDone: self._done,
            wire.Row: self._row,
            wire.Tunnel: self._tunnel,
            wire.Checked: self._checked,
            wire.Get: lambda: wire.Get(self._pick("", "config.json", "é"), self._any(), 1 << 20),
            wire.Piece: lambda: wire.Piece(self._any(100), self._pick(b"", b"x"), ""),
            Waiting: lambda: Waiting(self._some(self._reason)),
            wire.Addresses: lambda: wire.Addresses(
                self._pick(0, 1, 2, 3, U16), self._some(self._address)[:4]
            ),
            Ask: self._ask,
            Reply: lambda: Reply(self._stream(), self._pick(200, 599), self._fields()),
            BodyPart: lambda: BodyPart(self._stream(), *self._pick((b"x" * 65536,), (b"", True))),
            Credit: lambda: Credit(self._stream(), self._pick(1, 65536, 131072)),
            Candidacy: lambda: Candidacy(self._term(), self._pick(0, 1, 2, U16)),
            Vote: lambda: Vote(self._term(), self._pick(0, 1, 2, U16), bytes(64)),
            NoVote: lambda: NoVote(
                self._term(), self._bad, self._term(), self._pick(*NoVoteReason)
            ),
            Renew: lambda: Renew(self._any(), self._any(1)),
            Renewed: lambda: Renewed(self._any(), self._any(1), self._any(1)),
            Drop: lambda: Drop(self._stream(), self._pick("", "x" * 256, "[/red]: <b>")),
        }
        if kind in (wire.Pong, wire.Close) and self._dice.random() > 0.1:
            return None  # which ends its link, mostly
        if kind is wire.Pong:
            return wire.Pong(self._any(), self._progress())
        if kind is wire.Close:
            return wire.Close(self._any() & U16, self._pick("", "x" * 256, "[/red]: <b>"))
        return makers[kind]()

    # ------------------------------------------------------------------ fields

    def _pick(self, *these: Any) -> Any:
        return self._dice.choice(these)

    def _any(self, *near: int) -> int:
        """A number of 64 bits: an end, or close to one of *near*."""
        close = [max(0, n + self._pick(-1, 0, 1)) for n in near]
        number: int = self._pick(0, 1, 2, 5, U64 - 1, U64, *near, *close)
        return number & U64

    def _epoch(self) -> Epoch:
        now = self._cluster.head.node.standing().epoch
        before = Epoch(now.instance, max(0, now.counter - 1))
        after = Epoch(now.instance, now.counter + 1)
        other = self._pick(wire.NO_EPOCH, after, Epoch(now.instance, U64), Epoch(U64, U64))
        epoch: Epoch = self._pick(now, now, now, before, before, before, other)
        return epoch

    def _term(self) -> int:
        return self._pick(1, 1, 2, 3, 1 << 24, U64)  # type: ignore[no-any-return]

    def _address(self) -> tuple[bytes, int]:
        mapped = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, self._pick(0, 1, 255)])
        return self._pick(bytes(16), bytes([255] * 16), mapped), self._pick(1, U16)

    def _n(self) -> int:
        brain = self._cluster.head.node._brain
        done = brain.scheduler._maker.n if isinstance(brain, Head) and brain.scheduler else 1
        return self._any(done, done)

    def _uid(self) -> int:
        return self._any(*list(self._cluster.tokens)[-3:])

    def _some(self, make: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(make() for _ in range(self._pick(0, 0, 0, 1, 3)))

    def _progress(self) -> wire.Progress:
        return wire.Progress(*(self._any() for _ in attrs.fields(wire.Progress)))

    def _fault(self) -> wire.Failure:
        rank = self._pick(0, 1, 2, U16)
        return wire.Failure(rank, self._pick(*wire.FailureKind), self._pick("x", "y: " * 70))

    def _failure(self) -> wire.Failure | None:
        return self._pick(None, self._fault())  # type: ignore[no-any-return]

    def _tensors(self) -> tuple[Tensor, ...]:
        plain = Tensor(DType.U32, (1, 1, 1), bytes(4))
        sealed = Tensor(DType.U32, (1, 1, 1), bytes(20), sealed=True, counter=self._any())
        four = (Tensor(DType.F32, (0,), b""),) * 4
        return self._pick((), (plain,), (sealed,), four)  # type: ignore[no-any-return]

    def _spent(self) -> tuple[wire.Spent, ...]:
        return (wire.Spent(U32, U32, U32),) * int(self._pick(0, 1, 2, 17))

    # ---------------------------------------------------------------- messages

    def _hello(self) -> Message:
        about = (self._pick(LAYERS, 0, 1024), DType.U32, self._any(1) & U32, self._any(1 << 30))
        return wire.Hello(self._pick(MODEL, MODEL, b"z" * 32), *about)

    def _cannot(self) -> Message:
        fault = self._fault()
        return wire.CannotServe(self._epoch(), fault.kind, fault.message, self._n())

    def _ready(self) -> Message:
        plan = self._cluster.head.node.standing().plan
        layers = range(self._pick(0, 3), self._pick(3, LAYERS, 1024))
        if plan is not None:
            layers = self._pick(layers, plan.layers(self._bad))
        windows = ((self._any() & U32, self._any()),) * int(self._pick(0, 1, 16))
        cost = wire.CacheCost(self._any(), self._any(), windows)
        times = self._any() & U32, self._any() & U32
        about = self._epoch(), layers.start, layers.stop, self._pick(True, False)
        return wire.Ready(*about, self._any(1 << 30), cost, *times)

    def _bootstrap(self) -> Message:
        about = self._pick(1, 1, 2), self._pick(True, True, False), self._any() & U32, MODEL
        if self._pick(True, False):
            bounds = tuple(sorted(self._dice.sample(range(1, LAYERS), self._world - 1)))
            pipeline = wire.Backend.PIPELINE
            order = wire.Bootstrap(self._epoch(), pipeline, *about, (0, *bounds, LAYERS))
            kept = (wire.KeptCache(1 + self._uid() % U32, 1 + self._any() % U32),)
            return attrs.evolve(order, kept=self._pick((), kept))
        hosts = self._pick(("", 0), ("127.0.0.1", 7000), ("x" * 255, U16))
        ring = wire.Backend.RING
        return wire.Bootstrap(self._epoch(), ring, *about, (0, LAYERS), (hosts,) * self._world)

    def _step(self) -> Message:
        prefill = wire.Prefill(self._uid(), self._any() & U32, max(1, self._any() & U32))
        return wire.Step(
            self._epoch(),
            self._n(),
            bytes(16),
            back=self._some(lambda: wire.TakeBack(self._uid(), self._pick(0, 1, 16, 255))),
            save=self._some(lambda: wire.Save(self._uid(), self._uid())),
            evict=self._some(self._uid),
            drop=self._some(self._uid),
            open=self._some(lambda: wire.Open(self._uid(), self._uid(), self._any() & U32)),
            join=self._some(lambda: wire.Join(self._uid(), self._pick(0, 65534))),
            work=self._pick(wire.NoWork(), wire.Decode(0), wire.Decode(0, 1), prefill),
            spent=self._spent(),
            ids=self._pick((), (0,), (U32,) * 3),
            tensors=self._tensors(),
            failed=self._failure(),
        )

    def _done(self) -> Message:
        ids = self._pick((), (0,), (U32,) * 3)
        done = self._epoch(), self._n(), ids, self._tensors()
        return wire.StepDone(*done, spent=self._spent(), failed=self._failure())

    def _checked(self) -> Message:
        shape = (1, self._pick(0, 1, 3), 1, 3)
        prints = Tensor(DType.F32, shape, bytes(12 * shape[1]))
        return wire.Checked(self._epoch(), self._n(), self._pick(True, False), prints, prints)

    def _row(self) -> Message:
        history = self._pick((), (U32,) * 50)
        bias = self._pick((), ((U32, 1e308),) * 5)
        return wire.Row(self._uid(), temperature=1e308, bias=bias, history=history)

    def _tunnel(self) -> Message:
        opened, closed = (wire.TunnelEvent.OPEN, b""), (wire.TunnelEvent.CLOSE, b"")
        event, data = self._pick(opened, closed, (wire.TunnelEvent.DATA, b"x"))
        return wire.Tunnel(self._epoch(), self._pick(0, 1, 255), event, data)

    def _fields(self) -> tuple[tuple[bytes, bytes], ...]:
        fields: tuple[tuple[bytes, bytes], ...] = self._pick(
            (), ((b"h", b""),) * 128, ((b"host", b"x" * 65000),)
        )
        return fields

    def _ask(self) -> Message:
        self._asked[self._link] = asked = self._asked.get(self._link, 0) + 1
        asked = self._any(asked) if self._dice.random() < 0.05 else asked
        method, target = self._pick("GET", "M" * 16), self._pick(b"/", b"/" + b"~" * 8191)
        return Ask(asked, Question(method, target, True, "[/red]: <b>", self._fields()))

    def _stream(self) -> int:
        asked = self._asked.get(self._link, 0)
        return self._any(asked) if self._dice.random() < 0.05 else self._dice.randint(0, asked)

    def _reason(self) -> Reason:
        rank = self._pick(0, 1, 2, 3, U16 - 1, U16)
        return Reason(self._pick(*Hindrance), rank, self._pick("x" * 256, "[/red]: <b>", "{0}"))


def innocents(notes: Iterable[tuple[float, str, str]], bad: int) -> list[str]:
    """What was told of control links that ended, of which neither end is *bad*."""
    gone = [text for _, who, text in notes if who != f"host{bad}" and " is gone: " in text]
    return [text for text in gone if "engine" not in text and f"node{bad})" not in text]


@pytest.mark.parametrize("seed", rows(range(4), 0))
@pytest.mark.parametrize("tensor", [False, True], ids=["pipeline", "tensor"])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_ring_outlives_a_member_that_says_anything(bad: int, tensor: bool, seed: int) -> None:
    world = 3
    cluster = Cluster(world, seed, splits=world if tensor else 0, relays=range(world))
    cluster.run_until(lambda: cluster.ready)
    for owner in "abc":
        cluster.submit(Request((5, 6, 7), 12, owner=owner))
    liar = Liar(cluster, bad, world, seed)
    for _ in range(50):
        cluster.run_for(SECONDS / 50)
        for host in cluster.hosts.values():
            host.node.obstacles(cluster.now)  # which anybody may look at
    liar.going = False
    assert liar.said > 20
    assert not innocents(cluster.notes, bad)
    if bad == 0:  # the new head has heard of no requests
        cluster.tokens.clear()
        cluster.done.clear()
    cluster.crash(cluster.hosts[f"host{bad}"])
    begun = cluster.now
    cluster.boot(bad)
    cluster.run_until(
        lambda: any(at > begun and "the ring is ready" in text for at, _, text in cluster.notes)
    )
    uid = cluster.submit(Request((4, 5, 6), 9))
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.done[uid].reason is FinishReason.LENGTH
    assert cluster.tokens[uid] == reference((4, 5, 6), 9, LAYERS)


LIES: dict[str, Callable[[wire.Step], wire.Step]] = {
    "takes-back": lambda step: attrs.evolve(step, back=(wire.TakeBack(1, 1),)),
    "takes-back-all": lambda step: attrs.evolve(step, back=(wire.TakeBack(1, 255),)),
    "guess": lambda step: attrs.evolve(step, work=wire.Decode(0, 1)),
    "guesses": lambda step: attrs.evolve(step, work=wire.Decode(0, 16)),
}


@pytest.mark.parametrize("name", LIES)
def test_a_rank_that_changes_guesses_on_the_way_ends_the_epoch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next rank's ledger refuses the step before it reaches a cache."""
    cluster = Cluster(3, 1)
    cluster.run_until(lambda: cluster.ready)
    node, told = cluster.hosts["host1"].node, []
    carry_out = node._carry_out

    def lie(effects: Iterable[Any], now: float) -> None:
        sent = list(effects)
        for at, effect in enumerate(sent):
            message = getattr(effect, "message", None)
            if not isinstance(effect, Send) or not isinstance(message, wire.Step) or told:
                continue
            if message.work == wire.Decode(0):
                sent[at] = attrs.evolve(effect, message=LIES[name](message))
                told.append(message.n)
        carry_out(sent, now)

    monkeypatch.setattr(node, "_carry_out", lie)
    uid = cluster.submit(Request((5, 6, 7), 12))
    cluster.run_until(lambda: cluster.all_done)
    assert told
    assert cluster.tokens[uid] == reference((5, 6, 7), 12, LAYERS)
    refusals = ("the ledgers differ", "are guesses", "more than there can be")
    assert any(words in text for _, _, text in cluster.notes for words in refusals)

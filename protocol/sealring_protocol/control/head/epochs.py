"""The head's epochs: gather the ranks, plan, start an epoch, and go on to the next.

`Epochs` gets what ranks, links and the engine report of an epoch, until every rank is ready; then
`serving` is true, and `Head` creates the `Steps`. After `end` it gathers the ranks anew.

An epoch begins when every rank is present. A pipeline's takes one round (BOOTSTRAP, READY). A
collective's has another round before it (BOOTSTRAP, PREPARED), with a barrier between the two. The
strategy `auto` begins with a pipeline, and tries tensor parallelism where that may be faster, once
the ring is idle (`TensorTrial`). However an epoch ends, the head comes back here. After a failure
the next epoch waits (`EpochBackoff`); `FailureLog` counts the failures for status, and `Notices`
tells the other ranks why there is no epoch.

A rank with another model, other weights or no step version in common is refused, in a text by which
its owner knows what to do. An epoch has the newest step version that all its ranks know. A model's
digest covers its manifest (``sealring.json``, the hashes of its weights). The same model with a
manifest on one side only therefore has two digests. The side that knows says so. Models of one
digest may still have other weights. Their pins show that (the specification, 8.15): the first is of
the hashes of the files, the others of samples of the ends and of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo, Grouped, Loaded
from sealring_protocol.codec.messages import (
    Epoch,
    Failure,
    FailureKind,
    Hello,
    KeptCache,
    Prepared,
    Ready,
    Waiting,
)
from sealring_protocol.control.deadlines import AnswerDeadline, Backoff, earliest, is_due
from sealring_protocol.control.effects import (
    Effect,
    EpochOver,
    Level,
    Note,
    Phase,
    Send,
    Shut,
    Standing,
    Want,
)
from sealring_protocol.control.epoch.engine import RankEngine
from sealring_protocol.control.head.trial import TensorTrial, why_no_tensor
from sealring_protocol.control.membership import Membership, MembershipState
from sealring_protocol.control.plan import (
    HeadConfig,
    Plan,
    PlanRequest,
    Strategy,
    TooLittleRoom,
    bootstraps,
    joining,
    make_plan,
    verdict,
)
from sealring_protocol.control.scheduler.times import PipelineToken
from sealring_protocol.errors import CloseCode, LocalProtocolError
from sealring_protocol.security.roles import Purpose
from sealring_protocol.words import RING_CHANGED

OTHER_DTYPE: Final = "; set hop_dtype alike in both configs"
"""The end of the reason if only the type of the hidden states differs."""

ONE_SIDED: Final = "only one of both has a manifest of the weights (sealring.json): "
"""The start of the reason if only the manifest differs."""


def short(digest: bytes) -> str:
    """The first 12 hexadecimal digits of *digest*, for people to compare."""
    return digest.hex()[:12]


def one_sided(has: str, lacks: str) -> str:
    """The reason if only the node named *has* has a manifest, and nothing else differs."""
    return f"{ONE_SIDED}{has} has one, {lacks} has none"


def differ(own: str, model: bytes, unpinned: bytes, peer: str, theirs: bytes) -> str:
    """Why the node named *own* rejects *peer*. *model* and *theirs* are the digests of their
    models; *unpinned* is that of *own*'s without its manifest (empty if it has none)."""
    if unpinned and theirs == unpinned:
        return one_sided(own, peer)
    text = f"{peer} holds another model ({short(theirs)}) than {own} ({short(model)})"
    if not unpinned:
        text += f"; or {peer} alone has a manifest (sealring.json)"
    return text


def compare(
    config: HeadConfig,
    info: EngineInfo | None,
    rank: int,
    hello: Hello,
    present: Mapping[int, Hello],
) -> Shut | Note | None:
    """What the head, whose model is *info* (None while unknown), does about *rank*, which said
    *hello*: it ends the link if that has another model, or if a rank that is *present* has other
    weights or no step version in common. It warns if such weights are to be trusted. None if all
    is the same."""
    if reason := _why_other_steps(config, rank, hello, present):
        return Shut(rank, Purpose.CONTROL, CloseCode.VERSION_MISMATCH, reason)
    if info is None:
        return None
    other = _why_other_model(config, info, rank, hello)
    weights = "" if other else _why_other_weights(config, info, rank, hello, present)
    if weights and config.trust_weights:
        return Note(Level.WARNING, f"taken for trust_weights = true: {weights}")
    reason = other or weights
    return Shut(rank, Purpose.CONTROL, CloseCode.MODEL_MISMATCH, reason) if reason else None


def _why_other_steps(
    config: HeadConfig, rank: int, hello: Hello, present: Mapping[int, Hello]
) -> str:
    """Why the program of *rank* cannot take part with those of the head and of the ranks that are
    *present*; empty if it can. Ranges of which any two overlap have a number in common."""
    for peer, other in ({0: config.build} | {r: h.build for r, h in present.items()}).items():
        own = hello.build
        if peer != rank and (own.newest < other.oldest or other.newest < own.oldest):
            both = sorted([(own, rank), (other, peer)], key=lambda one: one[0].oldest)
            (old, older), (new, newer) = [(build, config.names[r]) for build, r in both]
            return f"{newer} runs sealring {new.text}, {older} {old.text}: upgrade {older}"
    return ""


def _why_other_model(config: HeadConfig, info: EngineInfo, rank: int, hello: Hello) -> str:
    """Why *rank* has another model than the head; empty if it has not."""
    own, name = config.names[0], config.names[rank]
    if hello.model != info.model:
        return differ(own, info.model, config.unpinned, name, hello.model)
    if hello.dtype is not info.dtype:
        return (
            f"{name} has hidden states in {hello.dtype.name} between ranks, and {own} in "
            f"{info.dtype.name}{OTHER_DTYPE}"
        )
    return ""


def _why_other_weights(
    config: HeadConfig, info: EngineInfo, rank: int, hello: Hello, present: Mapping[int, Hello]
) -> str:
    """Why the weights of *rank* are not those of the ranks that are *present*, or cannot be
    compared with them; empty if they are the same."""
    own, name = config.names[0], config.names[rank]
    if not rank or not info.pins:
        return ""
    known = {peer: other.pins for peer, other in present.items()} | {0: info.pins}
    known.pop(rank, None)
    for peer, pins in known.items():
        if reason := _weights_difference(config.names[peer], pins, name, hello.pins):
            return reason
    if any(a and b for pins in known.values() for a, b in zip(pins, hello.pins, strict=False)):
        return ""
    unknown = f"what {name} has of the weights cannot be compared with what {own} has"
    if config.trust_weights:
        return unknown
    return f"{unknown}; trust_weights = true in {own}'s config does without"


def _weights_difference(own: str, pins: Sequence[int], peer: str, theirs: Sequence[int]) -> str:
    """How the weights of the node named *peer*, with the pins *theirs*, differ from those of *own*,
    with *pins*; empty if they do not. The files' pin decides only where no other does."""
    both = [(at, a == b) for at, (a, b) in enumerate(zip(pins, theirs, strict=False)) if a and b]
    others = [at - 1 for at, same in both if not same]
    if len(both) > 1 and others[:1] == [-1]:
        others.pop(0)  # the same tensors may be in other files
    if not others:
        return ""
    where = "" if others == [-1] else f" in {_parts(others)}"
    return f"{peer} has other weights than {own}{where}"


def _parts(numbers: Sequence[int]) -> str:
    """The parts *numbers* (rising) as text: 0 the ends, from 1 on the layers."""
    layers = [number - 1 for number in numbers if number]
    parts = ["the ends"] if numbers[0] == 0 else []
    for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0]):
        first, *_, last = [layer for _, layer in run] * 2
        parts.append(f"layer {first}" if first == last else f"layers {first} to {last}")
    return ", ".join(parts)


LONGEST_PAUSE: Final = 5.0
"""Seconds between two tries, at most."""

LONG_ENOUGH: Final = 5.0
"""Seconds that an epoch must stand to count as one that worked."""


class EpochBackoff:
    """How soon the head begins the next epoch: at once after one that worked, else after a pause.
    Times are monotonic seconds.

    An epoch worked if it gave an answer, gave up a request, or stood for `LONG_ENOUGH`. The
    first epoch that did not is also followed at once. After each further one the pause doubles
    (`Backoff`), so a rank that fails every time costs a try every few seconds and no busy loop.
    A rank that can never serve costs one try: the next waits until a rank presents itself.
    """

    __slots__ = ("_backoff", "_failed", "_held", "_serving_since", "_until")

    def __init__(self) -> None:
        self._backoff = Backoff(LONGEST_PAUSE)
        self._failed = False  # the latest epoch did not work
        self._serving_since: float | None = None
        self._until: float | None = None
        self._held = False

    def serving(self, now: float) -> None:
        """The ring is ready."""
        self._serving_since = now

    def progressed(self) -> None:
        """A step was answered."""
        self._worked()

    def _worked(self) -> None:
        self._failed = False
        self._backoff.reset()

    def ended(self, now: float) -> bool:
        """An epoch, or the start of one, is over. False if it stood for `LONG_ENOUGH`."""
        stood = self._serving_since is not None and now - self._serving_since > LONG_ENOUGH
        self._serving_since = None
        if stood:
            self._worked()
            return False
        if self._failed:
            self.wait(now, self._backoff.next())
        self._failed = True
        return True

    def wait(self, now: float, seconds: float) -> None:
        """Begin no epoch for *seconds*. A longer pause that is already set stays."""
        self._until = max(self._until or 0.0, now + seconds)

    def wait_for_change(self) -> None:
        """Begin no epoch until `changed`, nor before the end of a pause that is under way."""
        self._held = True

    def changed(self) -> None:
        """A rank has presented itself: the next epoch may go better."""
        self._held = False

    @property
    def until(self) -> float | None:
        """When the pause ends; None if there is none, or it has no end yet."""
        return None if self._held else self._until

    def may_start(self, now: float) -> bool:
        """True if no pause is under way."""
        if self._until is not None and now >= self._until:
            self._until = None
        return self._until is None and not self._held


NOTICE_SECONDS: Final = 1.0
"""Minimum seconds between two WAITINGs to one rank."""


class Notices:
    """The last WAITING of each rank after the head, of *world*. Times are monotonic seconds.

    A rank is sent the reasons when they differ from the last, at most once every
    `NOTICE_SECONDS`, so reasons that alternate cost one message a second.
    """

    __slots__ = ("_next", "_sent")

    def __init__(self, world: int) -> None:
        self._sent = dict.fromkeys(range(1, world), Waiting())
        self._next = dict.fromkeys(range(1, world), 0.0)

    def forget(self, rank: int) -> None:
        """The control link with *rank* is new: nothing has been sent on it."""
        self._sent[rank] = Waiting()

    def withdraw(self) -> None:
        """An epoch begins: BOOTSTRAP withdraws the reasons on every rank."""
        self._sent = dict.fromkeys(self._sent, Waiting())

    def due(self, why: Waiting, now: float) -> list[Send]:
        """The WAITINGs to send now that the reasons are those of *why*."""
        ranks = [
            rank for rank, sent in self._sent.items() if sent != why and now >= self._next[rank]
        ]
        for rank in ranks:
            self._sent[rank] = why
            self._next[rank] = now + NOTICE_SECONDS
        return [Send(rank, Purpose.CONTROL, why) for rank in ranks]


class FailureLog:
    """The last failure of each rank, so that one that comes with each try is logged once."""

    __slots__ = ("_last", "latest")

    def __init__(self) -> None:
        self._last: dict[int, Failure] = {}
        self.latest: Failure | None = None
        """The last of any rank."""

    def is_news(self, failed: Failure) -> bool:
        """Record *failed*. False if the last failure of that rank was the same. What stands after a
        ";" may change with each try, as in `Obstacle.constant`."""
        constant = attrs.evolve(failed, message=failed.message.partition(";")[0])
        self.latest, known = failed, self._last.get(failed.rank)
        self._last[failed.rank] = constant
        return known != constant

    def clear(self) -> None:
        """There is no failure: what fails from now on is news."""
        self._last.clear()
        self.latest = None


RING_READY: Final = "the ring is ready"
"""How the note begins that says so."""

_PHASES: Final = {
    MembershipState.GATHERING: Phase.GATHERING,
    MembershipState.PREPARING: Phase.LOADING,
    MembershipState.STARTING: Phase.LOADING,
    MembershipState.SERVING: Phase.SERVING,
}

EffectsAndLoss = tuple[list[Effect], Failure | None]
"""Effects, and, if the present epoch cannot go on, why. The head then ends it."""


class Epochs:
    """The epochs of the head with *config* and *engine*. Methods return the effects to carry out.
    Where a failure is among them (`EffectsAndLoss`), the caller settles the steps of the epoch, and
    calls `fails` and `end`."""

    def __init__(self, config: HeadConfig, engine: RankEngine, now: float) -> None:
        self._config = config
        self._engine = engine
        self._world = len(config.names)
        self._asked = config.plan_request
        chooses = self._world > 1 and not self._asked.layers
        self._auto = chooses and self._asked.strategy is Strategy.AUTO
        self._backoff = EpochBackoff()
        self._bootstrap = AnswerDeadline()
        self._notices = Notices(self._world)
        self._next_up = self._world == 1  # the step link to rank 1
        self.trial = TensorTrial(self._asked.against)
        """How far the strategy `auto` has come with tensor parallelism."""
        self._since = now  # when the membership's state last changed
        self._failures = FailureLog()  # why the last epoch, or the last try at one, ended
        self._blamed: Failure | None = None  # why the present epoch ends, if it has not worked
        self._broke: Failure | None = None  # why it ends, if it has
        self._unplanned: Failure | None = None  # why there is no plan
        self._unreadable: dict[int, Failure] = {}  # what absent ranks said of their models
        self._refused: set[int] = set()  # for their versions; dialed again when another rank comes
        self.tensor_slower = ""
        """Why tensor parallelism, which came up, is not used; empty if that was not measured."""
        self.checked = False
        """Whether epochs that begin from now on are checked."""
        self._ranks = config.ranks
        self.hosts = config.hosts
        """Where the ranks are, by rank: the next collective uses these addresses."""
        self.membership = Membership(config.instance, self._world, config.last_epoch)
        self.plan: Plan | None = None
        """The plan of the latest epoch; None before the first."""
        self.kept: tuple[KeptCache, ...] = ()
        """What the next epoch, or the present one until it serves, keeps of the last that served.
        Empty once anything but a link has failed since."""

    def standing(self, requests: int) -> Standing:
        """The status of the ring, which has so many *requests*."""
        membership, state = self.membership, self.membership.state
        missing = () if self.serving else tuple(membership.missing)
        phase = _PHASES[state]
        if state is MembershipState.STARTING and self.tensor:
            phase = Phase.JOINING
        again = self._backoff.until if phase is Phase.GATHERING else None
        return Standing(
            phase,
            self._since,
            missing,
            self._failures.latest,
            self._unplanned,
            again,
            dict(self._unreadable),
            state=state.value,
            epoch=membership.epoch,
            plan=self.plan,
            requests=requests,
            present=membership.present.keys(),
            builds={rank: hello.build for rank, hello in membership.present.items()},
            rooms={rank: hello.room for rank, hello in membership.present.items()},
            ready=membership.ready,
        )

    @property
    def serving(self) -> bool:
        """True if every rank is ready, and the epoch goes on."""
        return self.membership.state is MembershipState.SERVING

    @property
    def tensor(self) -> bool:
        """True if the plan is tensor parallelism."""
        return self.plan is not None and self.plan.strategy is Strategy.TENSOR

    @property
    def ranks(self) -> list[Ready]:
        """The READY of each rank, by rank, while `serving`."""
        ready = self.membership.ready
        return [ready[rank] for rank in range(self._world)]

    def is_over(self, epoch: Epoch) -> bool:
        """True if *epoch* has ended. Raises `RemoteProtocolError` for one that never began."""
        return not self.membership.is_current(epoch) or not self.membership.began

    def explain(self, why: Waiting, now: float) -> list[Effect]:
        """Tell *why* there is no epoch to the ranks that do not know it yet."""
        return [] if self.membership.began else [*self._notices.due(why, now)]

    def starved(self, seconds: float, now: float) -> None:
        """An engine starved for *seconds* more: the start gets more time."""
        self._bootstrap.starved(seconds, now)

    @property
    def _rooms(self) -> list[int]:
        """Bytes of each rank, all of which are present."""
        return [self.membership.present[rank].room for rank in range(self._world)]

    def _missing(self) -> str:
        """The ranks that are absent, or not ready, as text."""
        return ", ".join(self._ranks[rank] for rank in self.membership.missing)

    # ---------------------------------------------------- tensor parallelism

    @property
    def _plan_request(self) -> PlanRequest:
        """What is asked of the next plan."""
        return attrs.evolve(self._asked, against=self.trial.against) if self._auto else self._asked

    def idle_from(self, token: PipelineToken) -> float:
        """When the ring, idle since *token* had its last step, may change to be faster, in
        monotonic seconds; infinity if it may not."""
        able = self.serving and not (self.tensor or self.checked)
        return max(token.last, self._since) + self.trial.idle if able else math.inf

    def trial_due(self, token: PipelineToken) -> float | None:
        """When to call `try_tensor`, if the ring stays idle; None: not at all. In its pipeline a
        *token* of one stream takes so long."""
        able = self.serving and self._auto and not (self.tensor or self.checked)
        return self.trial.due(token, self._since) if able else None

    def try_tensor(self, token: PipelineToken) -> list[Effect]:
        """The ring is idle: have the next epoch try tensor parallelism, if that may be faster than
        this one's pipeline, in which a *token* of one stream takes so long. The caller then ends
        this epoch."""
        info, plan = self._engine.info, self.plan
        if info is None or plan is None:
            return []
        layers = [len(plan.layers(rank)) for rank in range(self._world)]
        sealed = not self._asked.collectives.trusted
        against = why_no_tensor(token.known(), layers, sealed=sealed)
        asked = attrs.evolve(self._asked, against=against)
        next_plan = make_plan(asked, info, self._rooms, self._ranks)
        if next_plan.strategy is Strategy.TENSOR:
            self.trial.begin()
            self.progressed()  # nothing has failed: the next epoch need not wait
            text = "the ring is idle: tensor parallelism is tried, which may be faster"
            return [Note(Level.INFO, text)]
        self.trial.put_off(against)
        self.plan = attrs.evolve(plan, reason=next_plan.reason)
        return [] if next_plan.reason == plan.reason else [Note(Level.INFO, next_plan.reason)]

    # ------------------------------------------------------------- gathering

    def hello_came(self, rank: int, hello: Hello, now: float) -> EffectsAndLoss:
        """*rank* said *hello*: its engine is new, and has nothing loaded."""
        answer = compare(self._config, self._engine.info, rank, hello, self.membership.present)
        if isinstance(answer, Shut):
            if answer.code is CloseCode.VERSION_MISMATCH:
                self._refused.add(rank)
            return [answer], None
        self._unreadable.pop(rank, None)
        self._refused.discard(rank)
        self._backoff.changed()
        running = self.membership.presented(rank, hello)
        text = f"{self._ranks[rank]} is here: sealring {hello.build.text}"
        here: list[Effect] = [Note(Level.INFO, text)]
        here += [answer] if answer else []
        here += [Want(other, Purpose.CONTROL) for other in sorted(self._refused)]
        if running:
            return here, Failure(rank, FailureKind.ENGINE_LOST, "it has restarted")
        return [*here, *self._try_start(now)], None

    def unreadable(self, rank: int, failed: Failure) -> list[Effect]:
        """The engine of *rank*, which is absent, cannot read its model."""
        if rank in self.membership.present or self._unreadable.get(rank) == failed:
            return []
        self._unreadable[rank] = failed
        text = f"{self._ranks[rank]} cannot read its model: {failed.message}"
        return [Note(Level.ERROR, text)]

    def shut_other_models(self, info: EngineInfo) -> list[Effect]:
        """The head's model is known now (*info*): refuse the ranks that are here with another."""
        effects, present = list[Effect](), self.membership.present
        for rank, hello in present.items():
            answer = compare(self._config, info, rank, hello, present)
            effects += [answer] if answer else []
            if isinstance(answer, Shut):
                self.membership.lost(rank)
        return effects

    def _try_start(self, now: float) -> list[Effect]:
        if self.membership.began:
            return []
        if self.membership.missing:
            return [Note(Level.INFO, f"waiting for {self._missing()}")]
        info = self._engine.info
        if info is None or not self._backoff.may_start(now):
            return []
        try:
            plan = make_plan(self._plan_request, info, self._rooms, self._ranks)
        except LocalProtocolError as error:
            self._backoff.wait_for_change()
            little = isinstance(error, TooLittleRoom)
            kind = FailureKind.MEMORY if little else FailureKind.UNSERVABLE
            self._unplanned, self._since = Failure(0, kind, str(error)), now
            return [Note(Level.ERROR, f"no plan: {error}")]
        before = self.plan
        same = before and (before.strategy, before.split) == (plan.strategy, plan.split)
        if not same or self.checked:
            self.kept = ()
        self.plan = plan
        self._unplanned, self._since = None, now
        if (last := self._failures.latest) is not None and last.kind is FailureKind.UNSERVABLE:
            self._failures.clear()  # somebody has changed something: nothing is refused for it
        self._notices.withdraw()
        epoch = self.membership.start(prepare=self.tensor)
        self._bootstrap.order(now, self._config.bootstrap_seconds)
        orders = bootstraps(
            plan,
            epoch,
            info.model,
            inner_seal=self._config.inner_seal,
            deadline_ms=int(self._config.bootstrap_seconds * 1000),
            checked=self.checked,
            steps=min(hello.build.newest for hello in self.membership.present.values()),
            members=self._config.members,
            kept=self.kept,
        )
        text = f"epoch {epoch.counter}: {plan.reason}; layers {plan.split.text}"
        if self._config.members:
            text += f" on {', '.join(self._config.names)}"
        if self.kept:
            text += "; caches are kept"
        effects: list[Effect] = [Note(Level.INFO, text)]
        effects += [Send(order.rank, Purpose.CONTROL, order) for order in orders[1:]]
        return effects + self._engine.begin(orders[0], now)

    # -------------------------------------------------------------- starting

    def engine_replaced(self, now: float) -> list[Effect]:
        """The awaited new process of the head's engine is up."""
        order = self._engine.order
        return self._try_start(now) if order is None else self._engine.start(order, now)

    def engine_message(self, message: Ready | Loaded | Grouped, now: float) -> list[Effect]:
        """The head's engine answered an order with *message*."""
        match message:
            case Ready() if message.epoch == self.membership.epoch:
                self._engine.deadline.answered(now)
                self._engine.ready = message
                return self._try_ready(now)
            case Loaded():
                self._engine.joining.loaded(now)
                return self._try_prepared(now)
            case Grouped():
                self._engine.joining.grouped(message)
        return []

    def collective_prepared(self, epoch: Epoch, port: int, relay: int, now: float) -> list[Effect]:
        """The head's engine will listen on *port* in the collective of *epoch*."""
        self._engine.joining.ports(epoch, port, relay, now)
        return self._try_prepared(now)

    def _try_prepared(self, now: float) -> list[Effect]:
        prepared = self._engine.take_prepared()
        return [] if prepared is None else self.prepared(0, prepared, now)

    def prepared(self, rank: int, prepared: Prepared, now: float) -> list[Effect]:
        """*rank* is *prepared*. When all are, they are ordered to join."""
        if not self.membership.answered_prepared(rank, prepared):
            return []
        assert self._engine.order is not None  # noqa: S101  they prepared for it
        seconds = self._config.group_seconds
        all_prepared = self.membership.prepared
        ports = [all_prepared[rank].port for rank in range(self._world)]
        orders = joining(self._engine.order, self.hosts, ports, int(seconds * 1000))
        self._bootstrap.order(now, 2 * seconds)
        sends = [Send(order.rank, Purpose.CONTROL, order) for order in orders[1:]]
        return [*sends, *self._engine.join(orders[0], now)]

    def _try_ready(self, now: float) -> list[Effect]:
        starting = self.membership.state is MembershipState.STARTING
        if not starting or 0 in self.membership.ready:
            return []
        ready = self._engine.take_ready(linked=self._next_up)
        return [] if ready is None else self.ready(0, ready, now)

    def ready(self, rank: int, ready: Ready, now: float) -> list[Effect]:
        """*rank* is *ready*. When all are, the epoch is `serving`, unless it turns out that tensor
        parallelism would not be clearly faster than a pipeline."""
        layers = self.plan.layers(rank) if self.plan else range(0)
        if not self.membership.answered(rank, ready, layers):
            return []
        if self.plan is not None and self.tensor:
            fast, measured = verdict(self.ranks)
            if not fast and self._auto:
                self.tensor_slower = f"not clearly faster: {measured}"
                return [*self._without_tensor(self.tensor_slower), *self.end(now)]
            self.plan = attrs.evolve(self.plan, reason=f"{self.plan.reason}: {measured}")
            if self._auto:
                self.trial.came_up()
        else:
            self.trial.started(now - self._since)
        self._bootstrap.clear()
        self._backoff.serving(now)
        self._since = now
        self._failures.clear()
        how = "; tensor parallelism: every rank is given the tokens" if self.tensor else ""
        return [Note(Level.INFO, f"{RING_READY}: epoch {self.membership.epoch.counter}{how}")]

    # --------------------------------------------------------- engine, links

    def engine_lost(self, reason: str, now: float, kind: FailureKind) -> EffectsAndLoss:
        """The head's engine is gone."""
        self._next_up = self._world == 1
        effects = self._engine.lost()
        if self._engine.joining.replacing:
            return effects, None
        text = f"this rank's engine is gone: {reason}"
        effects.append(Note(Level.WARNING, text))
        if self._gives_up_tensor(now):
            effects += self._without_tensor(text)
        return effects, Failure(0, kind, reason) if self.membership.lost(0) else None

    def link_up(self, rank: int, purpose: Purpose, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is established."""
        if purpose is Purpose.CONTROL:
            self._notices.forget(rank)
        if purpose is Purpose.STEP and rank == 1:
            self._next_up = True
            return self._try_ready(now)
        if purpose is Purpose.TUNNEL:
            self._engine.joining.tunnel(rank, now, up=True)
            return self._try_prepared(now)
        return []

    def link_down(
        self, rank: int, purpose: Purpose, cause: FailureKind, reason: str, now: float
    ) -> EffectsAndLoss:
        """The link with *purpose* to *rank* is gone: *reason*, which is of the kind *cause*."""
        if purpose is Purpose.CONTROL:
            text = f"{self._ranks[rank]} is gone: {reason}"
            note = Note(Level.WARNING, text)
            gives_up = self._gives_up_tensor(now, FailureKind.LINK_LOST)
            self._unreadable.pop(rank, None)
            running = self.membership.lost(rank)
            if gives_up:
                return [note, *self._without_tensor(text), *self.end(now)], None
        else:
            text = f"the {purpose.name.lower()} link with {self._ranks[rank]} broke: {reason}"
            spare = self.tensor or self._engine.joining.replacing
            needed = not spare and rank in (1, self._world - 1)
            unused = purpose is Purpose.STEP and not needed
            note = Note(Level.DEBUG if unused else Level.WARNING, text)
            if purpose is Purpose.TUNNEL:
                self._engine.joining.tunnel(rank, now, up=False)
                needed = self._engine.joining.committed
            elif rank == 1:
                self._next_up = False
            running = needed and self.membership.began
        if running and purpose is Purpose.TUNNEL and not self.serving:
            failed = Failure(0, FailureKind.LINK_LOST, f"a tunnel broke: {reason}")
            return [note, *self.rank_not_ready(0, failed, now)], None
        return [note], Failure(rank, cause, reason) if running else None

    # ---------------------------------------------------------------- ending

    def rank_not_ready(self, rank: int, failed: Failure, now: float) -> list[Effect]:
        """A rank did not get ready. After a failure to load, the next try waits longer; if the rank
        can never serve so, until some rank presents itself."""
        if self.kept and failed.kind is FailureKind.LEDGER:
            self.kept = ()
            self.progressed()  # nothing has failed: the next epoch need not wait
            text = f"{self._ranks[rank]} has kept nothing ({failed.message}): rows are read again"
            return [Note(Level.INFO, text), *self.end(now)]
        text = f"{self._ranks[rank]} cannot serve: {failed.message}"
        if self._gives_up_tensor(now, failed.kind):
            return [*self._without_tensor(text), *self.end(now)]
        if failed.kind in (FailureKind.LOAD, FailureKind.GROUP, FailureKind.MEMORY):
            self._backoff.wait(now, LONGEST_PAUSE)
        level = Level.WARNING if failed.kind is FailureKind.LOAD else Level.ERROR
        if RING_CHANGED in failed.message:  # for the head had it so
            level = Level.INFO
        notes = [Note(level, text)] if self.fails(attrs.evolve(failed, rank=rank)) else []
        return [*notes, *self.end(now)]

    def _gives_up_tensor(self, now: float, kind: FailureKind = FailureKind.GROUP) -> bool:
        """The epoch did not come up, by a failure of *kind*. True if `auto` gives up on it."""
        rising = self.membership.state in (MembershipState.PREPARING, MembershipState.STARTING)
        return rising and self.tensor and self._auto and self.trial.failed(kind, now)

    def _without_tensor(self, reason: str) -> list[Effect]:
        """Give up tensor parallelism for good, for *reason*."""
        self.trial.drop(reason)
        if self.serving:  # it came up, and no fault ends it
            return [Note(Level.INFO, f"tensor parallelism was measured: {reason}")]
        return [Note(Level.WARNING, f"tensor parallelism is given up: {reason}")]

    def fails(self, failed: Failure) -> bool:
        """Record *failed* as why the ring does not serve. False if it was recorded before, so that
        it is not logged again. If no rank can ever serve so, the next epoch waits for a change."""
        if failed.kind is FailureKind.UNSERVABLE:
            self._backoff.wait_for_change()
        if failed.kind is not FailureKind.LINK_LOST:
            self.kept = ()
        self._blamed = self._broke = failed
        return self._failures.is_news(failed)

    def progressed(self) -> None:
        """A step of the present epoch was answered: the next epoch need not wait."""
        self._backoff.progressed()
        self._blamed = None

    def end(self, now: float) -> list[Effect]:
        """The epoch, or its start, is over: clean up, and try the next."""
        self.membership.interrupt()
        if self.tensor and self.trial.stop():
            self.progressed()  # a trial is no try of the pipeline's
        self._since = now
        blamed = self._blamed if self._backoff.ended(now) else None
        broke = self._broke if blamed is None else None
        self._blamed = self._broke = None
        self._bootstrap.clear()
        left = self._engine.end()
        return [EpochOver(blamed, broke), *left, *self._try_start(now)]

    # ---------------------------------------------------------------- timers

    @property
    def deadline(self) -> float | None:
        """When to call `handle_timeout`; None while `serving`, and if there is nothing to do."""
        return earliest(
            self._bootstrap.deadline, self._backoff.until, self._engine.joining.deadline
        )

    def handle_timeout(self, now: float) -> list[Effect]:
        """Act on the first deadline that has passed."""
        if is_due(self._engine.joining.deadline, now):
            failed = Failure(0, FailureKind.GROUP, self._engine.joining.give_up())
            return self.rank_not_ready(0, failed, now)
        if is_due(self._bootstrap.deadline, now):
            text = f"{self._missing()} did not get ready in time"
            self.fails(Failure(self.membership.missing[0], FailureKind.DEADLINE, text))
            if self._gives_up_tensor(now):
                return [*self._without_tensor(text), *self.end(now)]
            return [Note(Level.WARNING, f"{text}; trying again"), *self.end(now)]
        if is_due(self._backoff.until, now):
            self._backoff.may_start(now)
            return self._try_start(now)
        return []

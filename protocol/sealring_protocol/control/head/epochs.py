"""The head's epochs: gather the ranks, plan, start an epoch, and go on to the next.

An epoch begins when every rank is present. A pipeline's takes one round (BOOTSTRAP, READY). A
collective's has another round before it (BOOTSTRAP, PREPARED), with a barrier between the two. The
strategy `auto` tries tensor parallelism first where it is possible. If it fails to start, or
measurement shows that it would be slower, that is kept as the reason for the pipeline that follows.
However an epoch ends, the head comes back here.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    Failure,
    FailureKind,
    Hello,
    Prepared,
    Ready,
    Waiting,
)
from sealring_protocol.control.effects import Effect, Level, Note, Send, ToEngine, Want
from sealring_protocol.control.epoch import pipeline
from sealring_protocol.control.epoch.collective import Joining
from sealring_protocol.control.epoch.deadlines import Deadline
from sealring_protocol.control.epoch.tensor import TensorLeader
from sealring_protocol.control.head.backoff import LONGEST_PAUSE
from sealring_protocol.control.head.membership import Membership, MembershipState
from sealring_protocol.control.head.notices import Notices
from sealring_protocol.control.head.plan import (
    Plan,
    PlanRequest,
    Strategy,
    bootstraps,
    joining,
    make_plan,
    verdict,
)
from sealring_protocol.control.head.steps import HeadSteps
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.control.standing import Phase, Standing
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import PING_TIMEOUT
from sealring_protocol.security.roles import Purpose

_PHASES: Final = {
    MembershipState.GATHERING: Phase.GATHERING,
    MembershipState.PREPARING: Phase.LOADING,
    MembershipState.STARTING: Phase.LOADING,
    MembershipState.SERVING: Phase.SERVING,
}

TENSOR_TRIES: Final = 3
"""Tries in a row that a collective which has worked gets to come up again."""


@attrs.frozen
class HeadConfig:
    """The head's configuration: the *names* and *hosts* (addresses) of the ranks, by rank.

    *bootstrap_seconds* limit the loading of an epoch; *group_seconds* limit how long a collective
    takes to come up once every rank has loaded. *patience* is `NodeConfig.patience`, in seconds.
    *unpinned* is the model's digest without its manifest (empty if it has none).
    """

    instance: int
    names: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    plan_request: PlanRequest = attrs.field(factory=PlanRequest)
    inner_seal: bool = True
    scheduler: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    bootstrap_seconds: float = 600.0
    group_seconds: float = 20.0
    patience: float = PING_TIMEOUT
    first_uid: int = 1
    unpinned: bytes = b""
    first_epoch: int = 0  # the last that this node began, with another roster


class HeadEpochs(HeadSteps):
    """Rank 0 across its epochs."""

    def __init__(self, config: HeadConfig, now: float) -> None:
        world = len(config.names)
        tuned = not config.scheduler.groups and world > 1
        super().__init__(world, tuned=tuned, patience=config.patience)
        self._config = config
        self._plan_request = config.plan_request
        self.membership = Membership(config.instance, world, config.first_epoch)
        self.plan: Plan | None = None
        self._info: EngineInfo | None = None
        self._engine_ready: Ready | None = None
        self._loaded: range | None = None  # layers that the engine has, or is loading
        self._joining = Joining(0, world)
        self._order: Bootstrap | None = None  # this rank's own
        self._next_up = world == 1  # the step link to rank 1
        self._bootstrap = Deadline()
        self._tries = 1  # left until `auto` gives up tensor parallelism
        self._cuts = 0  # times in a row that links broke while a collective came up
        self._cut_at = -math.inf
        self._since = now  # when the membership's state last changed
        self._failed: Failure | None = None  # why the last epoch, or the last try at one, ended
        self._unplanned = ""  # why there is no plan
        self._notices = Notices(world)

    def standing(self) -> Standing:
        """The status of the ring: its phase, and what it waits for."""
        state = self.membership.state
        missing = () if state is MembershipState.SERVING else tuple(self.membership.missing)
        phase = _PHASES[state]
        if state is MembershipState.STARTING and self._tensor:
            phase = Phase.JOINING
        again = self._backoff.until if phase is Phase.GATHERING else None
        return Standing(phase, self._since, missing, self._failed, self._unplanned, again)

    def explain(self, why: Waiting, now: float) -> list[Effect]:
        """Tell *why* there is no epoch to the ranks that do not know it yet."""
        gathering = self.membership.state is MembershipState.GATHERING
        return [*self._notices.tell(why, now)] if gathering else []

    @property
    def serving(self) -> bool:
        """True if the ring can take steps."""
        return self._machine is not None

    def _fails(self, failed: Failure) -> bool:
        """See `HeadSteps._fails`."""
        known, self._failed = self._failed, failed
        return known != failed

    @property
    def _tensor(self) -> bool:
        """True if the plan is tensor parallelism."""
        return self.plan is not None and self.plan.strategy is Strategy.TENSOR

    @property
    def replacing(self) -> bool:
        """The engine process is being replaced."""
        return self._joining.replacing

    def retire(self) -> list[Effect]:
        """Stop: another brain takes over. Every step ends, and the engine leaves its collective."""
        self._forget_steps()
        return self._joining.leave()

    def starved(self, rank: int, seconds: float, now: float) -> None:
        """See `HeadSteps.starved`. The start of an epoch is given more time, too."""
        super().starved(rank, seconds, now)
        self._bootstrap.starved(seconds, now)

    def _missing(self) -> str:
        """The ranks that are absent, or not ready, as text."""
        names = self._config.names
        return ", ".join(f"rank {rank} ({names[rank]})" for rank in self.membership.missing)

    # --------------------------------------------------------------- epochs

    def _present(self, rank: int, hello: Hello, now: float) -> list[Effect]:
        running = self.membership.presented(rank, hello)
        effects: list[Effect] = [
            Note(Level.INFO, f"rank {rank} ({self._config.names[rank]}) is here")
        ]
        if running:
            restarted = Failure(rank, FailureKind.ENGINE_LOST, "it has restarted")
            return effects + self._lost(restarted, now)
        return effects + self._try_start(now)

    def _try_start(self, now: float) -> list[Effect]:
        if self.membership.state is not MembershipState.GATHERING:
            return []
        if self.membership.missing:
            return [Note(Level.INFO, f"waiting for {self._missing()}")]
        if self._info is None or not self._backoff.may_start(now):
            return []
        rooms = [self.membership.present[rank].room for rank in range(self._world)]
        try:
            plan = make_plan(self._plan_request, self._info, rooms)
        except LocalProtocolError as error:
            self._backoff.wait(now, LONGEST_PAUSE)
            if self._unplanned == str(error):
                return []
            self._unplanned, self._since = str(error), now
            return [Note(Level.ERROR, f"no plan: {error}")]
        self.plan = plan
        self._unplanned = ""
        self._since = now
        self._notices.withdraw()
        epoch = self.membership.start(prepare=self._tensor)
        self._engine_ready = None
        self._bootstrap.set(now, self._config.bootstrap_seconds)
        orders = bootstraps(
            plan,
            epoch,
            self._info.model,
            inner_seal=self._config.inner_seal,
            deadline_ms=int(self._config.bootstrap_seconds * 1000),
        )
        self._order = orders[0]
        effects: list[Effect] = [
            Note(Level.INFO, f"epoch {epoch.counter}: {plan.reason}; layers {plan.split.bounds}")
        ]
        effects += [Send(order.rank, Purpose.CONTROL, order) for order in orders[1:]]
        return effects if self._joining.replacing else effects + self._start_engine(now)

    def _start_engine(self, now: float) -> list[Effect]:
        """Give the head's engine its part of the plan."""
        assert self._order is not None  # noqa: S101  callers checked
        if self._order.backend is not Backend.PIPELINE:
            self._answer_deadline.order(now, self._config.bootstrap_seconds)
            return self._joining.prepare(self._order)
        assert self.plan is not None  # noqa: S101  an order is of a plan
        layers = self.plan.layers(0)
        known = self._loaded == layers
        self._answer_deadline.order(now, None if known else self._config.bootstrap_seconds)
        self._loaded = layers
        effects: list[Effect] = [ToEngine(self._order)]
        if self._world > 1:
            effects.append(Want(1, Purpose.STEP))
        if self._world > 2:
            effects.append(Want(self._world - 1, Purpose.STEP, yields=True))
        return effects

    def _self_prepared(self, now: float) -> list[Effect]:
        prepared = None if self._info is None else self._joining.try_prepared()
        if prepared is None:
            return []
        self._answer_deadline.clear()
        return self._prepared(0, prepared, now)

    def _join(self, now: float) -> list[Effect]:
        """Order every rank to join: all are prepared."""
        assert self._order is not None  # noqa: S101  they prepared for it
        seconds = self._config.group_seconds
        prepared = self.membership.prepared
        ports = [prepared[rank].port for rank in range(self._world)]
        orders = joining(self._order, self._config.hosts, ports, int(seconds * 1000))
        self._order = orders[0]
        self._answer_deadline.order(now, seconds)
        self._bootstrap.set(now, 2 * seconds)
        sends = [Send(order.rank, Purpose.CONTROL, order) for order in orders[1:]]
        return [*sends, *self._joining.join(orders[0])]

    def _self_ready(self, now: float) -> list[Effect]:
        ready = self._engine_ready
        if ready is None or self.membership.state is not MembershipState.STARTING:
            return []
        if 0 in self.membership.ready:
            return []
        if self._joining.is_due(ready.epoch):
            return self._ready(0, self._joining.joined(ready), now)
        return self._ready(0, ready, now) if self._next_up else []

    def _prepared(self, rank: int, prepared: Prepared, now: float) -> list[Effect]:
        return self._join(now) if self.membership.answered_prepared(rank, prepared) else []

    def _ready(self, rank: int, ready: Ready, now: float) -> list[Effect]:
        layers = self.plan.layers(rank) if self.plan else range(0)
        if not self.membership.answered(rank, ready, layers):
            return []
        ranks = [self.membership.ready[rank] for rank in range(self._world)]
        if self.plan is not None and self._tensor:
            fast, measured = verdict(ranks)
            if not fast and self._plan_request.strategy is Strategy.AUTO:
                slower = self._without_tensor(f"it would be slower: {measured}")
                return [*slower, *self._end_epoch(now)]
            self.plan = attrs.evolve(self.plan, reason=f"{self.plan.reason}: {measured}")
        return self._serve(ranks, now)

    def _serve(self, ranks: list[Ready], now: float) -> list[Effect]:
        self._bootstrap.clear()
        self._backoff.serving(now)
        self._since = now
        self._failed = None
        epoch = self.membership.epoch
        if self._tensor:
            self._tries = TENSOR_TRIES
            self._cuts = 0
            self._machine = TensorLeader(epoch, self._world)
            self._step_deadline.expect(max(rank.token_us for rank in ranks) / 1e6)
        else:
            self._machine = pipeline.HeadPipeline(epoch, self._world)
        if self.scheduler is not None:
            alone = self._tensor or self._world == 1  # a token then stays on the device
            groups = 1 if alone else self._config.scheduler.groups or self._world
            self.scheduler.shape(groups, 2 if alone else 1)
            self.scheduler.begin(epoch, ranks)
        return [
            Note(Level.INFO, f"the ring is ready: epoch {epoch.counter}"),
            *self.plan_steps(now),
        ]

    def _without_tensor(self, reason: str) -> list[Effect]:
        """Give up tensor parallelism for good, for *reason*."""
        self._plan_request = attrs.evolve(self._plan_request, against=reason)
        return [Note(Level.WARNING, f"no tensor parallelism: {reason}")]

    def _refused(self, rank: int, failed: Failure, now: float) -> list[Effect]:
        """A rank did not get ready. After a failure to load, the next try waits longer."""
        name = self._config.names[rank]
        text = f"rank {rank} ({name}) cannot serve: {failed.message}"
        if self._gives_up_tensor(now, failed.kind):
            return [*self._without_tensor(text), *self._end_epoch(now)]
        if failed.kind in (FailureKind.LOAD, FailureKind.GROUP):
            self._backoff.wait(now, LONGEST_PAUSE)
        notes = [Note(Level.ERROR, text)] if self._fails(attrs.evolve(failed, rank=rank)) else []
        return [*notes, *self._end_epoch(now)]

    def _gives_up_tensor(self, now: float, kind: FailureKind = FailureKind.GROUP) -> bool:
        """A collective failed to come up. True if `auto` now gives up tensor parallelism.

        A collective that once worked gets several tries, and so does one whose links broke, because
        a node may just have left.
        """
        rising = self.membership.state in (MembershipState.PREPARING, MembershipState.STARTING)
        if not (rising and self._tensor and self._plan_request.strategy is Strategy.AUTO):
            return False
        if kind is FailureKind.LINK_LOST:
            if now - self._cut_at > PING_TIMEOUT:  # all links of one lost node count once
                self._cuts += 1
                self._cut_at = now
            return self._cuts >= TENSOR_TRIES
        self._tries -= 1
        return self._tries <= 0

    def _end_epoch(self, now: float) -> list[Effect]:
        """The epoch, or its start, is over: clean up, and try the next."""
        self.membership.interrupt()
        self._since = now
        self._backoff.ended(now)
        self._bootstrap.clear()
        self._order = None
        self._forget_steps()
        left = self._joining.leave()
        if left:
            self._answer_deadline.clear()
        return [*left, *self._try_start(now)]

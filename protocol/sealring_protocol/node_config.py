"""A node's configuration, and the settings of its parts that follow from it."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from sealring_protocol.control.epoch.follower import FollowerConfig
from sealring_protocol.control.head.head import HeadConfig
from sealring_protocol.control.head.plan import Collectives, PlanRequest, Strategy
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.limits import PING_TIMEOUT
from sealring_protocol.security.handshake import HandshakeConfig, TrafficSecrets
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roster import Roster, SignedRoster


@attrs.frozen
class NodeConfig:
    """Who this node is, and what it may do.

    *public_key* and *coordinator* are 65-byte keys (SEC 1). *instance* is a random u64 per process.
    *build* is that of `Hello`: a rank of another one is refused, for its steps may differ.
    *unpinned* is the digest that the model would have without its manifest (empty if it has none).
    *layers*, if given, are the chosen layer counts by rank; only the head's count. With
    *trust_weights* a head takes ranks whose weights differ from its own, or cannot be compared.
    """

    public_key: bytes
    roster: SignedRoster
    coordinator: bytes
    instance: int
    suites: tuple[Suite, ...] = tuple(Suite)
    build: int = 0
    unpinned: bytes = b""
    trust_weights: bool = False
    strategy: Strategy = Strategy.AUTO
    layers: tuple[int, ...] = ()
    collectives: Collectives = attrs.field(factory=Collectives)
    group_seconds: float = 20.0
    patience: float = PING_TIMEOUT
    """Least seconds of silence after which a peer is lost. What exceeds the default is also added
    to the deadlines of tensor parallelism's steps."""
    scheduler: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    key_log: Callable[[TrafficSecrets], None] | None = attrs.field(default=None, repr=False)
    """See `HandshakeConfig.key_log`."""


def handshake_config(config: NodeConfig) -> HandshakeConfig:
    """The settings of the node's handshakes."""
    return HandshakeConfig(
        config.public_key,
        config.roster,
        config.coordinator,
        config.instance,
        config.suites,
        config.key_log,
    )


def follower_config(config: NodeConfig, roster: Roster, rank: int) -> FollowerConfig:
    """The settings of the follower of *rank* under *roster*."""
    names = tuple(member.name for member in roster.members)
    trusted = config.collectives.trusted
    policies = roster.inner_seal, trusted, roster.tensor_parallelism
    return FollowerConfig(rank, names, *policies, config.build)


def head_config(config: NodeConfig, roster: Roster, first_uid: int, last_epoch: int) -> HeadConfig:
    """The settings of the head under *roster*. Request uids go on from *first_uid*, epochs from
    *last_epoch*."""
    plan = PlanRequest(
        config.strategy, config.layers, config.collectives, tensor=roster.tensor_parallelism
    )
    return HeadConfig(
        config.instance,
        tuple(member.name for member in roster.members),
        roster.hosts,
        plan,
        roster.inner_seal,
        config.scheduler,
        group_seconds=config.group_seconds,
        patience=config.patience,
        first_uid=first_uid,
        last_epoch=last_epoch,
        build=config.build,
        unpinned=config.unpinned,
        trust_weights=config.trust_weights,
    )

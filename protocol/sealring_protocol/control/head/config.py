"""The head's configuration."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.control.head.plan import PlanRequest
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.limits import (
    MAX_SEALED_BODY,
    MAX_WEIGHT_WAITING,
    PING_TIMEOUT,
    STEP_ROOM,
)


@attrs.frozen
class HeadConfig:
    """The head's configuration: the *names* and *hosts* (addresses) of the ranks, by rank.

    *bootstrap_seconds* limit the loading of an epoch; *group_seconds* limit how long a collective
    takes to come up once every rank has loaded. *patience* is `NodeConfig.patience`, in seconds.
    *build*, *unpinned* and *trust_weights* are those of `NodeConfig`.
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
    trust_weights: bool = False
    build: int = 0
    last_epoch: int = 0  # that this node began, with another roster; the next one comes after it


def scheduler_config(asked: SchedulerConfig, info: EngineInfo, world: int) -> SchedulerConfig:
    """What is *asked*, for the model in *info* on *world* ranks. A chunk of a prompt fits a frame,
    and one for each rank, and two more, may be under way."""
    hidden = info.hop or info.hidden * info.dtype.width
    room = min(MAX_SEALED_BODY - STEP_ROOM, MAX_WEIGHT_WAITING // (world + 2))
    return attrs.evolve(
        asked,
        groups=asked.groups or (1 if world == 1 else 2 * world),
        rows=asked.rows if info.batches else 1,
        chunk=max(1, min(asked.chunk, room // hidden)),
        hidden_bytes=hidden,
        weights=sum(info.layers),
        vocabulary=info.vocabulary,
        ahead=info.ahead if asked.ahead is None else asked.ahead,
    )

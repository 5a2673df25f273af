"""The head's configuration."""

from __future__ import annotations

import attrs

from sealring_protocol.control.head.plan import PlanRequest
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.limits import PING_TIMEOUT


@attrs.frozen
class HeadConfig:
    """The head's configuration: the *names* and *hosts* (addresses) of the ranks, by rank.

    *bootstrap_seconds* limit the loading of an epoch; *group_seconds* limit how long a collective
    takes to come up once every rank has loaded. *patience* is `NodeConfig.patience`, in seconds.
    *unpinned* and *trust_weights* are those of `NodeConfig`.
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
    last_epoch: int = 0  # that this node began, with another roster; the next one comes after it

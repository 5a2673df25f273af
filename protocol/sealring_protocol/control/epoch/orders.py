"""How a follower checks a BOOTSTRAP against its configuration, and which layers it takes."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Backend, Bootstrap, Epoch, Failure, FailureKind
from sealring_protocol.control.effects import Effect, Shut
from sealring_protocol.control.plan import Partition, Plan, Strategy
from sealring_protocol.errors import CloseCode, RemoteProtocolError
from sealring_protocol.security.roles import Purpose


@attrs.frozen
class FollowerConfig:
    """A follower's place in the ring: its *rank*, and the *names* of all ranks by rank.

    With *trusted*, a collective may run outside of the sealed links. *inner_seal* and *tensor*
    (whether tensor parallelism is allowed) come from the roster. *build* is `NodeConfig.build`.
    """

    rank: int
    names: tuple[str, ...]
    inner_seal: bool = True
    trusted: bool = False
    tensor: bool = True
    build: int = 0

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.names)


def refusal(order: Bootstrap, config: FollowerConfig, epoch: Epoch, model: bytes) -> Shut | None:
    """The reason to refuse *order*, as the close of the control link; None to obey it. *epoch* is
    the last that this rank was told, *model* the digest of its model (empty while unknown).

    Raises `RemoteProtocolError` for an order that no correct head sends.
    """
    if order.rank != config.rank or order.world != config.world:
        raise RemoteProtocolError(
            f"BOOTSTRAP for rank {order.rank} of {order.world} came to rank "
            f"{config.rank} of {config.world}"
        )
    if order.epoch.instance == epoch.instance and order.epoch.counter <= epoch.counter:
        raise RemoteProtocolError("BOOTSTRAP for an epoch that is over")
    code, reason = CloseCode.POLICY_MISMATCH, ""
    if order.inner_seal != config.inner_seal:
        reason = "the head and this rank disagree on the inner seal"
    elif order.backend is not Backend.PIPELINE and not config.tensor:
        reason = "the roster forbids tensor parallelism"
    elif order.trusted and not config.trusted:
        reason = 'this rank does not say collectives = "trusted-link", as the head does'
    elif order.joins:
        raise RemoteProtocolError("BOOTSTRAP has this rank join a collective unprepared")
    elif model and order.model != model:
        code, reason = CloseCode.MODEL_MISMATCH, "the head holds another model than this rank"
    return Shut(0, Purpose.CONTROL, code, reason) if reason else None


def check_stale(epoch: Epoch, own: Epoch) -> None:
    """Check a step of an *epoch* other than *own*. One of a past epoch is only late, as links
    outlive epochs. Raises `RemoteProtocolError` for an epoch that this rank was not told of."""
    if epoch > own and epoch.instance == own.instance:
        raise RemoteProtocolError("a step of an epoch that this rank was not told of")


def layers_of(order: Bootstrap) -> range:
    """The layers that *order* gives this rank; empty in tensor parallelism, where each rank takes a
    share of every layer."""
    if order.backend is not Backend.PIPELINE:
        return range(0)
    return range(order.bounds[order.rank], order.bounds[order.rank + 1])


def plan_of(order: Bootstrap) -> Plan:
    """The plan behind *order*, without its reason and the ranks' weights, which no rank is told."""
    pipeline = order.backend is Backend.PIPELINE
    strategy = Strategy.PIPELINE if pipeline else Strategy.TENSOR
    split = Partition(order.bounds, ())
    return Plan(strategy, split, "", order.world, order.backend, order.trusted)


def renewed_keys(previous: int, failed: Failure) -> list[Effect]:
    """Close the link from rank *previous* if the engine could not open a tensor from it: only a new
    link brings a new key."""
    if failed.kind is not FailureKind.INTEGRITY:
        return []
    code, reason = CloseCode.AUTHENTICATION_FAILED, "a tensor did not open"
    return [Shut(previous, Purpose.STEP, code, reason)]

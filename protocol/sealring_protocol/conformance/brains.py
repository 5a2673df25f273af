"""Drives the control machines through the events of a vector.

`run_rank` drives a follower with messages of the head and of its own engine, and with the ports
that its node opens for a collective. `run_lockstep` drives the head in one epoch of tensor
parallelism. Both write results into *output* at once, so that it has them even if the last event is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from sealring_protocol.codec.encoding import decode, decode_local, encode, to_fields
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    CannotServe,
    Epoch,
    Hello,
    Step,
    StepDone,
    Waiting,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.effects import (
    Effect,
    PrepareCollective,
    RestartEngine,
    Send,
    Shut,
    ToEngine,
)
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.control.epoch.pipeline import Action, Answered
from sealring_protocol.control.epoch.tensor import TensorLeader
from sealring_protocol.control.head.membership import Membership
from sealring_protocol.errors import WIRE_CODES, RemoteProtocolError, SealringError
from sealring_protocol.security.roles import Purpose

Given = dict[str, Any]

_PRESENT: Final = Hello(bytes(32), 1, DType.F32, 1, 0)


def run_rank(given: Given, output: Given) -> None:
    """Run a follower whose control link is up. *output* has what it sends to the head and its
    engine."""
    output |= {"head": [], "engine": [], "restarts": 0, "told": []}
    rank = _Rank(given, output)
    for happens in given["course"]:
        rank.take(happens)


class _Rank:
    def __init__(self, given: Given, output: Given) -> None:
        names = tuple(f"rank {rank}" for rank in range(given["world"]))
        policy = given["inner_seal"], given["trusted"], given["tensor_parallelism"]
        config = FollowerConfig(given["rank"], names, *policy)
        self._machine = Follower(config)
        self._next = (given["rank"] + 1) % given["world"]
        self._before = given["rank"] - 1
        self._prepared = NO_EPOCH
        self._output = output
        self._machine.link_up(0, Purpose.CONTROL, 0.0)

    def take(self, happens: Given) -> None:
        """Apply one event."""
        self._note(self._effects(happens))
        told = self._machine.standing().head_reasons
        self._output["told"] = to_fields(Waiting(tuple(told)))["reasons"]

    def _effects(self, happens: Given) -> list[Effect]:
        machine = self._machine
        match happens:
            case {"purpose": code, "plaintext": data}:
                purpose = Purpose(code)
                sender = 0 if purpose is Purpose.CONTROL else self._before
                return machine.message(sender, purpose, decode(bytes.fromhex(data)), 0.0)
            case {"engine": data}:
                return machine.engine_message(decode_local(bytes.fromhex(data)), 0.0)
            case {"port": port, "relay": relay}:
                return machine.collective_prepared(self._prepared, port, relay, 0.0)
            case {"tunnel": True}:
                return machine.link_up(self._next, Purpose.TUNNEL, 0.0)
            case {"lost": reason}:
                return machine.engine_lost(reason, 0.0)
        raise KeyError(f"{happens} is nothing that happens to a rank")

    def _note(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(_, Purpose.CONTROL, message):
                    self._output["head"].append(b"".join(encode(message)).hex())
                case ToEngine(message):
                    self._output["engine"].append(b"".join(encode(message)).hex())
                case RestartEngine():
                    self._output["restarts"] += 1
                case PrepareCollective(epoch):
                    self._prepared = epoch
                case Shut(_, _, code, reason):
                    raise _error(code, reason)


def _error(code: int, reason: str) -> SealringError:
    """The error whose class has the close code *code*."""
    return next(error for error, wire in WIRE_CODES.items() if wire == code)(reason)


def run_lockstep(given: Given, output: Given) -> None:
    """Run the head's leader. *output* has the finished steps, and what ended the epoch."""
    output |= {"over": [], "failed": None}
    epoch = Epoch(int(given["instance"]), int(given["counter"]))
    membership = _in_epoch(epoch, given["world"])
    leader = TensorLeader(epoch, given["world"])
    for happens in given["course"]:
        _tell(_happens(leader, membership, happens), output)


def _in_epoch(epoch: Epoch, world: int) -> Membership:
    """A membership that is in *epoch*."""
    membership = Membership(epoch.instance, world)
    for _ in range(epoch.counter):
        membership.interrupt()
        for rank in range(world):
            membership.presented(rank, _PRESENT)
        membership.start(prepare=True)
    return membership


def _happens(leader: TensorLeader, membership: Membership, happens: Given) -> list[Action]:
    match happens:
        case {"step": data}:
            return leader.begin(_read(data, Step))
        case {"rank": rank, "answer": data}:
            message = _read(data, StepDone, CannotServe)
            if not membership.is_current(message.epoch):
                return []
            if isinstance(message, CannotServe):
                return leader.lost(message.of(rank))
            return leader.done(rank, message) if rank else leader.output(message)
        case {"wait": True}:
            return leader.drained()
    raise KeyError(f"{happens} is nothing that happens to the head")


def _tell(actions: Iterable[Action], output: Given) -> None:
    ended = [action for action in actions if isinstance(action, Answered)]
    for each in ended:
        if each.failed is None:
            output["over"].append({"n": str(each.n), "ids": list(each.ids)})
        elif output["failed"] is None:
            others = re.findall(r"; rank (\d+): ", each.failed.message)
            output["failed"] = {
                "rank": each.failed.rank,
                "kind": int(each.failed.kind),
                "others": [int(rank) for rank in others],
                "steps": [str(n) for n in sorted(e.n for e in ended if e.failed is not None)],
            }


def _read(data: str, *kinds: type[Any]) -> Any:
    message = decode(bytes.fromhex(data))
    if not isinstance(message, kinds):
        raise RemoteProtocolError(f"it is no {kinds[0].__name__}")
    return message

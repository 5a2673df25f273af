"""An epoch's messages: a rank presents itself, is given its place, and can serve or cannot."""

from __future__ import annotations

import enum
from itertools import pairwise
from typing import ClassVar, Final

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.tensor import DType


@attrs.frozen(order=True)
class Epoch:
    """One period in which the ring serves: the head's *instance* (random, per process) and a
    *counter*."""

    instance: int
    counter: int


NO_EPOCH: Final = Epoch(0, 0)


class FailureKind(enum.IntEnum):
    """What went wrong on a rank. After UNSERVABLE the next try would go wrong in the same way."""

    ENGINE_ERROR = 1
    ENGINE_LOST = 2
    LEDGER = 3
    LINK_LOST = 4
    DEADLINE = 5
    MEMORY = 6
    INTEGRITY = 7
    LOAD = 8
    GROUP = 9
    UNSERVABLE = 10


@attrs.frozen
class Failure:
    """Why a step failed: on which *rank*, the *kind*, and a short *message*."""

    rank: int
    kind: FailureKind
    message: str


@attrs.frozen
class Hello:
    """A rank presents itself: the digest of its *model* (32 bytes), the number of *layers*, the
    *dtype* and number of elements of a *hidden* state, and its *room* in bytes for weights and
    caches.

    *pins* tell weights apart, see the specification (8.15): of the files' hashes, of the ends, and
    of each layer; 0 for what it does not have, and none at all if it has looked at no weights.

    *build* names the program: two that are not 0 and differ may do the same step in other ways."""

    CODE: ClassVar = MessageCode.HELLO
    model: bytes
    layers: int
    dtype: DType
    hidden: int
    room: int
    pins: tuple[int, ...] = ()
    build: int = 0

    def __attrs_post_init__(self) -> None:
        rule(len(self.pins) in (0, self.layers + 2), "a pin of the files, the ends and each layer")


@attrs.frozen
class Prepared:
    """A rank has loaded its share for a collective; its engine will listen on *port*."""

    CODE: ClassVar = MessageCode.PREPARED
    epoch: Epoch
    port: int

    def __attrs_post_init__(self) -> None:
        rule(self.port > 0, "PREPARED has no port")


@attrs.frozen
class CacheCost:
    """The bytes that one row takes in this rank's KV cache: *fixed*, plus *per_token* for each
    token, plus for each window ``(tokens, per_token)`` its cost for at most that many tokens."""

    fixed: int
    per_token: int
    windows: tuple[tuple[int, int], ...] = ()

    def of(self, tokens: int) -> int:
        """The bytes of a row of *tokens*."""
        windowed = sum(min(tokens, window) * cost for window, cost in self.windows)
        return self.fixed + self.per_token * tokens + windowed


@attrs.frozen
class Ready:
    """A rank can serve *epoch* with its layers from *first* up to, but not including, *last*.

    Raises `LocalProtocolError`, as the other messages do, if the fields contradict each other.

    *room* is in bytes for caches, and *cost* is what a row takes of it. *trimmable* caches can be
    cut at any token. After joining a collective, *sum_us* and *token_us* are medians, in
    microseconds: of summing one row's hidden state over all ranks, and of a forward of one token.
    """

    CODE: ClassVar = MessageCode.READY
    epoch: Epoch
    first: int
    last: int
    trimmable: bool
    room: int
    cost: CacheCost
    sum_us: int = 0
    token_us: int = 0

    def __attrs_post_init__(self) -> None:
        rule(self.first <= self.last, "READY's layers end before they begin")


class Backend(enum.IntEnum):
    """How the ranks of an epoch share the work."""

    PIPELINE = 1
    RING = 2
    JACCL = 3
    NCCL = 4


@attrs.frozen
class Bootstrap:
    """The order that begins an epoch: the receiver's place in it.

    In a pipeline *bounds* has the first layer of each rank, and then the number of layers: rank i
    has ``bounds[i]:bounds[i + 1]``. With any other back end every rank has all layers, *bounds* is
    0 and their number, and *hosts* has an address and a port for every rank. The order then comes
    twice. With ports of 0, the rank loads its share and prepares for the collective. With the ports
    that all ranks answered, it joins. With *trusted*, the collective runs outside of the sealed
    links. In a *checked* epoch each rank sends CHECKED with each step.

    The first of two is answered by `Prepared`, any other by `Ready`; a rank that cannot obey
    answers `CannotServe`.
    """

    CODE: ClassVar = MessageCode.BOOTSTRAP
    epoch: Epoch
    backend: Backend
    rank: int
    inner_seal: bool
    deadline_ms: int
    model: bytes
    bounds: tuple[int, ...]
    hosts: tuple[tuple[str, int], ...] = ()
    trusted: bool = False
    checked: bool = False

    def __attrs_post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.bounds))
        rule(
            len(self.bounds) > 1 and self.bounds[0] == 0 and rising,
            "BOOTSTRAP's layer bounds do not rise from 0",
        )
        rule(self.rank < self.world, "BOOTSTRAP names a rank that the ring does not have")
        if self.backend is Backend.PIPELINE:
            rule(not self.hosts and not self.trusted, "a pipeline has no collective")
            return
        sealable = self.backend is Backend.RING
        rule(sealable or self.trusted, "what this back end sends cannot be sealed")
        rule(len(self.bounds) == 2, "ranks of a collective have all layers")
        rule(len(self.hosts) > 1, "a collective has two ranks or more")
        ports = {port > 0 for _, port in self.hosts}
        rule(len(ports) == 1, "BOOTSTRAP gives a port to some ranks and not to others")

    @property
    def world(self) -> int:
        """The number of ranks in the epoch."""
        return len(self.bounds) - 1 if self.backend is Backend.PIPELINE else len(self.hosts)

    @property
    def joins(self) -> bool:
        """True if the ranks are to join their collective now."""
        return any(port for _, port in self.hosts)


@attrs.frozen
class CannotServe:
    """The sender cannot serve *epoch*, or no longer: the *kind* of failure, and a short *reason*.
    *n* is the first step that it cannot do; 0 if the failure belongs to no step.

    With `NO_EPOCH`, from an engine: it cannot read its model.
    """

    CODE: ClassVar = MessageCode.CANNOT_SERVE
    epoch: Epoch
    kind: FailureKind
    reason: str
    n: int = 0

    def of(self, rank: int) -> Failure:
        """The failure, attributed to *rank*, the sender."""
        return Failure(rank, self.kind, self.reason)

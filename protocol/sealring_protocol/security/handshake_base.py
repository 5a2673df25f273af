"""What both roles of the handshake share: queued events, bytes to send, and failure.

A role is a `Machine` over its table, and one stage object. The stage has the class of the machine's
state and holds only what is valid in it. Only `_advance` changes the state: it fires the event and
replaces the stage, after which nothing refers to the old stage's secrets.
"""

from __future__ import annotations

import enum
import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast

import attrs

from sealring_protocol.errors import SealringError
from sealring_protocol.security.handshake_values import HandshakeEvent
from sealring_protocol.table import IllegalEvent, Machine, Table

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
H = TypeVar("H", bound="Handshake[Any, Any]")


@attrs.frozen
class Closed:
    """The link was closed normally."""


@attrs.frozen(eq=False)
class Dead:
    """The link has failed with *error*, which every later call raises again."""

    error: SealringError


def fatal(method: Callable[Concatenate[H, P], R]) -> Callable[Concatenate[H, P], R]:
    """Make an error of *method* kill the handshake; a dead handshake raises its error again."""

    @functools.wraps(method)
    def guarded(self: H, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_alive()
        try:
            return method(self, *args, **kwargs)
        except SealringError as error:
            self._die(error)
            raise

    return guarded


_ENDS = (Closed, Dead)


class Handshake(Generic[S, E]):
    """One end of one handshake. See `security.handshake` for how to drive it."""

    LIMITS: ClassVar[Mapping[Any, Mapping[int, int]]]
    FAIL: ClassVar[Any]
    CLOSE: ClassVar[Any]

    __slots__ = ("_events", "_machine", "_out", "_stage")

    def __init__(self, table: Table[S, E], initial: S, stage: object) -> None:
        self._machine = Machine(table, initial)
        self._stage = stage
        self._events: deque[HandshakeEvent] = deque()
        self._out: list[bytes] = []

    @property
    def state(self) -> S:
        """The state of the handshake."""
        return self._machine.state

    @property
    def over(self) -> bool:
        """True if the link was closed, or has failed."""
        return isinstance(self._stage, _ENDS)

    @property
    def frame_limits(self) -> Mapping[int, int]:
        """The frames to accept in this state: the longest body in bytes for each kind."""
        return self.LIMITS[self._machine.state]

    def next_event(self) -> HandshakeEvent | None:
        """The next event; None if there is none. A dead handshake raises its error."""
        self._check_alive()
        return self._events.popleft() if self._events else None

    def data_to_send(self) -> bytes:
        """Take the bytes to send, which may be none. A dead handshake raises its error."""
        self._check_alive()
        data = b"".join(self._out)
        self._out.clear()
        return data

    @fatal
    def close(self) -> None:
        """CLOSE was sent or received, on a link whose peer is verified."""
        self._advance(self.CLOSE, Closed())

    def fail(self, error: SealringError) -> None:
        """The link has failed with *error*, for example because the stream ended or a deadline
        passed.

        Raises the earlier error of a dead handshake, and `IllegalEvent` on a closed one.
        """
        self._check_alive()
        self._machine.fire(self.FAIL)
        self._bury(error)

    def _check_alive(self) -> None:
        stage = self._stage
        if isinstance(stage, Dead):
            raise stage.error.with_traceback(None)

    def _current(self, kind: type[T], event: E) -> T:
        """The present stage, which has the class *kind* in every state where *event* is legal.
        Raises `IllegalEvent` in any other state."""
        self._machine.after(event)
        return cast(T, self._stage)

    def _advance(self, event: E, stage: object) -> None:
        self._machine.fire(event)
        self._stage = stage

    def _die(self, error: SealringError) -> None:
        try:
            self._machine.fire(self.FAIL)
        except IllegalEvent:
            return  # closed already: nothing after CLOSE changes that
        # The error is kept. Its traceback would keep stack frames alive, and the keys in them.
        error.__traceback__ = error.__context__ = None
        self._bury(error)

    def _bury(self, error: SealringError) -> None:
        # Bytes that were not drained are dropped: a stranger gets not one byte.
        self._stage = Dead(error)
        self._events.clear()

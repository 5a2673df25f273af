"""The role of a node: its brain, and the requests that a head has, across changes of the roster."""

from __future__ import annotations

from sealring_protocol.control.effects import Effect
from sealring_protocol.control.epoch.follower import Follower
from sealring_protocol.control.head.head import Head
from sealring_protocol.control.scheduler.requests import FinishReason, RequestDone
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.node_config import NodeConfig, follower_config, head_config
from sealring_protocol.security.roster import Roster


class NodeRole:
    """The role of *rank* under *roster*."""

    def __init__(self, config: NodeConfig, roster: Roster, rank: int, now: float) -> None:
        self._config = config
        self._requests: set[int] = set()
        self._next_uid = 1
        self._last_epoch = 0
        self.brain = self._make_brain(roster, rank, now)
        """The control machine."""

    def _make_brain(self, roster: Roster, rank: int, now: float) -> Head | Follower:
        self._rank, self._first = rank, roster.members[0].name
        if rank > 0:
            return Follower(follower_config(self._config, roster, rank), now)
        return Head(head_config(self._config, roster, self._next_uid, self._last_epoch), now)

    def change(self, roster: Roster, rank: int, now: float) -> list[Effect]:
        """Have the brain retire, and make another, for *rank* under *roster*. If this node stays
        the head, its requests go on, and are prefilled again. Otherwise they end."""
        before = self.brain
        effects = before.retire()
        if isinstance(before, Head):
            self._last_epoch = before.epochs.membership.epoch.counter
        self.brain = self._make_brain(roster, rank, now)
        if isinstance(before, Head) and isinstance(self.brain, Head):
            self.brain.inherit(before.scheduler)
        elif isinstance(before, Head):
            text = f"roster {roster.serial} makes {roster.members[0].name} the head; ask there"
            failed = FinishReason.FAILED
            effects += [RequestDone(uid, failed, text) for uid in sorted(self._requests)]
        return effects

    def head(self) -> Head:
        """The brain, of a head. Raises `LocalProtocolError` on any other rank."""
        if isinstance(self.brain, Head):
            return self.brain
        text = f"this node is rank {self._rank}, which takes no requests; ask the head, "
        raise LocalProtocolError(text + self._first)

    def submitted(self, uid: int) -> None:
        """The head has queued request *uid*."""
        self._requests.add(uid)
        self._next_uid = uid + 1

    def request_done(self, uid: int) -> None:
        """Request *uid* is over."""
        self._requests.discard(uid)

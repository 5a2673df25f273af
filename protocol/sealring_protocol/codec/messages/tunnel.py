"""TUNNEL: bytes of a collective's TCP connections."""

from __future__ import annotations

import enum
from typing import ClassVar

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.messages.epochs import Epoch
from sealring_protocol.codec.wire import Buffer


class TunnelEvent(enum.IntEnum):
    """What happens to a connection in a tunnel."""

    DATA = 0
    OPEN = 1
    CLOSE = 2


@attrs.frozen
class Tunnel:
    """Bytes of one connection of *epoch*'s collective: the one dialed by the engine of rank
    *stream*. Only DATA has *data*, at least one byte."""

    CODE: ClassVar = MessageCode.TUNNEL
    epoch: Epoch
    stream: int
    event: TunnelEvent
    data: Buffer = b""

    def __attrs_post_init__(self) -> None:
        has_data = self.event is TunnelEvent.DATA
        rule(
            has_data == (len(self.data) > 0), "a TUNNEL frame has data if, and only if, it is DATA"
        )

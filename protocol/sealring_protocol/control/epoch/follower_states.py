"""The states of a follower: without a head, between epochs, starting one, serving, or failed.

FAILED lasts from the report to the head until the head's next order. CUT is FAILED with the link to
the next rank broken in this epoch. The next rank has missed steps that cannot be repeated, so
nothing more is sent to it before the next epoch, even if the link comes up again. IDLE is SERVING
after the head has said (WAITING) that there is no epoch.
"""

from __future__ import annotations

import enum
from typing import Final

from sealring_protocol.control.standing import Phase
from sealring_protocol.table import Table


class FollowerState(enum.Enum):
    """The state of a follower."""

    NO_HEAD = "no_head"
    GATHERING = "gathering"
    LOADING = "loading"
    PREPARED = "prepared"
    JOINING = "joining"
    LINKING = "linking"
    SERVING = "serving"
    IDLE = "idle"
    FAILED = "failed"
    CUT = "cut"


class FollowerEvent(enum.Enum):
    """What changes the state.

    ORDER is a BOOTSTRAP that begins an epoch; JOIN is a collective's second BOOTSTRAP. LOADED is
    the engine's READY while the link to the next rank is missing. PREPARED and READY: the message
    of that name was sent to the head. NO_EPOCH is the head's WAITING.
    """

    HEAD_UP = "head_up"
    HEAD_DOWN = "head_down"
    ORDER = "order"
    PREPARED = "prepared"
    JOIN = "join"
    LOADED = "loaded"
    READY = "ready"
    NO_EPOCH = "no_epoch"
    FAILURE = "failure"
    CUT = "cut"


_S, _E = FollowerState, FollowerEvent
FOLLOWER_TABLE: Final[Table[FollowerState, FollowerEvent]] = {
    (_S.NO_HEAD, _E.HEAD_UP): _S.GATHERING,
    (_S.GATHERING, _E.ORDER): _S.LOADING,
    (_S.LOADING, _E.ORDER): _S.LOADING,
    (_S.PREPARED, _E.ORDER): _S.LOADING,
    (_S.JOINING, _E.ORDER): _S.LOADING,
    (_S.LINKING, _E.ORDER): _S.LOADING,
    (_S.SERVING, _E.ORDER): _S.LOADING,
    (_S.IDLE, _E.ORDER): _S.LOADING,
    (_S.FAILED, _E.ORDER): _S.LOADING,
    (_S.CUT, _E.ORDER): _S.LOADING,
    (_S.LOADING, _E.PREPARED): _S.PREPARED,
    (_S.PREPARED, _E.JOIN): _S.JOINING,
    (_S.LOADING, _E.LOADED): _S.LINKING,
    (_S.LOADING, _E.READY): _S.SERVING,
    (_S.LINKING, _E.READY): _S.SERVING,
    (_S.JOINING, _E.READY): _S.SERVING,
    (_S.SERVING, _E.NO_EPOCH): _S.IDLE,
    (_S.LOADING, _E.FAILURE): _S.FAILED,
    (_S.PREPARED, _E.FAILURE): _S.FAILED,
    (_S.JOINING, _E.FAILURE): _S.FAILED,
    (_S.LINKING, _E.FAILURE): _S.FAILED,
    (_S.SERVING, _E.FAILURE): _S.FAILED,
    (_S.IDLE, _E.FAILURE): _S.FAILED,
    (_S.FAILED, _E.CUT): _S.CUT,
    (_S.CUT, _E.CUT): _S.CUT,
    (_S.GATHERING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.LOADING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.PREPARED, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.JOINING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.LINKING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.SERVING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.IDLE, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.FAILED, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.CUT, _E.HEAD_DOWN): _S.NO_HEAD,
}

PHASES: Final = {
    FollowerState.NO_HEAD: Phase.NO_HEAD,
    FollowerState.GATHERING: Phase.GATHERING,
    FollowerState.LOADING: Phase.LOADING,
    FollowerState.PREPARED: Phase.PREPARED,
    FollowerState.JOINING: Phase.JOINING,
    FollowerState.LINKING: Phase.LINKING,
    FollowerState.SERVING: Phase.SERVING,
    FollowerState.IDLE: Phase.GATHERING,
    FollowerState.FAILED: Phase.FAILED,
    FollowerState.CUT: Phase.FAILED,
}
"""The phase that the status shows in each state."""

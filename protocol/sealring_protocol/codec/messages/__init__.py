"""Every message in a sealed frame, as a frozen value.

Each module here has the messages of one subject; import them from this package. The bytes of each
are in `codec.encoding`. INIT, RESP and FIN, which travel in handshake frames, are in
`security.handshake_messages`. The messages between a node and its engine are in
`codec.local_messages`.
"""

from __future__ import annotations

from sealring_protocol.codec.messages.checked import FINGERPRINT, Checked
from sealring_protocol.codec.messages.epochs import (
    NO_EPOCH,
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Prepared,
    Ready,
)
from sealring_protocol.codec.messages.links import (
    Accept,
    Close,
    Ping,
    Pong,
    Progress,
)
from sealring_protocol.codec.messages.steps import (
    NO_LOGPROBS,
    NO_WORK,
    Decode,
    Join,
    NoWork,
    Open,
    Prefill,
    Row,
    Save,
    Spent,
    Step,
    StepDone,
    TakeBack,
    Work,
)
from sealring_protocol.codec.messages.tunnel import (
    Tunnel,
    TunnelEvent,
)
from sealring_protocol.codec.messages.waiting import (
    Hindrance,
    Reason,
    Waiting,
)
from sealring_protocol.codec.messages.weights import (
    LISTING,
    Get,
    Piece,
    is_file_name,
)

__all__ = [
    "FINGERPRINT",
    "LISTING",
    "NO_EPOCH",
    "NO_LOGPROBS",
    "NO_WORK",
    "Accept",
    "Backend",
    "Bootstrap",
    "CacheCost",
    "CannotServe",
    "Checked",
    "Close",
    "Decode",
    "Epoch",
    "Failure",
    "FailureKind",
    "Get",
    "Hello",
    "Hindrance",
    "Join",
    "Message",
    "NoWork",
    "Open",
    "Piece",
    "Ping",
    "Pong",
    "Prefill",
    "Prepared",
    "Progress",
    "Ready",
    "Reason",
    "Row",
    "Save",
    "Spent",
    "Step",
    "StepDone",
    "TakeBack",
    "Tunnel",
    "TunnelEvent",
    "Waiting",
    "Work",
    "is_file_name",
]

Message = (
    Accept
    | Ping
    | Pong
    | Close
    | Hello
    | Prepared
    | Ready
    | Bootstrap
    | Step
    | StepDone
    | CannotServe
    | Checked
    | Row
    | Tunnel
    | Waiting
    | Get
    | Piece
)

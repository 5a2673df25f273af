"""The handshake: SIGMA-I with a hybrid key exchange, and the two machines that do it.

What it proves. Both ends hold P-256 keys named by one signed roster, and both saw the same bytes of
this exchange. Nobody else has its keys unless both X25519 and ML-KEM-768 are broken. Only the
responder can read the initiator's identity; the responder's is hidden from all who cannot read a
roster. The signatures are those of SIGMA (Krawczyk, 2003): each end signs the transcript and adds a
MAC over its own identity, so no third party's identity can be bound to the exchange. Messages
and keys are in `handshake_base`.

How to drive it. Both roles take handshake frames and the answers to their requests, and give bytes
(`data_to_send`) and events (`next_event`); drain both after each call. `frame_limits` has what the
frame decoder may accept in the present state; set it after each call.

========================== ======================== ==============================================
call                       role                     then
========================== ======================== ==============================================
``dial()``                 initiator                INIT is among the bytes
``receive(frame)``         both                     `EncapsulationRequested` (INIT was good),
                                                    `SignatureRequested` (RESP was good), or what
                                                    follows FIN, see below
``provide_encapsulation``  responder                `SignatureRequested`
``provide_signature``      both                     RESP or FIN is among the bytes; the initiator
                                                    also gives `PeerVerified`
``receive_accept(Accept)`` initiator                `Established`, or `RosterReceived`
``stored()``               both                     initiator: `Established`; responder: may admit
``admit() -> Accept``      responder                `Established`; seal that ACCEPT first
``refuse()``               responder                CLOSED; seal CLOSE
``close()``                both, peer verified      CLOSED: CLOSE was sent or has come
``fail(error)``            both                     DEAD: the stream ended, or a deadline passed
========================== ======================== ==============================================

FIN gives `PeerVerified`, and then `PeerRefused` (the machine is CLOSED: seal CLOSE with the error's
wire code), `RosterReceived` (state WAIT_STORE), or nothing (state WAIT_ADMIT). `PeerVerified` has
the `Secrets`: make the channels from them, and drop them. From then on the initiator's link opens
sealed frames. The first must be ACCEPT or CLOSE.

What the link has to do, because the handshake cannot:

- Call `Admission.take_signature` when a responder gives `EncapsulationRequested`, before the
  encapsulation is done. Count the connection (`opened`, `settled`) until `PeerVerified`, and then
  report that its source has `proved` a member.
- On an error before `PeerVerified`, close the connection without another byte; the machine has
  dropped what was not drained. On an error after it, send CLOSE with the code.
- Take no frames from the decoder in the initiator's WAIT_SIGNATURE and WAIT_STORE and the
  responder's WAIT_ENCAPSULATION and WAIT_SIGNATURE. In the initiator's WAIT_STORE, the peer may
  already send data. In the responder's WAIT_STORE and WAIT_ADMIT, it may send only CLOSE.
- A handshake authorizes by the roster in its config. If the node has a newer one by then, look the
  peer up in that before `admit`, and before using an `Established` link.

Every error is final: the handshake is DEAD, and each later call raises the same error. A call that
the table does not allow (`IllegalEvent`) is such an error, except on a CLOSED handshake.
"""

from sealring_protocol.security.admission import Admission, ReplayCache
from sealring_protocol.security.handshake_base import (
    EncapsulationRequested,
    Established,
    HandshakeConfig,
    HandshakeEvent,
    InitForAnother,
    PeerRefused,
    PeerVerified,
    RosterReceived,
    Secrets,
    SignatureRequested,
    TrafficSecrets,
    VerifiedPeer,
)
from sealring_protocol.security.initiator import Initiator
from sealring_protocol.security.initiator import State as InitiatorState
from sealring_protocol.security.responder import Responder
from sealring_protocol.security.responder import State as ResponderState
from sealring_protocol.security.roles import Purpose

__all__ = [
    "Admission",
    "EncapsulationRequested",
    "Established",
    "HandshakeConfig",
    "HandshakeEvent",
    "InitForAnother",
    "Initiator",
    "InitiatorState",
    "PeerRefused",
    "PeerVerified",
    "Purpose",
    "ReplayCache",
    "Responder",
    "ResponderState",
    "RosterReceived",
    "Secrets",
    "SignatureRequested",
    "TrafficSecrets",
    "VerifiedPeer",
]

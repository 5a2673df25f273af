"""The handshake: SIGMA-I with a hybrid key exchange, and the two machines that do it.

What it proves. Both ends hold the P-256 keys that one signed roster names, both took part in this
exchange and saw the same bytes of it, and nobody else has the keys that come of it unless both
X25519 and ML-KEM-768 fall. The initiator's identity is sealed from everyone but the responder;
the responder's from all but whoever can read a roster. Signatures are SIGMA's (Krawczyk, 2003):
each end signs the transcript and puts a MAC over its own identity, so that no third party's
identity can be bound to the exchange. Messages are in `handshake_messages`, keys in `schedule`.

How to drive it. Both roles take handshake frames and answers to what they asked for, and give
bytes (`data_to_send`) and events (`next_event`); drain both after each call. `frame_limits` is
what the frame decoder may take in the present state: set it after each call.

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

FIN gives `PeerVerified`, and then one of three: `PeerRefused` (the machine is CLOSED: seal CLOSE
with the error's wire code), `RosterReceived` (state WAIT_STORE), or nothing (state WAIT_ADMIT).
`PeerVerified` holds the `Secrets`: make the channels from them, and drop them. From then on the
initiator's link opens sealed frames; the first is ACCEPT, or CLOSE, or a reason to fail.

What the link must see to, since only it can:

- Spend `Admission.take_signature` when a responder gives `EncapsulationRequested`, before the
  encapsulation is done; count the connection (`opened`, `settled`) until `PeerVerified`, and say
  then that its source has `proved` a member.
- Before `PeerVerified`, an error means that the connection is closed without a byte more; the
  machine has then already dropped what was not drained. After it, send CLOSE with the code.
- Do not take frames out of the decoder in the states WAIT_ENCAPSULATION, WAIT_SIGNATURE and
  WAIT_STORE of the initiator; the peer may already send data in the last. In the responder's
  WAIT_STORE and WAIT_ADMIT, the initiator may send CLOSE and nothing else.
- A handshake judges by the roster in its config. If the node has taken a newer one meanwhile,
  look the peer up in it before `admit`, and before using an `Established` link.

Every error is final: the handshake is DEAD and each later call raises the same error. So is a
call that the table does not allow (`IllegalEvent`), except on a CLOSED handshake, which stays so.
"""

from sealring_protocol.security.admission import Admission, ReplayCache
from sealring_protocol.security.handshake_values import (
    EncapsulationRequested,
    Established,
    HandshakeConfig,
    HandshakeEvent,
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

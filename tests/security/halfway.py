"""Handshakes halfway: a machine that waits, and the reference implementation that is to speak."""

from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    RemoteProtocolError,
)

from .pairs import (
    ADA,
    BEN,
    BEN_CONFIG,
    CLUSTER,
    NOW,
    ROSTER,
    answer_init,
    bytes_of,
    dialing,
    responder,
    run_to_fin,
)
from .reference import ReferenceInitiator, ReferenceResponder

DIGEST = ROSTER.roster.digest
RUN = run_to_fin()
SILENT = (AuthenticationFailed, RemoteProtocolError, LimitExceeded)


def reference_initiator(who=ADA):
    return ReferenceInitiator(CLUSTER, BEN.public_key, who, bytes_of("reference", 96))


def reference_responder(who=BEN):
    return ReferenceResponder(CLUSTER, who, bytes_of("reference", 32))


def at_fin(who=ADA, held=BEN_CONFIG, wall_ms=NOW):
    """A responder that waits for FIN, and the reference that is to send it."""
    reference, machine = reference_initiator(who), responder(held, wall_ms)
    reference.receive(answer_init(machine, reference.init(NOW)))
    return machine, reference


def at_resp(who=BEN):
    """An initiator that waits for RESP, and the reference that is to send it."""
    machine, init = dialing()
    reference = reference_responder(who)
    reference.receive(init)
    return machine, reference

"""What strangers, former members and members who lie can send after INIT: refused, without a byte.

Every wrong message must end in one of the package's own errors, with nothing to send. INIT is in
`test_handshake_init`, messages altered on their way in `test_handshake_altered`.
"""

import struct

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.security.identity import ORDER
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.responder import State as ResponderState

from .halfway import (
    DIGEST,
    RUN,
    at_fin,
    at_resp,
    reference_initiator,
    reference_responder,
)
from .pairs import (
    ADA,
    ADA_CONFIG,
    BEN,
    BEN_CONFIG,
    CAT,
    CLUSTER,
    COORDINATOR,
    EVE,
    NOW,
    answer_init,
    assert_dead,
    bytes_of,
    config,
    dialing,
    encapsulate,
    frame,
    refused,
    responder,
    run_to_end,
    run_to_fin,
    signed,
)
from .reference import H, ReferenceInitiator, ReferenceResponder, mac

# ---------------------------------------------------------------------------- RESP


def test_another_members_answer():
    """CAT answers in BEN's place, as itself and as BEN."""
    machine, reference = at_resp(CAT)
    reference.responder = BEN.public_key
    refused(machine, reference.resp(5, DIGEST), AuthenticationFailed)
    machine, reference = at_resp(CAT)
    reference.responder = BEN.public_key
    refused(machine, reference.resp(5, DIGEST, id=BEN_CONFIG.node_id), AuthenticationFailed)


def test_the_right_key_with_another_id():
    machine, reference = at_resp()
    said = refused(machine, reference.resp(5, DIGEST, id=H(CAT.public_key)), AuthenticationFailed)
    assert said == "RESP comes from another node"
    machine, reference = at_resp()
    said = refused(machine, reference.resp(5, DIGEST, id=ADA_CONFIG.node_id), AuthenticationFailed)
    assert said == "RESP comes from another node"


@pytest.mark.parametrize("suite", [0, 3, 255])
def test_resp_with_an_unknown_suite(suite):
    machine, reference = at_resp()
    resp = reference.resp(5, DIGEST, said_suite=suite)
    assert "not offered" in refused(machine, resp, RemoteProtocolError)


def test_resp_with_a_suite_that_was_not_offered():
    machine, init = dialing(config(ADA, suites=(Suite.AES256GCM,)))
    reference = reference_responder()
    reference.receive(init)
    resp = reference.resp(5, DIGEST, suite=2)
    assert "not offered" in refused(machine, resp, RemoteProtocolError)


def test_a_downgrade_on_the_way_out():
    """Whoever can make tags strikes a suite from INIT: the transcripts differ."""
    machine, init = dialing()
    struck = reference_initiator()
    tagged = init[:17] + struct.pack(">I", 0b100) + init[21:-32]
    resp = answer_init(responder(), tagged + mac(struck.admission(), tagged))
    assert resp[9] == 2
    refused(machine, resp, AuthenticationFailed)


LIES = {
    "another key": {"signer": EVE},
    "the coordinator's key": {"signer": COORDINATOR},
    "another transcript": {"transcript": bytes(32)},
    "another mac": {"mac": bytes(32)},
    "the other mac key": {"mac_key": None},
    "a signature of nothing": {"signature": bytes(64)},
    "r and s of one": {"signature": (bytes(31) + b"\x01") * 2},
    "another seal": {"key": bytes(32)},
    "for FIN or RESP": {"context": None},
    "for a roster": {"context": b"ROSTER"},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_resp_with_a_lie(lie):
    machine, reference = at_resp()
    reference.resp(5, DIGEST)
    other = {"mac_key": reference.mI, "context": b"FIN"}
    say = {key: other[key] if value is None else value for key, value in lie.items()}
    refused(machine, reference.resp(5, DIGEST, **say), AuthenticationFailed)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_fin_with_a_lie(lie):
    machine, reference = at_fin()
    other = {"mac_key": reference.mR, "context": b"RESP"}
    say = {key: other[key] if value is None else value for key, value in lie.items()}
    refused(machine, reference.fin(5, DIGEST, **say), AuthenticationFailed)


def high(signature):
    return signature[:32] + (ORDER - int.from_bytes(signature[32:], "big")).to_bytes(32, "big")


class HighS:
    """Signs as some do: with the other s, which is as good a signature."""

    public_key = ADA.public_key

    def __init__(self, who):
        self.who = who

    def sign(self, message):
        return high(self.who.sign(message))


def test_a_high_s():
    machine, reference = at_resp()
    said = refused(machine, reference.resp(5, DIGEST, signer=HighS(BEN)), AuthenticationFailed)
    assert "lower half" in said
    machine, reference = at_fin()
    said = refused(machine, reference.fin(5, DIGEST, signer=HighS(ADA)), AuthenticationFailed)
    assert "lower half" in said


@pytest.mark.parametrize("signature", [b"", bytes(64), high(ADA.sign(b"any")), bytes(63)])
def test_ones_own_signer_is_held_to_the_same(signature):
    machine, init = dialing()
    answerer = responder()
    answerer.receive(frame(init))
    answerer.provide_encapsulation(*encapsulate(answerer.next_event().encapsulation_key))
    with pytest.raises(LocalProtocolError, match="own signer") as caught:
        answerer.provide_signature(signature)
    assert_dead(answerer, caught.value)
    machine.receive(frame(RUN.resp))
    with pytest.raises(LocalProtocolError, match="own signer") as caught:
        machine.provide_signature(signature)
    assert_dead(machine, caught.value)


@pytest.mark.parametrize(
    ("ciphertext", "secret"), [(b"", bytes(32)), (bytes(1087), bytes(32)), (bytes(1088), b"")]
)
def test_an_encapsulation_has_its_sizes(ciphertext, secret):
    machine = responder()
    machine.receive(frame(RUN.init))
    with pytest.raises(LocalProtocolError) as caught:
        machine.provide_encapsulation(ciphertext, secret)
    assert_dead(machine, caught.value)


def test_a_wrong_ciphertext_shows_as_a_seal_that_does_not_open():
    machine, reference = at_resp()
    wrong = MLKEM768PrivateKey.from_seed_bytes(bytes(64)).public_key().encapsulate()[1]
    refused(machine, reference.resp(5, DIGEST, ct=wrong), AuthenticationFailed)


def test_an_answer_to_another_dial():
    """The same two nodes, another INIT: RESP is bound to the INIT that it answers."""
    other = reference_initiator()
    resp = answer_init(responder(), other.init(NOW))
    refused(dialing()[0], resp, AuthenticationFailed)


# ----------------------------------------------------------------------------- FIN


def test_a_stranger_costs_a_verification(monkeypatch):
    from sealring_protocol.security import responder as responder_stages

    verified = []
    verify = responder_stages.verify

    def counting(*args):
        verified.append(args)
        verify(*args)

    monkeypatch.setattr(responder_stages, "verify", counting)
    machine, reference = at_fin(EVE)
    assert refused(machine, reference.fin(5, DIGEST), AuthenticationFailed) == (
        "it is no member of this cluster"
    )
    assert len(verified) == 1


def test_a_stranger_who_signs_with_the_dummys_key():
    """The verification that a stranger costs can never let one in, even if it succeeds."""
    machine, reference = at_fin(BEN)
    fin = reference.fin(5, DIGEST, id=H(EVE.public_key))
    assert refused(machine, fin, AuthenticationFailed) == "it is no member of this cluster"


def test_a_claim_of_anothers_id():
    machine, reference = at_fin(EVE)
    refused(machine, reference.fin(5, DIGEST, id=ADA_CONFIG.node_id), AuthenticationFailed)
    machine, reference = at_fin(ADA)
    refused(machine, reference.fin(5, DIGEST, id=config(CAT).node_id), AuthenticationFailed)


def test_a_claim_of_the_responders_own_id():
    machine, reference = at_fin(BEN)
    fin = reference.fin(5, DIGEST, id=BEN_CONFIG.node_id)
    assert "own id" in refused(machine, fin, AuthenticationFailed)


def test_a_fin_meant_for_another_node():
    machine, reference = at_fin()
    fin = reference.fin(5, DIGEST, responder=config(CAT).node_id)
    assert "another node" in refused(machine, fin, AuthenticationFailed)


@pytest.mark.parametrize("purpose", [0, 6, 255])
def test_an_unknown_purpose(purpose):
    machine, reference = at_fin()
    fin = reference.fin(5, DIGEST, purpose=purpose)
    assert f"unknown purpose {purpose}" in refused(machine, fin, RemoteProtocolError)


def test_a_fin_of_another_handshake():
    """One node, two handshakes to the same peer: each FIN is good for its own alone."""
    machine, first = at_fin()
    fin = first.fin(5, DIGEST)
    second = ReferenceInitiator(CLUSTER, BEN.public_key, ADA, bytes_of("other", 96))
    other = responder()
    second.receive(answer_init(other, second.init(NOW)))
    refused(other, fin, AuthenticationFailed)
    machine.receive(frame(fin))
    assert machine.state is ResponderState.WAIT_ADMIT


def test_a_relayed_handshake_binds_nobody_else():
    """EVE, a member here, passes ADA's handshake with EVE on to BEN: each signature names the
    transcript of its own exchange, so neither can be used in the other."""
    held = signed(("ada", "ben", "eve"))
    dialer, init = dialing(config(ADA, held), H(EVE.public_key))
    eve = ReferenceResponder(CLUSTER, EVE, bytes_of("eve", 32))
    eve.receive(init)
    dialer.receive(frame(eve.resp(5, held.roster.digest)))
    dialer.provide_signature(ADA.sign(dialer.next_event().payload))
    said = eve.receive_fin(dialer.data_to_send())
    to_ben = ReferenceInitiator(CLUSTER, BEN.public_key, EVE, bytes_of("eve too", 96))
    machine = responder(config(BEN, held))
    to_ben.receive(answer_init(machine, to_ben.init(NOW)))
    fin = to_ben.fin(
        5, held.roster.digest, id=H(ADA.public_key), signature=said[128:192], mac=said[192:]
    )
    refused(machine, fin, AuthenticationFailed)


# -------------------------------------------------------------------------- ACCEPT


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"transcript": bytes(32)}, AuthenticationFailed),
        ({"transcript": b""}, AuthenticationFailed),
        ({"serial": 4}, RemoteProtocolError),
        ({"serial": 6}, RemoteProtocolError),
        ({"roster": b"\x00"}, RemoteProtocolError),
        ({"roster": signed(serial=6).encode()}, RemoteProtocolError),
        ({"serial": 6, "roster": signed(serial=6).encode()}, RemoteProtocolError),
    ],
)
def test_an_accept_that_does_not_fit(change, error):
    run = run_to_fin()
    good = {"transcript": run.secrets.transcript, "serial": 5, "roster": b""}
    with pytest.raises(error) as caught:
        run.initiator.receive_accept(Accept(**good | change))
    assert_dead(run.initiator, caught.value)


def test_each_run_of_the_attacks_starts_from_a_good_one():
    run_to_end()
    machine, reference = at_fin()
    machine.receive(frame(reference.fin(5, DIGEST)))
    assert machine.state is ResponderState.WAIT_ADMIT
    dialer, other = at_resp()
    dialer.receive(frame(other.resp(5, DIGEST)))
    assert dialer.state.name == "WAIT_SIGNATURE"

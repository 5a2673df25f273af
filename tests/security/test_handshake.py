"""The handshake between honest ends, and what each end must be given."""

import pytest
from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import AuthenticationFailed, LocalProtocolError
from sealring_protocol.limits import MAX_CLOCK_SKEW_MS, MAX_FIN_BODY
from sealring_protocol.security import initiator as initiator_stages
from sealring_protocol.security import responder
from sealring_protocol.security import responder as responder_stages
from sealring_protocol.security.admission import ReplayCache
from sealring_protocol.security.handshake import INIT_BODY, RESP_BODY, HandshakeConfig, PeerVerified
from sealring_protocol.security.initiator import ACCEPT_BODY, Initiator
from sealring_protocol.security.initiator import State as InitiatorState
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.responder import Responder
from sealring_protocol.security.responder import State as ResponderState
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.seal import OpeningChannel, SealingChannel

from .halfway import reference_initiator
from .pairs import (
    ADA,
    ADA_CONFIG,
    BEN,
    BEN_CONFIG,
    CLUSTER,
    COORDINATOR,
    EVE,
    NOW,
    ROSTER,
    answer_init,
    answer_resp,
    bytes_of,
    config,
    dialing,
    frame,
    initiator,
    run_to_end,
    run_to_fin,
    signed,
    take,
)
from .pairs import (
    responder as new_responder,
)
from .reference import H, ReferenceInitiator, ReferenceResponder

A, C = Suite.AES256GCM, Suite.CHACHA20POLY1305


@pytest.mark.parametrize(
    ("offered", "taken", "chosen"),
    [
        ((A,), (A,), A),
        ((C,), (C,), C),
        ((A, C), (C, A), C),
        ((A, C), (A, C), A),
        ((C,), (A, C), C),
        ((C, A), (A,), A),
    ],
)
@pytest.mark.parametrize("purpose", Purpose)
def test_both_ends_agree(offered, taken, chosen, purpose):
    run = run_to_fin(config(ADA, suites=offered), config(BEN, suites=taken), purpose)
    run.responder.receive(frame(run.fin))
    theirs, ours = take(run.responder, PeerVerified).secrets, run.secrets
    assert theirs.suite is ours.suite is chosen
    assert theirs.purpose is ours.purpose is purpose
    assert theirs.transcript == ours.transcript
    assert theirs.peer.id == ADA_CONFIG.node_id
    assert theirs.peer.instance == ADA_CONFIG.instance
    assert ours.peer.id == BEN_CONFIG.node_id
    assert ours.peer.instance == BEN_CONFIG.instance
    assert theirs.peer.serial == ours.peer.serial == 5
    assert theirs.peer.digest == ours.peer.digest == ROSTER.roster.digest
    assert theirs.send_traffic == ours.receive_traffic
    assert theirs.receive_traffic == ours.send_traffic
    assert theirs.send_activation == ours.receive_activation
    assert theirs.receive_activation == ours.send_activation
    secrets = {ours.send_traffic, ours.receive_traffic}
    assert len(secrets | {ours.send_activation, ours.receive_activation}) == 4


def test_the_channels_carry_accept_and_data():
    run = run_to_fin()
    run.responder.receive(frame(run.fin))
    theirs, ours = take(run.responder, PeerVerified).secrets, run.secrets
    assert run.responder.next_event() is None
    to_ada = SealingChannel(theirs.suite, theirs.send_traffic)
    from_ben = OpeningChannel(ours.suite, ours.receive_traffic)
    sealed = to_ada.seal(encode(run.responder.admit()))
    run.initiator.receive_accept(decode(from_ben.open(frame(sealed))))
    assert run.initiator.state is InitiatorState.ESTABLISHED
    assert run.responder.state is ResponderState.ESTABLISHED


def test_established_says_the_same_on_both_ends():
    run, ours, theirs = run_to_end(purpose=Purpose.STEP)
    assert ours.transcript == theirs.transcript == run.secrets.transcript
    assert ours.purpose is theirs.purpose is Purpose.STEP
    assert ours.roster is theirs.roster is ROSTER
    assert (ours.peer.id, theirs.peer.id) == (BEN_CONFIG.node_id, ADA_CONFIG.node_id)
    for machine in (run.initiator, run.responder):
        assert machine.next_event() is None
        assert machine.data_to_send() == b""
        machine.close()
        assert machine.state.name == "CLOSED"


def test_the_same_entropy_and_answers_give_the_same_bytes():
    first, second = run_to_fin(), run_to_fin()
    assert (first.init, first.resp, first.fin) == (second.init, second.resp, second.fin)
    assert first.secrets.transcript == second.secrets.transcript
    assert first.secrets.send_traffic == second.secrets.send_traffic


def test_secrets_do_not_show():
    run = run_to_fin()
    text = repr(run.secrets)
    for secret in (run.secrets.send_traffic, run.secrets.receive_activation):
        assert repr(secret) not in text
        assert secret.hex() not in text


# ----------------------------------------------- against the specification alone


@pytest.mark.parametrize("suite", Suite)
def test_an_initiator_written_from_the_specification_is_understood(suite):
    held = config(BEN, suites=(suite,))
    reference = ReferenceInitiator(CLUSTER, BEN.public_key, ADA, bytes_of("reference", 96))
    machine = new_responder(held)
    resp = answer_init(machine, reference.init(NOW))
    said = reference.receive(resp)
    assert said[:32] == held.node_id
    assert said[32:80] == (
        held.instance.to_bytes(8, "big") + (5).to_bytes(8, "big") + ROSTER.roster.digest
    )
    assert said[80:91] == bytes(11)
    machine.receive(frame(reference.fin(5, ROSTER.roster.digest, instance=77, purpose=3)))
    secrets = take(machine, PeerVerified).secrets
    assert secrets.peer.instance == 77
    assert secrets.purpose is Purpose.TUNNEL
    assert secrets.transcript == reference.t4
    ada, ben = ADA_CONFIG.node_id, held.node_id
    parties = {"receive": (b"\x00", ada, ben), "send": (b"\x01", ben, ada)}
    for way, arguments in parties.items():
        for kind in ("traffic", "activation"):
            expected = reference.traffic(kind.encode(), *arguments, reference.t4)
            assert getattr(secrets, f"{way}_{kind}") == expected
    assert machine.admit() == Accept(reference.t4, 5, b"")


@pytest.mark.parametrize("suite", Suite)
def test_a_responder_written_from_the_specification_is_understood(suite):
    reference = ReferenceResponder(CLUSTER, BEN, bytes_of("reference", 32))
    machine, init = dialing()
    assert len(init) == 8 + INIT_BODY == 1269
    reference.receive(init)
    resp = reference.resp(5, ROSTER.roster.digest, suite=int(suite), instance=3)
    assert len(resp) == 8 + RESP_BODY == 1333
    fin, secrets = answer_resp(machine, resp)
    said = reference.receive_fin(fin)
    assert said[:64] == ADA_CONFIG.node_id + BEN_CONFIG.node_id
    assert said[112:128] == bytes(11) + b"\x01" + bytes(4)
    assert secrets.transcript == reference.t4 == H(reference.t3, fin)
    assert secrets.peer.instance == 3
    machine.receive_accept(Accept(reference.t4, 5, b""))
    assert machine.state is InitiatorState.ESTABLISHED


# ---------------------------------------------------------------- frame limits


def test_the_decoder_takes_only_what_the_state_does():
    dialer = initiator()
    assert dialer.frame_limits == {}
    dialer.dial()
    assert dialer.frame_limits == {FrameKind.HANDSHAKE: RESP_BODY}
    answerer = new_responder()
    assert answerer.frame_limits == {FrameKind.HANDSHAKE: INIT_BODY}
    resp = answer_init(answerer, dialer.data_to_send())
    assert answerer.frame_limits == {FrameKind.HANDSHAKE: MAX_FIN_BODY}
    fin, _ = answer_resp(dialer, resp)
    assert dialer.frame_limits == {FrameKind.SEALED: ACCEPT_BODY}
    answerer.receive(frame(fin))
    take(answerer, PeerVerified)
    assert answerer.frame_limits == {FrameKind.SEALED: responder.CLOSE_BODY}
    dialer.receive_accept(answerer.admit())
    assert dialer.frame_limits == answerer.frame_limits == {FrameKind.SEALED: 1 << 24}
    dialer.close()
    assert dialer.frame_limits == {}


def test_every_state_has_its_limits():
    assert set(Initiator.LIMITS) == set(InitiatorState)
    assert set(Responder.LIMITS) == set(ResponderState)


def test_the_longest_accept_and_close_fit_their_limits():
    from sealring_protocol.codec.messages import Close
    from sealring_protocol.limits import MAX_ELECTED

    secret = bytes(32)
    accept = SealingChannel(A, secret).seal(encode(Accept(bytes(32), 1, bytes(MAX_ELECTED))))
    assert len(accept) == 8 + ACCEPT_BODY
    close = SealingChannel(A, secret).seal(encode(Close(1, "x" * 1000)))
    assert len(close) == 8 + responder.CLOSE_BODY


def test_a_handshake_through_the_frame_decoder_byte_by_byte():
    answerer = new_responder()
    _, init = dialing()
    decoder = FrameDecoder(answerer.frame_limits)
    for at in range(len(init)):
        assert decoder.next_frame() is None
        decoder.receive_data(init[at : at + 1])
    answerer.receive(decoder.next_frame())
    assert answerer.state is ResponderState.WAIT_ENCAPSULATION


# ------------------------------------------------------------- what the owner gives


@pytest.mark.parametrize("skew", [-MAX_CLOCK_SKEW_MS, -1, 0, 1, MAX_CLOCK_SKEW_MS])
def test_clocks_may_differ_a_little(skew):
    assert answer_init(new_responder(), reference_initiator().init(NOW + skew))


def test_a_node_does_not_dial_itself_or_strangers():
    with pytest.raises(LocalProtocolError, match="itself"):
        initiator(peer=ADA_CONFIG.node_id)
    with pytest.raises(LocalProtocolError, match="does not hold the node to dial"):
        initiator(peer=H(EVE.public_key))


@pytest.mark.parametrize("size", [0, 31, 33, 64, 95, 97])
def test_entropy_has_its_size(size):
    with pytest.raises(LocalProtocolError, match="96 bytes of entropy"):
        Initiator(ADA_CONFIG, BEN_CONFIG.node_id, Purpose.STEP, NOW, bytes(size))
    with pytest.raises(LocalProtocolError, match="32 bytes of entropy"):
        Responder(BEN_CONFIG, NOW, bytes(size), ReplayCache())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"coordinator": EVE.public_key}, AuthenticationFailed),
        ({"coordinator": b""}, AuthenticationFailed),
        ({"signer_public_key": EVE.public_key}, LocalProtocolError),
        ({"roster": signed(("ben", "cat"))}, LocalProtocolError),
        ({"instance": -1}, LocalProtocolError),
        ({"instance": 1 << 64}, LocalProtocolError),
        ({"suites": ()}, LocalProtocolError),
        ({"suites": (A, A)}, LocalProtocolError),
    ],
)
def test_a_config_that_cannot_be(change, error):
    good = {
        "signer_public_key": ADA.public_key,
        "roster": ROSTER,
        "coordinator": COORDINATOR.public_key,
        "instance": 1,
        "suites": (A,),
    }
    for instance in (0, 1, (1 << 64) - 1):
        HandshakeConfig(**good | {"instance": instance})
    with pytest.raises(error):
        HandshakeConfig(**good | change)


def test_stages_carry_their_states_names():
    for module, states in (
        (initiator_stages, InitiatorState),
        (responder_stages, ResponderState),
    ):
        stages = {name for name in vars(module) if name.startswith("Wait") or name == "Start"}
        named = {state.name.title().replace("_", "") for state in states}
        assert stages == named - {"Established", "Closed", "Dead"}

"""What strangers, former members and members who lie can send: refused, without a byte.

Every wrong message must end in one of the package's own errors, with nothing to send. Where a
message is altered on its way, any byte of it will do.
"""

import struct

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.limits import MAX_CLOCK_SKEW_MS, MAX_FIN_BODY
from sealring_protocol.security.handshake import ReplayCache, ResponderState
from sealring_protocol.security.identity import ORDER
from sealring_protocol.security.keys import Suite

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
    ROSTER,
    answer_init,
    assert_dead,
    bytes_of,
    config,
    dialing,
    encapsulate,
    flip,
    frame,
    refused,
    responder,
    run_to_end,
    run_to_fin,
    signed,
)
from .reference import H, ReferenceInitiator, ReferenceResponder, extract, mac

DIGEST = ROSTER.roster.digest
RUN = run_to_fin()
SILENT = (AuthenticationFailed, RemoteProtocolError, LimitExceeded)

# x-coordinates of small order on Curve25519 and its twist, and their other encodings.
SMALL_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


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


# --------------------------------------------------------------- any byte altered


WAITING = {
    "init": responder,
    "resp": lambda: dialing()[0],
    "fin": lambda: run_to_fin().responder,
}
"""A new machine that waits for each message."""


@pytest.mark.parametrize("message", WAITING)
def test_every_byte_altered(message):
    data = getattr(RUN, message)
    for at in range(len(data)):
        refused(WAITING[message](), flip(data, at), *SILENT)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["init", "resp", "fin"]), st.integers(64, 2**16), st.integers(0, 7))
def test_a_bit_altered(message, at, bit):
    data = getattr(RUN, message)
    refused(WAITING[message](), flip(data, 8 + at % (len(data) - 8), 1 << bit), *SILENT)


@settings(max_examples=60, deadline=None)
@given(st.integers(9, len(RUN.init) - 33), st.integers(0, 7))
def test_an_init_altered_by_someone_who_knows_the_roster(at, bit):
    """Whoever can make tags can alter INIT, but then the two transcripts differ."""
    altered = flip(RUN.init, at, 1 << bit)[:-32]
    altered += mac(reference_initiator().admission(), altered)
    answerer = responder()
    try:
        resp = answer_init(answerer, altered)
    except RemoteProtocolError:
        assert answerer.state is ResponderState.DEAD
    else:
        refused(dialing()[0], resp, AuthenticationFailed)


# ------------------------------------------------------------- cut short, or too long


@pytest.mark.parametrize("message", WAITING)
def test_cut_short_at_every_length(message):
    data = getattr(RUN, message)
    for size in range(8, len(data)):
        refused(WAITING[message](), data[:size], *SILENT)


@pytest.mark.parametrize("more", [b"\x00", bytes(32), bytes(1024)])
def test_trailing_data(more):
    refused(responder(), RUN.init + more, RemoteProtocolError)
    refused(dialing()[0], RUN.resp + more, RemoteProtocolError)
    refused(run_to_fin().responder, RUN.fin + more, AuthenticationFailed)


def test_fin_beyond_its_limit():
    long = RUN.fin + bytes(MAX_FIN_BODY + 1 - (len(RUN.fin) - 8))
    assert "the limit" in refused(run_to_fin().responder, long, LimitExceeded)


def test_fin_at_its_limit_is_read():
    long = RUN.fin + bytes(MAX_FIN_BODY - (len(RUN.fin) - 8))
    refused(run_to_fin().responder, long, AuthenticationFailed)


@pytest.mark.parametrize("message", WAITING)
@pytest.mark.parametrize("kind", [0, 2, 3])
def test_a_frame_of_another_kind(message, kind):
    data = getattr(RUN, message)
    said = refused(WAITING[message](), data[:1] + bytes([kind]) + data[2:], RemoteProtocolError)
    assert said.endswith(f"a frame of kind {kind} came")


def test_trailing_data_inside_the_seal():
    machine, reference = at_resp()
    refused(machine, reference.resp(5, DIGEST, trailing=b"\x00"), RemoteProtocolError)
    machine, reference = at_fin()
    said = refused(machine, reference.fin(5, DIGEST, trailing=b"\x00"), RemoteProtocolError)
    assert said == "1 trailing bytes"


def test_fin_cut_short_inside_the_seal():
    _, reference = at_fin()
    fin = reference.fin(5, DIGEST)
    whole = reference.open(reference.kI, fin[9:], reference.t3 + fin[:9])
    for size in range(len(whole)):
        machine, reference = at_fin()
        hdr = struct.pack(">BBHI", 1, 1, 0, 1 + size + 16) + b"\x03"
        sealed = reference.seal(reference.kI, whole[:size], reference.t3 + hdr)
        refused(machine, hdr + sealed, RemoteProtocolError)


def test_a_roster_longer_than_its_limit_is_refused_by_its_length():
    machine, reference = at_fin()
    fin = reference.fin(6, DIGEST, roster_length=48 * 1024 + 1)
    assert "the limit" in refused(machine, fin, LimitExceeded)


# ---------------------------------------------------------------------------- INIT


def test_a_replayed_init():
    replay = ReplayCache()
    answer_init(responder(replay=replay), RUN.init)
    assert "before" in refused(responder(replay=replay), RUN.init, AuthenticationFailed)


@pytest.mark.parametrize(
    ("skew", "words"),
    [
        (MAX_CLOCK_SKEW_MS + 1, "121 s ahead of this one's; at most 120 s are allowed"),
        (-MAX_CLOCK_SKEW_MS - 1, "121 s behind"),
        (10**12, "11574 days ahead of"),
    ],
)
def test_a_clock_too_far_off_is_reported_with_its_size(skew, words):
    _, init = dialing(wall_ms=NOW + skew)
    replay = ReplayCache()
    assert words in refused(responder(replay=replay), init, AuthenticationFailed)
    assert len(replay) == 0


@pytest.mark.parametrize(
    "admission",
    [
        bytes(32),
        extract(b"sealring/1adm", CLUSTER + CAT.public_key),
        extract(b"sealring/1adm", H(b"another cluster") + BEN.public_key),
        extract(b"sealring/1 aes256gcm" + b"adm", CLUSTER + BEN.public_key),
    ],
    ids=["none", "for another node", "of another cluster", "of another protocol"],
)
def test_an_init_with_a_wrong_tag(admission):
    replay = ReplayCache()
    init = reference_initiator().init(NOW, admission=admission)
    assert "not for this node" in refused(responder(replay=replay), init, AuthenticationFailed)
    assert len(replay) == 0, "strangers may not fill the cache"


def test_an_init_for_another_node():
    _, init = dialing(peer=config(CAT).node_id)
    refused(responder(), init, AuthenticationFailed)


@pytest.mark.parametrize("suites", [0, 0b1, 0b1000, 1 << 31])
def test_no_suite_in_common(suites):
    init = reference_initiator().init(NOW, suites=suites)
    assert "no suite" in refused(responder(), init, RemoteProtocolError)
    only = config(BEN, suites=(Suite.CHACHA20POLY1305,))
    refused(responder(only), reference_initiator().init(NOW, suites=0b10), RemoteProtocolError)


def test_suites_of_a_later_version_are_left_alone():
    machine = responder()
    reference = reference_initiator()
    reference.receive(answer_init(machine, reference.init(NOW, suites=0b110 | 1 << 31)))
    assert reference.suite == 1


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_point_of_small_order(point):
    init = reference_initiator().init(NOW, x_public=bytes.fromhex(point))
    assert "small order" in refused(responder(), init, RemoteProtocolError)
    machine, reference = at_resp()
    resp = reference.resp(5, DIGEST, x_public=bytes.fromhex(point))
    assert "small order" in refused(machine, resp, RemoteProtocolError)


@pytest.mark.parametrize("key", [b"\xff" * 1184, b"\xff\xff" + bytes(1182)])
def test_a_malformed_encapsulation_key(key):
    init = reference_initiator().init(NOW, ek=key)
    assert "ML-KEM" in refused(responder(), init, RemoteProtocolError)


def test_reflected_messages():
    """Nothing that one end says is good for that end, or in another's place."""
    for message in (RUN.init, RUN.fin):
        refused(dialing()[0], message, RemoteProtocolError)
    for message in (RUN.resp, RUN.fin):
        refused(responder(), message, RemoteProtocolError)
    for message in (RUN.init, RUN.resp):
        refused(run_to_fin().responder, message, *SILENT)
    _, from_ben = dialing(BEN_CONFIG, ADA_CONFIG.node_id)
    refused(responder(), from_ben, AuthenticationFailed)


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
    from sealring_protocol.security import responder_stages

    verified = []
    verify = responder_stages.verify

    def counting(*args):
        verified.append(args)
        verify(*args)

    monkeypatch.setattr(responder_stages, "verify", counting)
    machine, reference = at_fin(EVE)
    assert refused(machine, reference.fin(5, DIGEST), AuthenticationFailed) == (
        "FIN comes from no member"
    )
    assert len(verified) == 1


def test_a_stranger_who_signs_with_the_dummys_key():
    """The verification that a stranger costs can never let one in, even if it succeeds."""
    machine, reference = at_fin(BEN)
    fin = reference.fin(5, DIGEST, id=H(EVE.public_key))
    assert refused(machine, fin, AuthenticationFailed) == "FIN comes from no member"


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


@pytest.mark.parametrize("purpose", [0, 5, 255])
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
        5, held.roster.digest, id=H(ADA.public_key), signature=said[117:181], mac=said[181:]
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

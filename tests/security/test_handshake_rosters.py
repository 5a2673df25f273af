"""Two ends that hold different rosters: which goes where, what is taken, what ends the link."""

import pytest
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import (
    AuthenticationFailed,
    RemoteProtocolError,
    RosterConflict,
    RosterExpired,
)
from sealring_protocol.limits import MAX_CLOCK_SKEW_MS
from sealring_protocol.security.handshake import (
    Established,
    PeerRefused,
    PeerVerified,
    RosterReceived,
    SignatureRequested,
)
from sealring_protocol.security.mandate import Certificate, vote_payload
from sealring_protocol.security.responder import State as ResponderState
from sealring_protocol.security.roster import sign_roster

from .pairs import (
    ADA,
    BEN,
    BEN_CONFIG,
    CAT,
    CLUSTER,
    COORDINATOR,
    EVE,
    NOW,
    answer_init,
    answer_resp,
    assert_dead,
    bytes_of,
    config,
    dialing,
    flip,
    frame,
    refused,
    responder,
    roster,
    run_to_end,
    run_to_fin,
    signed,
    take,
)
from .reference import H, ReferenceInitiator, ReferenceResponder

OLD, NEW, NEWEST = signed(serial=5), signed(serial=6), signed(serial=7)
PAST, FUTURE = NOW - 1, NOW + MAX_CLOCK_SKEW_MS


def at_fin(held=OLD, who=ADA, wall_ms=NOW):
    machine = responder(config(BEN, held), wall_ms)
    reference = ReferenceInitiator(CLUSTER, BEN.public_key, who, bytes_of("reference", 96))
    reference.receive(answer_init(machine, reference.init(wall_ms)))
    return machine, reference


def at_accept(said_serial, said_digest, held=OLD):
    """An initiator that waits for ACCEPT, after a RESP that said so."""
    dialer, init = dialing(config(ADA, held))
    reference = ReferenceResponder(CLUSTER, BEN, bytes_of("reference", 32))
    reference.receive(init)
    _, secrets = answer_resp(dialer, reference.resp(said_serial, said_digest))
    return dialer, secrets.transcript


# ---------------------------------------------------------------- carried either way


def test_the_initiators_newer_roster_goes_with_fin():
    run = run_to_fin(config(ADA, NEW), config(BEN, OLD))
    assert NEW.encode() not in run.fin, "the roster is sealed"
    run.responder.receive(frame(run.fin))
    peer = take(run.responder, PeerVerified).secrets.peer
    assert (peer.serial, peer.digest) == (6, NEW.roster.digest)
    assert take(run.responder, RosterReceived).roster == NEW
    assert run.responder.state is ResponderState.WAIT_STORE
    run.responder.stored()
    accept = run.responder.admit()
    assert (accept.serial, accept.roster) == (6, b"")
    run.initiator.receive_accept(accept)
    for machine in (run.initiator, run.responder):
        assert take(machine, Established).roster == NEW


def test_the_responders_newer_roster_goes_with_accept():
    run = run_to_fin(config(ADA, OLD), config(BEN, NEW))
    run.responder.receive(frame(run.fin))
    take(run.responder, PeerVerified)
    accept = run.responder.admit()
    assert (accept.serial, accept.roster) == (6, NEW.encode())
    assert take(run.responder, Established).roster == NEW
    run.initiator.receive_accept(accept)
    assert take(run.initiator, RosterReceived).roster == NEW
    assert run.initiator.next_event() is None, "no link before it is stored"
    run.initiator.stored()
    assert take(run.initiator, Established).roster == NEW


def test_a_member_that_only_the_newer_roster_holds_may_dial():
    wider = signed(("ada", "ben", "cat", "eve"), serial=6)
    run = run_to_fin(config(EVE, wider), config(BEN, OLD), who=EVE)
    run.responder.receive(frame(run.fin))
    assert take(run.responder, PeerVerified).secrets.peer.id == H(EVE.public_key)
    assert take(run.responder, RosterReceived).roster == wider


def test_a_member_that_the_responders_newer_roster_lacks_may_not_dial():
    narrower = signed(("ben", "cat"), serial=6)
    run = run_to_fin(config(ADA, OLD), config(BEN, narrower))
    assert (
        refused(run.responder, run.fin, AuthenticationFailed) == "it is no member of this cluster"
    )


def test_nothing_is_adopted_before_the_mac():
    for lie in ({"mac": bytes(32)}, {"signer": EVE}, {"id": H(EVE.public_key)}):
        machine, reference = at_fin()
        fin = reference.fin(6, NEW.roster.digest, roster=NEW.encode(), **lie)
        refused(machine, fin, AuthenticationFailed)


# ------------------------------------------------------------------ rosters that lie

EVIL = {
    "another coordinator": sign_roster(roster(serial=6), EVE),
    "another cluster": sign_roster(roster(serial=6, cluster=bytes(32)), COORDINATOR),
    "without the initiator": signed(("ben", "cat"), serial=6),
    "without the responder": signed(("ada", "cat"), serial=6),
}


def tampered():
    encoded = NEW.encode()
    return {f"byte {at}": flip(encoded, at) for at in range(0, len(encoded), 37)}


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_a_newer_roster_that_is_not_good(evil):
    digest = evil.roster.digest
    machine, reference = at_fin()
    refused(machine, reference.fin(6, digest, roster=evil.encode()), AuthenticationFailed)
    dialer, transcript = at_accept(6, digest)
    with pytest.raises(AuthenticationFailed) as caught:
        dialer.receive_accept(Accept(transcript, 6, evil.encode()))
    assert_dead(dialer, caught.value)


@pytest.mark.parametrize("data", tampered().values(), ids=tampered())
def test_a_tampered_roster(data):
    machine, reference = at_fin()
    refused(machine, reference.fin(6, NEW.roster.digest, roster=data), AuthenticationFailed)
    dialer, transcript = at_accept(6, NEW.roster.digest)
    with pytest.raises(AuthenticationFailed):
        dialer.receive_accept(Accept(transcript, 6, data))


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_a_roster_cut_short(size):
    machine, reference = at_fin()
    fin = reference.fin(6, NEW.roster.digest, roster=NEW.encode()[:size])
    refused(machine, fin, AuthenticationFailed, RemoteProtocolError)


def test_a_newer_roster_that_has_expired():
    stale = signed(serial=6, expires_ms=NOW)
    machine, reference = at_fin()
    refused(machine, reference.fin(6, stale.roster.digest, roster=stale.encode()), RosterExpired)
    dialer, transcript = at_accept(6, stale.roster.digest)
    with pytest.raises(RosterExpired):
        dialer.receive_accept(Accept(transcript, 6, stale.encode()))


def test_another_roster_than_was_said():
    machine, reference = at_fin()
    for serial, digest in ((6, OLD.roster.digest), (6, NEWEST.roster.digest), (7, bytes(32))):
        machine, reference = at_fin()
        refused(machine, reference.fin(serial, digest, roster=NEW.encode()), RemoteProtocolError)
    dialer, transcript = at_accept(6, OLD.roster.digest)
    with pytest.raises(RemoteProtocolError, match="another roster than RESP announced"):
        dialer.receive_accept(Accept(transcript, 6, NEW.encode()))
    dialer, transcript = at_accept(6, NEW.roster.digest)
    with pytest.raises(RemoteProtocolError, match="neither holds"):
        dialer.receive_accept(Accept(transcript, 7, NEWEST.encode()))


@pytest.mark.parametrize("held", [OLD, signed(serial=4)])
def test_a_roster_that_is_no_newer_is_not_to_be_sent(held):
    """An older one would be a rollback, the same one a waste."""
    machine, reference = at_fin()
    fin = reference.fin(held.roster.serial, held.roster.digest, roster=held.encode())
    assert "if, and only if" in refused(machine, fin, RemoteProtocolError)


def test_rollback_behind_a_greater_serial():
    older = signed(serial=4)
    machine, reference = at_fin()
    fin = reference.fin(6, older.roster.digest, roster=older.encode())
    assert "is not newer" in refused(machine, fin, RemoteProtocolError)
    dialer, transcript = at_accept(6, older.roster.digest)
    with pytest.raises(RemoteProtocolError, match="is not newer"):
        dialer.receive_accept(Accept(transcript, 6, older.encode()))


def test_a_newer_roster_that_is_promised_and_not_sent():
    machine, reference = at_fin()
    assert "if, and only if" in refused(
        machine, reference.fin(6, NEW.roster.digest), RemoteProtocolError
    )
    dialer, transcript = at_accept(6, NEW.roster.digest)
    with pytest.raises(RemoteProtocolError):
        dialer.receive_accept(Accept(transcript, 6, b""))


# -------------------------------------------------------------------------- conflict

TWIN = signed(serial=5, name="another home")


def test_the_same_serial_with_another_digest_at_the_initiator():
    machine, init = dialing(config(ADA, OLD))
    resp = answer_init(responder(config(BEN, TWIN)), init)
    assert "same serial 5" in refused(machine, resp, RosterConflict)


def test_a_conflict_is_believed_only_of_a_verified_peer():
    machine, init = dialing()
    reference = ReferenceResponder(CLUSTER, BEN, bytes_of("reference", 32))
    reference.receive(init)
    refused(machine, reference.resp(5, TWIN.roster.digest, signer=EVE), AuthenticationFailed)
    answerer, other = at_fin()
    refused(answerer, other.fin(5, TWIN.roster.digest, mac=bytes(32)), AuthenticationFailed)


def test_the_same_serial_with_another_digest_at_the_responder():
    machine, reference = at_fin()
    machine.receive(frame(reference.fin(5, TWIN.roster.digest)))
    secrets = take(machine, PeerVerified).secrets
    assert secrets.transcript == reference.t4
    assert isinstance(take(machine, PeerRefused).error, RosterConflict)
    assert machine.state is ResponderState.CLOSED
    assert machine.data_to_send() == b""


def test_a_conflict_in_accept():
    """RESP said one roster of serial 6, ACCEPT brings the other."""
    twin = signed(serial=6, name="another home")
    dialer, transcript = at_accept(6, twin.roster.digest)
    with pytest.raises(RemoteProtocolError, match="another roster than RESP"):
        dialer.receive_accept(Accept(transcript, 6, NEW.encode()))


# ------------------------------------------------------------------------- elections


def elected(term, head, *voters, of=OLD):
    payload = vote_payload(of.roster.digest, term, head)
    signers = (ADA, BEN, CAT)
    votes = tuple((each, signers[each].sign(payload)) for each in voters)
    return of.elected(Certificate(term, head, votes))


FIRST, SECOND = elected(1, 1, 1, 2), elected(2, 0, 0, 2)
TAKEN = elected(2, 2, 2)


@pytest.mark.parametrize(("older", "newer"), [(OLD, FIRST), (FIRST, SECOND), (TAKEN, SECOND)])
def test_a_later_election_goes_either_way(older, newer):
    run = run_to_fin(config(ADA, newer), config(BEN, older))
    run.responder.receive(frame(run.fin))
    assert take(run.responder, PeerVerified).secrets.peer.mandate == newer.roster.mandate
    assert take(run.responder, RosterReceived).roster == newer
    run.responder.stored()
    accept = run.responder.admit()
    assert (accept.serial, accept.roster) == (5, b"")
    run.initiator.receive_accept(accept)
    back = run_to_fin(config(ADA, older), config(BEN, newer))
    back.responder.receive(frame(back.fin))
    assert take(back.responder, PeerVerified).secrets.peer.mandate == older.roster.mandate
    accept = back.responder.admit()
    assert (accept.serial, accept.roster) == (5, newer.encode())
    back.initiator.receive_accept(accept)
    assert take(back.initiator, RosterReceived).roster == newer
    back.initiator.stored()
    for machine in (run.initiator, run.responder, back.initiator, back.responder):
        assert take(machine, Established).roster == newer


def test_one_election_at_both_ends_goes_nowhere():
    _, ours, theirs = run_to_end(config(ADA, FIRST), config(BEN, FIRST))
    assert ours.roster == theirs.roster == FIRST


def test_a_newer_roster_counts_more_than_an_election():
    run = run_to_fin(config(ADA, SECOND), config(BEN, NEW))
    run.responder.receive(frame(run.fin))
    accept = run.responder.admit()
    assert (accept.serial, accept.roster) == (6, NEW.encode())
    run.initiator.receive_accept(accept)
    assert take(run.initiator, RosterReceived).roster == NEW


def test_an_election_of_a_conflicting_roster_is_a_conflict():
    machine, reference = at_fin(FIRST)
    machine.receive(frame(reference.fin(5, TWIN.roster.digest, mandate=(9, 0, 0))))
    take(machine, PeerVerified)
    assert isinstance(take(machine, PeerRefused).error, RosterConflict)


def test_an_election_that_was_not_said_or_is_not_proved():
    forged = SECOND.encode().replace(SECOND.certificate.votes[0][1], bytes(64))
    for mandate, data in [
        ((2, 0, 0), b""),
        ((2, 0, 0), FIRST.encode()),
        ((2, 0, 0), OLD.encode()),
        ((2, 0, 0), forged),
        ((2, 0, 1), SECOND.encode()),
        ((2, 1, 0), SECOND.encode()),
        ((3, 0, 0), SECOND.encode()),
        ((1, 1, 0), SECOND.encode()),
        ((0, 0, 0), SECOND.encode()),
        ((2, 0, 2), SECOND.encode()),
    ]:
        machine, reference = at_fin(FIRST)
        fin = reference.fin(5, OLD.roster.digest, mandate=mandate, roster=data)
        refused(machine, fin, RemoteProtocolError, AuthenticationFailed)
        dialer, init = dialing(config(ADA, FIRST))
        other = ReferenceResponder(CLUSTER, BEN, bytes_of("reference", 32))
        other.receive(init)
        resp = other.resp(5, OLD.roster.digest, mandate=mandate)
        if mandate[2] == 2:
            refused(dialer, resp, RemoteProtocolError)
            continue
        _, secrets = answer_resp(dialer, resp)
        with pytest.raises((RemoteProtocolError, AuthenticationFailed)):
            dialer.receive_accept(Accept(secrets.transcript, 5, data))
        assert dialer.state.name == "DEAD"


def test_an_election_does_not_help_a_roster_that_has_expired():
    held = signed(expires_ms=NOW)
    later = elected(1, 1, 1, 2, of=held)
    machine, init = dialing(config(ADA, held))
    refused(machine, answer_init(responder(config(BEN, later)), init), RosterExpired)
    answerer, reference = at_fin(held)
    mandate = {"mandate": (1, 1, 0), "roster": later.encode()}
    refused(answerer, reference.fin(5, held.roster.digest, **mandate), RosterExpired)


# --------------------------------------------------------------------------- expiry


def test_an_expired_roster_on_both_ends():
    held = signed(expires_ms=NOW)
    machine, init = dialing(config(ADA, held))
    resp = answer_init(responder(config(BEN, held)), init)
    refused(machine, resp, RosterExpired)


def test_a_roster_counts_up_to_its_expiry():
    held = signed(expires_ms=NOW + 1)
    run = run_to_fin(config(ADA, held), config(BEN, held))
    run.responder.receive(frame(run.fin))
    take(run.responder, PeerVerified)
    assert run.responder.state is ResponderState.WAIT_ADMIT


def test_the_responder_refuses_when_only_its_clock_says_so():
    held = signed(expires_ms=NOW + 1)
    dialer, init = dialing(config(ADA, held), wall_ms=NOW)
    answerer = responder(config(BEN, held), wall_ms=NOW + 1)
    fin, _ = answer_resp(dialer, answer_init(answerer, init))
    answerer.receive(frame(fin))
    take(answerer, PeerVerified)
    assert isinstance(take(answerer, PeerRefused).error, RosterExpired)


def test_an_expired_roster_and_a_peer_with_an_older_one():
    """Only the delivery of a newer one helps."""
    expired, older = signed(serial=5, expires_ms=NOW), signed(serial=4)
    machine, init = dialing(config(ADA, expired))
    refused(machine, answer_init(responder(config(BEN, older)), init), RosterExpired)
    run = run_to_fin(config(ADA, older), config(BEN, expired))
    run.responder.receive(frame(run.fin))
    take(run.responder, PeerVerified)
    assert isinstance(take(run.responder, PeerRefused).error, RosterExpired)


def test_an_expired_initiator_is_given_the_newer_one():
    run = run_to_fin(config(ADA, signed(serial=5, expires_ms=NOW)), config(BEN, NEW))
    run.responder.receive(frame(run.fin))
    take(run.responder, PeerVerified)
    run.initiator.receive_accept(run.responder.admit())
    assert take(run.initiator, RosterReceived).roster == NEW
    run.initiator.stored()
    assert take(run.initiator, Established).roster == NEW


def test_an_expired_responder_is_given_the_newer_one():
    run = run_to_fin(config(ADA, NEW), config(BEN, signed(serial=5, expires_ms=NOW)))
    run.responder.receive(frame(run.fin))
    take(run.responder, PeerVerified)
    assert take(run.responder, RosterReceived).roster == NEW
    run.responder.stored()
    run.initiator.receive_accept(run.responder.admit())


def test_an_expired_initiator_whom_the_promise_fails():
    dialer, init = dialing(config(ADA, signed(serial=5, expires_ms=NOW)))
    reference = ReferenceResponder(CLUSTER, BEN, bytes_of("reference", 32))
    reference.receive(init)
    dialer.receive(frame(reference.resp(6, NEW.roster.digest)))
    dialer.provide_signature(ADA.sign(take(dialer, SignatureRequested).payload))
    transcript = take(dialer, PeerVerified).secrets.transcript
    with pytest.raises(RemoteProtocolError):
        dialer.receive_accept(Accept(transcript, 5, b""))
    assert dialer.state.name == "DEAD"


def test_the_largest_roster_fits_in_fin_and_accept():
    from sealring_protocol.limits import MAX_FIN_BODY, MAX_ROSTER
    from sealring_protocol.security.roster import Member, Roster

    addresses = tuple(f"{n}" + "x" * 200 for n in range(8))
    others = [
        Member(key.public_key, f"{n}", addresses)
        for n, key in enumerate(_many_signers(24), start=1)
    ]
    members = (*roster().members, *others)
    large = sign_roster(Roster(CLUSTER, "large", 6, 0, NOW * 2, True, members), COORDINATOR)
    assert 40_000 < len(large.encode()) <= MAX_ROSTER
    run = run_to_fin(config(ADA, large), config(BEN, OLD))
    assert len(run.fin) < MAX_FIN_BODY
    run.responder.receive(frame(run.fin))
    run.responder.stored()
    run.initiator.receive_accept(run.responder.admit())
    back = run_to_fin(config(ADA, OLD), config(BEN, large))
    back.responder.receive(frame(back.fin))
    back.initiator.receive_accept(back.responder.admit())
    back.initiator.stored()


def _many_signers(count):
    from .pairs import signer

    return [signer(f"signer {n}") for n in range(count)]


def test_a_config_is_the_roster_that_judges():
    """The wider roster of one handshake does not leak into the next."""
    wider = signed(("ada", "ben", "cat", "eve"), serial=6)
    run = run_to_fin(config(EVE, wider), config(BEN, OLD), who=EVE)
    run.responder.receive(frame(run.fin))
    machine, reference = at_fin(who=EVE)
    refused(machine, reference.fin(5, OLD.roster.digest), AuthenticationFailed)
    assert BEN_CONFIG.roster.roster.serial == 5

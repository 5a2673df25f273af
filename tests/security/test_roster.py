"""Rosters: one encoding, one signature, and the rules by which one replaces another."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    RosterConflict,
    RosterExpired,
)
from sealring_protocol.limits import MAX_ADDRESSES, MAX_MEMBERS, MAX_NAME, MAX_ROSTER
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.mandate import UNELECTED, Mandate
from sealring_protocol.security.roster import (
    Member,
    Rights,
    Roster,
    SignedRoster,
    TrustLevel,
    is_newer,
    newer,
    open_roster,
    sign_roster,
)

from .pairs import ADA, BEN, CAT, CLUSTER, COORDINATOR, EVE, NOW, flip, roster, signed, signer
from .reference import H

ROSTER = roster()
SIGNED = signed()
ENCODED = SIGNED.encode()
KEY = COORDINATOR.public_key


def test_the_encoding_byte_by_byte():
    member = Member(ADA.public_key, "ada", ("a:1", "bb:2"), TrustLevel.ATTESTED, b"\x07" * 32)
    assert Roster(CLUSTER, "home", 2, 3, 4, False, (member,)).encode() == (
        b"\x01"
        + CLUSTER
        + b"\x00\x04home"
        + bytes(7)
        + b"\x02"
        + bytes(7)
        + b"\x03"
        + bytes(7)
        + b"\x04"
        + b"\x00"
        + b"\x00\x01"
        + ADA.public_key
        + b"\x03"
        + b"\x07" * 32
        + b"\x00\x03ada"
        + b"\x00\x02"
        + b"\x00\x03a:1\x00\x04bb:2"
    )


def test_rights_are_after_the_trust_and_a_bit_of_the_policy_says_so():
    ada = Member(ADA.public_key, "ada")
    ben = Member(BEN.public_key, "ben", rights=Rights.WITNESS)
    encoded = Roster(CLUSTER, "home", 2, 3, 4, False, (ada, ben)).encode()
    assert encoded[39 + 24 :] == (
        b"\x04"
        + b"\x00\x02"
        + ADA.public_key
        + b"\x00\x01"
        + bytes(32)
        + b"\x00\x03ada"
        + b"\x00\x00"
        + BEN.public_key
        + b"\x00\x02"
        + bytes(32)
        + b"\x00\x03ben"
        + b"\x00\x00"
    )


def test_the_signature_is_over_the_digest_in_its_own_context():
    assert ROSTER.digest == H(ROSTER.encode())
    assert SIGNED.signature == COORDINATOR.sign(b"sealring/1ROSTER" + ROSTER.digest)
    assert SIGNED.encode() == ROSTER.encode() + SIGNED.signature


ALL_RIGHTS = (Rights.TEXT, Rights(0), Rights.WITNESS, Rights.TEXT | Rights.WITNESS)
names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12)
members = st.builds(
    Member,
    st.sampled_from([signer(f"s{n}").public_key for n in range(12)]),
    names,
    st.lists(names, unique=True, max_size=MAX_ADDRESSES).map(tuple),
    st.sampled_from(TrustLevel),
    st.binary(min_size=32, max_size=32).filter(any),
    st.sampled_from(ALL_RIGHTS),
)


def headed(them):
    """The members *them*, of whom the first may be the head."""
    return (attrs.evolve(them[0], rights=Rights.TEXT), *them[1:])


rosters = st.builds(
    lambda cluster, name, serial, issued, life, policy, them: Roster(
        cluster, name, serial, issued, issued + life, policy[0], headed(them), policy[1]
    ),
    st.binary(min_size=32, max_size=32),
    names,
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**63),
    st.integers(1, 2**62),
    st.tuples(st.booleans(), st.booleans()),
    st.lists(members, min_size=1, unique_by=(lambda m: m.id, lambda m: m.name)),
)


@settings(max_examples=60, deadline=None)
@given(rosters)
def test_there_and_back(one):
    again = Roster.decode(one.encode())
    assert again == one
    assert again.encode() == one.encode()
    assert again.digest == one.digest
    whole = sign_roster(one, COORDINATOR)
    assert open_roster(KEY, whole.encode()) == SignedRoster.decode(whole.encode()) == whole
    whole.verify(KEY)


def with_rights(*rights):
    """The roster whose members have these rights."""
    members = zip(ROSTER.members, rights, strict=True)
    return attrs.evolve(
        ROSTER, members=tuple(attrs.evolve(member, rights=each) for member, each in members)
    )


def test_who_may_be_the_head_and_who_may_be_in_a_ring():
    assert ROSTER.heads == ROSTER.workers == (0, 1, 2)
    one = with_rights(Rights.TEXT, Rights(0), Rights.TEXT)
    assert (one.heads, one.workers) == ((0, 2), (0, 1, 2))
    one = with_rights(Rights.TEXT, Rights.WITNESS, Rights.TEXT)
    assert (one.heads, one.workers) == ((0, 2), (0, 2))
    one = with_rights(Rights.TEXT, Rights.TEXT | Rights.WITNESS, Rights(0))
    assert (one.heads, one.workers) == ((0,), (0, 2))
    assert [member.sees_texts for member in one.members] == [True, True, False]
    assert [member.is_witness for member in one.members] == [False, True, False]


@pytest.mark.parametrize("first", [Rights(0), Rights.WITNESS, Rights.TEXT | Rights.WITNESS])
def test_the_first_member_may_be_the_head(first):
    with pytest.raises(LocalProtocolError, match="ada is the first member"):
        with_rights(first, Rights.TEXT, Rights.TEXT)


def test_rights_that_all_members_have_are_not_said():
    body = bytearray(with_rights(Rights.TEXT, Rights.TEXT, Rights(0)).encode())
    at = body.index(CAT.public_key) + 65 + 1
    assert body[at] == 0
    body[at] = Rights.TEXT
    with pytest.raises(RemoteProtocolError, match="all the usual ones"):
        Roster.decode(bytes(body))


def test_rights_that_are_none():
    body = bytearray(with_rights(Rights.TEXT, Rights.TEXT, Rights(0)).encode())
    body[body.index(CAT.public_key) + 65 + 1] = 4
    with pytest.raises(RemoteProtocolError, match="unknown rights 0x04"):
        Roster.decode(bytes(body))


def test_ranks_ids_and_trust():
    assert [ROSTER.rank(member.id) for member in ROSTER.members] == [0, 1, 2]
    assert ROSTER.member(node_id(BEN.public_key)) is ROSTER.members[1]
    assert ROSTER.members[1].id == node_id(BEN.public_key)
    assert node_id(CAT.public_key) in ROSTER
    assert node_id(EVE.public_key) not in ROSTER
    assert ROSTER.member(node_id(EVE.public_key)) is None
    with pytest.raises(LocalProtocolError):
        ROSTER.rank(node_id(EVE.public_key))
    trusted = [
        attrs.evolve(member, trust=level, attestation=b"\x01" * 32)
        for member, level in zip(
            ROSTER.members,
            (TrustLevel.ATTESTED, TrustLevel.SOFTWARE, TrustLevel.HARDWARE),
            strict=True,
        )
    ]
    assert attrs.evolve(ROSTER, members=tuple(trusted)).trust is TrustLevel.SOFTWARE
    assert ROSTER.trust is TrustLevel.NONE


def test_expiry_is_the_first_moment_that_does_not_count():
    one = roster(expires_ms=NOW)
    assert not one.expired(NOW - 1)
    assert one.expired(NOW)


# ------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": bytes(31)},
        {"cluster": b""},
        {"name": ""},
        {"name": "  "},
        {"name": "a\nb"},
        {"name": "x" * (MAX_NAME + 1)},
        {"serial": 0},
        {"serial": -1},
        {"serial": 1 << 64},
        {"expires_ms": NOW, "issued_ms": NOW},
        {"expires_ms": NOW - 1, "issued_ms": NOW},
        {"expires_ms": 1 << 64},
        {"issued_ms": -1},
        {"members": ()},
        {"members": (ROSTER.members[0], ROSTER.members[0])},
        {"members": (ROSTER.members[0], attrs.evolve(ROSTER.members[0], name="twin"))},
        {"members": (ROSTER.members[0], attrs.evolve(ROSTER.members[1], name="ada"))},
    ],
)
def test_a_roster_that_cannot_be(change):
    with pytest.raises(LocalProtocolError):
        attrs.evolve(ROSTER, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"public_key": b""},
        {"public_key": flip(ADA.public_key, 64)},
        {"public_key": ADA.public_key[:33]},
        {"name": ""},
        {"name": "\x00"},
        {"addresses": ("",)},
        {"addresses": ("a\tb",)},
        {"addresses": ("a:1", "a:1")},
        {"addresses": tuple(f"a:{n}" for n in range(MAX_ADDRESSES + 1))},
        {"attestation": b""},
        {"attestation": bytes(33)},
        {"trust": TrustLevel.HARDWARE},
        {"trust": TrustLevel.ATTESTED},
    ],
)
def test_a_member_that_cannot_be(change):
    with pytest.raises(LocalProtocolError):
        attrs.evolve(ROSTER.members[0], **change)


def test_trust_that_needs_no_evidence():
    for level in (TrustLevel.NONE, TrustLevel.SOFTWARE):
        assert attrs.evolve(ROSTER.members[0], trust=level).trust is level


def many(count):
    return tuple(Member(signer(f"m{n}").public_key, f"m{n}") for n in range(count))


def test_members_at_and_beyond_the_limit():
    full = attrs.evolve(ROSTER, members=many(MAX_MEMBERS))
    assert Roster.decode(full.encode()) == full
    with pytest.raises(LocalProtocolError):
        attrs.evolve(ROSTER, members=many(MAX_MEMBERS + 1))


def test_bytes_at_and_beyond_the_limit():
    wide = tuple(f"{n}" + "x" * 254 for n in range(MAX_ADDRESSES))
    large = tuple(attrs.evolve(member, addresses=wide) for member in many(22))
    room = MAX_ROSTER - 64 - len(attrs.evolve(ROSTER, members=large).encode())
    assert 400 < room < 2200
    last = Member(CAT.public_key, "last", ())
    spare = room - len(last.encode(with_rights=False))
    addresses = ["a" * 255] * ((spare - 2) // 257)
    addresses = [f"{n}{a[1:]}" for n, a in enumerate(addresses)]
    addresses.append("z" * (spare - 257 * len(addresses) - 2))
    fitting = attrs.evolve(last, addresses=tuple(addresses))
    whole = sign_roster(attrs.evolve(ROSTER, members=(*large, fitting)), COORDINATOR)
    assert len(whole.encode()) == MAX_ROSTER
    assert open_roster(KEY, whole.encode()) == whole
    with pytest.raises(LocalProtocolError, match="at most"):
        attrs.evolve(whole.roster, name=whole.roster.name + "x")


def test_the_coordinators_key_is_no_members():
    with pytest.raises(LocalProtocolError, match="member's key"):
        sign_roster(ROSTER, ADA)
    payload = b"sealring/1ROSTER" + ROSTER.digest
    forged = SignedRoster(ROSTER, ADA.sign(payload))
    with pytest.raises(AuthenticationFailed, match="member's key"):
        forged.verify(ADA.public_key)
    with pytest.raises(AuthenticationFailed, match="member's key"):
        open_roster(ADA.public_key, forged.encode())


def test_a_coordinators_signer_that_errs():
    class Broken:
        public_key = KEY

        def sign(self, message):
            return bytes(64)

    with pytest.raises(LocalProtocolError, match="own signer"):
        sign_roster(ROSTER, Broken())


# ----------------------------------------------------------------------- decoding


@pytest.mark.parametrize("at", range(len(ENCODED)))
def test_any_byte_altered(at):
    with pytest.raises(AuthenticationFailed):
        open_roster(KEY, flip(ENCODED, at))


def test_cut_short_at_every_length():
    body = ROSTER.encode()
    for size in range(len(body)):
        with pytest.raises(RemoteProtocolError):
            Roster.decode(body[:size])
    for size in range(len(ENCODED)):
        with pytest.raises(RemoteProtocolError):
            SignedRoster.decode(ENCODED[:size])
        with pytest.raises((RemoteProtocolError, AuthenticationFailed)):
            open_roster(KEY, ENCODED[:size])


def test_trailing_bytes():
    with pytest.raises(RemoteProtocolError, match="trailing"):
        Roster.decode(ROSTER.encode() + b"\x00")
    with pytest.raises(AuthenticationFailed):
        open_roster(KEY, ENCODED + b"\x00")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(ROSTER.encode()) - 1), st.integers(0, 255))
def test_what_decodes_has_that_one_encoding(at, value):
    body = ROSTER.encode()
    altered = body[:at] + bytes([value]) + body[at + 1 :]
    try:
        decoded = Roster.decode(altered)
    except RemoteProtocolError:
        return
    assert decoded.encode() == altered


BODY = ROSTER.encode()
POLICY = 1 + 32 + 2 + 4 + 24
TRUST = POLICY + 3 + 65


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (flip(BODY, 0, 3), RemoteProtocolError),
        (flip(BODY, POLICY, 4), RemoteProtocolError),
        (flip(BODY, POLICY + 1, 0xFF), LimitExceeded),
        (flip(BODY, TRUST, 4), RemoteProtocolError),
        (flip(BODY, TRUST, 2), RemoteProtocolError),
        (flip(BODY, TRUST + 34, 0xFF), RemoteProtocolError),
        (flip(BODY, 33, 0xFF), LimitExceeded),
    ],
    ids=["version", "policy", "count", "trust", "trust without evidence", "name", "length"],
)
def test_fields_out_of_range_from_the_coordinator(data, error):
    """Its signature is no licence for a malformed roster."""
    signature = COORDINATOR.sign(b"sealring/1ROSTER" + H(data))
    with pytest.raises(error):
        open_roster(KEY, data + signature)


def test_longer_than_any_roster():
    with pytest.raises(LimitExceeded):
        SignedRoster.decode(bytes(MAX_ROSTER + 1))


def test_a_signature_for_another_use():
    for context in (b"FIN", b"RESP", b"EVIDENCE"):
        forged = SignedRoster(ROSTER, COORDINATOR.sign(b"sealring/1" + context + ROSTER.digest))
        with pytest.raises(AuthenticationFailed):
            forged.verify(KEY)


# ---------------------------------------------------------------- one for another


ENDS = (node_id(ADA.public_key), node_id(BEN.public_key))
TWIN = signed(serial=5, name="twin")


def test_a_newer_one():
    for serial in (6, 7, 2**64 - 1):
        candidate = signed(serial=serial)
        assert newer(KEY, ROSTER, candidate.encode(), NOW, *ENDS) == candidate


@pytest.mark.parametrize(
    ("candidate", "error"),
    [
        (signed(serial=5), RemoteProtocolError),
        (signed(serial=4), RemoteProtocolError),
        (signed(serial=1), RemoteProtocolError),
        (TWIN, RosterConflict),
        (signed(serial=6, expires_ms=NOW), RosterExpired),
        (signed(serial=6, cluster=bytes(32)), AuthenticationFailed),
        (signed(("ada", "cat"), serial=6), AuthenticationFailed),
        (signed(("ben", "cat"), serial=6), AuthenticationFailed),
        (sign_roster(roster(serial=6), EVE), AuthenticationFailed),
        (SignedRoster(roster(serial=6), bytes(64)), AuthenticationFailed),
    ],
)
def test_one_that_may_not_replace(candidate, error):
    with pytest.raises(error) as caught:
        newer(KEY, ROSTER, candidate.encode(), NOW, *ENDS)
    assert type(caught.value) is error


def test_the_signature_comes_before_the_contents():
    """Malformed and unsigned: it is the signature that is missed."""
    with pytest.raises(AuthenticationFailed):
        newer(KEY, ROSTER, b"\xff" * 100, NOW)


def test_newer_by_serial_and_conflict_by_digest():
    assert is_newer(ROSTER, 6, bytes(32), UNELECTED)
    assert not is_newer(ROSTER, 4, bytes(32), Mandate(9, 1))
    assert not is_newer(ROSTER, 5, ROSTER.digest, UNELECTED)
    with pytest.raises(RosterConflict):
        is_newer(ROSTER, 5, bytes(32), Mandate(9, 1))


def test_signing_again_makes_no_other_roster():
    other = SignedRoster(ROSTER, COORDINATOR.sign(b"sealring/1ROSTER" + ROSTER.digest))
    assert other.roster.digest == SIGNED.roster.digest

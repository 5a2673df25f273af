"""Evidence, and the trust that it supports."""

import attrs
import pytest
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.security.roster import (
    MAX_CLAIMS,
    Evidence,
    EvidenceKind,
    Statement,
    TrustLevel,
    cluster_trust,
    sign_evidence,
    verify_evidence,
)

from .pairs import ADA, BEN, EVE, NOW, flip, signer
from .reference import H

ATTESTER = signer("attester")
KIND = EvidenceKind.KEY_IN_HARDWARE
STATEMENT = Statement(KIND, ADA.public_key, NOW, NOW + 10, ATTESTER.public_key, b"a quote")
EVIDENCE = sign_evidence(STATEMENT, ATTESTER)
TRUSTED = {ATTESTER.public_key}


def check(evidence=EVIDENCE, **change):
    arguments = {
        "subject": ADA.public_key,
        "digest": evidence.statement.digest,
        "attesters": TRUSTED,
        "wall_ms": NOW,
    }
    return verify_evidence(evidence, **arguments | change)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (EvidenceKind.KEY_IN_SOFTWARE, TrustLevel.SOFTWARE),
        (EvidenceKind.KEY_IN_HARDWARE, TrustLevel.HARDWARE),
        (EvidenceKind.KEY_IN_HARDWARE_AND_MEASURED_BOOT, TrustLevel.ATTESTED),
    ],
)
def test_good_evidence_supports_its_level(kind, level):
    assert check(sign_evidence(attrs.evolve(STATEMENT, kind=kind), ATTESTER)) is level


def test_the_encoding_byte_by_byte():
    encoded = (
        b"\x01\x02"
        + ADA.public_key
        + NOW.to_bytes(8, "big")
        + (NOW + 10).to_bytes(8, "big")
        + ATTESTER.public_key
        + b"\x00\x00\x00\x07a quote"
    )
    assert STATEMENT.encode() == encoded
    assert STATEMENT.digest == H(encoded)
    signature = ATTESTER.sign(b"sealring/1EVIDENCE" + H(encoded))
    assert EVIDENCE.encode() == encoded + signature
    assert Evidence.decode(encoded + signature) == EVIDENCE


@pytest.mark.parametrize(
    "change",
    [
        {"attesters": set()},
        {"attesters": {EVE.public_key}},
        {"subject": BEN.public_key},
        {"digest": bytes(32)},
        {"digest": b"\xff" * 32},
        {"wall_ms": NOW - 1},
        {"wall_ms": NOW + 10},
    ],
)
def test_evidence_that_does_not_fit(change):
    with pytest.raises(AuthenticationFailed):
        check(**change)
    assert check(wall_ms=NOW + 9)


@pytest.mark.parametrize("at", range(len(EVIDENCE.encode())))
def test_any_byte_altered(at):
    data = flip(EVIDENCE.encode(), at)
    with pytest.raises(RemoteProtocolError):
        check(Evidence.decode(data))


def test_cut_short_and_trailing():
    data = EVIDENCE.encode()
    for size in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            Evidence.decode(data[:size])
    with pytest.raises(RemoteProtocolError, match="trailing"):
        Evidence.decode(data + b"\x00")


@pytest.mark.parametrize(
    "change",
    [
        {"subject": b""},
        {"attester": b"\x04" * 65},
        {"subject": ATTESTER.public_key},
        {"expires_ms": NOW},
    ],
)
def test_a_statement_that_cannot_be(change):
    with pytest.raises(LocalProtocolError):
        attrs.evolve(STATEMENT, **change)


def test_a_statement_that_cannot_be_from_outside():
    swapped = STATEMENT.encode()[:67] + bytes(16) + STATEMENT.encode()[83:]
    with pytest.raises(RemoteProtocolError):
        Evidence.decode(swapped + EVIDENCE.signature)


@pytest.mark.parametrize(("at", "bits"), [(0, 3), (1, 6), (1, 2)])
def test_unknown_versions_and_kinds(at, bits):
    with pytest.raises(RemoteProtocolError):
        Evidence.decode(flip(EVIDENCE.encode(), at, bits))


def test_claims_at_and_beyond_the_limit():
    assert MAX_CLAIMS == 16_384
    full = sign_evidence(attrs.evolve(STATEMENT, claims=bytes(MAX_CLAIMS)), ATTESTER)
    assert Evidence.decode(full.encode()) == full
    with pytest.raises(LocalProtocolError):
        sign_evidence(attrs.evolve(STATEMENT, claims=bytes(MAX_CLAIMS + 1)), ATTESTER)
    beyond = STATEMENT.encode()[:148] + (MAX_CLAIMS + 1).to_bytes(4, "big") + bytes(MAX_CLAIMS + 65)
    with pytest.raises(LimitExceeded):
        Evidence.decode(beyond)


def test_only_the_attester_signs():
    with pytest.raises(LocalProtocolError, match="another attester"):
        sign_evidence(STATEMENT, EVE)


def test_an_attester_that_errs():
    class Broken:
        public_key = ATTESTER.public_key

        def sign(self, message):
            return b"\xff" * 64

    with pytest.raises(LocalProtocolError, match="own signer"):
        sign_evidence(STATEMENT, Broken())


def test_a_cluster_is_trusted_as_its_least_member():
    assert cluster_trust([TrustLevel.ATTESTED, TrustLevel.SOFTWARE]) is TrustLevel.SOFTWARE
    assert cluster_trust([]) is TrustLevel.NONE
    assert sorted(TrustLevel) == list(TrustLevel)

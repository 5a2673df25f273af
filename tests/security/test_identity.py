"""Keys and signatures, in their one encoding each."""

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.errors import AuthenticationFailed, LocalProtocolError
from sealring_protocol.security.identity import (
    ORDER,
    SoftwareSigner,
    check_own_signature,
    from_der,
    node_id,
    parse_key,
    verify,
)

from .pairs import ADA, BEN, flip
from .reference import H

MESSAGE = b"a message"
SIGNATURE = ADA.sign(MESSAGE)
PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1


def scalars(signature):
    return int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")


def joined(r, s):
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def test_a_node_is_known_by_the_hash_of_its_key():
    assert node_id(ADA.public_key) == H(ADA.public_key)
    assert len(ADA.public_key) == 65


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_signing_and_verifying(message):
    signature = ADA.sign(message)
    verify(ADA.public_key, signature, message)
    assert len(signature) == 64
    assert scalars(signature)[1] <= ORDER // 2
    assert ADA.sign(message) == signature, "no entropy"


def test_rfc_6979_appendix_a_2_5():
    signer = SoftwareSigner.from_scalar(
        0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
    )
    r, s = scalars(signer.sign(b"sample"))
    assert r == 0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716
    assert s == ORDER - 0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8


@pytest.mark.parametrize("at", range(64))
def test_a_signature_altered(at):
    with pytest.raises(AuthenticationFailed):
        verify(ADA.public_key, flip(SIGNATURE, at), MESSAGE)


R, S = scalars(SIGNATURE)


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        SIGNATURE[:-1],
        SIGNATURE + b"\x00",
        encode_dss_signature(R, S),
        joined(0, S),
        joined(R, 0),
        joined(0, 0),
        joined(ORDER, S),
        joined(R, ORDER),
        joined(R, ORDER - S),
        joined(R, ORDER // 2 + 1),
        b"\xff" * 64,
    ],
)
def test_signatures_in_any_other_form(signature):
    with pytest.raises(AuthenticationFailed):
        verify(ADA.public_key, signature, MESSAGE)
    with pytest.raises(LocalProtocolError, match="own signer"):
        check_own_signature(signature)


def test_the_high_s_would_have_verified():
    """So refusing it is this package's doing."""
    key = parse_key(ADA.public_key)
    key.verify(encode_dss_signature(R, ORDER - S), MESSAGE, ec.ECDSA(hashes.SHA256()))


def test_the_boundary_of_a_low_s():
    for r in (1, ORDER - 1):
        for s in (1, ORDER // 2):
            check_own_signature(joined(r, s))


def test_anothers_signature_and_another_message():
    with pytest.raises(AuthenticationFailed):
        verify(BEN.public_key, SIGNATURE, MESSAGE)
    with pytest.raises(AuthenticationFailed):
        verify(ADA.public_key, SIGNATURE, MESSAGE + b".")


X = ADA.public_key[1:33]
Y = ADA.public_key[33:]
COMPRESSED = bytes([2 + Y[-1] % 2]) + X


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\x00",
        COMPRESSED,
        COMPRESSED.ljust(65, b"\x00"),
        bytes([6 + Y[-1] % 2]) + X + Y,
        ADA.public_key[:-1],
        ADA.public_key + b"\x00",
        flip(ADA.public_key, 64),
        b"\x04" + bytes(64),
        b"\x04" + b"\xff" * 64,
        b"\x04" + (PRIME + 5).to_bytes(32, "big") + Y,
        bytes(65),
    ],
)
def test_keys_in_any_other_form(key):
    with pytest.raises(AuthenticationFailed):
        verify(key, SIGNATURE, MESSAGE)


def test_the_compressed_point_would_have_been_read():
    ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), COMPRESSED)


def test_pem_there_and_back():
    again = SoftwareSigner.from_pem(ADA.to_pem())
    assert again.public_key == ADA.public_key
    assert again.sign(MESSAGE) == SIGNATURE


def pem(key, encryption=None):
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        encryption or serialization.NoEncryption(),
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"-----BEGIN PRIVATE KEY-----\n",
        pem(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))),
        pem(ec.derive_private_key(7, ec.SECP384R1())),
        pem(
            ec.derive_private_key(7, ec.SECP256R1()),
            serialization.BestAvailableEncryption(b"password"),
        ),
    ],
)
def test_pem_of_anything_else(data):
    with pytest.raises(LocalProtocolError):
        SoftwareSigner.from_pem(data)


@pytest.mark.parametrize("scalar", [-1, 0, ORDER, ORDER + 1])
def test_scalars_out_of_range(scalar):
    with pytest.raises(LocalProtocolError):
        SoftwareSigner.from_scalar(scalar)


def test_scalars_at_the_ends_of_the_range():
    first, last = SoftwareSigner.from_scalar(1), SoftwareSigner.from_scalar(ORDER - 1)
    assert first.public_key[:33] == last.public_key[:33]


def test_der_becomes_the_one_form():
    assert from_der(encode_dss_signature(R, S)) == SIGNATURE
    assert from_der(encode_dss_signature(R, ORDER - S)) == SIGNATURE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SIGNATURE,
        encode_dss_signature(R, S)[:-1],
        encode_dss_signature(1 << 256, 1),
        encode_dss_signature(1, ORDER),
        encode_dss_signature(ORDER, 1),
        encode_dss_signature(1, 0),
        encode_dss_signature(0, 1),
        b"\x30\x06\x02\x01\x01\x02\x01\xff",  # r = 1, s = -1
        b"\x30\x06\x02\x01\xff\x02\x01\x01",
    ],
)
def test_der_that_is_none(data):
    with pytest.raises(LocalProtocolError):
        from_der(data)

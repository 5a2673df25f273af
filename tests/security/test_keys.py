"""Suites, labels, and the two halves of HKDF."""

import itertools

import pytest
from sealring_protocol.security.handshake import Direction, key_exchange
from sealring_protocol.security.keys import (
    PROTOCOL,
    Label,
    SignContext,
    Suite,
    expand,
    extract,
    mac,
    sha256,
    traffic_keys,
)

from . import reference


def test_rfc_5869_appendix_a():
    """Test cases 1 and 2."""
    prk = extract(bytes(range(13)), b"\x0b" * 22)
    assert prk.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    assert expand(prk, bytes(range(0xF0, 0xFA)), 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    prk = extract(bytes(range(0x60, 0xB0)), bytes(range(0x50)))
    assert prk.hex() == "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244"
    assert expand(prk, bytes(range(0xB0, 0x100)), 82).hex() == (
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
        "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
        "cc30c58179ec3e87c14c01d5c1f3434f1d87"
    )


def test_against_the_standard_library():
    key, data = bytes(range(32)), b"some data"
    assert mac(key, data) == reference.mac(key, data)
    assert sha256(b"some", b" data") == reference.H(data)
    assert expand(key, data, 100) == reference.expand(key, data, 100)


def prefix_free(strings):
    return not any(a.startswith(b) for a, b in itertools.permutations(strings, 2))


@pytest.mark.parametrize("enumeration", [Label, SignContext, Direction])
def test_no_label_begins_another(enumeration):
    assert prefix_free([bytes(member) for member in enumeration])


def test_no_use_of_a_secret_or_key_begins_another():
    """With the protocol strings before them, labels and contexts still do not run together."""
    strings = [PROTOCOL, *(suite.protocol for suite in Suite)]
    for enumeration in (Label, SignContext):
        assert prefix_free([string + each for string in strings for each in enumeration])


def test_suites_have_their_codes_and_strings():
    assert {int(suite): suite.protocol for suite in Suite} == reference.STRINGS


@pytest.mark.parametrize("suite", Suite)
def test_a_suite_seals_as_the_reference_does(suite):
    key, nonce = bytes(range(32)), bytes(12)
    sealed = suite.aead(key).encrypt(nonce, b"data", b"associated")
    assert reference.AEADS[suite](key).decrypt(nonce, sealed, b"associated") == b"data"


def test_traffic_keys_differ_from_each_other_and_the_next():
    secret = bytes(range(32))
    keys = traffic_keys(secret)
    assert keys.key == reference.expand(secret, b"key")
    assert keys.iv == int.from_bytes(reference.expand(secret, b"iv", 12), "big")
    assert keys.next == reference.expand(secret, b"next")
    assert len({secret, keys.key, keys.next, traffic_keys(keys.next).key}) == 4


def test_secrets_stay_out_of_logs():
    exchange = key_exchange(Suite.AES256GCM, b"k" * 32, b"x" * 32, bytes(32))
    assert repr(exchange) == f"Exchange(suite={Suite.AES256GCM!r})"

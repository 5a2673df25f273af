"""What strangers and members can send as INIT: refused, without a byte of answer."""

import pytest
from sealring_protocol.errors import (
    AuthenticationFailed,
    RemoteProtocolError,
)
from sealring_protocol.limits import MAX_CLOCK_SKEW_MS
from sealring_protocol.security.admission import ReplayCache
from sealring_protocol.security.keys import Suite

from .halfway import DIGEST, RUN, SILENT, at_resp, reference_initiator
from .pairs import (
    ADA_CONFIG,
    BEN,
    BEN_CONFIG,
    CAT,
    CLUSTER,
    NOW,
    answer_init,
    config,
    dialing,
    refused,
    responder,
    run_to_fin,
)
from .reference import H, extract

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
    init = reference_initiator().init(NOW + skew)
    replay = ReplayCache()
    assert words in refused(responder(replay=replay), init, AuthenticationFailed)
    assert len(replay) == 0


@pytest.mark.parametrize("late", [0, 1, 9_999, 10_000])
def test_an_init_does_not_tell_dialers_apart_by_their_clocks(late):
    _, init = dialing(wall_ms=NOW + late)
    said = int.from_bytes(init[9:17])
    assert said == NOW + late // 10_000 * 10_000


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
    assert "asks for another machine" in refused(
        responder(replay=replay), init, AuthenticationFailed
    )
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

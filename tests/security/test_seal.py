"""The sealed channels, and the inner seal."""

import gc
import itertools

import attrs
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.codec.frame import FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Epoch
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    LocalProtocolError,
    PolicyMismatch,
    SealringError,
)
from sealring_protocol.limits import (
    FIRST_KEY_UPDATE,
    KEY_UPDATE_INTERVAL,
    MAX_INNER_SKIP,
    MAX_SEALED_BODY,
)
from sealring_protocol.security import seal
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import (
    PREFILL_GROUP,
    InnerContext,
    InnerOpener,
    InnerSealer,
    OpeningChannel,
    SealingChannel,
)

from . import reference
from .pairs import CLUSTER, flip, frame

SECRET = bytes(range(32))
suites = pytest.mark.parametrize("suite", Suite)


def channels(suite=Suite.AES256GCM):
    return SealingChannel(suite, SECRET), OpeningChannel(suite, SECRET)


def key_at(generation):
    """Key and iv after that many updates, straight from the specification."""
    secret = SECRET
    for _ in range(generation):
        secret = reference.expand(secret, b"next")
    iv = int.from_bytes(reference.expand(secret, b"iv", 12), "big")
    return reference.expand(secret, b"key"), iv


def expected_frame(suite, generation, seq, plaintext):
    key, iv = key_at(generation)
    header = bytes([1, 2, 0, 0]) + (len(plaintext) + 16).to_bytes(4, "big")
    nonce = (iv ^ seq).to_bytes(12, "big")
    return header + reference.AEADS[suite](key).encrypt(nonce, plaintext, header)


def assert_dead(channel, error):
    assert isinstance(error, SealringError)
    good = SealingChannel(Suite.AES256GCM, SECRET).seal([b"first"])
    with pytest.raises(type(error)) as again:
        channel.open(frame(good))
    assert again.value is error


@suites
@settings(max_examples=40, deadline=None)
@given(plaintexts=st.lists(st.lists(st.binary(max_size=50), max_size=4), max_size=8))
def test_there_and_back(suite, plaintexts):
    sealing, opening = channels(suite)
    for parts in plaintexts:
        assert opening.open(frame(sealing.seal(parts))) == b"".join(parts)


@suites
def test_the_first_frames_byte_by_byte(suite):
    sealing, _ = channels(suite)
    for seq, parts in enumerate(([b"one"], [b"t", memoryview(b"w"), bytearray(b"o")], [])):
        assert sealing.seal(parts) == expected_frame(suite, 0, seq, b"".join(parts))


def test_frames_through_the_decoder():
    sealing, opening = channels()
    decoder = FrameDecoder({FrameKind.SEALED: MAX_SEALED_BODY})
    stream = b"".join(bytes(sealing.seal([bytes([n]) * n])) for n in range(20))
    decoder.receive_data(stream)
    for n in range(20):
        assert opening.open(decoder.next_frame()) == bytes([n]) * n


# --------------------------------------------------------------------- key update


@suites
def test_the_key_changes_after_frame_64_and_then_every_65536(suite):
    """Both ends, at the exact frames: the last under a key, the first under the next."""
    sealing, opening = channels(suite)
    borders = {0, 63, 64, 65, 64 + 65_535, 64 + 65_536, 64 + 65_537}
    for number in range(64 + 65_538):
        sealed = sealing.seal([b"x"])
        if number in borders:
            generation = (number >= 64) + (number >= 64 + 65_536)
            seq = number - (0, 64, 64 + 65_536)[generation]
            assert sealed == expected_frame(suite, generation, seq, b"x"), number
        assert opening.open(frame(sealed)) == b"x"


def test_the_counts_are_those_of_the_limits():
    assert (FIRST_KEY_UPDATE, KEY_UPDATE_INTERVAL) == (64, 65_536)


@pytest.mark.parametrize("updates", range(2, 6))
def test_each_update_gives_another_key(monkeypatch, updates):
    monkeypatch.setattr(seal, "KEY_UPDATE_INTERVAL", 3)
    sealing, opening = channels()
    for number in range(64 + 3 * updates):
        sealed = sealing.seal([b"x"])
        if number >= 64:
            generation, seq = divmod(number - 64, 3)
            assert sealed == expected_frame(Suite.AES256GCM, 1 + generation, seq, b"x")
        assert opening.open(frame(sealed)) == b"x"


# ------------------------------------------------------------------------ attacks


@suites
def test_any_byte_altered(suite):
    sealed = SealingChannel(suite, SECRET).seal([b"a message"])
    for at in range(len(sealed)):
        opening = OpeningChannel(suite, SECRET)
        with pytest.raises(AuthenticationFailed) as caught:
            opening.open(frame(flip(bytes(sealed), at)))
        assert_dead(opening, caught.value)


@suites
def test_cut_short_at_every_length(suite):
    sealed = bytes(SealingChannel(suite, SECRET).seal([b"a message"]))
    for size in range(8, len(sealed)):
        with pytest.raises(AuthenticationFailed):
            OpeningChannel(suite, SECRET).open(frame(sealed[:size]))


@pytest.mark.parametrize("before", [0, 1, 62, 63, 64, 65])
@pytest.mark.parametrize("attack", ["replayed", "skipped", "swapped"])
def test_frames_out_of_order(before, attack):
    sealing, opening = channels()
    sealed = [sealing.seal([bytes([n])]) for n in range(before + 3)]
    for n in range(before + 1):
        opening.open(frame(sealed[n]))
    wrong = {"replayed": before, "skipped": before + 2, "swapped": 0}[attack]
    with pytest.raises(AuthenticationFailed) as caught:
        opening.open(frame(sealed[wrong]))
    assert_dead(opening, caught.value)


def test_another_direction_suite_or_secret():
    sealed = SealingChannel(Suite.AES256GCM, SECRET).seal([b"x"])
    for channel in (
        OpeningChannel(Suite.CHACHA20POLY1305, SECRET),
        OpeningChannel(Suite.AES256GCM, bytes(32)),
    ):
        with pytest.raises(AuthenticationFailed):
            channel.open(frame(sealed))


def test_a_frame_at_and_beyond_the_limit():
    sealing, opening = channels()
    whole = bytes(MAX_SEALED_BODY - 16)
    assert opening.open(frame(sealing.seal([whole]))) == whole
    for parts in ([whole + b"x"], [whole, b"x"]):
        with pytest.raises(LocalProtocolError, match="do not fit"):
            sealing.seal(parts)
    assert opening.open(frame(sealing.seal([b"the next"]))) == b"the next"


def holds_a_key(channel):
    return any(isinstance(each, AESGCM | bytes) for each in gc.get_referents(channel))


def test_a_dead_channel_holds_no_key():
    _, opening = channels()
    assert holds_a_key(opening)
    with pytest.raises(AuthenticationFailed):
        opening.open(frame(bytes(40)))
    assert not holds_a_key(opening)
    opener = InnerOpener(Suite.AES256GCM, SECRET, CLUSTER)
    with pytest.raises(PolicyMismatch):
        opener.open(CONTEXT, Tensor(DType.F32, SHAPE, DATA))
    assert [each for each in gc.get_referents(opener) if isinstance(each, AESGCM | bytes)] == [
        CLUSTER
    ]


# ----------------------------------------------------------------- the inner seal

CONTEXT = InnerContext(Epoch(11, 12), 13, 14, 15, (16, 17))
SHAPE = (2, 3)
DATA = bytes(range(24))
ASSOCIATED = CLUSTER + b"".join(
    value.to_bytes(size, "big")
    for value, size in (
        *((11, 8), (12, 8), (13, 8), (14, 2), (15, 2)),
        *((DType.F32, 1), (2, 1), (2, 4), (2, 4), (3, 4), (16, 8), (17, 8)),
    )
)
"""What the seal of `DATA` in `CONTEXT` covers beside it, straight from the specification."""


def inner(suite=Suite.AES256GCM):
    return InnerSealer(suite, SECRET, CLUSTER), InnerOpener(suite, SECRET, CLUSTER)


def sealed_tensor():
    return inner()[0].seal(CONTEXT, DType.F32, SHAPE, DATA)


def inner_refused(opener, context, tensor, *kinds):
    with pytest.raises(kinds) as caught:
        opener.open(context, tensor)
    with pytest.raises(kinds) as again:
        opener.open(CONTEXT, sealed_tensor())
    assert again.value is caught.value


@suites
@given(
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    uids=st.lists(st.integers(0, 2**64 - 1), max_size=5).map(tuple),
    group=st.integers(0, PREFILL_GROUP),
)
@settings(max_examples=40, deadline=None)
def test_tensors_there_and_back(suite, shape, uids, group):
    sealer, opener = inner(suite)
    context = attrs.evolve(CONTEXT, uids=uids, group=group)
    for counter in range(3):
        empty = Tensor(DType.BF16, shape, b"")
        tensor = sealer.seal(context, DType.BF16, shape, bytes(empty.nbytes))
        assert tensor.sealed
        assert tensor.counter == counter
        assert opener.open(context, tensor) == bytes(empty.nbytes)


@suites
def test_a_tensor_byte_by_byte(suite):
    tensor = inner(suite)[0].seal(CONTEXT, DType.F32, SHAPE, DATA)
    key, iv = key_at(0)
    cipher = reference.AEADS[suite](key)
    assert tensor.data == cipher.encrypt(iv.to_bytes(12, "big"), DATA, ASSOCIATED)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": Epoch(11, 13)},
        {"epoch": Epoch(10, 12)},
        {"n": 14},
        {"group": 15},
        {"group": PREFILL_GROUP},
        {"boundary": 16},
        {"uids": (16, 18)},
        {"uids": (17, 16)},
        {"uids": (16,)},
        {"uids": (16, 17, 0)},
        {"uids": ()},
    ],
)
def test_a_tensor_opens_in_its_own_place_only(change):
    inner_refused(
        inner()[1], attrs.evolve(CONTEXT, **change), sealed_tensor(), AuthenticationFailed
    )


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": DType.U32},
        {"shape": (3, 2)},
        {"shape": (6,)},
        {"shape": (2, 3, 1)},
        {"counter": 1},
        {"counter": 2**32},
        {"data": b""},
        {"data": DATA},
        {"data": sealed_tensor().data + b"\x00"},
    ],
)
def test_a_tensor_opens_as_what_it_is_only(change):
    tensor = attrs.evolve(sealed_tensor(), **change)
    inner_refused(inner()[1], CONTEXT, tensor, AuthenticationFailed, LimitExceeded)


def test_any_byte_of_a_tensor_altered():
    tensor = sealed_tensor()
    for at in range(len(tensor.data)):
        altered = attrs.evolve(tensor, data=flip(tensor.data, at))
        inner_refused(inner()[1], CONTEXT, altered, AuthenticationFailed)


def test_another_cluster_suite_or_secret():
    for opener in (
        InnerOpener(Suite.AES256GCM, SECRET, bytes(32)),
        InnerOpener(Suite.CHACHA20POLY1305, SECRET, CLUSTER),
        InnerOpener(Suite.AES256GCM, bytes(32), CLUSTER),
    ):
        inner_refused(opener, CONTEXT, sealed_tensor(), AuthenticationFailed)


def test_a_plain_tensor_is_a_breach_of_policy():
    inner_refused(inner()[1], CONTEXT, Tensor(DType.F32, SHAPE, DATA), PolicyMismatch)


def test_counters_rise():
    sealer, opener = inner()
    tensors = [sealer.seal(CONTEXT, DType.F32, SHAPE, DATA) for _ in range(4)]
    for n in (0, 2, 3):
        assert opener.open(CONTEXT, tensors[n]) == DATA
    for late in (3, 1, 0):
        sealer, opener = inner()
        opener.open(CONTEXT, tensors[0])
        opener.open(CONTEXT, tensors[3])
        inner_refused(opener, CONTEXT, tensors[late], AuthenticationFailed)


def tensor_at(counter):
    """The tensor that a sealer makes after *counter* others, straight from the specification."""
    generation = 0 if counter < 64 else 1 + (counter - 64) // 65_536
    key, iv = key_at(generation)
    nonce = (iv ^ counter).to_bytes(12, "big")
    data = reference.AEADS[1](key).encrypt(nonce, DATA, ASSOCIATED)
    return Tensor(DType.F32, SHAPE, data, True, counter)


@pytest.mark.parametrize("counter", [0, 63, 64, 65, 65_599, 65_600, 65_601, MAX_INNER_SKIP])
def test_the_key_follows_from_the_counter(counter):
    assert inner()[1].open(CONTEXT, tensor_at(counter)) == DATA


def test_the_sealer_changes_its_key_by_the_same_counts():
    sealer, opener = inner()
    for counter in range(64 + 65_536 + 2):
        tensor = sealer.seal(CONTEXT, DType.F32, SHAPE, DATA)
        if counter in {63, 64, 65_599, 65_600}:
            assert tensor == tensor_at(counter)
        if counter % 97 == 0 or counter > 65_590:
            assert opener.open(CONTEXT, tensor) == DATA


def test_counters_skipped_at_and_beyond_the_limit():
    first, at, beyond = 3, 3 + MAX_INNER_SKIP + 1, 3 + MAX_INNER_SKIP + 2
    opener = inner()[1]
    opener.open(CONTEXT, tensor_at(first))
    assert opener.open(CONTEXT, tensor_at(at)) == DATA
    opener = inner()[1]
    opener.open(CONTEXT, tensor_at(first))
    inner_refused(opener, CONTEXT, tensor_at(beyond), LimitExceeded)
    inner_refused(inner()[1], CONTEXT, tensor_at(MAX_INNER_SKIP + 1), LimitExceeded)


@pytest.mark.parametrize(
    "change",
    [
        {"group": 1 << 16},
        {"boundary": -1},
        {"n": 1 << 64},
        {"uids": (1 << 64,)},
        {"epoch": Epoch(-1, 0)},
    ],
)
def test_a_context_out_of_range_spends_nothing(change):
    sealer, _ = inner()
    with pytest.raises(LocalProtocolError):
        sealer.seal(attrs.evolve(CONTEXT, **change), DType.F32, SHAPE, DATA)
    assert sealer.seal(CONTEXT, DType.F32, SHAPE, DATA) == sealed_tensor()


@pytest.mark.parametrize("make", [InnerSealer, InnerOpener])
def test_a_cluster_id_has_32_bytes(make):
    with pytest.raises(LocalProtocolError):
        make(Suite.AES256GCM, SECRET, b"")


def test_no_two_contexts_are_taken_for_each_other():
    places = [
        (attrs.evolve(CONTEXT, n=n, uids=uids), shape)
        for n, uids, shape in itertools.product(
            (0, 1), ((), (1,), (1, 0), (0, 1), (1 << 32,)), ((), (1,), (1, 1), (1, 1, 1))
        )
    ]
    tensors = [inner()[0].seal(context, DType.F16, shape, bytes(2)) for context, shape in places]
    for (context, shape), tensor in itertools.product(places, tensors):
        opener, moved = inner()[1], attrs.evolve(tensor, shape=shape)
        if places[tensors.index(tensor)] == (context, shape):
            assert opener.open(context, moved) == bytes(2)
        else:
            with pytest.raises(AuthenticationFailed):
                opener.open(context, moved)


def test_updates_are_counted_from_none():
    sealing, opening = channels(Suite.AES256GCM)
    for count in range(FIRST_KEY_UPDATE + 1):
        assert (sealing.updates, opening.updates) == (count // FIRST_KEY_UPDATE,) * 2
        opening.open(frame(sealing.seal([b"x"])))

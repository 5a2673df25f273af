"""What keeps strangers cheap."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.errors import AuthenticationFailed, LimitExceeded, LocalProtocolError
from sealring_protocol.limits import (
    MAX_HANDSHAKES,
    MAX_HANDSHAKES_PER_SOURCE,
    MAX_SOURCES,
    REPLAY_CACHE,
    SIGNATURES_PER_SECOND,
    SIGNATURES_PER_SOURCE,
)
from sealring_protocol.security.admission import Admission, ReplayCache, TokenBucket, network_of


def taken(bucket, now, tries):
    return sum(bucket.take(now) for _ in range(tries))


def test_a_bucket_holds_its_burst_and_fills_at_its_rate():
    bucket = TokenBucket(8, now=100.0)
    assert taken(bucket, 100.0, 50) == 8
    assert taken(bucket, 100.0625, 50) == 0
    assert taken(bucket, 100.25, 50) == 2
    assert taken(bucket, 1000.0, 50) == 8


def test_a_clock_that_goes_back_gives_nothing():
    bucket = TokenBucket(8, now=100.0)
    assert taken(bucket, 100.0, 10) == 8
    assert taken(bucket, 50.0, 10) == 0
    assert taken(bucket, 100.0, 10) == 0
    assert taken(bucket, 100.125, 10) == 1


@settings(deadline=None)
@given(st.lists(st.floats(0, 3), max_size=60))
def test_a_bucket_never_gives_more_than_its_rate(gaps):
    bucket, now, given_out = TokenBucket(5, now=0.0), 0.0, 0
    for gap in gaps:
        now += gap
        given_out += taken(bucket, now, 7)
    assert given_out <= 5 + 5 * now + 1e-6


def test_signatures_have_a_budget_for_each_source_and_for_all():
    admission = Admission(now=0.0)
    for n in range(SIGNATURES_PER_SECOND):
        admission.take_signature(f"source {n // SIGNATURES_PER_SOURCE}", 0.0)
    for source in ("source 0", "a new source"):
        with pytest.raises(LimitExceeded, match="ask for a signature"):
            admission.take_signature(source, 0.0)
    admission.take_signature("another", 1.5 / SIGNATURES_PER_SECOND)


def test_strangers_cannot_starve_a_place_where_a_member_proved_itself():
    admission = Admission(now=0.0)
    admission.proved("2001:db8::7")
    for n in range(SIGNATURES_PER_SECOND):
        admission.take_signature(f"source {n}", 0.0)
    for _ in range(SIGNATURES_PER_SOURCE):
        admission.take_signature("2001:db8::8", 0.0)
    with pytest.raises(LimitExceeded):
        admission.take_signature("2001:db8::9", 0.0)


@pytest.mark.parametrize(
    ("source", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a name", "a name"),
    ],
)
def test_what_counts_as_one_source(source, network):
    assert network_of(source) == network


def test_sources_are_forgotten():
    admission = Admission(now=0.0)
    for n in range(MAX_SOURCES + 5):
        admission.proved(f"source {n}")
        with contextlib.suppress(LimitExceeded):
            admission.take_signature(f"source {n}", 0.0)
    assert len(admission._proved) == len(admission._buckets) == MAX_SOURCES


def test_handshakes_per_source():
    admission = Admission(now=0.0)
    for _ in range(MAX_HANDSHAKES_PER_SOURCE):
        admission.opened("10.0.0.1")
    with pytest.raises(LimitExceeded, match=r"10\.0\.0\.1"):
        admission.opened("10.0.0.1")
    admission.opened("10.0.0.2")
    assert admission.open == MAX_HANDSHAKES_PER_SOURCE + 1
    admission.settled("10.0.0.1")
    admission.opened("10.0.0.1")


def test_handshakes_in_total():
    admission = Admission(now=0.0)
    for n in range(MAX_HANDSHAKES):
        admission.opened(f"source {n}")
    with pytest.raises(LimitExceeded, match="64 handshakes are under way"):
        admission.opened("one more")
    admission.settled("source 3")
    admission.opened("one more")
    assert admission.open == MAX_HANDSHAKES


def test_what_is_settled_leaves_nothing():
    admission = Admission(now=0.0)
    for n in range(1000):
        admission.opened(f"source {n}")
        admission.settled(f"source {n}")
    assert admission.open == 0
    for never in ("source 3", "nobody"):
        with pytest.raises(LocalProtocolError):
            admission.settled(never)


def test_the_replay_cache_knows_its_last_tags():
    cache = ReplayCache(size=3)
    for tag in (b"a", b"b", b"c"):
        cache.add(tag)
    for tag in (b"a", b"b", b"c"):
        with pytest.raises(AuthenticationFailed):
            cache.add(tag)
    cache.add(b"d")
    assert len(cache) == 3
    cache.add(b"a")
    with pytest.raises(AuthenticationFailed):
        cache.add(b"d")
    assert len(cache) == 3


def test_the_replay_cache_is_bounded():
    cache = Admission(now=0.0).replay
    for n in range(REPLAY_CACHE + 10):
        cache.add(n.to_bytes(32, "big"))
    assert len(cache) == REPLAY_CACHE
    cache.add((9).to_bytes(32, "big"))
    with pytest.raises(AuthenticationFailed):
        cache.add((REPLAY_CACHE).to_bytes(32, "big"))

"""What keeps strangers cheap."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.errors import AuthenticationFailed, LimitExceeded
from sealring_protocol.limits import (
    MAX_HANDSHAKES,
    MAX_HANDSHAKES_PER_SOURCE,
    MAX_SOURCES,
    REPLAY_CACHE,
    RESERVED_HANDSHAKES,
    SIGNATURES_PER_NEW_SOURCE,
    SIGNATURES_PER_SECOND,
    SIGNATURES_PER_SOURCE,
    SOURCES_PER_MEMBER,
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
    for n in range(SIGNATURES_PER_NEW_SOURCE):
        admission.take_signature(f"new {n}", 0.0)
    for source in ("source 0", "a new source"):
        with pytest.raises(LimitExceeded, match="ask for a signature"):
            admission.take_signature(source, 0.0)
    admission.take_signature("another", 1.5 / SIGNATURES_PER_SECOND)


def test_strangers_cannot_starve_a_place_where_a_member_proved_itself():
    admission = Admission(now=0.0)
    admission.proved("2001:db8::7")
    for n in range(SIGNATURES_PER_SECOND + SIGNATURES_PER_NEW_SOURCE):
        admission.take_signature(f"source {n}", 0.0)
    for _ in range(SIGNATURES_PER_SOURCE):
        admission.take_signature("2001:db8::8", 0.0)
    with pytest.raises(LimitExceeded):
        admission.take_signature("2001:db8::9", 0.0)


def test_where_a_member_that_was_put_out_proved_itself_counts_for_nothing():
    admission = Admission(now=0.0)
    for number, name in enumerate((b"stays", b"goes")):
        admission.proved(f"10.0.0.{number}", name)
    admission.put_out(b"goes")
    for n in range(SIGNATURES_PER_SECOND + SIGNATURES_PER_NEW_SOURCE):
        admission.take_signature(f"source {n}", 0.0)
    admission.take_signature("10.0.0.0", 0.0)
    with pytest.raises(LimitExceeded):
        admission.take_signature("10.0.0.1", 0.0)


def test_a_member_has_a_few_known_addresses_however_many_it_comes_from():
    """Each had signatures of its own, so that a member with a thousand addresses had ten thousand
    a second; and those of the other members were forgotten for them."""
    admission = Admission(now=0.0)
    admission.proved("10.0.0.1", b"another")
    sources = [f"10.66.{n // 250}.{n % 250}" for n in range(MAX_SOURCES + 5)]
    for source in sources:
        admission.proved(source, b"many")
    given = 0
    for source in sources:
        with contextlib.suppress(LimitExceeded):
            for _ in range(SIGNATURES_PER_SOURCE):
                admission.take_signature(source, 0.0)
                given += 1
    own = SOURCES_PER_MEMBER * SIGNATURES_PER_SOURCE
    assert given == own + SIGNATURES_PER_SECOND + SIGNATURES_PER_NEW_SOURCE
    admission.take_signature("10.0.0.1", 0.0)


def test_a_member_with_many_addresses_takes_no_place_that_is_reserved():
    admission = Admission(now=0.0)
    sources = [f"10.66.0.{n}" for n in range(200)]
    for source in sources:
        admission.proved(source, b"many")
    for number, source in enumerate(sources):
        admission.opened(number, source)
    strangers = MAX_HANDSHAKES - RESERVED_HANDSHAKES
    assert strangers <= admission.open <= strangers + SOURCES_PER_MEMBER


def test_strangers_find_no_more_places_than_there_are_when_members_hold_them():
    """HS-31: the first takes a member's place, as all are members', and each other its own."""
    admission = Admission(now=0.0)
    members = [f"10.66.0.{n}" for n in range(MAX_HANDSHAKES // MAX_HANDSHAKES_PER_SOURCE)]
    admission.expect(members)
    for number in range(MAX_HANDSHAKES):
        assert admission.opened(number, members[number % len(members)]) is None
    strangers = [(MAX_HANDSHAKES + n, f"10.9.0.{n}") for n in range(5)]
    first, *others = losers(admission, *strangers)
    assert first == 0
    assert others == [number for number, _ in strangers[:-1]]
    assert admission.open == MAX_HANDSHAKES


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
        with contextlib.suppress(LimitExceeded):
            admission.take_signature(f"source {n}", 0.0)
    kept = (admission._buckets, admission._signed)
    assert all(len(known) <= MAX_SOURCES for known in kept)


def losers(admission, *newcomers):
    """Who loses a place to each of the *newcomers*, (number, source)."""
    return [admission.opened(number, source) for number, source in newcomers]


def test_a_source_has_its_places_and_its_newcomer_takes_the_oldest_silent_one():
    admission = Admission(now=0.0)
    here = [(number, "10.0.0.1") for number in range(MAX_HANDSHAKES_PER_SOURCE)]
    assert set(losers(admission, *here)) == {None}
    admission.spoke(0)
    assert losers(admission, (100, "10.0.0.1"), (101, "10.0.0.2")) == [1, None]
    for number in (*range(2, MAX_HANDSHAKES_PER_SOURCE), 100):
        admission.spoke(number)
    assert losers(admission, (102, "10.0.0.1")) == [0]  # nobody is silent: the oldest
    assert admission.open == MAX_HANDSHAKES_PER_SOURCE + 1


def test_a_newcomer_takes_a_place_of_the_source_that_has_most():
    admission = Admission(now=0.0)
    general = MAX_HANDSHAKES - RESERVED_HANDSHAKES
    assert losers(admission, (0, "a"), (1, "b"), (2, "b")) == [None] * 3
    admission.spoke(1)
    admission.spoke(2)
    fill = [(number, f"source {number}") for number in range(3, general)]
    assert set(losers(admission, *fill)) == {None}
    assert losers(admission, (1000, "c")) == [1]  # though all others are silent
    assert losers(admission, (1001, "d")) == [0]  # one each: the oldest silent one


def test_strangers_leave_places_for_sources_with_members():
    admission = Admission(now=0.0)
    admission.expect(["10.1.0.1"])
    admission.proved("10.1.0.2")
    general = MAX_HANDSHAKES - RESERVED_HANDSHAKES
    losers(admission, *((number, f"source {number}") for number in range(general)))
    for number in range(MAX_HANDSHAKES_PER_SOURCE):
        source = 2000 + 2 * number
        assert losers(admission, (source, "10.1.0.1"), (source + 1, "10.1.0.2")) == [None, None]
    assert admission.open == MAX_HANDSHAKES
    assert losers(admission, (3000, "a stranger")) == [0]
    admission.proved("10.1.0.3")
    assert losers(admission, (3001, "10.1.0.3")) == [1]  # a stranger's, not a member's
    assert admission.open == MAX_HANDSHAKES


def test_what_is_settled_leaves_nothing():
    admission = Admission(now=0.0)
    for n in range(1000):
        assert admission.opened(n, f"source {n}") is None
        admission.settled(n)
        admission.settled(n)
        admission.spoke(n)
    assert admission.open == 0


def test_sources_that_ask_all_the_time_leave_signatures_for_new_ones():
    admission = Admission(now=0.0)
    busy = [f"source {n}" for n in range(16)]
    now = 0.0
    for turn in range(1000):
        now = turn * 0.005
        with contextlib.suppress(LimitExceeded):
            admission.take_signature(busy[turn % len(busy)], now)
    admission.take_signature("a new source", now)
    for source in busy:
        with contextlib.suppress(LimitExceeded):
            admission.take_signature(source, now)
    with pytest.raises(LimitExceeded):
        admission.take_signature(busy[0], now)


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

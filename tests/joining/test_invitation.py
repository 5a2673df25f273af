"""The text of an invitation, and the invitations of one inviter."""

from __future__ import annotations

import base64

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.frame import Frame
from sealring_protocol.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError
from sealring_protocol.joining.invitation import PREFIX, Invitation, Invitations
from sealring_protocol.limits import (
    INVITATION_SECONDS,
    MAX_ADDRESS,
    MAX_INVITATION,
    MAX_INVITATION_ADDRESSES,
    MAX_INVITATIONS,
    MAX_TRIES,
)
from sealring_protocol.security.handshake import Init, begin, parse_init
from sealring_protocol.security.keys import Suite, sha256

from .pairs import INVITATION, NOW, bytes_of

CHARACTERS = st.characters(min_codepoint=0x21, max_codepoint=0x2FF, exclude_characters="\x7f\xad")
ADDRESS = st.text(CHARACTERS.filter(lambda c: not 0x7F <= ord(c) <= 0x9F), min_size=1, max_size=40)
ANY = st.builds(
    Invitation,
    st.lists(ADDRESS, min_size=1, max_size=MAX_INVITATION_ADDRESSES, unique=True).map(tuple),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**32 - 1),
)


def written(data: bytes) -> str:
    """*data* as the text of an invitation, with a check that is right."""
    whole = data + sha256(data)[:4]
    return PREFIX + base64.b32encode(whole).decode().rstrip("=").lower()


@settings(deadline=None)
@given(ANY)
def test_a_text_reads_as_what_was_written(invitation: Invitation) -> None:
    text = invitation.encode()
    assert Invitation.decode(text) == invitation
    assert Invitation.decode(f" {text.upper()}\n") == invitation


def test_the_longest_fits() -> None:
    longest = attrs.evolve(INVITATION, addresses=tuple(c * (MAX_ADDRESS // 2) for c in "éèêë"))
    text = longest.encode()
    assert len(text) < MAX_INVITATION
    assert Invitation.decode(text) == longest
    with pytest.raises(LocalProtocolError):
        attrs.evolve(INVITATION, addresses=("a" * (MAX_ADDRESS + 1),)).encode()


def test_every_mistyped_or_missing_letter_is_noticed() -> None:
    text = INVITATION.encode()
    for at in range(len(text)):
        for letter in ("", "a", "7", "1", "ſ", "=", " "):
            other = text[:at] + letter + text[at + 1 :]
            if other.strip() != text:
                with pytest.raises(RemoteProtocolError):
                    Invitation.decode(other)


@settings(deadline=None)
@given(st.one_of(st.text(), st.text().map(PREFIX.__add__), st.binary().map(written)))
def test_any_other_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Invitation.decode(text)
    assert str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"\x00",
        b"\x01\x00\x01a\x00",
        b"\x02\x00\x01a",
        b"\x05" + b"\x00\x01a" * 5,
        b"\x01\x00\x00",
        b"\x01\x01\x00" + b"a" * 256,
        b"\x01\x00\x01\xff",
        b"\x01\x00\x01\x1b",
        b"\x02" + b"\x00\x01a" * 2,
    ],
    ids=["none", "trailing", "cut", "five", "empty", "long", "not-utf-8", "hidden", "twice"],
)
def test_addresses_that_may_not_be_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Invitation.decode(written(bytes(4 + 32 + 16) + body))


def test_a_secret_shows_in_no_representation() -> None:
    assert repr(INVITATION.secret)[2:-1] not in repr(INVITATION)
    assert str(INVITATION.secret.hex()) not in repr(INVITATION)


# -------------------------------------------------------------- the inviter's


def numbered(number: int, expires_s: int = NOW // 1000 + 600) -> Invitation:
    return Invitation(("a:1",), bytes(32), number.to_bytes(16, "big"), expires_s)


def init_of(invitation: Invitation, number: int = 0) -> Init:
    entropy = bytes_of(str(number), 96)
    *_, data = begin(invitation.admission, NOW, [Suite.AES256GCM], entropy, MessageCode.JOIN_INIT)
    return parse_init(Frame(1, data[:8], data[8:]), MessageCode.JOIN_INIT)


def test_an_equal_invitation_is_the_same_one() -> None:
    """A command that ends one has its text, and ends what was given."""
    kept = Invitations(0.0)
    kept.add(INVITATION)
    kept.end(Invitation.decode(INVITATION.encode()), "this invitation was withdrawn")
    assert kept.fault(INVITATION, NOW) == "this invitation was withdrawn"


def test_a_full_list_drops_what_is_worth_least() -> None:
    """The one that is over, then the one that expired first; not the one that is good, though it is
    the oldest, nor the one with which a machine is joining."""
    kept = Invitations(0.0)
    given = [numbered(0, NOW // 1000 + 86_400)]
    given += [numbered(number, NOW // 1000 - number) for number in range(1, MAX_INVITATIONS)]
    for invitation in given:
        kept.add(invitation)
    kept.take(given[15])
    kept.end(given[3], "over")
    for number, gone in ((100, 3), (101, 14), (102, 13)):
        kept.add(numbered(number))
        assert given[gone] not in list(kept)
    assert len(list(kept)) == MAX_INVITATIONS
    assert given[0] in list(kept)
    assert given[15] in list(kept)


def test_a_taken_one_that_was_dropped_harms_nothing() -> None:
    kept = Invitations(0.0)
    for number in range(MAX_INVITATIONS):
        kept.add(numbered(number))
        kept.take(numbered(number))
    kept.add(numbered(99))
    assert kept.fault(numbered(0), NOW) == "this invitation was withdrawn"
    kept.admitted(numbered(0), b"")
    kept.give_back(numbered(0))
    kept.end(numbered(0), "over")
    assert numbered(0) not in list(kept)


class InvitationsMachine(RuleBasedStateMachine):
    """Any order of calls against a model that keeps all in plain words."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = Invitations(0.0)
        self.wall_ms = NOW
        self.given: list[Invitation] = []
        self.tries: dict[Invitation, int] = {}
        self.busy: set[Invitation] = set()
        self.machine: dict[Invitation, bytes] = {}
        self.over: dict[Invitation, str] = {}
        self.count = 0

    @precondition(lambda self: len(self.given) < MAX_INVITATIONS)
    @rule(seconds=st.integers(-10, 1200))
    def add(self, seconds: int) -> None:
        self.count += 1
        invitation = numbered(self.count, self.wall_ms // 1000 + seconds)
        self.kept.add(invitation)
        self.given.append(invitation)

    @rule(seconds=st.integers(0, 900))
    def wait(self, seconds: int) -> None:
        self.wall_ms += 1000 * seconds

    @rule(data=st.data(), machine=st.sampled_from([b"", b"m1", b"m2"]))
    def arrive(self, data: st.DataObject, machine: bytes) -> None:
        if not self.given:
            return
        self.count += 1
        invitation = data.draw(st.sampled_from(self.given))
        init = init_of(invitation, self.count)
        found = self.kept.find(init, self.wall_ms)
        forgotten = self.wall_ms >= 1000 * (invitation.expires_s + INVITATION_SECONDS)
        assert found == (None if forgotten else invitation)
        if found is None:
            return
        with pytest.raises(AuthenticationFailed):
            self.kept.find(init, self.wall_ms)
        fault = self.kept.fault(found, self.wall_ms, machine)
        assert bool(fault) == self._bad(found, machine)
        if not fault:
            self.kept.take(found)
            self.tries[found] = self.tries.get(found, 0) + 1
            self.busy.add(found)

    @rule(stranger=st.binary(min_size=16, max_size=16))
    def guess(self, stranger: bytes) -> None:
        guessed = Invitation(("a:1",), bytes(32), b"\xff" + stranger[1:], 2**32 - 1)
        assert self.kept.find(init_of(guessed), self.wall_ms) is None

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), machine=st.sampled_from([b"m1", b"m2"]))
    def admit(self, data: st.DataObject, machine: bytes) -> None:
        invitation = data.draw(st.sampled_from(sorted(self.busy, key=lambda i: i.secret)))
        if self.machine.get(invitation, machine) == machine:
            self.kept.admitted(invitation, machine)
            self.machine[invitation] = machine

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), ended=st.booleans())
    def leave(self, data: st.DataObject, ended: bool) -> None:
        invitation = data.draw(st.sampled_from(sorted(self.busy, key=lambda i: i.secret)))
        if ended:
            self.kept.end(invitation, "over")
            self.over[invitation] = "over"
        self.kept.give_back(invitation)
        self.busy.discard(invitation)
        if self.tries[invitation] >= MAX_TRIES:
            self.over.setdefault(invitation, "tried")

    def _bad(self, invitation: Invitation, machine: bytes) -> bool:
        return (
            invitation in self.over
            or self.machine.get(invitation, machine) != machine
            or self.wall_ms >= 1000 * invitation.expires_s
            or invitation in self.busy
        )

    @invariant()
    def agrees(self) -> None:
        assert list(self.kept) == self.given
        assert all(tries <= MAX_TRIES for tries in self.tries.values())


TestInvitations = InvitationsMachine.TestCase
TestInvitations.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

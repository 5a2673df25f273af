"""Attacks on a join before both ends are proven: replays, guesses, a middle, and strangers."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.errors import (
    AuthenticationFailed,
    CloseCode,
    LimitExceeded,
    RemoteProtocolError,
    RosterExpired,
)
from sealring_protocol.joining.exchange import Host
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.joining.session import JoinSession
from sealring_protocol.limits import INVITATION_SECONDS, JOIN_SIGNATURES_PER_SECOND, MAX_TRIES
from sealring_protocol.security.roster import sign_roster

from tests.security.pairs import BEN, COORDINATOR, roster, signer

from .pairs import (
    ADA,
    HOME,
    INVITATION,
    NEWCOMER,
    NOW,
    Pair,
    answering,
    asking,
    bytes_of,
    drain,
    host,
    invitations,
    last,
)

# ----------------------------------------------------------------------- replays


def first_frame(seed: str = "joiner", invitation: Invitation = INVITATION) -> bytes:
    return asking(invitation, seed=seed).data_to_send()


def test_a_join_init_is_answered_once() -> None:
    kept = invitations()
    first = answering(kept)
    first.receive_data(first_frame(), 0.0)
    list(drain(first, ADA))
    assert first.data_to_send()
    again = answering(kept)
    again.receive_data(first_frame(), 0.0)
    with pytest.raises(AuthenticationFailed, match="has been here before"):
        again.next_event()
    assert again.data_to_send() == b""


def test_a_replay_after_the_cache_forgot_takes_no_try_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sealring_protocol.joining.invitation._REPLAYS", 1)
    kept = invitations()
    pair = Pair(kept)
    recorded_init, recorded_fin = pair.said["joiner"][:1269], pair.said["joiner"][1269:]
    pair.joiner.close(CloseCode.SHUTDOWN, "")
    pair.run()
    other = answering(kept)
    other.receive_data(first_frame("another"), 0.0)
    list(drain(other, ADA))
    again = JoinSession.answer(host(), kept, 0.0, NOW, bytes_of("fresh", 32))
    again.receive_data(recorded_init, 0.0)
    list(drain(again, ADA))
    assert again.data_to_send()  # the cache has forgotten it
    again.receive_data(recorded_fin, 0.0)
    with pytest.raises(AuthenticationFailed):
        again.next_event()
    assert kept.fault(INVITATION, NOW) == ""
    assert last(Pair(kept, seed="third"), "inviter").newcomer == NEWCOMER


def test_signatures_have_a_budget_which_only_holders_of_the_secret_spend() -> None:
    kept = invitations()
    stranger = attrs.evolve(INVITATION, secret=bytes(16))
    for number in range(3 * JOIN_SIGNATURES_PER_SECOND):
        end = answering(kept)
        end.receive_data(first_frame(str(number), stranger), 0.0)
        with pytest.raises(AuthenticationFailed):
            end.next_event()
    for number in range(JOIN_SIGNATURES_PER_SECOND):
        end = answering(kept)
        end.receive_data(first_frame(str(number)), 0.0)
        assert end.next_event() is not None
    end = answering(kept)
    end.receive_data(first_frame("one more"), 0.0)
    with pytest.raises(LimitExceeded, match="too many newcomers"):
        end.next_event()
    assert end.data_to_send() == b""


def test_an_invitation_that_expired_long_ago_is_answered_no_more() -> None:
    """Its answer has the roster, which a text that is found later must not give away."""
    expired = 1000 * INVITATION.expires_s
    for wall_ms in (expired, expired + 1000 * INVITATION_SECONDS - 1):
        assert Pair(wall_ms=(wall_ms, wall_ms)).said["inviter"]
    later = Pair(wall_ms=(NOW, expired + 1000 * INVITATION_SECONDS))
    assert isinstance(last(later, "inviter"), AuthenticationFailed)
    assert later.said["inviter"] == b""


def test_guesses_burn_no_try() -> None:
    kept = invitations()
    for number in range(4 * MAX_TRIES):
        guess = attrs.evolve(INVITATION, secret=bytes([number]) * 16)
        pair = Pair(kept, invitation=guess)
        assert pair.said["inviter"] == b""
        assert isinstance(last(pair, "inviter"), AuthenticationFailed)
    assert Pair(kept).heard["inviter"][0].newcomer == NEWCOMER  # type: ignore[union-attr]


# ----------------------------------------------------------------------- a middle


@pytest.mark.parametrize("secret", [INVITATION.secret, bytes(16)], ids=["with", "without"])
def test_a_middle_that_is_no_member_is_never_taken_for_the_inviter(secret: bytes) -> None:
    """It has the roster, the coordinator's public key and, in one case, the invitation."""
    theirs = invitations(attrs.evolve(INVITATION, secret=secret))
    pair = Pair(theirs, at=host(signer=BEN), signer=BEN)
    assert pair.heard["joiner"] == [] or isinstance(last(pair, "joiner"), AuthenticationFailed)
    assert len(pair.said["joiner"]) == 1269  # JOIN_INIT, and not a byte of who it is


def test_a_middle_that_signs_as_a_member_it_is_not_fails() -> None:
    pair = Pair(signer=BEN)  # claims to be ada
    assert isinstance(last(pair, "joiner"), AuthenticationFailed)
    assert len(pair.said["joiner"]) == 1269


def test_a_member_without_the_secret_is_never_taken_for_the_inviter() -> None:
    wrong = attrs.evolve(INVITATION, secret=bytes(16))
    end, keys = asking(), invitations(wrong)
    # It makes JOIN_INIT's tag its own, and answers with all that a member has but the secret.
    data = first_frame(invitation=wrong)
    answer = answering(keys)
    answer.receive_data(data, 0.0)
    list(drain(answer, ADA))
    end.data_to_send()
    end.receive_data(answer.data_to_send(), 0.0)
    with pytest.raises(AuthenticationFailed):
        end.next_event()
    assert end.data_to_send() == b""


def test_another_cluster_that_holds_the_secret_is_refused() -> None:
    other = signer("another coordinator")
    at = Host(ADA.public_key, sign_roster(HOME, other), other.public_key)
    pair = Pair(at=at)
    assert "another coordinator" in str(last(pair, "joiner"))
    assert len(pair.said["joiner"]) == 1269


def test_a_roster_that_another_coordinator_signed_is_refused() -> None:
    forged = sign_roster(HOME, signer("another coordinator"))
    pair = Pair(at=Host(ADA.public_key, forged, COORDINATOR.public_key))
    assert isinstance(last(pair, "joiner"), AuthenticationFailed)


def test_an_expired_roster_is_refused_before_a_name_is_said() -> None:
    pair = Pair(at=host(roster(("ada",), expires_ms=NOW)))
    assert isinstance(last(pair, "joiner"), RosterExpired)
    assert len(pair.said["joiner"]) == 1269


@pytest.mark.parametrize("at", range(8, 1269, 37))
def test_an_altered_join_init_is_not_answered(at: int) -> None:
    data = bytearray(first_frame())
    data[at] ^= 1
    end = answering(invitations())
    end.receive_data(bytes(data), 0.0)
    with pytest.raises(RemoteProtocolError):
        end.next_event()
    assert end.data_to_send() == b""

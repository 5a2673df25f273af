"""Two ends of a join, without a socket: what each learns, and when."""

from __future__ import annotations

from sealring_protocol.codec.messages import Admit, Joined
from sealring_protocol.joining.exchange import Admitted, Introduced, InviterProved

from .pairs import HOME, INVITATION, NEWCOMER, NOW, Pair, with_dan


def test_a_newcomer_joins() -> None:
    pair = Pair()
    (proved,) = pair.heard["joiner"]
    (introduced,) = pair.heard["inviter"]
    assert isinstance(proved, InviterProved)
    assert isinstance(introduced, Introduced)
    assert proved.roster.roster == HOME
    assert introduced.newcomer == NEWCOMER
    pair.inviter.admit(Admit(with_dan(), "{}"), 1.0)
    pair.run(1.0)
    admitted = pair.heard["joiner"][-1]
    assert isinstance(admitted, Admitted)
    assert NEWCOMER.id in admitted.roster.roster
    pair.joiner.stored(2.0)
    pair.run(2.0)
    assert isinstance(pair.heard["inviter"][-1], Joined)
    assert pair.invitations.fault(INVITATION, NOW) == "this invitation was used"
    assert pair.invitations.fault(INVITATION, NOW, NEWCOMER.id) == "this invitation was used"

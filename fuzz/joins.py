"""Who joins whom, and with what, for the targets that lie in a join (`spec.vectors.join_talk`)."""

from __future__ import annotations

from typing import Final

import attrs
from sealring_protocol.joining.exchange import Newcomer
from sealring_protocol.joining.invitation import Invitation

from spec.vectors.join_talk import AFTER, NEWCOMER, PAPER
from spec.vectors.world import ADA, EVE, HOME, NOW, TERMS, signed

JOINER: Final = EVE
INVITER: Final = ADA
INVITATION: Final = Invitation.decode(PAPER.words)
ASKS: Final = Newcomer(JOINER.public, **NEWCOMER | {"addresses": tuple(NEWCOMER["addresses"])})
OTHERS: Final = (
    HOME,
    AFTER,
    signed(attrs.evolve(TERMS, serial=6)),
    signed(attrs.evolve(TERMS, serial=6, expires_ms=NOW)),
    signed(attrs.evolve(TERMS, serial=6), EVE),
    signed(attrs.evolve(TERMS, serial=7, members=(EVE.member,))),
    b"",
)

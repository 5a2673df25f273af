"""Who may send what, place by place (section 10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sealring_protocol.errors import CloseCode

from spec.vectors.model import Json, Vector, refused, valid

GIVEN: Final[Mapping[str, bytes]] = {}
CONTROL, STEP, TUNNEL, WEIGHTS, API = 1, 2, 3, 4, 5
ALIVE: Final = ("PING", "PONG", "CLOSE")
ELECTS: Final = ("CANDIDACY", "VOTE", "NO_VOTE")
FROM_HEAD: Final = ("BOOTSTRAP", "STEP", "ROW", "WAITING", "ADDRESSES", *ELECTS, "RENEW")
TO_HEAD: Final = (
    *("HELLO", "PREPARED", "READY", "STEP_DONE", "CANNOT_SERVE", "CHECKED", "ADDRESSES"),
    *(*ELECTS, "RENEWED"),
)
ONLY_HEAD: Final = tuple(message for message in FROM_HEAD if message not in TO_HEAD)
OF_STREAMS: Final = ("BODY", "CREDIT", "DROP")
ALL: Final = (
    *("ACCEPT", *ALIVE, *TO_HEAD, "TUNNEL", *ONLY_HEAD, "GET", "PIECE", "ADMIT", "JOINED"),
    *("ASK", "REPLY", *OF_STREAMS),
)
PLACES: Final = (
    ("head-to-rank", CONTROL, 0, 2, 4, FROM_HEAD),
    ("rank-to-head", CONTROL, 3, 0, 4, TO_HEAD),
    ("rank-to-rank", CONTROL, 1, 2, 4, ELECTS),
    ("control-beyond", CONTROL, 1, 4, 4, ()),
    ("to-next", STEP, 1, 2, 4, ("STEP",)),
    ("head-to-next", STEP, 0, 1, 2, ("STEP",)),
    ("back", STEP, 2, 1, 4, ()),
    ("last-to-head", STEP, 3, 0, 4, ("STEP_DONE",)),
    ("one-of-two-to-head", STEP, 1, 0, 2, ("STEP_DONE",)),
    ("head-to-last", STEP, 0, 3, 4, ("STEP",)),
    ("not-last-to-head", STEP, 2, 0, 4, ("STEP_DONE",)),
    ("skipping", STEP, 0, 2, 4, ("STEP",)),
    ("tunnel", TUNNEL, 0, 1, 2, ("TUNNEL",)),
    ("tunnel-right", TUNNEL, 1, 2, 4, ("TUNNEL",)),
    ("tunnel-left", TUNNEL, 2, 1, 4, ("TUNNEL",)),
    ("tunnel-first-to-last", TUNNEL, 0, 3, 4, ("TUNNEL",)),
    ("tunnel-last-to-first", TUNNEL, 3, 0, 4, ("TUNNEL",)),
    ("tunnel-across", TUNNEL, 1, 3, 4, ("TUNNEL",)),
    ("tunnel-beyond", TUNNEL, 1, 4, 4, ()),
    ("step-beyond", STEP, 1, 4, 4, ()),
    ("weights", WEIGHTS, 0, 1, 2, ("GET", "PIECE")),
    ("weights-across", WEIGHTS, 1, 3, 4, ("GET", "PIECE")),
    ("api-to-head", API, 3, 0, 4, ("ASK", *OF_STREAMS)),
    ("api-from-head", API, 0, 1, 2, ("REPLY", *OF_STREAMS)),
    ("api-across", API, 1, 2, 4, ()),
    ("api-beyond", API, 4, 0, 4, ()),
)
"""Name, purpose, sender, receiver, ranks, and what may be sent beside what is always."""


def _input(purpose: int, sender: int, receiver: int, world: int, messages: Json) -> Json:
    return {
        "purpose": purpose,
        "sender": sender,
        "receiver": receiver,
        "world": world,
        "messages": messages,
    }


def vectors() -> Iterator[Vector]:
    """For each place one vector of all that may be sent, and one of all that may not."""
    for name, purpose, sender, receiver, world, more in PLACES:
        may = [message for message in ALL if message in ALIVE or message in more]
        may_not = [message for message in ALL if message not in may]
        where = f"rank {sender} to rank {receiver} of {world}"
        given = _input(purpose, sender, receiver, world, may)
        yield valid(f"role/{name}", "role", "RL-01", f"what {where} may send", given)
        given = _input(purpose, sender, receiver, world, may_not)
        about = f"what {where} may not send, each by itself"
        why = CloseCode.ROLE_VIOLATION
        yield refused(f"role/{name}-not", "role", "RL-01", about, given, why)

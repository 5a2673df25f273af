"""The causes for which a ring does not serve, and what to do about each.

Programs use a cause's value; `docs/words.py` has its meaning. A head tells the other ranks less: it
sends one of WAITING's hindrances, which a rank turns into a cause again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

from sealring_protocol.codec.messages import Hindrance


class Cause(enum.Enum):
    """Why a node, or its ring, does not serve."""

    DRAINING = "draining"
    STARVED = "engine_starved"
    ROSTER_EXPIRED = "roster_expired"
    ROSTER_CONFLICT = "roster_conflict"
    NOT_A_MEMBER = "not_a_member"
    ENGINE_STARTING = "engine_starting"
    ENGINE_DYING = "engine_dying"
    ENGINE_UNREADABLE = "engine_unreadable"
    NO_TOKENIZER = "no_tokenizer"
    TOKENIZER_LOADING = "tokenizer_loading"
    NO_ADDRESS = "no_address"
    DIALING = "dialing"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    ITSELF = "dialed_itself"
    NO_ANSWER = "no_answer"
    OTHER_MODEL = "other_model"
    MANIFEST = "manifest_on_one_side"
    OTHER_BUILD = "other_build"
    OTHER_POLICY = "other_policy"
    SAME_KEY = "same_key"
    REFUSED = "refused"
    BROKEN = "link_broken"
    PEER_ENGINE = "peer_engine_starting"
    TOO_LITTLE_ROOM = "too_little_room"
    NO_PLAN = "no_plan"
    UNSERVABLE = "model_unservable"
    CANNOT_SERVE = "cannot_serve"
    COLLECTIVE = "collective"
    FETCHING = "fetching"
    LOADING = "loading"
    NO_EPOCH = "no_epoch"
    BEGINNING = "beginning"


ADVICE: Final[Mapping[Cause, str]] = {
    Cause.DRAINING: "Ask again once the node has begun again; after a change of the head, ask the "
    "new one.",
    Cause.STARVED: "See what else runs on that machine, and whether its container or service has a "
    "limit of processor time or memory.",
    Cause.ROSTER_EXPIRED: "Sign it again (sealring roster renew), and give it to any one node "
    "(sealring roster install): the others take it from there.",
    Cause.ROSTER_CONFLICT: "Two rosters were signed with one serial. Sign one of them once more, "
    "which takes the next serial, and give it to any one node (sealring roster install).",
    Cause.NOT_A_MEMBER: "If it is to be one: 'sealring roster add', and sign again.",
    Cause.ENGINE_STARTING: "A large model's description takes a while to read.",
    Cause.ENGINE_DYING: "This node's log says what it died of.",
    Cause.NO_TOKENIZER: "Fetch the model again, or take another conversion of it, and start this "
    "node again.",
    Cause.TOKENIZER_LOADING: "",
    Cause.ENGINE_UNREADABLE: "Fetch the model again, or correct 'model' in the config.",
    Cause.NO_ADDRESS: "Nothing to do here if that node can reach this one.",
    Cause.DIALING: "",
    Cause.UNREACHABLE: "See that it runs, and that the address in the roster is its 'listen'.",
    Cause.SILENT: "A node says nothing to whom it cannot verify. Its clock, its key, its "
    "coordinator or its cluster is another, and its log says which: compare 'date' and "
    "'sealring roster show ROSTER' on both machines.",
    Cause.ITSELF: "The roster has that node's address wrong, or the keys of two machines are "
    "swapped: compare 'sealring roster show ROSTER' with the key and the address of each machine.",
    Cause.NO_ANSWER: "Its process is stopped or hangs, its machine is overloaded, or another "
    "program listens there.",
    Cause.OTHER_MODEL: "Give both the same folder: compare what 'sealring digest MODEL' prints.",
    Cause.MANIFEST: "Copy the model folder, sealring.json included, to every machine, and start "
    "the node again whose folder has changed.",
    Cause.OTHER_BUILD: "Install the same release, or the same commit, on every machine, and start "
    "the nodes again: 'sealring status --config CONFIG' shows the version and build of each.",
    Cause.OTHER_POLICY: "Let both configs say the same, and both nodes have the same roster.",
    Cause.SAME_KEY: "Two nodes run with one key: a machine was copied, say. Stop one of them, or "
    "give it a key of its own (sealring keygen, roster add).",
    Cause.REFUSED: "The log of the node that refused says more.",
    Cause.BROKEN: "It is dialed again.",
    Cause.PEER_ENGINE: "Its log and its 'sealring status' say more.",
    Cause.TOO_LITTLE_ROOM: "Raise 'memory' in the configs, add a machine, or take a smaller or "
    "quantized model: see 'sealring plan'.",
    Cause.NO_PLAN: "Change the strategy, the number of ranks or the layers, or take another model: "
    "'sealring plan' tries it.",
    Cause.UNSERVABLE: "Waiting does not help: mend on that rank what this names, or take another "
    "model or strategy; then start that node again.",
    Cause.CANNOT_SERVE: "That rank's log says more. It is tried again by itself.",
    Cause.COLLECTIVE: "See that the ranks reach one another, or use strategy = 'pp'.",
    Cause.FETCHING: "Each rank goes on by itself; its log says how fast.",
    Cause.LOADING: "",
    Cause.BEGINNING: "",
    Cause.NO_EPOCH: "'sealring status' on the head says what it waits for.",
}
"""What to do about each cause."""

PERMANENT: Final = frozenset(
    {
        Cause.ENGINE_UNREADABLE,
        Cause.NO_TOKENIZER,
        Cause.OTHER_MODEL,
        Cause.MANIFEST,
        Cause.OTHER_BUILD,
        Cause.TOO_LITTLE_ROOM,
        Cause.NO_PLAN,
        Cause.UNSERVABLE,
    }
)
"""Causes that last until somebody changes a model, a config or a machine. Nobody should wait for
them to go away."""

RINGWIDE: Final = frozenset({Cause.TOO_LITTLE_ROOM, Cause.NO_PLAN, Cause.FETCHING})
"""Causes that concern no rank in particular."""

OWN_LOG: Final = "This node's log says more. It is tried again by itself."
"""The advice if the rank that cannot serve is this node."""

DIAL_ADVICE: Final[Sequence[tuple[str, str]]] = (
    ("refused", "Nothing listens there: start that node, or correct its address in the roster."),
    ("no answer", "Its machine is off, the address is another's, or a firewall drops it."),
    ("route", "No way leads to that network: check the address, the routes and any VPN."),
    ("unreachable", "No way leads to that network: check the address, the routes and any VPN."),
    ("name", "The name does not resolve here: correct it in the roster, or in the name service."),
    ("nodename", "The name does not resolve here: correct it in the roster."),
)
"""The advice for a failed dial, by a word in the operating system's reason."""

HINDRANCES: Final[Mapping[Cause, Hindrance | None]] = {
    Cause.DRAINING: None,
    Cause.STARVED: None,
    Cause.ROSTER_EXPIRED: Hindrance.REFUSED,
    Cause.ROSTER_CONFLICT: Hindrance.REFUSED,
    Cause.NOT_A_MEMBER: Hindrance.REFUSED,
    Cause.ENGINE_STARTING: Hindrance.ENGINE,
    Cause.ENGINE_DYING: Hindrance.ENGINE,
    Cause.ENGINE_UNREADABLE: Hindrance.UNSERVABLE,
    Cause.NO_TOKENIZER: None,
    Cause.TOKENIZER_LOADING: None,
    Cause.NO_ADDRESS: Hindrance.ABSENT,
    Cause.DIALING: None,
    Cause.UNREACHABLE: Hindrance.ABSENT,
    Cause.SILENT: Hindrance.ABSENT,
    Cause.ITSELF: Hindrance.ABSENT,
    Cause.NO_ANSWER: Hindrance.ABSENT,
    Cause.OTHER_MODEL: Hindrance.MODEL,
    Cause.MANIFEST: Hindrance.MODEL,
    Cause.OTHER_BUILD: Hindrance.REFUSED,
    Cause.OTHER_POLICY: Hindrance.REFUSED,
    Cause.SAME_KEY: Hindrance.REFUSED,
    Cause.REFUSED: Hindrance.REFUSED,
    Cause.BROKEN: Hindrance.LINK,
    Cause.PEER_ENGINE: Hindrance.ENGINE,
    Cause.TOO_LITTLE_ROOM: Hindrance.PLAN,
    Cause.NO_PLAN: Hindrance.UNSERVABLE,
    Cause.UNSERVABLE: Hindrance.UNSERVABLE,
    Cause.CANNOT_SERVE: Hindrance.FAILED,
    Cause.COLLECTIVE: Hindrance.COLLECTIVE,
    Cause.FETCHING: Hindrance.FAILED,
    Cause.LOADING: None,
    Cause.NO_EPOCH: None,
    Cause.BEGINNING: None,
}
"""The hindrance that a head sends for each cause; None for a cause that it does not send."""

BY_HINDRANCE: Final[Mapping[Hindrance, Cause]] = {
    Hindrance.ABSENT: Cause.UNREACHABLE,
    Hindrance.REFUSED: Cause.REFUSED,
    Hindrance.MODEL: Cause.OTHER_MODEL,
    Hindrance.ENGINE: Cause.PEER_ENGINE,
    Hindrance.PLAN: Cause.TOO_LITTLE_ROOM,
    Hindrance.FAILED: Cause.CANNOT_SERVE,
    Hindrance.UNSERVABLE: Cause.UNSERVABLE,
    Hindrance.COLLECTIVE: Cause.COLLECTIVE,
    Hindrance.LINK: Cause.BROKEN,
}
"""The cause that a rank derives from each hindrance."""

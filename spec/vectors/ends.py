"""How a vector tells one end of a link: what it holds, what comes to it, what it says.

An end signs with its scalar (RFC 6979), takes the recorded encapsulation, stores each roster at
once, and admits whoever proves itself. Deliveries are cut nowhere in particular: however they
are cut or joined, the same must come of them, as long as nothing comes while it is not awaited.
A delivery without data lets time pass. ``end`` says that the stream ends after the last one.

What it says is ``sent``: whole frames, a last CLOSE left out, whose code is in ``told`` (or null).
``messages`` are the plaintexts given out, ``closed`` is the code of a CLOSE that came, and
``link`` is what both ends agreed on once the link was up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from spec.vectors.model import Json, u64
from spec.vectors.talk import ANSWERING, CT, DIALING, SS, Talk
from spec.vectors.world import ADA, BEN, CAT, CLUSTER, COORDINATOR, HOME, HOME_6, NOW, Node

GIVEN: Final = {
    "dialing": DIALING,
    "answering": ANSWERING,
    "ciphertext": CT,
    "shared_secret": SS,
    "home": HOME,
    "home_6": HOME_6,
    "coordinator": COORDINATOR.public,
    "ada_scalar": ADA.scalar,
    "ben_scalar": BEN.scalar,
    "ada_id": ADA.id,
    "ben_id": BEN.id,
    "cat_id": CAT.id,
    "cluster": CLUSTER,
}

Delivery = bytes | tuple[float, bytes]
"""Bytes, or the second at which they come and the bytes."""


def deliveries_of(deliveries: Iterable[Delivery]) -> Json:
    """Deliveries as a vector tells them."""
    told = []
    for number, delivery in enumerate(deliveries):
        at, data = delivery if isinstance(delivery, tuple) else (0.01 * (number + 1), delivery)
        told.append({"at": round(at, 3), "data": data.hex()})
    return told


def heard(deliveries: Iterable[Delivery], say: dict[str, Any]) -> Json:
    """What comes to an end, and when."""
    return {
        "suites": say.get("suites", [1, 2]),
        "wall_ms": u64(say.get("wall_ms", NOW)),
        "deliveries": deliveries_of(deliveries),
        "end": say.get("end", False),
    }


def _end(who: Node, held: bytes, deliveries: Iterable[Delivery], say: dict[str, Any]) -> Json:
    return {
        "scalar": who.scalar.hex(),
        "roster": held.hex(),
        "coordinator": COORDINATOR.public.hex(),
        "instance": u64(who.instance),
        **heard(deliveries, say),
    }


def dialer(talk: Talk, *deliveries: Delivery, **say: Any) -> Json:
    """The input of the end that dials. *say*: suites, wall_ms, end."""
    return {
        **_end(talk.dialer, talk.ours, deliveries, say),
        "entropy": DIALING.hex(),
        "peer": talk.answerer.id.hex(),
        "purpose": talk.purpose,
    }


def answerer(talk: Talk, *deliveries: Delivery, **say: Any) -> Json:
    """The input of the end that was dialed. *say*: suites, wall_ms, end, seen."""
    return {
        **_end(talk.answerer, talk.theirs, deliveries, say),
        "entropy": ANSWERING.hex(),
        "encapsulation": {"ciphertext": CT.hex(), "secret": SS.hex()},
        "seen": [tag.hex() for tag in say.get("seen", ())],
    }


def said(
    sent: Iterable[bytes],
    told: int | None = None,
    messages: Iterable[bytes] = (),
    link: Json = None,
    closed: int | None = None,
    name: str = "link",
) -> Json:
    """The output of an end; *name* is what it calls that on which both ends agreed."""
    return {
        "sent": [frame.hex() for frame in sent],
        "told": told,
        "messages": [message.hex() for message in messages],
        "closed": closed,
        name: link,
    }


def link_of(talk: Talk, *, dialing: bool) -> Json:
    """What one end knows once the link is up."""
    peer = talk.answerer if dialing else talk.dialer
    ways = (0, 1) if dialing else (1, 0)
    told = {
        "suite": talk.suite,
        "peer": peer.id.hex(),
        "instance": u64(peer.instance),
        "purpose": talk.purpose,
        "transcript": talk.t4.hex(),
    }
    for label in ("traffic", "activation"):
        for name, way in zip(("send", "receive"), ways, strict=True):
            told[f"{name}_{label}"] = talk.secret(label.encode(), way).hex()
    return told

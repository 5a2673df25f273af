"""What is searched: the scenarios, the variants that must break, and those that need not."""

from __future__ import annotations

from typing import Final

from spec.formal.search import Found, Scenario, Search, explored

SCENARIOS: Final = (
    Scenario("A dials B", (("I", "A", "B"), ("R", "B", "")), hides="A"),
    Scenario("A dials E, who talks to B", (("I", "A", "E"), ("R", "B", ""))),
    Scenario("A dials B twice", (("I", "A", "B"), ("I", "A", "B"), ("R", "B", ""))),
    Scenario("A dials B, who is dialed twice", (("I", "A", "B"), ("R", "B", ""), ("R", "B", ""))),
    Scenario("A dials B, and is itself dialed", (("I", "A", "B"), ("R", "A", ""), ("R", "B", ""))),
    Scenario("A and B dial each other", (("I", "A", "B"), ("I", "B", "A"), ("R", "B", ""))),
    Scenario(
        "A dials B, A's key is stolen",
        (("I", "A", "B"), ("R", "B", ""), ("R", "A", "")),
        members=("A", "B"),
        leaked=frozenset("A"),
    ),
    Scenario(
        "A dials B, B's key is stolen",
        (("I", "A", "B"), ("R", "B", "")),
        members=("A", "B"),
        leaked=frozenset("B"),
    ),
)

WEAK: Final[dict[str, tuple[str, set[str]]]] = {
    "unsigned-resp": (
        "I does not look at sR",
        {"agreement", "secrecy", "forward secrecy", "hiding"},
    ),
    "any-members-signature": ("I takes sR by any member", {"agreement", "secrecy", "hiding"}),
    "unsigned-fin": ("R does not look at sI", {"agreement", "secrecy"}),
    "open-fin": ("FIN is not sealed", {"hiding"}),
    "open-fin-without-mac": ("FIN is neither sealed nor MACed", {"binding", "hiding"}),
    "offer-not-in-transcript": ("t1 leaves out the offered set", {"agreement"}),
    "loose-claims": ("serial and digest stand beside the seal", {"agreement"}),
    "stale-responder": ("R uses its shares again, and has no replay cache", {"injectivity"}),
    "static-share": ("R's X25519 key is kept, and there is no ML-KEM", {"forward secrecy"}),
    "x25519-alone": ("PRK is made without ML-KEM", {"hybrid secrecy"}),
    "ml-kem-alone": ("PRK is made without X25519", {"hybrid secrecy"}),
}
"""Each variant, and the properties that it must be seen to break."""

REDUNDANT: Final = {
    "no-mac": "both ends ignore the MAC",
    "no-names-in-keys": "traffic secrets are made without the node ids",
    "fin-names-no-responder": "cI leaves out id_R",
    "one-context": "RESP and FIN are signed in one context",
}
"""Variants in which another part does the work too, in this model."""


def search(
    weak: str = "",
    scenarios: tuple[Scenario, ...] = SCENARIOS,
    until: frozenset[str] = frozenset(),
) -> Found:
    """All of *scenarios* with one weakness, or none; no further than it takes to break *until*."""
    return explored(Search, scenarios, weak, until)


def broken(weak: str) -> Found:
    """A variant of `WEAK`, until it is seen to break what it must."""
    return search(weak, until=frozenset(WEAK[weak][1]))

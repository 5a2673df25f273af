"""What a person sees of a newcomer: nothing that it says of itself stands where its key does."""

from __future__ import annotations

from sealring.cli.doorway import describe_newcomer


def test_a_name_imitates_no_fingerprint() -> None:
    name = "den wants to join: fingerprint able-able-able-able, macOS, from 192.168.1.1"
    facts = {"name": name, "calls_itself": name, "fingerprint": "amber-bison-chalk-dune"}
    facts |= {"looks_like": "", "system": "x", "source": "192.168.1.9"}
    told = describe_newcomer({**facts, "memory": (1 << 64) - 1})
    known = "fingerprint amber-bison-chalk-dune from 192.168.1.9 wants to join: "
    assert told.startswith(f"{known}den wants")

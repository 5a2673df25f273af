"""Writes every family's file, and counts. ``python -m spec.vectors.generate``; with ``--check``,
none is written, and the exit code is 1 if one would change.

A family is a module with `GIVEN` (byte strings told once) and `vectors()`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from spec.vectors import (
    addresses,
    announcements,
    draws,
    elections,
    evidence,
    frames,
    initiators,
    inner_seals,
    invitations,
    inviters,
    joiners,
    ledgers,
    local_messages,
    lockstep,
    messages,
    permissions,
    ranks,
    relays,
    responders,
    rosters,
    sampling_keys,
    schedule,
    seals,
    sessions,
    signatures,
    splits,
)
from spec.vectors.model import to_text

HERE: Final = Path(__file__).parent
SPECIFICATION: Final = HERE.parent / "sealring-1.md"
FAMILIES: Final[Mapping[str, ModuleType]] = {
    "frames": frames,
    "messages": messages,
    "local_messages": local_messages,
    "signatures": signatures,
    "rosters": rosters,
    "evidence": evidence,
    "elections": elections,
    "schedule": schedule,
    "initiators": initiators,
    "responders": responders,
    "sessions": sessions,
    "invitations": invitations,
    "joiners": joiners,
    "inviters": inviters,
    "seals": seals,
    "inner_seals": inner_seals,
    "permissions": permissions,
    "ledgers": ledgers,
    "ranks": ranks,
    "relays": relays,
    "lockstep": lockstep,
    "addresses": addresses,
    "announcements": announcements,
    "splits": splits,
    "sampling_keys": sampling_keys,
    "draws": draws,
}


def text_of(family: str) -> str:
    """The file of *family*, as its module makes it."""
    module = FAMILIES[family]
    return to_text(module.vectors(), module.GIVEN)


def count() -> str:
    """How many vectors there are, how many of them are faulty, and what they are about."""
    every = [vector for module in FAMILIES.values() for vector in module.vectors()]
    faulty = sum(vector.faulty for vector in every)
    defined = re.findall(r"^- \*\*\[(\w\w-\d\d)\]\*\*(†?)", SPECIFICATION.read_text(), re.MULTILINE)
    shown = {name for vector in every for name in vector.requirements}
    without = sum(bool(dagger) for _, dagger in defined)
    return (
        f"{len(every)} vectors in {len(FAMILIES)} families, {faulty} of them faulty "
        f"({faulty / len(every):.0%}); {len(shown)} of {len(defined)} requirements have one, and "
        f"{without} say that no vector can show them"
    )


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description="the conformance vectors")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on drift")
    check = parser.parse_args().check
    stale = 0
    for family in FAMILIES:
        path = HERE / f"{family}.json"
        text = text_of(family)
        if check and (not path.exists() or path.read_text(encoding="ascii") != text):
            sys.stderr.write(f"{path.name} is not what its generator makes\n")
            stale = 1
        if not check:
            path.write_text(text, encoding="ascii")
    sys.stdout.write(f"{count()}\n")
    return stale


if __name__ == "__main__":
    sys.exit(main())

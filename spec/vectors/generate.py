"""Writes every family's file. ``python -m spec.vectors.generate``; with ``--check``, none is
written, and the exit code is 1 if one would change.

A family is a module with `GIVEN` (byte strings told once) and `vectors()`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from spec.vectors import (
    evidence,
    frames,
    initiators,
    inner_seals,
    ledgers,
    local_messages,
    lockstep,
    messages,
    permissions,
    ranks,
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
FAMILIES: Final[Mapping[str, ModuleType]] = {
    "frames": frames,
    "messages": messages,
    "local_messages": local_messages,
    "signatures": signatures,
    "rosters": rosters,
    "evidence": evidence,
    "schedule": schedule,
    "initiators": initiators,
    "responders": responders,
    "sessions": sessions,
    "seals": seals,
    "inner_seals": inner_seals,
    "permissions": permissions,
    "ledgers": ledgers,
    "ranks": ranks,
    "lockstep": lockstep,
    "splits": splits,
    "sampling_keys": sampling_keys,
}


def text_of(family: str) -> str:
    """The file of *family*, as its module makes it."""
    module = FAMILIES[family]
    return to_text(module.vectors(), module.GIVEN)


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
    return stale


if __name__ == "__main__":
    sys.exit(main())

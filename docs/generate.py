"""Writes what the documentation tells of the code's own tables.

That is the generated sections of the pages in this folder, each between ``<!-- generated:NAME -->``
and ``<!-- end -->``; `PAGES` says which page has which. ``python -m docs.generate`` rewrites them,
``python -m docs.generate --check`` exits with 1 and names what has drifted.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs import api, commands, settings, troubles

HERE: Final = Path(__file__).parent
_SECTION: Final = re.compile(r"<!-- generated:([a-z-]+) -->\n(.*?)<!-- end -->\n", re.DOTALL)

PAGES: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "config.md": settings.SECTIONS,
    "commands.md": commands.SECTIONS,
    "api.md": api.SECTIONS,
    "operations.md": troubles.SECTIONS,
}
"""The sections of each page, by name."""


def generated(text: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """*text* with each of the *sections* as the code has it."""

    def fresh(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- generated:{name} -->\n{sections[name]()}<!-- end -->\n"

    return _SECTION.sub(fresh, text)


def drifted(text: str, sections: Mapping[str, Callable[[], str]]) -> list[str]:
    """The *sections* that *text* lacks, or has otherwise than the code does."""
    found = {match.group(1): match.group(2) for match in _SECTION.finditer(text)}
    return [name for name, make in sections.items() if found.get(name) != make()]


def main() -> int:
    """Rewrite what is generated, or check it."""
    parser = argparse.ArgumentParser(description="what the documentation tells of the code")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on drift")
    check = parser.parse_args().check
    stale = []
    for name, sections in PAGES.items():
        page = HERE / name
        if not check:
            text = page.read_text(encoding="utf-8")
            page.write_text(generated(text, sections), encoding="utf-8")
        stale += [f"{name}: {each}" for each in drifted(page.read_text(encoding="utf-8"), sections)]
    for each in stale:
        sys.stderr.write(f"{each} is not what the code says: run python -m docs.generate\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

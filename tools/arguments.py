"""The command lines of the tools, which look alike."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def command(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m NAME``, whose help is the module's *doc*, as it stands."""
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def about_a_checkout(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The same, with a checkout as its argument, this one by default, and ``--json``."""
    parser = command(name, doc)
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser

"""The command of `tests.clients`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import attrs

import tests.clients
from tests.clients.catalog import CLIENTS, FEATURES
from tests.clients.install import NotInstalledError, install
from tests.clients.rings import rings
from tests.clients.table import table, write_page
from tests.clients.trying import Outcome, attempt

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sealring-clients"


def main() -> int:
    """Try what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients",
        description=tests.clients.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [client.name for client in CLIENTS]
    parser.add_argument("--only", action="append", metavar="CLIENT", choices=names, default=[],
                        help=f"one of: {', '.join(names)}; repeat it for several")  # fmt: skip
    parser.add_argument("--feature", action="append", choices=FEATURES, default=[],
                        metavar="FEATURE", help="this alone; repeat it for several")  # fmt: skip
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"the folder; else {CACHE}")
    parser.add_argument("--upgrade", action="store_true", help="install the newest of each")
    parser.add_argument("--json", action="store_true", help="the results as JSON")
    parser.add_argument("--write", action="store_true", help="write the page docs/clients.md")
    asked = parser.parse_args()
    if asked.write and (asked.only or asked.feature):
        parser.error("--write writes the whole table: leave --only and --feature out")
    cache = asked.cache.resolve()
    if Path(__file__).parents[2] in [cache, *cache.parents]:
        parser.error(f"--cache {asked.cache} is in the checkout; name a folder outside of it")
    outcomes: list[Outcome] = []
    with rings() as running:
        for client in CLIENTS:
            if asked.only and client.name not in asked.only:
                continue
            begin = time.perf_counter()
            try:
                version = install(client, cache, asked.upgrade)
            except NotInstalledError as error:
                outcomes.append(
                    Outcome(client.name, "none", "", "answer", f"not installed: {error}")
                )
                continue
            told = attempt(client, version, cache, running, asked.feature)
            outcomes += told
            wrong = [each for each in told if not each.is_right]
            seconds = time.perf_counter() - begin
            sys.stderr.write(
                f"{client.name} {version}: {len(told) - len(wrong)} of {len(told)}"
                f" ({seconds:.0f} s)\n"
            )
            for each in wrong:
                sys.stderr.write(f"    {each.api}, {each.feature}: {each.why}\n")
    if asked.json:
        print(json.dumps([attrs.asdict(each) for each in outcomes], indent=1))
    else:
        print(table(outcomes))
    if asked.write:
        write_page(outcomes)
    return int(not all(each.is_right for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())

"""``python -m fuzz.minimise``: the least inputs that reach all that the kept corpora reach.

They stand in ``fuzz/corpora/TARGET.txt``, one in hexadecimal on each line, where the fuzzer begins,
where the tests run them, and where `fuzz.reach` measures what they reach.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz.corpora import path_of
from fuzz.main import KEPT, LONGEST, TARGETS


def minimise(target: str) -> tuple[str, int, int]:
    """Write the least corpus of *target*; its name, and how many inputs there were and are."""
    kept = KEPT / target / "corpus"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fuzz.engine", target, folder, str(kept), "-merge=1"]
        longest = f"-max_len={LONGEST.get(target, 4096)}"
        subprocess.run([*command, longest], check=True, capture_output=True)
        least = sorted(
            (path.read_bytes() for path in Path(folder).iterdir()), key=lambda i: (len(i), i)
        )
    path_of(target).write_text("".join(f"{data.hex()}\n" for data in least), encoding="ascii")
    return target, len(list(kept.iterdir())), len(least)


def main() -> int:
    """Minimise every target's corpus, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.minimise")
    parser.add_argument("target", nargs="*", choices=(*TARGETS, []), help="all, if none is named")
    targets = parser.parse_args().target or TARGETS
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        for target, before, after in cores.map(minimise, targets):
            sys.stdout.write(f"{target:<16}{before:>8,} inputs{after:>8,} left\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

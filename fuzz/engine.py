"""One target in this process, under libFuzzer: ``python -m fuzz.engine TARGET [OPTION ...]``.

The options are libFuzzer's. The package is instrumented as it is imported, so nothing of it may
be imported before.
"""

from __future__ import annotations

import importlib
import sys
from hashlib import sha1
from pathlib import Path
from typing import Final

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

from fuzz.corpora import inputs

INSTRUMENTED: Final = {
    "answers": ["sealring_model.text", "sealring.dialects"],
    "bodies": [
        *("sealring.dialects", "sealring.http", "sealring.structured", "sealring.text"),
        *("sealring.text_worker", "sealring_model.text"),
    ],
}
"""What reads the inputs of a target that imports much besides, which takes seconds to instrument.
For another target all that is ours counts."""

OURS: Final = ["sealring_protocol", "sealring_model.text", "sealring_trio", "sealring"]


def write_seeds(folder: Path, name: str) -> None:
    """The target's inputs, one file each, beside what earlier runs have found."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in inputs(name):
        (folder / sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    name, corpus, *options = sys.argv[1:]
    with atheris.instrument_imports(include=INSTRUMENTED.get(name, OURS)):
        target = importlib.import_module(f"fuzz.targets.{name}")
    if not any(option.startswith("-merge") for option in options):
        write_seeds(Path(corpus), name)
    again = f"{sys.executable} -m fuzz.engine {name}"  # as which libFuzzer starts itself to merge
    atheris.Setup([again, corpus, *options], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

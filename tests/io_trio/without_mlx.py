"""`sealring` where neither MLX is installed nor what comes with it: a program for tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

ABSENT = ("mlx", "mlx_lm", "numpy", "tokenizers", "transformers")


class Absent(MetaPathFinder):
    """Finds nothing for the packages that are not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named '{fullname}'", name=fullname)


if __name__ == "__main__":
    sys.meta_path.insert(0, Absent())
    from sealring.cli import main

    main()

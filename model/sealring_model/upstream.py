"""The one door to mlx_lm: a late import without its side effects.

Importing `mlx_lm.utils` takes more than a second and lowers the process's limits on open files,
the hard one too, which an ordinary user cannot raise again. So nothing here imports mlx_lm at the
top of a module, and while it is imported `resource.setrlimit` does nothing.
"""

from __future__ import annotations

import functools
import importlib
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def _limits_kept() -> Iterator[None]:
    """Within, nobody changes the process's resource limits."""
    real: Callable[..., None] = resource.setrlimit

    def ignore(*_: Any) -> None:
        """Stands in for `resource.setrlimit`."""

    resource.setrlimit = ignore
    try:
        yield
    finally:
        resource.setrlimit = real


@functools.cache
def mlx_lm(module: str) -> ModuleType:
    """The module ``mlx_lm.<module>``."""
    # transformers announces on stderr that it found no torch, which nobody here needs.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with _limits_kept():
        return importlib.import_module(f"mlx_lm.{module}")

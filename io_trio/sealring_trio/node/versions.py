"""The versions that run here, for `status`, metrics and bug reports."""

from __future__ import annotations

import functools
import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import sealring_model
import sealring_protocol


def version_of(package: str) -> str:
    """The installed version of *package*; "none" where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


VERSION: Final = version_of("sealring-trio")


@functools.cache
def build_number() -> int:
    """What tells this build from others: a digest of the source files of what does the steps of a
    ring, the packages of the protocol and of the model. 0 where they cannot be read."""
    digest = hashlib.sha256()
    for package in (sealring_protocol, sealring_model):
        root = Path(next(iter(package.__path__)))
        for path in sorted(root.rglob("*.py")):
            try:
                source = path.read_bytes()
            except OSError:
                return 0
            digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode() + source)
    return int.from_bytes(digest.digest()[:8])


def build_info() -> dict[str, str]:
    """The versions of sealring, Python, MLX and mlx-lm."""
    return {
        "version": VERSION,
        "python": platform.python_version(),
        "mlx": version_of("mlx"),
        "mlx_lm": version_of("mlx-lm"),
    }

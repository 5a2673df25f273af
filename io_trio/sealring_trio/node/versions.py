"""The versions that run here, for `status`, metrics and bug reports."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final


def version_of(package: str) -> str:
    """The installed version of *package*; "none" where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


VERSION: Final = version_of("sealring-trio")


def build_info() -> dict[str, str]:
    """The versions of sealring, Python, MLX and mlx-lm."""
    return {
        "version": VERSION,
        "python": platform.python_version(),
        "mlx": version_of("mlx"),
        "mlx_lm": version_of("mlx-lm"),
    }

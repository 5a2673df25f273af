"""How modules of ours become processes, by this interpreter and from where it is installed, and
how they end.

``python -m`` looks for modules in the current folder first. Whoever can write there, a folder that
is shared or a model that came from elsewhere, would have his ``json.py`` run by every process of a
node. This module imports the standard library alone, as `namespace` needs it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from typing import Final

_NEEDED: Final = re.compile(
    "|".join(
        (
            "HOME|USER|LOGNAME|PATH|TZ|LANG|LANGUAGE|LC_.*|__CF_.*",
            "TMPDIR|TEMP|TMP|XDG_CACHE_HOME",
            "LD_.*|DYLD_.*|NIX_.*|VIRTUAL_ENV|CONDA_PREFIX|PYTHON.*|COVERAGE_.*",
            # A compiler, which MLX runs for its kernels on a CPU.
            "CC|CXX|CPATH|C_INCLUDE_PATH|CPLUS_INCLUDE_PATH|LIBRARY_PATH|SDKROOT|DEVELOPER_DIR",
            "MLX_.*|METAL_.*|MTL_.*|OBJC_.*|CUDA_.*|CUDNN_.*|CUBLAS_.*|NVIDIA_.*|NCCL_.*|IBV_.*",
            "OMP_.*|GOMP_.*|KMP_.*|OPENBLAS_.*|MKL_.*|VECLIB_.*|MALLOC_.*|GLIBC_.*",
            "TOKENIZERS_.*|TRANSFORMERS_.*|HF_HOME|HF_HUB_OFFLINE|HF_HUB_DISABLE_.*|SEALRING_.*",
        )
    )
)
"""The variables that children have of ours. None of them fetches anything, so that they need
neither tokens nor proxies, whose addresses may have a password."""

_SECRET: Final = re.compile("(.*_)?(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)S?(_.*)?")
"""Variables that children do not have, whatever they begin with."""


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child that works for us: what it needs of ours, and *more*. Whoever
    takes it over finds no secret of its user's shell in it."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if _NEEDED.fullmatch(name) and not _SECRET.fullmatch(name)
    }
    return {**ours, **(more or {})}


def run_module(module: str, *arguments: str) -> list[str]:
    """The command that runs *module* with *arguments*, and no module of the current folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def signal_name(number: int) -> str:
    """What signal *number* is called. Of the real-time ones only the first and last have names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""A file of a kernel that MLX has compiled, and that is not whole any more: it is compiled again,
at the next start or at once, and never keeps a model from being served for good."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sealring_model import tiny
from sealring_model.machine import drop_unloadable, keep_kernels_private

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other files elsewhere")

LOAD = """
import os, sys
from pathlib import Path
from sealring_model.machine import keep_kernels_private
keep_kernels_private()
from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import describe
for file in Path(os.environ["TMPDIR"]).rglob("*.so") if "--spoil" in sys.argv else ():
    os.truncate(file, 100)
load_stage(describe(Path(sys.argv[1])), 0, 8)
"""


def load(cache: Path, *options: str) -> list[Path]:
    """Load the model that ships with sealring with the kernels in *cache*; their files."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, str(tiny.path()), *options],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return sorted(cache.rglob("*.so"))


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "its header alone": lambda data: data[:100],
    "a half": lambda data: data[: len(data) // 2],
    "all but its end": lambda data: data[:-64],
    "zeros": lambda data: bytes(len(data)),
    "zeros from its middle on": lambda data: data[: len(data) // 2].ljust(len(data), b"\0"),
}


def test_a_kernel_that_is_not_whole_is_compiled_again(tmp_path: Path) -> None:
    kernels = load(tmp_path)
    if not kernels:
        pytest.skip("this MLX compiles nothing for a CPU")
    contents = {file: file.read_bytes() for file in kernels}
    for number, spoil in enumerate(SPOILED.values()):
        file = kernels[number % len(kernels)]
        file.write_bytes(spoil(contents[file]))
        os.utime(file, (0, 0))  # long ago
    assert load(tmp_path) == kernels
    assert {file: len(file.read_bytes()) for file in kernels} == {
        file: len(data) for file, data in contents.items()
    }


def test_a_kernel_that_is_spoiled_after_the_start_is_compiled_again(tmp_path: Path) -> None:
    kernels = load(tmp_path)
    assert load(tmp_path, "--spoil") == kernels
    assert all(file.stat().st_size > 100 for file in kernels)


def test_a_kernel_that_another_process_is_compiling_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", os.environ.get("TMPDIR", "/tmp"))  # set back afterwards
    folder = tmp_path / "sealring" / "kernels" / "mlx"
    folder.mkdir(parents=True)
    young, old = folder / "young.so", folder / "old.so"
    for file in (young, old):
        file.write_bytes(b"\x7fELF")  # the beginning of one
    os.utime(old, (0, 0))
    keep_kernels_private()
    assert (young.exists(), old.exists()) == (True, False)


def test_an_error_that_is_not_of_a_kernel_deletes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    kernel = tmp_path / "mlx" / "kernel.ptx"
    kernel.parent.mkdir()
    kernel.touch()
    assert not drop_unloadable(ValueError("a prompt about ptx"))
    assert kernel.exists()
    assert drop_unloadable(RuntimeError("a PTX JIT compilation failed"))
    assert not kernel.exists()

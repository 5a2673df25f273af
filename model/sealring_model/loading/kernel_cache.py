"""Where MLX keeps the kernels that it compiles while it runs: a folder of this user alone.

On a CPU, MLX compiles C++ to shared libraries, on CUDA to PTX, in the folder for temporary files,
under names that follow from the model. What is there already is loaded as it is. So whoever could
write there first would have his code run by every engine of the machine, and under /tmp that is
every local user.

A file that a full disk or a loss of power has cut short would be loaded as it is, too, at each
start: MLX raises an error, or the process dies where it runs what is not there. So such files are
deleted before MLX computes, and one that MLX cannot load is deleted then. All are deleted when a
process has died so, since not every damage shows.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import stat
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

_ELF: Final = struct.Struct("<16s24xQ10xHHH")
"""The header of a shared library or a CUDA binary of 64 bits: where its table of sections begins,
how long a row of it is, and how many there are. The table is at the file's end."""

_UNLOADABLE: Final = re.compile(
    r"could not load c\+\+ shared library|failed to load compiled function|ptx|kernel image|cubin",
    re.IGNORECASE,
)
"""What MLX and CUDA say of a kernel file that they cannot load."""

_DEATHS: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
"""By which a process dies that runs what is no code."""

_WRITTEN_SECONDS: Final = 60.0
"""Since its last change, after which nobody writes a file any more."""

_TAIL: Final = 64
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def keep_kernels_private() -> None:
    """Have MLX compile, in this process, in a folder that no other user may write in.

    It is the user's cache folder, so that a kernel is compiled once. Where none can be had there,
    it is a temporary one of this process. To be called before MLX computes; it sets the
    environment's ``TMPDIR``, which MLX reads when it compiles first.
    """
    folder = _cached() or _temporary()
    os.environ["TMPDIR"] = str(folder)
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file() and not (_is_being_written(file) or _is_complete(file)):
                file.unlink()


def drop_unloadable(error: Exception) -> bool:
    """Delete the kernel file that MLX cannot load, if *error* says so, or all of this process's
    folder if it does not say which. MLX compiles them again. False if nothing is deleted."""
    kernels = Path(os.environ.get("TMPDIR", ""), "mlx")
    if not isinstance(error, RuntimeError) or not _UNLOADABLE.search(str(error)):
        return False
    if not kernels.is_absolute() or not kernels.is_dir():
        return False
    if named := [file for file in kernels.rglob("*") if str(file) in str(error) and file.is_file()]:
        for file in named:
            file.unlink(missing_ok=True)
        return True
    shutil.rmtree(kernels, ignore_errors=True)
    return not kernels.exists()


def drop_kernels_after(code: int) -> None:
    """Delete the kernels that are kept, if a process that ended with *code* may have died of one:
    the next compiles them again."""
    if -code in _DEATHS and (folder := _cached()) is not None:
        shutil.rmtree(folder / "mlx", ignore_errors=True)


def _is_being_written(file: Path) -> bool:
    """Whether another process may be compiling *file*, which its compiler writes in place."""
    return abs(time.time() - file.stat().st_mtime) < _WRITTEN_SECONDS


def _is_complete(file: Path) -> bool:
    """Whether the kernel in *file* is there up to its end, as far as its form tells."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(_ELF.size)
        stream.seek(max(0, size - _TAIL))
        end = stream.read()
    if file.suffix == ".ptx" and not start.startswith(b"\x7fELF"):
        return end.rstrip(b"\0\r\n\t ").endswith(b"}")
    if file.suffix not in (".so", ".ptx", ".cubin"):
        return True
    if not start.startswith(b"\x7fELF\x02\x01"):
        return any(start) and sys.platform != "linux"
    if len(start) < _ELF.size:
        return False
    _, sections, width, count, _ = _ELF.unpack(start)
    return sections + width * count <= size and any(end)


def _cached() -> Path | None:
    """The folder in the user's cache; None if there is none that is safe."""
    home = os.environ.get("HOME", "")
    default = "Library/Caches" if sys.platform == "darwin" else ".cache"
    cache = os.environ.get("XDG_CACHE_HOME", "") or str(Path(home, default))
    folder = Path(cache, "sealring", "kernels")
    if not folder.is_absolute():
        return None
    try:
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        there = there.resolve(strict=True)
        if not all(map(_unmoved, (there, *there.parents))):
            return None  # and nothing is made there, such as root's folders in a user's home
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
        safe = _only_ours(folder) and all(map(_unmoved, folder.parents))
        return folder if safe and os.access(folder, os.W_OK | os.X_OK) else None
    except (OSError, ValueError):
        return None


def _only_ours(folder: Path) -> bool:
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _unmoved(parent: Path) -> bool:
    """Whether no other user can put another folder in the place of ours, which is in *parent*. That
    a group may is for the owner to know."""
    status = parent.stat()
    open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    return status.st_uid in {0, os.geteuid(), *_unnamed()} and not open_to_all


def _unnamed() -> list[int]:
    """The owner that root's files seem to have in a user namespace which has no name for root, such
    as an engine's own. There it is that of all other users' files, too. None where root has a name,
    as in the namespace of an engine that is root's."""
    try:
        named = Path("/proc/self/uid_map").read_text("ascii").split()[1::3]  # outside it
        unnamed = int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))
    except (OSError, ValueError):
        return []
    return [] if "0" in named else [unnamed]


def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="sealring-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)

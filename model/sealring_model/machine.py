"""What a process takes of its machine: memory, processors, and a folder for compiled kernels.

**Memory.** A container, a systemd unit or a batch system limits memory by control groups. The
kernel kills a process beyond the limit, however much memory the machine has free. A limit holds for
all processes of a control group and of those inside it, so every control group from this process's
own to the topmost counts. Both versions are read: v2 (``memory.max``, and ``memory.high``, beyond
which processes are slowed to a crawl) and v1 (``memory.limit_in_bytes``). See the kernel's
documentation, admin-guide/cgroup-v2 and cgroup-v1/memory.

**Processors.** Each thread of a node or an engine waits in the kernel for its own socket or queue.
What it then does for a step takes less than Python's default switch interval of 5 ms, for which a
thread that computes in Python would make it wait.

**Kernels.** On a CPU, MLX compiles C++ to shared libraries, on CUDA to PTX, in the folder for
temporary files, under names that follow from the model. What is there already is loaded as it is.
So whoever could write there first would have his code run by every engine of the machine, and under
/tmp that is every local user. MLX's folder is therefore one of this user alone. A file that a full
disk or a loss of power has cut short would be loaded as it is, too, at each start: MLX raises an
error, or the process dies where it runs what is not there. So such files are deleted before MLX
computes, and one that MLX cannot load is deleted then. All are deleted when a process has died so,
since not every damage shows.
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
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

PROCESSORS: Final = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
"""Processors that this process may use."""

_SWITCH_INTERVAL: Final = 0.0005
_SHORT_SWITCH_INTERVAL: Final = 0.00005
_PROC: Final = Path("/proc/self")

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


def memory_budget(limit: int) -> int:
    """Bytes for weights and caches: *limit* unless that is 0, else what the device has free."""
    if limit:
        return limit
    import mlx.core as mx  # noqa: PLC0415 - only the process that computes needs it

    device = mx.device_info()
    for key in ("max_recommended_working_set_size", "free_memory", "memory_size", "total_memory"):
        if isinstance(device.get(key), int):
            return int(device[key])
    return _free_memory()


def limit_beside(beside: int, limit: int) -> int:
    """What an engine may take beside a draft model of *beside* bytes, if there is one: of *limit*
    bytes, or of what the device has free if that is 0. 0 if nothing limits it."""
    return max(1, memory_budget(limit) - beside) if beside else limit


def memory_available(proc: Path = _PROC) -> int | None:
    """Bytes that its control groups let this process still use; None if they set no limit. *proc*
    is the process's ``/proc`` folder."""
    available = [
        room for folder, files in _cgroups(proc) if (room := _available(folder, files)) is not None
    ]
    return max(0, min(available)) if available else None


def set_switch_interval(*, short: bool = False) -> None:
    """Set the interpreter's thread switch interval to 0.5 ms, or with *short* to 50 us.

    Short is for steps that come every few milliseconds; it makes a sum of tensor parallelism a
    tenth slower.
    """
    sys.setswitchinterval(_SHORT_SWITCH_INTERVAL if short else _SWITCH_INTERVAL)


def end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """`threading.excepthook`: end the process when a thread fails: half an engine would hang."""
    if failed.exc_value is not None:
        sys.excepthook(failed.exc_type, failed.exc_value, failed.exc_traceback)
    sys.stderr.flush()
    os._exit(70)


def keep_kernels_private() -> None:
    """Have MLX compile, in this process, in a folder that no other user may write in.

    It is the user's cache folder, so that a kernel is compiled once. Where none can be had there,
    it is a temporary one of this process. To be called before MLX computes; it sets the
    environment's ``TMPDIR``, which MLX reads when it compiles first.
    """
    folder = _cached() or _temporary()
    os.environ["TMPDIR"] = str(folder)
    for file in _files_below(folder):
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
    if named := [file for file in _files_below(kernels) if str(file) in str(error)]:
        for file in named:
            file.unlink(missing_ok=True)
        return True
    shutil.rmtree(kernels, ignore_errors=True)
    return not kernels.exists()


def _files_below(folder: Path) -> list[Path]:
    """The files below *folder*. What another process deletes meanwhile is left out."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]


def drop_kernels_after(code: int) -> None:
    """Delete the kernels that are kept, if a process that ended with *code* may have died of one:
    the next compiles them again."""
    if -code in _DEATHS and (folder := _cached()) is not None:
        shutil.rmtree(folder / "mlx", ignore_errors=True)


def _free_memory() -> int:
    """On Linux the bytes that this host can give without swapping and that control groups allow;
    elsewhere all that it has."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    allowed = memory_available()
    return free if allowed is None else min(free, allowed)


@attrs.frozen
class _Files:
    """The files of a version: *limits*, what is *used*, and the field of ``memory.stat`` that says
    how much of that is *idle*, that is, freed by the kernel on demand."""

    limits: tuple[str, ...]
    used: str
    idle: str


_V2: Final = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1: Final = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def _cgroups(proc: Path) -> Iterator[tuple[Path, _Files]]:
    """The folder of each control group that this process is in, from its own to the topmost."""
    try:
        memberships = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _V1 if controllers else _V2
        for mount in mounts:
            if (at := _mounted(mount, v1=bool(controllers))) is not None:
                top, root = at
                own = PurePosixPath(path)
                inside = own.relative_to(root) if own.is_relative_to(root) else PurePosixPath()
                for part in (inside, *inside.parents):
                    yield top / part, files


def _mounted(mount: str, *, v1: bool) -> tuple[Path, str] | None:
    """The mount point in a line of ``mountinfo``, and the control group at that place. None unless
    the line mounts control groups of that version that limit memory."""
    before, _, after = mount.partition(" - ")
    kind, _, options = after.split(" ", 2)
    wanted = kind == "cgroup" and "memory" in options.split(",") if v1 else kind == "cgroup2"
    if not wanted:
        return None
    root, point = before.split(" ")[3:5]
    return Path(point), root


def _available(folder: Path, files: _Files) -> int | None:
    limits = [limit for name in files.limits if (limit := _number(folder / name)) is not None]
    used = _number(folder / files.used)
    if not limits or used is None:
        return None
    return min(limits) - used + _idle(folder, files.idle)


def _number(file: Path) -> int | None:
    """The number in *file*; None if there is no file, or no number in it ("max")."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _idle(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split(" ", 1) for line in lines)
    return int(found.get(name, 0))


def _is_being_written(file: Path) -> bool:
    """Whether another process may be compiling *file*, which its compiler writes in place."""
    return abs(time.time() - file.stat().st_mtime) < _WRITTEN_SECONDS


def _is_complete(file: Path) -> bool:
    """Whether the kernel in *file* is there up to its end, as far as its form shows."""
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

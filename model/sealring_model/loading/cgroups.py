"""How much memory the control groups of Linux leave this process.

A container, a systemd unit or a batch system limits memory by control groups. The kernel kills a
process beyond the limit, however much memory the machine has free. A limit holds for all processes
of a control group and of those inside it, so every control group from this process's own to the
topmost counts. Both versions are read: v2 (``memory.max``, and ``memory.high``, beyond which
processes are slowed to a crawl) and v1 (``memory.limit_in_bytes``). See the kernel's documentation,
admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

_PROC: Final = Path("/proc/self")


@attrs.frozen
class _Files:
    """The files of a version: *limits*, what is *used*, and the field of ``memory.stat`` that says
    how much of that is *idle*, that is, freed by the kernel on demand."""

    limits: tuple[str, ...]
    used: str
    idle: str


_V2: Final = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1: Final = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def memory_available(proc: Path = _PROC) -> int | None:
    """Bytes that its control groups let this process still use; None if they set no limit. *proc*
    is the process's ``/proc`` folder."""
    available = [
        room for folder, files in _cgroups(proc) if (room := _available(folder, files)) is not None
    ]
    return max(0, min(available)) if available else None


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

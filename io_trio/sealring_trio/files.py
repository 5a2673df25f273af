"""Writing files that must never be half there, or be read by others."""

from __future__ import annotations

import os
from pathlib import Path

from sealring_trio.errors import UserError


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Create *path* with *data* and *mode*, never replacing anything. Raises `UserError`."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise UserError(
            f"{path} already exists, and is left as it is", "Choose another name, or move it away."
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot create {path}: {error.strerror}", "Choose a folder that exists and is yours."
        ) from None
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Give *path* the content *data*: whole or not at all, and on disk when this returns.

    Raises `OSError`.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

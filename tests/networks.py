"""Network namespaces for a test: sockets that its thread makes there, and processes that it starts,
have a network apart from the machine's. For root, on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_LO_UP: Final = struct.pack("16sh22x", b"lo", 1)


@contextlib.contextmanager
def network_at(path: Path) -> Iterator[None]:
    """Have this thread in the network namespace *path* within the block."""
    with path.open("rb") as there, _back():
        _call("setns", there.fileno(), _CLONE_NEWNET)
        yield


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Have this thread in a network with nothing but a loopback within the block."""
    with _back():
        _call("unshare", _CLONE_NEWNET)
        with socket.socket() as sock:
            fcntl.ioctl(sock, _SIOCSIFFLAGS, _LO_UP)
        yield


@contextlib.contextmanager
def _back() -> Iterator[None]:
    with open("/proc/thread-self/ns/net", "rb") as home:
        try:
            yield
        finally:
            _call("setns", home.fileno(), _CLONE_NEWNET)


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")

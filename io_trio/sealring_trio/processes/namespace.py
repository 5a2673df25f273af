"""A network of an engine's own: a Linux network namespace that holds nothing but a loopback.

MLX's ring listens on a TCP port and takes whoever connects first, so on the machine's own loopback
any local user can take a neighbour's place. An engine therefore enters a namespace before MLX is
loaded. No other user reaches what listens there, or can listen there; nor does the engine reach any
network. A socket belongs to the namespace that it was made in, whoever holds it: so the engine
makes the two sockets that its node needs there, and hands them over on a socket pair.

With the right to (root has it), only the network is new; else a user namespace is made with it, in
which the process stays who it is. The kernel may forbid that too (a container's seccomp filter, a
system that restricts user namespaces), and other platforms have nothing of the kind.

The engine's part is imported before everything else, in a process with one thread, as a user
namespace takes; so this module imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sealring_trio.processes.interpreter import run_module

LOOPBACK: Final = "127.0.0.1"

ENGINE_PORT: Final = 1024
"""Where the engine listens in a namespace of its own. Every port is free there."""

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_INTERFACE: Final = struct.Struct("16sh22x")  # struct ifreq: name and flags

_KINDS: Final = ("user", "net")
_MAX_REASON: Final = 4096
_MAX_SOCKETS: Final = 2
_CHECK_SECONDS: Final = 20.0

_CUDA_HELPER: Final = ("nvidia-modprobe", "-c", "0", "-u")
"""What CUDA runs at its first use since the machine began. It is set-user-id, which counts for
nothing in a user namespace, so it has to run before."""


ALLOW: Final = (
    "say collectives = 'shared-loopback' if every user of this machine may interfere with its sums"
)


class NoNamespace(Exception):
    """There is no namespace to be had, for the reason given."""


# ------------------------------------------------------------------ the engine


def enter() -> None:
    """Enter a new network namespace, whose loopback is up. For a process with one thread.

    Raises `NoNamespace`.
    """
    if sys.platform != "linux":
        raise NoNamespace(f"{sys.platform} has no network namespaces")
    with _explained("cannot make a network namespace"):
        try:
            _call("unshare", _CLONE_NEWNET)
        except PermissionError:
            _load_cuda()
            user, group = os.geteuid(), os.getegid()
            _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        with socket.socket() as sock:
            _ioctl(sock, _SIOCSIFFLAGS, _INTERFACE.pack(b"lo", _IFF_UP))


def hand_over_sockets(to: socket.socket) -> None:
    """Give the node at the other end of *to* its sockets in this namespace: one that listens, and
    one to connect to this process with. Raises `NoNamespace` when it cannot."""
    with (
        _explained("cannot make sockets in a network namespace"),
        socket.create_server((LOOPBACK, 0)) as listener,
        socket.socket() as caller,
    ):
        socket.send_fds(to, [b"\0"], [listener.fileno(), caller.fileno()])


def hand_over_namespace(to: socket.socket, times: int) -> None:
    """Let *times* other processes into this one's namespace: each calls `follow` with the other end
    of *to*. Raises `NoNamespace` when it cannot."""
    with _explained("cannot hand over a network namespace"), contextlib.ExitStack() as files:
        numbers = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in _KINDS]
        for number in numbers:
            files.callback(os.close, number)
        for _ in range(times):
            socket.send_fds(to, [b"\0"], numbers)


def follow(given: socket.socket) -> None:
    """Enter the namespace that another process hands over. For a process with one thread.

    Raises `NoNamespace`.
    """
    with _explained("cannot enter the network namespace of the first member"):
        _, files, _, _ = socket.recv_fds(given, 1, len(_KINDS))
        if len(files) != len(_KINDS):
            raise NoNamespace("the first member has no network namespace")
        user, net = files
        if not os.path.samestat(os.fstat(user), Path("/proc/self/ns/user").stat()):
            _load_cuda()
            _call("setns", user, _CLONE_NEWUSER)
        _call("setns", net, _CLONE_NEWNET)
        for file in files:
            os.close(file)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC
        reason = "this system allows no more of them" if full else error.strerror
        raise NoNamespace(f"{what}: {reason}") from None


def _call(name: str, *arguments: int) -> None:
    """Call *name* of the C library. Raises `OSError`."""
    function: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ioctl(sock: socket.socket, request: int, data: bytes) -> None:
    import fcntl  # noqa: PLC0415  which not every platform has

    fcntl.ioctl(sock, request, data)


def _load_cuda() -> None:
    if Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidia-uvm").exists():
        with contextlib.suppress(OSError):
            subprocess.run(_CUDA_HELPER, check=False, capture_output=True)


# -------------------------------------------------------------------- the node


def take_sockets(given: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The listener and the caller that an engine handed over on *given*, without waiting.

    Raises `NoNamespace` where it could not, has given them before, or gave something else. Then
    what it gave is closed.
    """
    try:
        said, files, _, _ = socket.recv_fds(given, _MAX_REASON, _MAX_SOCKETS, socket.MSG_DONTWAIT)
    except OSError:
        said, files = b"", []
    with contextlib.ExitStack() as unused:
        for number in files:
            unused.callback(os.close, number)
        if len(files) == _MAX_SOCKETS and all(map(_is_socket, files)):
            unused.pop_all()
            listener, caller = (socket.socket(fileno=number) for number in files)
            if _is_tcp(listener) and _is_tcp(caller):
                return listener, caller
            listener.close()
            caller.close()
    raise NoNamespace(
        said.decode(errors="replace").strip("\0") or "the engine has handed over no other sockets"
    )


def _is_socket(number: int) -> bool:
    return stat.S_ISSOCK(os.fstat(number).st_mode)


def _is_tcp(sock: socket.socket) -> bool:
    return (sock.family, sock.type) == (socket.AF_INET, socket.SOCK_STREAM)


def why_not() -> str:
    """Why this machine gives an engine no namespace; empty if it does. Takes a moment."""
    if sys.platform != "linux":
        return _why_not_here()
    try:
        done = subprocess.run(
            run_module(__name__), capture_output=True, timeout=_CHECK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"the process that tries to make a network namespace failed ({error})"
    return done.stdout.decode(errors="replace").strip()


def _why_not_here() -> str:
    try:
        enter()
    except NoNamespace as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(_why_not_here())

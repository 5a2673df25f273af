"""Files that nobody else may touch, or that must never be half there; and keys, which are such.

Private keys are PEM that only their owner can read, public keys a line of hex. A private key that
others can read is refused when it is used, for then it may no longer be only yours.

`replace_file` writes whole files or nothing. A file that must also be writable when the disk is
full has a spare beside it (`reserve`): blocks that are its own already, which it is written into
when no new ones can be had.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import logging
import os
import re
import stat
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.security.handshake import TrafficSecrets
from sealring_protocol.security.identity import SoftwareSigner

from sealring_trio.errors import OperationError, UserError

READABLE: Final = 0o077
"""What a file's mode must not have when only its owner may read it."""

WRITABLE: Final = 0o022
"""What a mode must not have when only its owner may write."""

GROUP_MAY_READ: Final = "SEALRING_GROUP_MAY_READ_KEYS"
"""The variable that, as "1", has private keys accepted that their file's group may read."""

MAX_FILE: Final = 1 << 20
"""Bytes of a file that `read_file` reads: a key, a roster, a config."""

LABEL: Final = "SEALRING_1"
"""How each line of a key log begins."""

log = logging.getLogger("sealring.node")

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def make_private_folder(path: Path) -> None:
    """Have a folder *path* that only this user may write in. Raises `UserError`.

    Who may write in a folder may replace every file in it, whatever the files' own modes are; and
    every folder in it, unless it is a sticky one, like /tmp.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UserError(
            f"cannot make the state folder {path}: {error.strerror}",
            "Choose another with the key 'state' of the config.",
        ) from None
    fault = others_may(status, WRITABLE)
    if fault:
        raise UserError(
            f"the state folder {path} is not yours alone: {fault}",
            "Whoever can write there can take this node's roster back, or give himself an API key. "
            f"Run the node as the user to whom it belongs, or make it yours: chown and chmod 700 "
            f"{path}; or choose another with the key 'state'.",
        )
    for parent in path.resolve().parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UserError(
                f"the state folder {path} is not yours alone: everybody may write in {parent} "
                f"(mode {mode:04o}), and so put another folder in its place",
                f"chmod o-w {parent}; or choose another with the key 'state'.",
            )


def others_may(status: os.stat_result, mask: int) -> str:
    """Why a file with *status* is not this user's alone; empty if it is. *mask* has the bits of
    the mode that must not be set: `READABLE` or `WRITABLE`."""
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        return f"it belongs to another user (uid {status.st_uid})"
    if mode & mask:
        return f"others may {'read' if mask & 0o044 else 'write'} it (mode {mode:04o})"
    return ""


def check_secret(path: Path, status: os.stat_result, what: str) -> None:
    """Raise `UserError` if others than its owner may read *what* is in the file *path*. Whose it is
    does not matter: a service manager may own what it hands to a node. Its group may read it where
    `GROUP_MAY_READ` is set, as an orchestrator hands out secrets (Kubernetes' fsGroup)."""
    mode = stat.S_IMODE(status.st_mode)
    others = mode & READABLE
    if os.environ.get(GROUP_MAY_READ) == "1" and status.st_uid in (0, os.geteuid()):
        others &= ~stat.S_IRGRP
    if others:
        shared = f" If its group is meant to: {GROUP_MAY_READ}=1." if others == stat.S_IRGRP else ""
        raise UserError(
            f"others can read the {what} {path} (mode {mode:04o})",
            f"If you trust everyone who could: chmod 600 {path}. If not, make a new key.{shared}",
        )


def decoded(data: bytes) -> str:
    """The text in *data*: UTF-8, or what begins with another mark of its encoding, which editors
    and shells of Windows write. Raises `UnicodeDecodeError`."""
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return data.decode("utf-16" if data.startswith(marks) else "utf-8-sig")


def read_secret(path: Path, what: str, advice: str) -> str:
    """The text of the file *path*, which holds *what* and is its owner's alone. Raises `UserError`,
    with *advice* if it cannot be read."""
    try:
        data, status = read_file(path)
        text = decoded(data)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"cannot read the {what} in {path}: {reason}", advice) from None
    check_secret(path, status, f"{what} in")
    return text


def is_there(path: Path) -> bool:
    """Whether there is something at *path*, as far as this user may know. `Path.exists` raises
    where a name is too long, and in a folder that is closed to this user."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def read_file(path: Path, most: int = MAX_FILE) -> tuple[bytes, os.stat_result]:
    """What is in *path*, and its status as it was read. Raises `OSError`, also for what is no file
    or larger than *most* bytes: a pipe may never begin, and a device never end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:  # a zero byte in its name
        raise OSError(errno.EINVAL, "no file has such a name") from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
    return data, status


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Give *path* the content *data*: whole or not at all, and on disk when this returns.

    On a full disk it takes the spare of *path*, if there is one (`reserve`). Raises `OSError`.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        try:
            fresh.unlink(missing_ok=True)
            _fill(fresh, os.O_CREAT | os.O_EXCL, data, mode)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            try:
                _spare(path).replace(fresh)
            except FileNotFoundError:
                raise error from None
            _fill(fresh, 0, data, mode)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names of what is in *folder* on disk. Raises `OSError`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reserve(path: Path, size: int) -> None:
    """Keep *size* bytes of the disk for the next `replace_file` of *path*; none on a full disk."""
    spare = _spare(path)
    try:
        if not spare.exists() or spare.stat().st_size != size:
            # Written, not only claimed: then it can be written again without a new block.
            _fill(spare, os.O_CREAT | os.O_TRUNC, bytes(size), 0o600)
    except OSError:
        with contextlib.suppress(OSError):
            spare.unlink(missing_ok=True)


def _spare(path: Path) -> Path:
    return path.with_name(f".{path.name}.spare")


def _fill(path: Path, flags: int, data: bytes, mode: int) -> None:
    """Write *data* from the start of *path*, which ends with it, and onto the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.ftruncate(fd, len(data))
        os.fsync(fd)


_HEX_KEY: Final = re.compile(r"04[0-9a-f]{128}")
_CURVE: Final = ec.SECP256R1()


def public_path(path: Path) -> Path:
    """Where the public half of the key at *path* is kept."""
    try:
        return path.with_suffix(".pub")
    except ValueError:  # a folder's name, such as "." or "/"
        raise UserError(f"'{path}' is no name of a file", "Give one, such as node.key.") from None


def read_key(path: Path) -> SoftwareSigner:
    """The private key at *path*. Raises `UserError`."""
    try:
        pem, status = read_file(path)
    except FileNotFoundError:
        raise UserError(
            f"there is no private key at {path}",
            f"Check the path. Only a new node or a new cluster makes one: sealring keygen {path}",
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot read the private key {path}: {error.strerror}", "It must be your own file."
        ) from None
    text = ""
    try:
        text = decoded(pem)
        signer = SoftwareSigner.from_pem(text.encode())
    except (LocalProtocolError, UnicodeDecodeError):
        if _HEX_KEY.fullmatch(text.strip().lower()):
            private = path.with_suffix(".key")
            raise UserError(
                f"{path} is a public key, and a private key is needed",
                f"Give its private half, {private if is_there(private) else 'the file beside it'}.",
            ) from None
        raise UserError(
            f"{path} holds no P-256 private key in PEM without a password",
            f"Make one: sealring keygen {path}",
        ) from None
    check_secret(path, status, "private key")  # only now: what holds no key is no secret
    return signer


def read_public_key(value: str) -> bytes:
    """The 65-byte SEC1 public key that *value* is, in hex, or names, as a file.

    Raises `UserError`.
    """
    text = value.strip().lower()
    if not _HEX_KEY.fullmatch(text):
        text = _read_line(Path(value))
    if not _HEX_KEY.fullmatch(text):
        raise UserError(
            f"{value} holds no public key", "A public key file is one line of hex, 130 digits."
        )
    point = bytes.fromhex(text)
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
    except ValueError:
        raise UserError(
            f"the public key {value} is not a point of P-256", "Copy the .pub file again."
        ) from None
    return point


def _read_line(path: Path) -> str:
    try:
        text = decoded(read_file(path)[0])
    except UnicodeDecodeError:
        return ""
    except OSError as error:
        raise UserError(
            f"cannot read the public key {path}: {error.strerror}",
            "Copy the .pub file from where 'sealring keygen' made it, or give the key in hex.",
        ) from None
    if "PRIVATE KEY" in text:
        raise UserError(
            f"{path} is a private key, and nothing has been done with it",
            f"Give its public half: {public_path(path)}",
        )
    return text.strip().lower()


class KeyLog:
    """The file at *path*, to which the keys of links are added, to read captures of their frames
    with. For finding faults, and off unless the config names a file: whoever has it reads
    everything that the node says and hears, but for tensors under the inner seal, whose keys are
    never in it.

    One line for each link, of either end; lines that begin otherwise are no keys. The suite is its
    code, the others are hex::

        SEALRING_1 <suite> <t4> <traffic secret to the responder> <the same to the initiator>
    """

    def __init__(self, path: Path) -> None:
        """Open it. Raises `OperationError`, or `UserError` for one that others may read."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= os.O_NONBLOCK  # a pipe that nobody reads would hold it up
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise OperationError(
                f"cannot write keys to {path}: {error.strerror}",
                "Name another file in 'keylog', or leave it out of the config.",
            ) from None
        if fault := others_may(os.fstat(self._file), READABLE):
            os.close(self._file)
            # To set its mode would not do: who has it open already reads what is added.
            raise UserError(
                f"the key log {path} is not yours alone: {fault}",
                "Delete it, or name another in 'keylog': it is made anew, for its owner alone.",
            )
        self._fails = False  # the latest line could not be written
        log.warning("the keys of all links go to %s: whoever reads it reads them", path)

    def write(self, secrets: TrafficSecrets) -> None:
        """Add the line of one link. If that fails (a full disk, say), the link goes on."""
        parts = (secrets.transcript, secrets.to_responder, secrets.to_initiator)
        line = " ".join([LABEL, str(int(secrets.suite)), *(each.hex() for each in parts)])
        try:
            os.write(self._file, line.encode() + b"\n")
        except OSError as error:
            level = logging.DEBUG if self._fails else logging.WARNING
            log.log(level, "the keys of a link are not in the key log: %s", error.strerror)
            self._fails = True
        else:
            self._fails = False

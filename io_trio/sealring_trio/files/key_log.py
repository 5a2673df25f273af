"""A file of the keys of links, with which a capture of their frames can be read.

For finding faults, and off unless the config names a file: whoever has it reads everything that
the node says and hears, but for tensors under the inner seal, whose keys are never in it. One line
for each link::

    SEALRING_1 <suite> <t4> <traffic secret to the responder> <the same to the initiator>

suite is its code, the others are hex. Lines of either end do; other lines and comments are skipped.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from sealring_protocol.security.handshake import TrafficSecrets
from sealring_protocol.security.keys import SECRET, Suite

from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.private_files import READABLE, others_may

log = logging.getLogger("sealring.node")

LABEL: Final = "SEALRING_1"


class KeyLog:
    """The file at *path*, which only its owner may read, and to which lines are added."""

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
        told = (secrets.transcript, secrets.to_responder, secrets.to_initiator)
        line = " ".join([LABEL, str(int(secrets.suite)), *(each.hex() for each in told)])
        try:
            os.write(self._file, line.encode() + b"\n")
        except OSError as error:
            level = logging.DEBUG if self._fails else logging.WARNING
            log.log(level, "the keys of a link are not in the key log: %s", error.strerror)
            self._fails = True
        else:
            self._fails = False


def read_key_log(path: Path) -> list[TrafficSecrets]:
    """The links in the file at *path*. Raises `UserError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read keys from {path}: {error}",
            "Name the file that 'keylog' in a config names.",
        ) from None
    return [_read(path, at, line) for at, line in enumerate(lines, 1) if line.startswith(LABEL)]


def _read(path: Path, at: int, line: str) -> TrafficSecrets:
    try:
        _, suite, *rest = line.split()
        transcript, to_responder, to_initiator = (bytes.fromhex(each) for each in rest)
        if {len(transcript), len(to_responder), len(to_initiator)} != {SECRET}:
            raise ValueError(f"a secret has {SECRET} bytes")  # noqa: TRY301
        return TrafficSecrets(Suite(int(suite)), transcript, to_responder, to_initiator)
    except ValueError as error:
        raise UserError(
            f"{path}, line {at}, is no line of keys: {error}", "Take it out, or record anew."
        ) from None

"""Key files: private keys as PEM that only their owner can read, public keys as a line of hex.

A private key is created with mode 0600 in one step (never readable by others, not even for a
moment), never overwrites anything, and is never printed. A file that others can read is refused
when it is used, for then it may no longer be only yours.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.security.identity import SoftwareSigner

from sealring_trio.errors import UserError
from sealring_trio.files.private_files import check_secret, decoded, is_there, read_file, write_new

_HEX_KEY: Final = re.compile(r"04[0-9a-f]{128}")
_CURVE: Final = ec.SECP256R1()


def create_key(path: Path) -> SoftwareSigner:
    """Make a key pair: the private half at *path*, the public half beside it as ``.pub``.

    Raises `UserError` when either file exists or cannot be made.
    """
    signer = SoftwareSigner(ec.generate_private_key(_CURVE))
    public = public_path(path)
    if is_there(public):
        raise UserError(
            f"{public} already exists, and is left as it is",
            "Choose another name, or move it away.",
        )
    write_new(path, signer.to_pem(), 0o600)
    write_new(public, f"{signer.public_key.hex()}\n".encode(), 0o644)
    return signer


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

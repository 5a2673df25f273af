"""The certificate and the key with which the HTTP API speaks TLS: PEM files, as every issuer gives
them.

OpenSSL's own errors for a wrong pair, an encrypted key or an expired certificate are a code, a
prompt for a password, and nothing at all. So both files are read and compared here first. The key's
file must be its owner's alone, as all private keys.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final

import attrs
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import check_secret, read_file
from sealring_trio.units import wall_ms

_SPKI: Final = (
    serialization.Encoding.DER,
    serialization.PublicFormat.SubjectPublicKeyInfo,
)
_TIME: Final = "%Y-%m-%d %H:%M UTC"

Stamp = tuple[tuple[int, int, int], ...]
"""By what files are seen to have changed: time, inode and size of each."""


@attrs.frozen
class TlsPair:
    """A pair as it was read: OpenSSL's *context* with it, when the certificate *expires_ms* (Unix
    time), and the *stamp* of the files."""

    context: ssl.SSLContext
    expires_ms: int
    stamp: Stamp


def stamp_of(*paths: Path) -> Stamp:
    """The stamp of *paths* now; zeros for what cannot be looked at."""
    found: list[tuple[int, int, int]] = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)


def read_pair(certificate: Path, key: Path) -> TlsPair:
    """The pair in the files *certificate* and *key*. Takes up to a tenth of a second for a long RSA
    key. Raises `UserError`."""
    stamp = stamp_of(certificate, key)
    chain = _read_chain(certificate)
    public = _read_key(key)
    keys = [each.public_key().public_bytes(*_SPKI) for each in chain]
    if keys[0] != public:
        if public in keys:
            raise UserError(
                f"{certificate} does not begin with the server's own certificate",
                "Put that first, and the certificates of its issuers after it.",
            )
        raise UserError(
            f"the key {key} does not belong to the certificate {certificate}",
            "Give the key with which that certificate was asked for.",
        )
    begins, expires = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc
    now = wall_ms() / 1000
    if expires.timestamp() <= now:
        raise UserError(
            f"the certificate {certificate} expired on {expires:{_TIME}}",
            "Renew it; or set this machine's clock, if that is wrong.",
        )
    if begins.timestamp() > now:
        raise UserError(
            f"the certificate {certificate} is not valid before {begins:{_TIME}}",
            "Wait until then; or set this machine's clock, if that is wrong.",
        )
    return TlsPair(_context(certificate, key), int(expires.timestamp() * 1000), stamp)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which would have reading wait for writing
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # so that nobody is asked for one
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"OpenSSL does not take the certificate {certificate} with the key {key}: {reason}",
            "Use an ECDSA key on P-256, or an RSA key of 2,048 bits or more.",
        ) from None
    return context


def _read(path: Path, kind: str) -> tuple[bytes, os.stat_result]:
    try:
        return read_file(path)
    except OSError as error:
        raise UserError(
            f"cannot read the TLS {kind} {path}: {error.strerror}",
            f"Name a PEM file: 'tls_{kind}' in the config, --tls-{kind} of sealring serve.",
        ) from None


def _read_chain(path: Path) -> list[x509.Certificate]:
    """The certificates in *path*, at least one."""
    data, _ = _read(path, "certificate")
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise UserError(
            f"{path} holds no certificate in PEM",
            "It should begin with -----BEGIN CERTIFICATE-----, and have the server's own first.",
        ) from None


def _read_key(path: Path) -> bytes:
    """The public half of the private key in *path*, as a SubjectPublicKeyInfo."""
    data, status = _read(path, "key")
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise UserError(
            f"the TLS key {path} is encrypted, and a server has nobody to ask for the password",
            f"Decrypt it into a file of your own: openssl pkey -in {path} -out plain.key",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(
            f"{path} holds no private key in PEM",
            "It should begin with -----BEGIN PRIVATE KEY-----, or EC or RSA PRIVATE KEY.",
        ) from None
    check_secret(path, status, "TLS key")
    return key.public_key().public_bytes(*_SPKI)

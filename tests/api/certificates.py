"""Certificates that tests make for themselves."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

NAMES = x509.SubjectAlternativeName(
    [
        x509.DNSName("localhost"),
        x509.DNSName("desk.example"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
)


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def certificate(key: Key, days: tuple[float, float] = (-1, 30), name: str = "desk") -> bytes:
    """A certificate in PEM that *key* signed for itself, valid from and to so many *days* ahead."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    begins, ends = (now + datetime.timedelta(days=each) for each in days)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(NAMES, critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def pem(key: Key, password: str = "", *, traditional: bool = False) -> bytes:
    """*key* in PEM, encrypted if there is a *password*."""
    form = serialization.PrivateFormat
    return key.private_bytes(
        serialization.Encoding.PEM,
        form.TraditionalOpenSSL if traditional else form.PKCS8,
        serialization.BestAvailableEncryption(password.encode())
        if password
        else serialization.NoEncryption(),
    )


def write_pair(folder: Path, name: str = "desk", key: Key | None = None) -> tuple[Path, Path]:
    """The files of a new certificate and of its key, in *folder*."""
    key = key or new_key()
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_bytes(certificate(key, name=name))
    paths[1].touch(0o600)
    paths[1].write_bytes(pem(key))
    return paths

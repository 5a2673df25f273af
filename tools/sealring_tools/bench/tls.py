"""The yardstick: OpenSSL's TLS 1.3, both ends in one thread, through `ssl.MemoryBIO`.

Certificates are self-made, on P-256, and both sides ask for the other's: what a sealring
handshake also proves, less the post-quantum key exchange.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class TlsPair:
    """Two connected ends; `handshake` makes a new session of the same contexts."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            certificate = _make_certificate(Path(folder))
            self._client_context = _context(ssl.PROTOCOL_TLS_CLIENT, certificate)
            self._server_context = _context(ssl.PROTOCOL_TLS_SERVER, certificate)
        self._client_context.check_hostname = False
        self._server_context.num_tickets = 0
        self.handshake()

    def handshake(self) -> None:
        """A full mutual handshake, both ends."""
        self._up, self._down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._client = self._client_context.wrap_bio(self._down, self._up)
        self._server = self._server_context.wrap_bio(self._up, self._down, server_side=True)
        waiting = [self._client, self._server]
        while waiting:
            end = waiting.pop(0)
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting.append(end)

    def pass_on(self, data: bytes | bytearray) -> int:
        """Send *data* from the client to the server; bytes that came out."""
        self._client.write(data)
        got = 0
        while got < len(data):
            got += len(self._server.read(1 << 18))
        return got


def _context(protocol: int, certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate)
    context.load_verify_locations(certificate)
    return context


def _make_certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "bench.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path

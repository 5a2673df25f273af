"""A client of TLS 1.3 that changes its keys as often as it likes, which Python's own does not.

Python makes the handshake and tells the traffic secret (`keylog_filename`); the records after it
are made here (RFC 8446: 4.6.3, 5.2, 7.1 to 7.3).
"""

from __future__ import annotations

import struct
from pathlib import Path

import attrs
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

CONTENT, HANDSHAKE = b"\x17", b"\x16"
KEY_UPDATE = b"\x18\x00\x00\x01\x00"  # no update is asked for in return


@attrs.define
class Records:
    """What a client says after its handshake, by AES-256-GCM and SHA-384 with *secret*."""

    secret: bytes
    number: int = 0

    @classmethod
    def of(cls, key_log: Path) -> Records:
        """Those of the client whose secrets *key_log* has."""
        lines = [line.split() for line in key_log.read_text().splitlines()]
        (secret,) = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        return cls(bytes.fromhex(secret))

    def record(self, data: bytes, kind: bytes = CONTENT) -> bytes:
        """*data* in a record."""
        key, iv = self._expand("key", 32), self._expand("iv", 12)
        header = b"\x17\x03\x03" + struct.pack(">H", len(data) + 1 + 16)
        nonce = bytes(a ^ b for a, b in zip(iv, self.number.to_bytes(12, "big"), strict=True))
        self.number += 1
        return header + AESGCM(key).encrypt(nonce, data + kind, header)

    def updates(self, count: int) -> bytes:
        """So many updates of the keys."""
        made = []
        for _ in range(count):
            made.append(self.record(KEY_UPDATE, HANDSHAKE))
            self.secret, self.number = self._expand("traffic upd", 48), 0
        return b"".join(made)

    def _expand(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = struct.pack(">HB", size, len(name)) + name + b"\x00"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self.secret)

"""The names of the suites, as configs and reports write them."""

from __future__ import annotations

from typing import Final

from sealring_protocol.security.keys import Suite

SUITES: Final = {
    "aes-256-gcm": Suite.AES256GCM,
    "chacha20-poly1305": Suite.CHACHA20POLY1305,
}
SUITE_NAMES: Final = {suite: name for name, suite in SUITES.items()}

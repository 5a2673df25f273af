"""The rate of full mutual handshakes, both ends in one thread."""

from __future__ import annotations

from sealring_protocol.security.admission import Admission
from sealring_tools.bench.links import accept, configs, dial, shake_hands
from sealring_tools.bench.measure import Result, alternate
from sealring_tools.bench.tls import TlsPair


def measure() -> list[Result]:
    """INIT to ACCEPT with X25519, ML-KEM-768 and two P-256 signatures, beside TLS 1.3."""
    near, far = configs()
    admission = Admission(0.0)
    clock = [0.0]

    def handshake() -> None:
        clock[0] += 1.0  # a clock of its own, for signatures are rationed by the second
        now = clock[0]
        shake_hands(dial(near, far.node_id, now), accept(far, admission, now), now)

    rates = alternate(handshake, TlsPair().handshake)
    name = "TLS 1.3 mutual P-256, OpenSSL"
    return [Result("mutual handshake, both ends", "handshakes/s", *rates, name)]

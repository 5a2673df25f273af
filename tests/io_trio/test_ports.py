"""The ports that processes of this machine are told to listen on a little later."""

from __future__ import annotations

import socket

from sealring_trio.collective.loopback import free_ports


def test_no_port_is_given_out_twice() -> None:
    """Nothing holds a port until somebody listens on it, so a second caller may not get it too."""
    given = [port for count in (1, 2, 3) * 150 for port in free_ports(count)]
    assert len(set(given)) == len(given)


def test_ports_that_somebody_has_are_passed_over() -> None:
    (before,) = free_ports(1)
    with socket.socket() as taken:
        for port in range(before + 1, before + 50):
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                continue
            assert port not in free_ports(60)
            return
    raise AssertionError("no port is free")

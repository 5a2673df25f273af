"""Multicast DNS in a network of the test's own: real sockets, and nothing that leaves it."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from sealring.discovery.discovery import Discovery, Near, may_discover, near_addresses
from sealring.joining.machine import interface_addresses

from tests.networks import own_network


@contextmanager
def network(*addresses: str) -> Iterator[None]:
    """A network that has an interface with *addresses*; skips the test where there can be none."""
    if shutil.which("ip") is None:
        pytest.skip("there is no 'ip' to make an interface with")
    try:
        with own_network():
            _ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
            for address in addresses:
                _ip("address", "add", address, "dev", "eth0", "nodad")
            for end in ("eth0", "eth1"):
                _ip("link", "set", end, "up")
            while "state UP" not in _ip("link", "show", "eth0"):  # which takes a moment
                pass
            yield
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network of its own: {error}")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def run(name: str) -> str:
    """Run that function of `in_network` here, and what it prints."""
    command = [sys.executable, "-m", "tests.discovery.in_network", name]
    with network("10.78.0.1/24"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_programs_find_each_other_and_say_nothing_to_strangers() -> None:
    run("find")


def test_a_machine_that_moves_is_not_known_again() -> None:
    run("move")


def test_a_newcomer_finds_its_inviters_door() -> None:
    run("find_a_door")


def test_a_name_that_cannot_be_written_does_not_end_the_search() -> None:
    run("trip")


@pytest.mark.slow
def test_a_hostile_neighbour_costs_little() -> None:
    assert "of a processor" in run("withstand")


def test_only_private_addresses_count() -> None:
    with network("10.78.0.1/24", "8.8.8.8/24", "169.254.7.7/16", "fd00::7/64", "2a00::7/64"):
        here = {near.address for near in near_addresses("0.0.0.0")}
        assert here == {"10.78.0.1", "169.254.7.7"}
        (fd,) = (near for near in near_addresses("::") if near.address == "fd00::7")
        assert fd.zeroconf == fd.interface > 0
        assert "2a00::7" not in {near.address for near in near_addresses("::")}
        (one,) = near_addresses("10.78.0.1")
        assert one == Near(fd.interface, "10.78.0.1")
        assert one.zeroconf == "10.78.0.1"
        assert near_addresses("8.8.8.8") == near_addresses("127.0.0.1") == ()


def test_the_tunnel_of_a_vpn_does_not_count() -> None:
    with network():
        try:
            tunnel = os.open("/dev/net/tun", os.O_RDWR)
            # A tunnel, whose packets this end would read (TUNSETIFF, IFF_TUN).
            fcntl.ioctl(tunnel, 0x400454CA, struct.pack("16sH22x", b"tun0", 1))
        except OSError as error:
            pytest.skip(f"no tunnel: {error}")
        _ip("address", "add", "10.9.0.1/24", "dev", "tun0")
        _ip("link", "set", "tun0", "up")
        assert "10.9.0.1" in {address for _, address in interface_addresses(socket.AF_INET)}
        assert near_addresses("0.0.0.0") == near_addresses("10.9.0.1") == ()
        os.close(tunnel)


def test_there_is_nothing_where_nothing_is_private() -> None:
    with network("8.8.8.8/24"):
        assert near_addresses("0.0.0.0") == ()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "8.8.8.8", "desk.example", "localhost"])
def test_what_listens_elsewhere_is_never_announced(host: str) -> None:
    assert not may_discover(host)


async def test_a_program_that_stops_at_once_ends() -> None:
    discovery = Discovery("203.0.113.1", lambda _: None)  # no address of this machine
    with trio.move_on_after(0):
        await discovery.run()

"""Dials that come to nothing say where they got stuck."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
import trio
import trio.abc
import trio.testing
from sealring_protocol.diagnosis import DIAL_ADVICE
from sealring_trio.errors import OperationError
from sealring_trio.net.connecting import cannot_listen, dial, open_listeners


class Deaf(trio.abc.HostnameResolver):
    """A name service that does not answer."""

    async def getaddrinfo(self, *_: object, **__: object) -> Any:
        await trio.sleep_forever()

    async def getnameinfo(self, *_: object) -> tuple[str, str]:
        raise NotImplementedError


class Slow(Deaf):
    """A name service that takes three seconds each time."""

    async def getaddrinfo(self, _: object, port: object, *__: object, **___: object) -> Any:
        await trio.sleep(3)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


@pytest.fixture
async def deaf() -> Any:
    before = trio.socket.set_custom_hostname_resolver(Deaf())
    yield
    trio.socket.set_custom_hostname_resolver(before)


async def test_a_name_service_that_does_not_answer_is_no_machine_that_is_off(
    autojump_clock: trio.testing.MockClock, deaf: None
) -> None:
    with pytest.raises(OperationError) as raised:
        await dial("shelf.lan:7470")
    assert raised.value.what == "the name was not resolved within 5 s"
    advice = next(text for word, text in DIAL_ADVICE if word in raised.value.what)
    assert advice.startswith("The name does not resolve here")


async def test_a_slow_name_service_keeps_no_machine_away(
    autojump_clock: trio.testing.MockClock, deaf: None
) -> None:
    """Its answer is asked for twice."""
    trio.socket.set_custom_hostname_resolver(Slow())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = await dial(f"shelf.lan:{listener.getsockname()[1]}")
        sock.close()


async def test_why_nobody_can_listen_there_is_told_with_what_mends_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OperationError) as raised:
            await open_listeners("127.0.0.1", port)
    assert raised.value.what == f"cannot listen at 127.0.0.1:{port}: Address already in use"
    assert raised.value.advice.startswith("Stop what listens there")
    assert "sealring machines address" in raised.value.advice
    with pytest.raises(OperationError) as raised:
        await open_listeners("203.0.113.7", port)
    assert raised.value.advice.startswith("This machine has no such address")
    assert "Stop what listens" not in raised.value.advice
    denied = cannot_listen(PermissionError(errno.EACCES, "Permission denied"), "", 1, "Change it.")
    assert denied.advice.endswith("ports from 1024 on are free. Change it.")


@pytest.mark.parametrize(
    "reason", ["Connection refused", "No route to host", "no answer within 5 s"]
)
def test_a_firewall_is_among_what_may_keep_a_dial_from_its_machine(reason: str) -> None:
    """Firewalls drop a dial, reject it with a reset, or with ICMP: that is "No route to host"."""
    advice = next(text for word, text in DIAL_ADVICE if word in reason.lower())
    assert "firewall" in advice

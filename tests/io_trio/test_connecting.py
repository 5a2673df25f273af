"""Dials that come to nothing say where they got stuck."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio
import trio.abc
import trio.testing
from sealring_protocol.diagnosis import DIAL_ADVICE
from sealring_trio.errors import OperationError
from sealring_trio.net.connecting import dial


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

"""An HTTP client of a head that notices silence without giving up.

A read that waits is told of every `LOOK_SECONDS`, and goes on. A timeout of httpx's own would end
the connection, and with it the request.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import httpcore2
import httpx2

from sealring.local import client

LOOK_SECONDS: Final = 12.0
"""Silence that is noticed. A head that works breaks its own every 10 s."""

Notice = Callable[[], None]


class HeadClient(httpx2.Client):
    """A client of the API at *url*; see `client.settings`."""

    def __init__(self, url: str, key: str = "", trust: ssl.SSLContext | None = None) -> None:
        self._transport_here = _Transport(True if trust is None else trust)
        super().__init__(**client.settings(url, key, trust), transport=self._transport_here)

    @contextlib.contextmanager
    def noticing(self, notice: Notice) -> Iterator[None]:
        """Meanwhile call *notice* whenever the head has been silent for so long. It may ask the
        head something else, for less time."""
        network = self._transport_here.network
        network.notice = notice
        try:
            yield
        finally:
            network.notice = _nothing


def _nothing() -> None:
    """Nobody waits."""


class _Transport(httpx2.HTTPTransport):
    """httpx's own, over connections that notice silence."""

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        super().__init__(verify=verify, trust_env=False)
        self.network: Final = _Network()
        # httpx passes on all that its pool takes but this; httpcore documents it.
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(verify, trust_env=False),
            network_backend=self.network,
        )


class _Network(httpcore2.NetworkBackend):
    """Makes connections whose silence *notice* is told of."""

    def __init__(self) -> None:
        self.notice: Notice = _nothing
        self._inner: Final = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """See httpcore."""
        options = list(socket_options or ())
        return _Stream(self._inner.connect_tcp(host, port, timeout, local_address, options), self)


class _Stream(httpcore2.NetworkStream):
    """A connection: *inner*, whose reads look around."""

    def __init__(self, inner: httpcore2.NetworkStream, network: _Network) -> None:
        self._inner: Final = inner
        self._network: Final = network

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """See httpcore. What was waited for is not lost by a look: nothing had come."""
        end = time.monotonic() + (client.READ_SECONDS if timeout is None else timeout)
        while True:
            left = end - time.monotonic()
            try:
                return self._inner.read(max_bytes, max(0.001, min(LOOK_SECONDS, left)))
            except httpcore2.ReadTimeout:
                if left <= LOOK_SECONDS:
                    raise
                self._network.notice()

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """See httpcore."""
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        """See httpcore."""
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        """See httpcore."""
        inner = self._inner.start_tls(ssl_context, server_hostname, timeout)
        return _Stream(inner, self._network)

    def get_extra_info(self, info: str) -> Any:
        """See httpcore."""
        return self._inner.get_extra_info(info)

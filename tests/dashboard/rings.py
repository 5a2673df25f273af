"""Rings of one rank that a test may stop and start: one that listens on every address, and so asks
for a key, and any other."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sealring.http.keys import KEY_FILE, new_key
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports


class OneRank:
    """The ring of *model*: where it serves, and its config."""

    def __init__(self, folder: Path, model: Path, host: str = "127.0.0.1") -> None:
        port = free_ports(1)[0]
        (self.config,) = write_cluster(folder, 1, model, api=f"{host}:{port}")
        self._running = contextlib.ExitStack()
        self.url = f"http://127.0.0.1:{port}"

    def start(self) -> None:
        self._node = self._running.enter_context(running_node(self.config))
        wait_until_up(self._node)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Its process does nothing until the block ends, and its connections stay open."""
        self._node.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._node.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._running.close()


class Guarded(OneRank):
    """The ring that asks for a key, and a key for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, tiny.path(), "0.0.0.0")
        self.key = new_key(folder / f"{self.config.stem}.state" / KEY_FILE, "alice")


@contextlib.contextmanager
def guarded() -> Iterator[Guarded]:
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        ring = Guarded(Path(folder))
        ring.start()
        try:
            yield ring
        finally:
            ring.stop()

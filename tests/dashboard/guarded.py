"""A ring of one rank that listens on every address, and so asks for a key."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sealring_model import tiny
from sealring_trio.api.keys import KEY_FILE, new_key
from sealring_trio.collective.ports import free_ports
from sealring_trio.local.ring import running_node, wait_until_up, write_cluster


class Guarded:
    """The ring: where it serves, and a key for it."""

    def __init__(self, folder: Path) -> None:
        port = free_ports(1)[0]
        (self._config,) = write_cluster(folder, 1, tiny.path(), api=f"0.0.0.0:{port}")
        self._running = contextlib.ExitStack()
        self.url = f"http://127.0.0.1:{port}"
        self.key = new_key(folder / f"{self._config.stem}.state" / KEY_FILE, "alice")

    def start(self) -> None:
        wait_until_up(self._running.enter_context(running_node(self._config)))

    def stop(self) -> None:
        self._running.close()


@contextlib.contextmanager
def guarded() -> Iterator[Guarded]:
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        ring = Guarded(Path(folder))
        ring.start()
        try:
            yield ring
        finally:
            ring.stop()

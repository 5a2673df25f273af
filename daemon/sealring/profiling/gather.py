"""Has nodes of this machine record what passes them, while something runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sealring.local.control_client import ANSWER_SECONDS, ask
from sealring.profiling.recording import Recording

Records = Iterator[dict[str, Any]]


def gather(sockets: Sequence[Path], work: Callable[[list[Recording]], None]) -> list[Recording]:
    """What the nodes at these control *sockets* recorded during *work*, by rank. *work* is given
    the recordings, which say whose they are, in the order of *sockets*. Raises `OperationError`
    when a node goes away."""
    with contextlib.ExitStack() as stack:
        lines: list[Records] = []
        recordings: list[Recording] = []
        for socket in sockets:
            records = ask(socket, {"do": "profile"}, ANSWER_SECONDS)
            stack.enter_context(contextlib.closing(records))  # type: ignore[type-var]
            recordings.append(Recording())
            recordings[-1].add(next(records))  # from here on it records
            lines.append(records)
        ended = threading.Event()
        with ThreadPoolExecutor(len(lines)) as threads:
            reading = [
                threads.submit(_read, records, recording, ended)
                for records, recording in zip(lines, recordings, strict=True)
            ]
            try:
                work(recordings)
            finally:
                ended.set()
            for each in reading:
                each.result()
    return sorted(recordings, key=lambda recording: recording.rank)


def _read(records: Records, recording: Recording, ended: threading.Event) -> None:
    """Add all *records* to *recording* until one comes that was made after *ended*."""
    until = None
    for told in records:
        recording.add(told)
        if until is None and ended.is_set():
            until = time.perf_counter()
        if until is not None and told["clock"] >= until:
            return

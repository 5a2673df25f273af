"""Fetches weights for a command, and shows how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio
from sealring_model.loading.partial_model import PartialModel

from sealring_trio.errors import OperationError
from sealring_trio.fetching.faults import FetchFault
from sealring_trio.fetching.fetcher import check_room, fetch, total
from sealring_trio.fetching.hub import Hub
from sealring_trio.fetching.progress import Progress

PATIENCE: Final = 60.0
"""Seconds without a byte after which a command gives up."""

_LINE_SECONDS: Final = 10.0
"""Seconds between two lines where there is no terminal."""


def fetch_now(model: PartialModel, names: Sequence[str], hub: Hub) -> None:
    """Fetch the tensors *names* of *model*, and show on standard error how far it is.

    Raises `OperationError`.
    """
    if not model.missing(names):
        return
    try:
        told = check_room(model, total(model.gaps(names)))
        print(f"sealring: {told}", file=sys.stderr, flush=True)
        with _shown(model.origin.model) as tell:
            trio.run(_fetch, model, names, hub, tell)
    except FetchFault as fault:
        raise OperationError(
            f"fetching {model.origin.model} failed: {fault.text}",
            "What has come is kept; the same command goes on from there.",
        ) from None


async def _fetch(
    model: PartialModel, names: Sequence[str], hub: Hub, tell: Callable[[Progress], None]
) -> None:
    await fetch(model, names, hub, tell, patience=PATIENCE)


@contextmanager
def _shown(model: str) -> Iterator[Callable[[Progress], None]]:
    """Shows progress: one line that changes on a terminal, now and then a line elsewhere."""
    terminal = sys.stderr.isatty()
    before, after, pause = ("\r", "\x1b[K", 0.1) if terminal else ("", "\n", _LINE_SECONDS)
    told = -pause

    def tell(progress: Progress) -> None:
        nonlocal told
        if time.monotonic() - told >= pause:
            told = time.monotonic()
            line = f"{before}sealring: fetching {model}: {progress.text}{after}"
            print(line, end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if terminal:
            print(f"{before}{after}", end="", file=sys.stderr, flush=True)

"""Fetches what this node's rank owns of its model.

Which layers that are is known with each BOOTSTRAP. Fetching goes on when the epoch ends, as it does
every few seconds while a rank lacks its weights; the next BOOTSTRAP with the same layers finds it
under way. Other layers take its place. The engine reads what is here and what holds the rest up
from the folder, and refuses its layers with that until they are complete.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import trio
from sealring_model.errors import LoadError
from sealring_model.loading.partial_model import PartialModel, clear_fault, is_partial
from sealring_model.loading.weights import tensors_of
from sealring_protocol.codec.messages import Bootstrap

from sealring_trio.fetching.faults import FetchFault
from sealring_trio.fetching.fetcher import Tell
from sealring_trio.fetching.progress import Progress

log = logging.getLogger("sealring.fetch")

LOG_SECONDS: Final = 10.0
"""Seconds between two lines of the log that say how far it is."""


Source = Callable[[PartialModel, Sequence[str], Tell], Awaitable[None]]
"""Fetches tensors of a model, by name, and tells how far it is. Raises `FetchFault`."""


class RankFetch:
    """Fetches the layers of one node's rank into *folder*, by *source*. The model has *layers*
    layers. Does nothing for a model that was not fetched by sealring. *report* is told each second
    how many bytes are here, and of how many; 0 of 0 at the end."""

    def __init__(
        self, folder: Path, layers: int, source: Source, report: Callable[[int, int], None]
    ) -> None:
        self._folder: Final = folder
        self._layers: Final = layers
        self._source: Final = source
        self._report: Final = report
        self._wanted: tuple[int, int] | None = None
        self._changed = trio.Event()
        self._scope: trio.CancelScope | None = None  # of what is fetched now
        self._told = 0.0

    def placed(self, order: Bootstrap) -> None:
        """The own engine is about to get *order*."""
        wanted = order.bounds[order.rank], order.bounds[order.rank + 1]
        if wanted == self._wanted and self._scope is not None:
            return
        if not is_partial(self._folder):
            return
        clear_fault(self._folder)  # the engine must not refuse for that of an earlier try
        self._wanted = wanted
        if self._scope is not None:
            self._scope.cancel()
        self._changed.set()

    async def run(self) -> None:
        """Fetch what is wanted, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            with trio.CancelScope() as self._scope:
                await self._fetch()
            self._scope = None

    async def _fetch(self) -> None:
        first, last = self._wanted or (0, 0)
        span = f"layers {first} to {last - 1}"
        try:
            model, names = await trio.to_thread.run_sync(self._owned, first, last)
            if model is None or not model.missing(names):
                return
            log.info("fetching %s of %s", span, model.origin.model)
            await self._source(model, names, self._tell)
        except (FetchFault, LoadError) as fault:
            log.log(logging.ERROR, "%s cannot be fetched: %s", span, fault)
        else:
            log.info("%s of %s are here", span, model.origin.model)
        finally:
            self._report(0, 0)

    def _owned(self, first: int, last: int) -> tuple[PartialModel | None, list[str]]:
        """The model, and the names of its tensors of layers *first* to *last* (excluded)."""
        model = PartialModel.open(self._folder)
        if model is None:
            return None, []
        owned = tensors_of(model.entries, self._layers, first, last).values()
        return model, [name for layer in owned for name in layer]

    def _tell(self, progress: Progress) -> None:
        self._report(progress.here, progress.total)
        now = trio.current_time()
        if now - self._told >= LOG_SECONDS:
            self._told = now
            log.info("fetching: %s", progress.text)

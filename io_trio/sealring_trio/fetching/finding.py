"""Finds a model of the hub on this machine, or fetches what it takes to describe it.

The hub's own cache is used as it is where it has the model whole. Otherwise the model is in the
store (`model_store`), at least in part: configuration, tokenizer, and the headers of its weights.
What "main" is, the hub is asked once.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import trio
from sealring_model.errors import LoadError
from sealring_model.loading import model_store
from sealring_model.loading.foreign_json import HEADERS, bound_of
from sealring_model.loading.model_folder import NEEDED_FILES
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import MAX_HEADER, read_entries

from sealring_trio.errors import OperationError
from sealring_trio.fetching.fetcher import FetchProgress, check_room, fetch, total
from sealring_trio.fetching.hub import FetchFault, Hub, Listing, fault_of

log = logging.getLogger("sealring.fetch")

MAX_HEADERS: Final = bound_of(HEADERS)[0]
"""Bytes of headers, at most."""

_LONGEST_WAIT: Final = 60.0
"""Seconds that a server may ask a person to wait."""

_CONNECTIONS: Final = 8
_TRIES: Final = 4
_PAUSE: Final = 1.0
_LENGTH: Final = 8  # bytes that say how long a header is

T = TypeVar("T")
A = TypeVar("A")


def find_hub_model(model: str, hub: Hub) -> Path:
    """The folder of *model*, "owner/name" or "owner/name@revision". It can be described; its
    weights may still be to come.

    Raises `FetchFault`.
    """
    try:
        name, revision = model_store.split_id(model)
        if cached := in_hub_cache(name, revision):
            return cached
        commit = model_store.known_commit(name, revision)
        if commit is not None and PartialModel.open(model_store.folder_of(name, commit)):
            return model_store.folder_of(name, commit)
    except LoadError as error:
        raise fault_of(error) from None
    return start_model(name, revision, hub).folder


def newest_hub_model(model: str, hub: Hub) -> Path:
    """The folder of *model* as `find_hub_model` gives it, but the hub is asked what its revision is
    now, if it may be. Raises `FetchFault`."""
    try:
        name, revision = model_store.split_id(model)
    except LoadError as error:
        raise fault_of(error) from None
    known = model_store.known_commit(name, revision)
    if known is not None and known != revision and (by := hub.forbidden_by):
        log.warning("%s forbids to ask the hub what %s is now: taking what is here", by, model)
        return find_hub_model(model, hub)
    if revision == known:
        return find_hub_model(model, hub)
    return in_hub_cache(name, revision) or start_model(name, revision, hub).folder


def in_hub_cache(model: str, revision: str) -> Path | None:
    """The folder of *model* in the hub's cache, if all of its weights are there."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - 0.2 s
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        folder = Path(
            snapshot_download(
                model, revision=revision, local_files_only=True, allow_patterns=list(NEEDED_FILES)
            )
        )
        read_entries(folder)
    except (OSError, LoadError, HFValidationError):
        return None
    return folder if (folder / "config.json").is_file() else None


def start_model(model: str, revision: str, hub: Hub) -> PartialModel:
    """Ask the hub what *model* is at *revision*, and fetch all but its weights. Raises
    `FetchFault`."""
    listing = _tried(lambda: hub.list(model, revision))
    origin = listing.origin
    folder = model_store.folder_of(model, origin.commit)
    try:
        made = PartialModel.open(folder)
        if made is None:
            log.info("fetching what %s is (%s)", model, origin.commit)
            made = _make(listing, hub, folder)
        model_store.remember_commit(model, revision, origin.commit)
    except (LoadError, OSError) as error:
        raise fault_of(error) from None
    return made


def _make(listing: Listing, hub: Hub, folder: Path) -> PartialModel:
    origin = listing.origin
    if not origin.files:
        names = ", ".join(sorted(listing.small)[:10]) or "nothing that is used"
        raise FetchFault(
            f"{origin.model} has no model*.safetensors on the hub (it has {names}); take another "
            "conversion of it",
            permanent=True,
        )
    _check_room(folder, sum(file.size for file in listing.small.values()))
    small = _each(listing.small, lambda file: _whole(listing, hub, file))
    starts = _each(origin.files, lambda file: _header_start(listing, hub, file))
    ends = {file: _LENGTH + int.from_bytes(start, "little") for file, start in starts.items()}
    if sum(ends.values()) > MAX_HEADERS:
        raise FetchFault(
            f"{origin.model} has more than {MAX_HEADERS >> 20} MiB of headers", permanent=True
        )
    rest = _each(origin.files, lambda file: hub.content(origin, file, _LENGTH, ends[file]))
    headers = {file: start + rest[file] for file, start in starts.items()}
    return PartialModel.create(folder, origin, small, headers)


def _whole(listing: Listing, hub: Hub, file: str) -> bytes:
    """The small file *file*, which must have the hash that the hub tells, if it tells one."""
    told = listing.small[file]
    content = hub.content(listing.origin, file, 0, told.size)
    if told.sha256 and hashlib.sha256(content).hexdigest() != told.sha256:
        text = "came with wrong bytes: its SHA-256 is not the one of the hub"
        raise FetchFault(f"{file} of {listing.origin.model} {text}", permanent=False)
    return content


def _header_start(listing: Listing, hub: Hub, file: str) -> bytes:
    """The first bytes of the weight file *file*, which say how long its header is."""
    size = listing.origin.files[file].size
    start = hub.content(listing.origin, file, 0, min(_LENGTH, size))
    length = int.from_bytes(start, "little")
    if len(start) < _LENGTH or length > min(MAX_HEADER, size - _LENGTH):
        raise FetchFault(f"{file} of {listing.origin.model} is no safetensors file", permanent=True)
    return start


def _check_room(folder: Path, size: int) -> None:
    model_store.store().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(model_store.store()).free
    if size > free:
        raise FetchFault(
            f"{size / 1e6:.1f} MB are needed for {folder}, and {free / 1e6:.1f} MB are free",
            permanent=True,
        )


def _each(items: Iterable[A], get: Callable[[A], T]) -> dict[A, T]:
    """What *get* gives for each of *items*, several at a time."""
    keys = list(items)
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        return dict(zip(keys, pool.map(lambda item: _tried(lambda: get(item)), keys), strict=True))


def _tried(ask: Callable[[], T]) -> T:
    """What *ask* gives, tried again where the fault may pass."""
    for attempt in range(_TRIES):
        try:
            return ask()
        except FetchFault as fault:
            if fault.permanent or attempt == _TRIES - 1 or (fault.wait or 0.0) > _LONGEST_WAIT:
                raise
            wait = fault.wait if fault.wait is not None else _PAUSE * 2**attempt
            again = f"trying again in {wait:g} s ({attempt + 1} of {_TRIES - 1})"
            log.warning("%s; %s", fault.text, again)
            time.sleep(wait)
    raise AssertionError


# ---------------------------------------------------------------------- terminal
# Fetches weights for a command, and shows how far it is.


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
    model: PartialModel, names: Sequence[str], hub: Hub, tell: Callable[[FetchProgress], None]
) -> None:
    await fetch(model, names, hub, tell, patience=PATIENCE)


@contextmanager
def _shown(model: str) -> Iterator[Callable[[FetchProgress], None]]:
    """Shows progress: one line that changes on a terminal, now and then a line elsewhere."""
    terminal = sys.stderr.isatty()
    before, after, pause = ("\r", "\x1b[K", 0.1) if terminal else ("", "\n", _LINE_SECONDS)
    told = -pause

    def tell(progress: FetchProgress) -> None:
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

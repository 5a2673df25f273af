"""What a source of models is to whoever fetches, and how a model begins: all but its weights.

There are two sources: the hub (`hub`), and the other members of the roster (`members`). A source
has holders, and a holder is asked over a `SourceReader`, which does two things: it lists what there
is, with sizes and hashes, and it reads a range of one file. All else is done once, for every
source: here what it takes to describe a model (configuration, tokenizer, the headers of its
weights), in `fetcher` its tensors.
"""

from __future__ import annotations

import abc
import errno
import fnmatch
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Final, Protocol, TypeVar

import attrs
from sealring_model.errors import LoadError
from sealring_model.loading import model_store
from sealring_model.loading.foreign_json import HEADERS, bound_of
from sealring_model.loading.model_folder import NEEDED_FILES, describe
from sealring_model.loading.model_store import OURS, HubOrigin, PartialModel, WeightFile
from sealring_model.loading.weights import MAX_HEADER
from sealring_protocol.codec.messages import is_file_name
from sealring_protocol.limits import MAX_FILE_NAME

log = logging.getLogger("sealring.fetch")

MAX_SMALL: Final = 256 * 1024 * 1024
"""Bytes of configuration, tokenizer and manifest, at most. They are held in memory."""

MAX_HEADERS: Final = bound_of(HEADERS)[0]
"""Bytes of headers, at most."""

MAX_SAID: Final = 2000
"""Bytes of a text for people that has members' words in it."""

_LONGEST_WAIT: Final = 60.0
"""Seconds that a server may ask a person to wait."""

NO_HOLDER: Final = "the roster has no other member"

_TRIES: Final = 4
_PAUSE: Final = 1.0
_LENGTH: Final = 8  # bytes that say how long a header is
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")
A = TypeVar("A")
Take = Callable[[bytes], None]
"""Given bytes as they come, in order. What it raises ends the reading."""


class FetchFault(Exception):
    """Nothing, or nothing more, can be fetched; *text* says why, and which source says so.

    What is *permanent* fails again unless somebody does something. Anything else may be tried again
    after *wait* seconds, if the server named a time.
    """

    def __init__(self, text: str, *, permanent: bool = False, wait: float | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.permanent = permanent
        self.wait = wait


def fault_of(error: FetchFault | LoadError | OSError) -> FetchFault:
    """The fault for an *error* of fetching: of the disk, or of what was fetched."""
    if isinstance(error, FetchFault):
        return error
    if not isinstance(error, OSError):
        return FetchFault(str(error), permanent=True)
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        text = f"the disk is full{where}; make room, or name another folder in SEALRING_MODELS"
    else:
        text = f"what was fetched cannot be written{where}: {error.strerror or error}"
    return FetchFault(text, permanent=True)


# ------------------------------------------------------------------ the interface


@attrs.frozen
class Listing:
    """What a holder says that it has of a model; all of it may be a lie.

    *files* are those that may be asked for. *commit* is a name of exactly these files, "" where the
    holder knows none. *tensors* have the SHA-256 of each tensor that it has, "" where it does not
    know it; a holder that has all of them lists none. *pins* are those of the whole model.
    """

    files: dict[str, WeightFile]
    commit: str = ""
    tensors: dict[str, str] = attrs.field(factory=dict)
    pins: tuple[int, ...] = ()

    @property
    def weights(self) -> dict[str, WeightFile]:
        """The files of weights."""
        return {name: file for name, file in self.files.items() if is_weights(name)}

    @property
    def small(self) -> dict[str, WeightFile]:
        """The other files: configuration, tokenizer, manifest."""
        return {name: file for name, file in self.files.items() if not is_weights(name)}


class SourceReader(Protocol):
    """A connection to a holder. Its calls block, and raise `FetchFault`."""

    def list(self, model: str, revision: str) -> Listing:
        """What *model* consists of at *revision*."""

    def read(self, origin: HubOrigin, file: str, begin: int, end: int, take: Take) -> None:
        """Give *take* the bytes *begin* to *end* (excluded) of *file*. How far it came before it
        failed, *take* knows."""


@attrs.frozen
class Holder:
    """Who has a model: the hub, or the member *name*. *connect* dials it. It is called several
    times a second with the check that it is given, which may raise whatever ends the reading."""

    name: str
    id: bytes
    connect: Callable[[Callable[[], None]], AbstractContextManager[SourceReader]]


class Source(abc.ABC):
    """Where models come from."""

    connections: ClassVar[int] = 1
    """Connections to one holder at once."""

    lone: ClassVar[bool] = False
    """Whether there is one holder, who has all tensors of what it lists. What fails there is tried
    again, and what stays wrong there ends the fetching. If not, a holder may have some tensors
    alone, and another one is asked for what it lacks or gives wrongly."""

    remembered: ClassVar[str] = ""
    """What the revision of a model from here is remembered by, before its name: only the hub's own
    copy counts as that of a commit of the hub."""

    @abc.abstractmethod
    def holders(self) -> Iterable[Holder]:
        """Who to ask, in order."""


def is_shared(name: str) -> bool:
    """Whether a file *name* of a model's folder is fetched, and given to other members: weights,
    configuration, tokenizer or manifest, and neither hidden nor our own record of what is here."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:  # a file whose name is no text
        return False
    if name.lower().startswith((".", OURS)) or not is_file_name(name) or length > MAX_FILE_NAME:
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in NEEDED_FILES)


def is_weights(name: str) -> bool:
    """Whether *name* is that of a file of weights."""
    return name.endswith(".safetensors")


def content(reader: SourceReader, origin: HubOrigin, file: str, begin: int, end: int) -> bytes:
    """The bytes *begin* to *end* (excluded) of *file*. Raises `FetchFault`."""
    parts: list[bytes] = []
    reader.read(origin, file, begin, end, parts.append)
    return b"".join(parts)


# ---------------------------------------------------------------- how a model begins


def start_model(model: str, revision: str, source: Source) -> PartialModel:
    """Ask *source* what *model* is at *revision*, and fetch all but its weights, from the first
    holder that gives all of it. Raises `FetchFault` with what each holder said."""
    faults: list[FetchFault] = []
    for holder in source.holders():
        try:
            with holder.connect(lambda: None) as reader:
                return start_at(holder, reader, model, revision, source)
        except FetchFault as fault:
            faults.append(fault)
    if len(faults) == 1:
        raise faults[0]
    raise FetchFault("; ".join(map(str, faults)) or NO_HOLDER)


def start_at(
    holder: Holder, reader: SourceReader, model: str, revision: str, source: Source
) -> PartialModel:
    """As `start_model`, from *holder* by its *reader*."""
    log.info("asking %s what %s is", holder.name, model)
    try:
        made = _made(holder, reader, model, revision, source)
        remembered = source.remembered + revision
        model_store.remember_commit(model, remembered, made.origin.commit)
    except (LoadError, OSError) as error:
        raise fault_of(error) from None
    log.info("%s is as %s has it (%s)", model, holder.name, made.origin.commit)
    return made


def _made(
    holder: Holder, reader: SourceReader, model: str, revision: str, source: Source
) -> PartialModel:
    tries = _TRIES if source.lone else 1
    who = model if source.lone else holder.name

    def each(items: Iterable[A], get: Callable[[A], T]) -> dict[A, T]:
        """What *get* gives for each of *items*, as many at a time as the source has connections."""
        keys = list(items)
        with ThreadPoolExecutor(source.connections) as pool:
            found = pool.map(lambda item: _tried(lambda: get(item), tries), keys)
            return dict(zip(keys, found, strict=True))

    def start(file: str) -> bytes:
        """The first bytes of the weight file *file*, which say how long its header is."""
        size = origin.files[file].size
        found = content(reader, origin, file, 0, min(_LENGTH, size))
        length = int.from_bytes(found, "little")
        if len(found) < _LENGTH or length > min(MAX_HEADER, size - _LENGTH):
            raise FetchFault(f"{file} of {who} is no safetensors file", permanent=True)
        return found

    def whole(file: str) -> bytes:
        """The small file *file*, which must have the hash of the listing, if there is one."""
        expected = listing.small[file]
        found = content(reader, origin, file, 0, expected.size)
        if expected.sha256 and hashlib.sha256(found).hexdigest() != expected.sha256:
            text = "came with wrong bytes: its SHA-256 is not the one of the hub"
            raise FetchFault(f"{file} of {who} {text}")
        return found

    def described(made: Path) -> None:
        """What the holder gave, in *made*, must be a model: another member may give one."""
        try:
            describe(made)
        except LoadError as error:
            raise FetchFault(f"what {who} gave is no model: {error}") from None

    listing = _tried(lambda: reader.list(model, revision), tries)
    if listing.commit and (
        known := PartialModel.open(model_store.folder_of(model, listing.commit))
    ):
        return known
    _check(listing, who, source)
    origin = HubOrigin(model, revision, listing.commit, listing.weights, listing.pins)
    small = each(listing.small, whole)
    starts = each(origin.files, start)
    ends = {file: _LENGTH + int.from_bytes(found, "little") for file, found in starts.items()}
    if sum(ends.values()) > MAX_HEADERS:
        raise FetchFault(f"{who} has more than {MAX_HEADERS >> 20} MiB of headers", permanent=True)
    rest = each(origin.files, lambda file: content(reader, origin, file, _LENGTH, ends[file]))
    headers = {file: found + rest[file] for file, found in starts.items()}
    commit = listing.commit or _content_name(small, headers, listing)
    folder = model_store.folder_of(model, commit)
    origin = attrs.evolve(origin, commit=commit)
    if source.lone:
        return PartialModel.create(folder, origin, small, headers)
    return PartialModel.create(folder, origin, small, headers, described)


def _check(listing: Listing, who: str, source: Source) -> None:
    """Raise `FetchFault` if *listing* is that of no model that can be fetched."""
    if source.lone and not listing.weights:
        names = ", ".join(sorted(listing.small)[:10]) or "nothing that is used"
        raise FetchFault(
            f"{who} has no model*.safetensors on the hub (it has {names}); take another "
            "conversion of it",
            permanent=True,
        )
    if not source.lone and ("config.json" not in listing.files or not listing.weights):
        raise FetchFault(f"{who} has no model with config.json and model*.safetensors")
    size = sum(file.size for file in listing.small.values())
    if size > MAX_SMALL:
        raise FetchFault(
            f"{who} has more than {MAX_SMALL >> 20} MiB of configuration", permanent=True
        )
    store = model_store.store()
    store.mkdir(parents=True, exist_ok=True)
    if size > (free := shutil.disk_usage(store).free):
        raise FetchFault(
            f"{size / 1e6:.1f} MB are needed in {store}, and {free / 1e6:.1f} MB are free",
            permanent=True,
        )


def _content_name(
    small: Mapping[str, bytes], headers: Mapping[str, bytes], listing: Listing
) -> str:
    """A name for these files, by what is in them, of the form of a commit. So nobody can pass his
    files for those of a commit of the hub."""
    whole = hashlib.sha256(b"sealring members' model 1\n")
    for name, data in sorted([*small.items(), *headers.items()]):
        size, digest = listing.files[name].size, hashlib.sha256(data).hexdigest()
        whole.update(f"{name} {size} {digest}\n".encode())
    whole.update(f"{listing.pins}".encode())  # other weights with the same headers
    return whole.hexdigest()[:40]


def _tried(ask: Callable[[], T], tries: int) -> T:
    """What *ask* gives, after *tries* at most where the fault may pass."""
    for attempt in range(tries):
        try:
            return ask()
        except FetchFault as fault:
            if fault.permanent or attempt == tries - 1 or (fault.wait or 0.0) > _LONGEST_WAIT:
                raise
            wait = fault.wait if fault.wait is not None else _PAUSE * 2**attempt
            again = f"trying again in {wait:g} s ({attempt + 1} of {tries - 1})"
            log.warning("%s; %s", fault.text, again)
            time.sleep(wait)
    raise AssertionError


def known_model(name: str, revision: str, source: type[Source]) -> PartialModel | None:
    """The model *name* at *revision* that came from a *source* once; None if none is on this
    machine. Raises `LoadError`."""
    commit = model_store.known_commit(name, source.remembered + revision)
    return None if commit is None else PartialModel.open(model_store.folder_of(name, commit))

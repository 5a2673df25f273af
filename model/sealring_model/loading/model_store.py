"""Models that are fetched: where they are kept, and what is here of each.

    STORE/OWNER--NAME/COMMIT        a model (`PartialModel`)
    STORE/OWNER--NAME/refs/main     the commit that "main" was when this machine first asked

STORE is ``$SEALRING_MODELS``, or ``sealring/models`` in the user's cache folder. Rank and node find
the same commit on every start, since the hub is not asked again.

A model of which a part is here is a folder like any other. Configuration and tokenizer are whole.
Each weight file has its full size, with its header in place, and holes where tensors are still to
come. So the model can be described, planned and built before anything else is fetched. Three files
of ours stand beside:

- `ORIGIN`: which model it is, from where. It is written once.
- `LOG`: what is here, and the hash of each tensor. A line is added when bytes or a tensor have come
  and are on the disk. So a kill, or a loss of power, costs what was under way and no more; a torn
  last line is ignored.
- `FAULT`: what keeps the rest from coming, in words for people. The loader repeats them.

One process at a time fetches into a folder (`PartialModel.lock`); any number may read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from sealring_model.errors import LoadError, NotHereError, ReadError
from sealring_model.loading.foreign_json import LOG_LINE, parse_foreign
from sealring_model.loading.weights import (
    TensorEntry,
    hash_tensor,
    open_file,
    read_entries,
    read_json,
    write_whole,
)

VARIABLE: Final = "SEALRING_MODELS"

OURS: Final = "sealring.partial."
"""How the names of our own files begin."""

ORIGIN: Final = f"{OURS}json"
LOG: Final = f"{OURS}log"
FAULT: Final = f"{OURS}fault"
LOCK: Final = f"{OURS}lock"

MAX_SIZE: Final = 1 << 46
"""Bytes of a file of weights, by its source."""

MAX_LOG: Final = 256 * 1024 * 1024
"""Bytes of `LOG`. A model of 1 TB takes some 40 MB of it."""

_REFS: Final = "refs"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")
_FAULT_ROOM: Final = 4096
_MAX_FAULT: Final = 600  # characters, which JSON may write as six bytes each
_BUFFER: Final = 4 * 1024 * 1024

Range = tuple[int, int]
"""The first byte, and the one after the last."""


class PartialModel:
    """What is here of a model. `write`, `sync` and `digest_of` may run in any thread; the others
    are for one thread."""

    def __init__(self, folder: Path, origin: HubOrigin) -> None:
        """Use `open` or `create`."""
        self.folder: Final = folder
        self.origin: Final = origin
        try:
            self.entries: Final = read_entries(folder)
        except ReadError:
            raise
        except LoadError as error:
            # Its weights were cut or deleted by others. To ask again alone does not mend that.
            raise LoadError(error.what, f"delete {folder} and fetch it again") from None
        self.hashes: dict[str, str] = {}
        self.verified: set[str] = set()
        """Files of weights that have the hub's hash."""
        self._here: dict[str, ByteRanges] = {}
        self._read = 0
        self.refresh()

    @classmethod
    def open(cls, folder: Path) -> PartialModel | None:
        """The partial model in *folder*; None if it is a model like any other.

        Raises `LoadError` if it cannot be read.
        """
        file = folder / ORIGIN
        if not file.exists():
            return None
        value = read_json(file)
        try:
            files = {
                name: WeightFile(int(one["size"]), str(one["sha256"]))
                for name, one in value["files"].items()
            }
            model, revision, commit = value["model"], value["revision"], value["commit"]
            pins = tuple(int(pin) for pin in value.get("pins", ()))
            origin = HubOrigin(str(model), str(revision), str(commit), files, pins)
            for pin in pins:
                pin.to_bytes(8)
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError):
            raise LoadError(
                f"{file} is no record of a fetched model; delete {folder} and fetch it again"
            ) from None
        return cls(folder, origin)

    @classmethod
    def create(
        cls,
        folder: Path,
        origin: HubOrigin,
        small: Mapping[str, bytes],
        headers: Mapping[str, bytes],
        check: Callable[[Path], object] = read_entries,
    ) -> PartialModel:
        """Make *folder*, with the *small* files whole and of each weight file its header.

        It appears whole or not at all, and only if *check*, which is given the folder before it has
        its name, raises nothing. Raises what *check* raises, `OSError`, and `LoadError` for what is
        in *folder* already.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for name, content in small.items():
                _write_new(made / name, content, len(content))
            for name, header in headers.items():
                _write_new(made / name, header, origin.files[name].size)
            here = ({"file": n, "begin": 0, "end": len(h)} for n, h in headers.items())
            log = b"".join(map(_line, here))
            _write_new(made / LOG, log, len(log))
            clear_fault(made)
            write_whole(made / ORIGIN, _line(attrs.asdict(origin)))
            check(made)
            made.chmod(0o755)
            # Another process may have made it meanwhile; what is there may have tensors.
            with contextlib.suppress(OSError):
                made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        found = cls.open(folder)
        if found is None:
            raise LoadError(f"{folder} is in the way of a fetched model; move it away")
        return found

    # ------------------------------------------------------------ what is here

    def refresh(self) -> None:
        """Read what has been logged since, by this process or another."""
        file = self.folder / LOG
        try:
            with open_file(file) as stream:
                stream.seek(self._read)
                text = stream.read(MAX_LOG + 1)
        except OSError as error:
            raise LoadError(f"cannot read {file}: {error.strerror}") from None
        if self._read + len(text) > MAX_LOG:
            raise LoadError(
                f"{file} has more than {MAX_LOG >> 20} MiB; delete {self.folder} and fetch it again"
            )
        whole = text.rfind(b"\n") + 1
        self._read += whole
        for line in text[:whole].splitlines():
            with contextlib.suppress(ValueError):
                self._apply(parse_foreign(LOG_LINE, line))

    def missing(self, names: Iterable[str]) -> list[str]:
        """Of the tensors *names*, those that are not here."""
        return [name for name in names if name not in self.hashes]

    def bytes_here(self, names: Iterable[str]) -> int:
        """Bytes of the tensors *names* that are here, also of those that are not complete."""
        return sum(
            self._ranges(entry).count(entry.offset, entry.offset + entry.size)
            for entry in map(self.entries.__getitem__, names)
        )

    def has_some(self, file: str, begin: int, end: int) -> bool:
        """Whether any byte of *begin* to *end* (excluded) of the weight file *file* is here."""
        ranges = self._here.get(file)
        return ranges is not None and ranges.count(begin, end) > 0

    def gaps(self, names: Iterable[str]) -> dict[str, list[Range]]:
        """By file the ranges of the tensors *names* that are still to come, in order. Those that
        touch are one."""
        wanted: dict[str, ByteRanges] = {}
        for entry in map(self.entries.__getitem__, names):
            for begin, end in self._ranges(entry).gaps(entry.offset, entry.offset + entry.size):
                wanted.setdefault(entry.file.name, ByteRanges()).add(begin, end)
        return {name: wanted[name].all() for name in sorted(wanted)}

    def finished(self, names: Iterable[str]) -> list[str]:
        """Of the tensors *names*, those whose bytes are all here, and that are not kept yet."""
        found = map(self.entries.__getitem__, self.missing(names))
        return [e.name for e in found if self._ranges(e).covers(e.offset, e.offset + e.size)]

    def is_whole(self, file: str) -> bool:
        """Whether every byte of the weight file *file* is here."""
        ranges = self._here.get(file)
        return ranges is not None and ranges.covers(0, self.origin.files[file].size)

    def digest_of(self, name: str) -> str:
        """The SHA-256 of tensor *name* on disk, in hexadecimal. Raises `LoadError`, `OSError`."""
        return hash_tensor(self.entries[name], memoryview(bytearray(_BUFFER)))

    def digest_of_file(self, file: str) -> str:
        """The SHA-256 of the weight file *file* on disk, in hexadecimal. Raises `OSError`."""
        with (self.folder / file).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    # ------------------------------------------------------------ what comes

    def write(self, file: str, offset: int, data: bytes | memoryview) -> None:
        """Write *data* at *offset* of the weight file *file*. Raises `OSError`."""
        handle = os.open(self.folder / file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            view = memoryview(data)
            while view:
                count = os.pwrite(handle, view, offset)
                view, offset = view[count:], offset + count
        finally:
            os.close(handle)

    def sync(self, file: str) -> None:
        """Sync *file* to the disk, so that `wrote` may record what was written. Raises
        `OSError`."""
        handle = os.open(self.folder / file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def wrote(self, file: str, begin: int, end: int) -> None:
        """Record that the bytes *begin* to *end* (excluded) of *file* are here. Raises
        `OSError`."""
        self._log({"file": file, "begin": begin, "end": end})

    def keep(self, name: str, sha256: str) -> None:
        """Record that tensor *name* is here, with this hash. Raises `OSError`."""
        self._log({"tensor": name, "sha256": sha256})

    def keep_file(self, file: str) -> None:
        """Record that the weight file *file* has its source's hash. Raises `OSError`."""
        self._log({"verified": file})

    def drop(self, names: Iterable[str]) -> None:
        """Record that the tensors *names* are not here after all. Raises `OSError`."""
        for name in names:
            self._log({"dropped": name})

    def _log(self, value: dict[str, Any]) -> None:
        line = _line(value)
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self.folder / LOG, flags)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # torn by a full disk, say
                line = b"\n" + line
            if os.write(handle, line) != len(line):
                raise OSError(28, "No space left on device", str(self.folder / LOG))
        finally:
            os.close(handle)
        self.refresh()

    def _apply(self, value: object) -> None:
        match value:
            case {"tensor": str(name), "sha256": str(digest)} if name in self.entries:
                self.hashes[name] = digest
            case {"verified": str(file)}:
                self.verified.add(file)
            case {"dropped": str(name)} if name in self.entries:
                entry = self.entries[name]
                self.hashes.pop(name, None)
                self.verified.discard(entry.file.name)
                self._ranges(entry).remove(entry.offset, entry.offset + entry.size)
            case {"file": str(file), "begin": int(begin), "end": int(end)}:
                self._here.setdefault(file, ByteRanges()).add(begin, end)

    def _ranges(self, entry: TensorEntry) -> ByteRanges:
        return self._here.setdefault(entry.file.name, ByteRanges())

    # ------------------------------------------------------- faults and the lock

    @property
    def fault(self) -> WriteFault | None:
        """What keeps the rest from coming; None if nothing does."""
        try:
            value = read_json(self.folder / FAULT)
            return WriteFault(str(value["text"]), value["permanent"] is True)
        except (LoadError, OSError, KeyError):
            return None

    def set_fault(self, text: str, *, permanent: bool) -> None:
        """Let every reader know what keeps the rest from coming."""
        value = {"text": text[:_MAX_FAULT], "permanent": permanent}
        with contextlib.suppress(OSError):
            _write_fault(self.folder, _line(value))

    def clear_fault(self) -> None:
        """Let every reader know that nothing does."""
        clear_fault(self.folder)

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Within the block no other process fetches into this folder; False if one does."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self.folder / LOCK, flags, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self.refresh()
            yield True
        finally:
            os.close(handle)


@attrs.frozen
class HubOrigin:
    """Which model this is: its hub id, the *revision* that was asked for, its *commit*, and its
    files of weights by name. *pins* are those of `pins_of`, if the source gave them."""

    model: str
    revision: str
    commit: str
    files: dict[str, WeightFile]
    pins: tuple[int, ...] = ()


@attrs.frozen
class WeightFile:
    """A file of weights by its source. *sha256* is "" if that did not say."""

    size: int
    sha256: str


@attrs.frozen
class WriteFault:
    """What keeps tensors from coming. What is *permanent* is not tried again by itself."""

    text: str
    permanent: bool


class ByteRanges:
    """Byte ranges that neither overlap nor touch, in order."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Have the bytes *begin* to *end* (excluded) in the set."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: int, end: int) -> None:
        """Take the bytes *begin* to *end* (excluded) out of the set."""
        if begin >= end:
            return
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        kept: list[Range] = []
        if first < last:
            kept = [(self._begins[first], begin), (end, self._ends[last - 1])]
            kept = [(start, stop) for start, stop in kept if start < stop]
            self._begins[first:last] = [start for start, _ in kept]
            self._ends[first:last] = [stop for _, stop in kept]

    def gaps(self, begin: int, end: int) -> list[Range]:
        """The parts of *begin* to *end* (excluded) that are not in the set."""
        found: list[Range] = []
        for index in range(bisect_right(self._ends, begin), len(self._begins)):
            if self._begins[index] >= end:
                break
            if begin < self._begins[index]:
                found.append((begin, self._begins[index]))
            begin = self._ends[index]
        return [*found, (begin, end)] if begin < end else found

    def all(self) -> list[Range]:
        """Every range, in order."""
        return list(zip(self._begins, self._ends, strict=True))

    def covers(self, begin: int, end: int) -> bool:
        """Whether all of *begin* to *end* (excluded) is in the set."""
        return not self.gaps(begin, end)

    def count(self, begin: int, end: int) -> int:
        """Bytes of *begin* to *end* (excluded) that are in the set."""
        return end - begin - sum(stop - start for start, stop in self.gaps(begin, end))


def is_partial(folder: Path) -> bool:
    """Whether *folder* has a partial model. Reads nothing."""
    return (folder / ORIGIN).exists()


def check_whole(folder: Path) -> None:
    """Raise `NotHereError` if *folder* has a model of which a part is still to be fetched."""
    partial = PartialModel.open(folder)
    if partial is not None and (missing := partial.missing(partial.entries)):
        raise NotHereError(
            f"only a part of {partial.origin.model} is in {folder} ({missing[0]} is missing); "
            f"fetch the rest with `sealring pull {partial.origin.model}@{partial.origin.commit}`"
        )


def clear_fault(folder: Path) -> None:
    """Let every reader of the partial model in *folder* know that nothing keeps the rest from
    coming."""
    with contextlib.suppress(OSError):
        _write_fault(folder, b"")


def store() -> Path:
    """The folder of all models. It may not exist."""
    if named := os.environ.get(VARIABLE, ""):
        return Path(named).expanduser().absolute()
    home = os.environ.get("HOME", "") or "~"
    default = "Library/Caches" if sys.platform == "darwin" else ".cache"
    cache = os.environ.get("XDG_CACHE_HOME", "") or str(Path(home, default))
    return Path(cache, "sealring", "models").expanduser().absolute()


def split_id(model: str) -> tuple[str, str]:
    """The hub id and the revision of *model*, "owner/name" or "owner/name@revision". Without one
    it is "main".

    Raises `LoadError` if it is none.
    """
    name, at, revision = model.partition("@")
    parts = name.split("/")
    if len(parts) != 2 or not all(_PART.fullmatch(p) and ".." not in p for p in parts):
        raise LoadError(f"there is no folder {model}, and it is no hub id (owner/name)")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise LoadError(f"{revision!r} cannot be a revision of {name}")
    return name, revision if at else "main"


def folder_of(model: str, commit: str) -> Path:
    """Where the hub's *model* is kept, as it is at *commit*."""
    return _folder(model) / commit


def known_commit(model: str, revision: str) -> str | None:
    """The commit that *revision* of *model* was when this machine asked; None if it never did."""
    if _COMMIT.fullmatch(revision):
        return revision
    return _read_ref(_ref(model, revision))


def remember_commit(model: str, revision: str, commit: str) -> None:
    """Keep that *revision* of *model* is *commit*. Raises `OSError` if it cannot be kept."""
    if _read_ref(_ref(model, revision)) == commit:
        return  # the disk may be full
    write_whole(_ref(model, revision), commit.encode("ascii") + b"\n")


def stored_models() -> Iterator[tuple[str, Path]]:
    """Every model in the store: its hub id and folder, sorted."""
    for model in sorted(store().glob("*--*")):
        for folder in inside(model):
            if _COMMIT.fullmatch(folder.name) and folder.is_dir():
                yield model.name.replace("--", "/", 1), folder


def refs_of(folder: Path) -> list[str]:
    """The revisions whose commit is that of the stored model in *folder*."""
    refs = inside(folder.parent / _REFS)
    return [ref.name.replace("--", "/") for ref in refs if _read_ref(ref) == folder.name]


def inside(folder: Path) -> list[Path]:
    """What is in *folder*, sorted; nothing if it cannot be looked into."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def stored_name(folder: Path) -> str | None:
    """The hub id of the model in *folder*, if that is of the store."""
    if _COMMIT.fullmatch(folder.name) and folder.parents[1] == store().resolve():
        return folder.parent.name.replace("--", "/", 1)
    return None


def _read_ref(file: Path) -> str | None:
    try:
        with open_file(file) as stream:
            found = stream.read(64).decode("ascii").strip()
    except (LoadError, OSError, ValueError):
        return None
    return found if _COMMIT.fullmatch(found) else None


def _folder(model: str) -> Path:
    return store() / model.replace("/", "--")


def _ref(model: str, revision: str) -> Path:
    return _folder(model) / _REFS / revision.replace("/", "--")


def _write_new(file: Path, content: bytes, size: int) -> None:
    """Write *file*, which begins with *content* and has *size* bytes. It is on the disk then: the
    folder might else outlive a loss of power, and its files not."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.truncate(size)
        stream.flush()
        os.fsync(stream.fileno())


def _write_fault(folder: Path, text: bytes) -> None:
    """Write *text* in place: the disk may be full, and the file has its room already."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(folder / FAULT, flags, 0o644)
    try:
        os.pwrite(handle, text.ljust(_FAULT_ROOM), 0)
    finally:
        os.close(handle)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n"

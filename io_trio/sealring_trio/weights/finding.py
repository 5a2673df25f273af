"""Has other members say what a model is: its configuration, its tokenizer, its weights' headers.

This is enough to describe it and to say HELLO. The first member that gives all of it decides what
the model is, and the head is asked first. The copy is named by its content, so that nobody can pass
his files for those of a commit of the hub.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sealring_model.errors import LoadError
from sealring_model.loading import model_store
from sealring_model.loading.model_folder import describe
from sealring_model.loading.model_store import HubOrigin, PartialModel, WeightFile
from sealring_model.loading.weights import MANIFEST, MAX_HEADER
from sealring_protocol.codec.wire import clip

from sealring_trio.fetching.finding import MAX_HEADERS, in_hub_cache
from sealring_trio.fetching.hub import MAX_SMALL
from sealring_trio.fetching.shared_files import is_shared
from sealring_trio.weights.asking import (
    MAX_TOLD,
    AskFault,
    AskingLink,
    MemberListing,
    Members,
    listing_of,
    pieces,
)

log = logging.getLogger("sealring.fetch")

Pause = Callable[[float], None]
"""Waits for so many seconds, or raises what ends the waiting."""

PAUSE: Final = 5.0
"""Seconds between two rounds of questions."""

TELL_SECONDS: Final = 60.0
"""Seconds after which the same reason is logged again."""

_LENGTH: Final = 8


def find_with_members(model: str, members: Members, pause: Pause | None = time.sleep) -> Path:
    """The folder of *model*, "owner/name", which can be described; its weights may be to come.

    What is here already counts, unless the head has another model by now. Else the other members
    are asked, until one of them gives it, with a *pause* between two rounds; or once, without one.
    Raises `LoadError` if *model* is no such name, or nobody gives it.
    """
    name, revision = model_store.split_id(model)
    if cached := in_hub_cache(name, revision):
        return cached
    known = _known(name, revision)
    if known is not None:
        return _as_the_head_has_it(name, revision, known, members)
    told, told_at = "", 0.0
    while True:
        try:
            return ask_all(name, revision, members)
        except AskFault as fault:
            words = clip(str(fault), MAX_TOLD)
        if pause is None:
            raise LoadError(f"no member gives {model}: {words}")
        if words != told or time.monotonic() - told_at > TELL_SECONDS:
            told, told_at = words, time.monotonic()
            log.warning("waiting for a member that gives %s: %s", model, words)
        pause(PAUSE)


def known_folder(model: str) -> Path | None:
    """The folder of *model* on this machine, without asking anybody. Raises `LoadError`."""
    name, revision = model_store.split_id(model)
    if cached := in_hub_cache(name, revision):
        return cached
    known = _known(name, revision)
    return None if known is None else known.folder


def _known(name: str, revision: str) -> PartialModel | None:
    commit = model_store.known_commit(name, _ref(revision))
    return None if commit is None else PartialModel.open(model_store.folder_of(name, commit))


def _as_the_head_has_it(name: str, revision: str, known: PartialModel, members: Members) -> Path:
    """The folder of *known*, or of what the head has if that is something else. *known* counts too
    if the head is away, or is this node."""
    head = members.head()
    if head is None:
        return known.folder
    try:
        with members.link(head, lambda: None) as link:
            if _is_same(known, link):
                return known.folder
            log.info("%s has another %s by now", head.name, name)
            return _make(name, revision, link)
    except AskFault as fault:
        log.info("beginning with the %s that is here: %s", name, clip(str(fault), MAX_TOLD))
        return known.folder


def _is_same(known: PartialModel, link: AskingLink) -> bool:
    """Whether the member at the other end of *link* has the model *known*, as far as the sizes of
    its files, its configuration, its manifest and its pins tell."""
    listing = listing_of(link)
    here = {file.name: file for file in known.folder.iterdir() if is_shared(file.name)}
    if {name: file.stat().st_size for name, file in here.items()} != listing.files:
        return False
    pins = zip(known.origin.pins, listing.pins, strict=False)
    if any(one and two and one != two for one, two in pins):
        return False
    decisive = (file for name, file in here.items() if name in ("config.json", MANIFEST))
    return all(
        link.content(file.name, MAX_SMALL, listing.files[file.name]) == file.read_bytes()
        for file in decisive
    )


def ask_all(name: str, revision: str, members: Members) -> Path:
    """Ask each member in turn. Raises `AskFault` with what each of them said."""
    faults = []
    for member in members.others():
        try:
            with members.link(member, lambda: None) as link:
                log.info("asking %s what %s is", member.name, name)
                return _make(name, revision, link)
        except AskFault as fault:
            faults.append(str(fault))
    raise AskFault("; ".join(faults) or "the roster has no other member")


def _make(name: str, revision: str, link: AskingLink) -> Path:
    """The folder of the model that the member at the other end of *link* has."""
    listing = listing_of(link)
    if "config.json" not in listing.files or not listing.weights:
        raise AskFault(f"{link.name} has no model with config.json and model*.safetensors")
    if sum(listing.small.values()) > MAX_SMALL:
        raise AskFault(f"{link.name} tells more than {MAX_SMALL >> 20} MiB of configuration")
    small = {file: link.content(file, size, size) for file, size in listing.small.items()}
    headers: dict[str, bytes] = {}
    for file, size in listing.weights.items():
        headers[file] = _header(link, file, size, MAX_HEADERS - sum(map(len, headers.values())))
    commit = _content_name(small, headers, listing)
    files = {file: WeightFile(size, "") for file, size in listing.weights.items()}
    origin = HubOrigin(name, revision, commit, files, listing.pins)
    folder = model_store.folder_of(name, commit)
    try:
        PartialModel.create(folder, origin, small, headers)
        describe(folder)
        model_store.remember_commit(name, _ref(revision), commit)
    except LoadError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise AskFault(f"what {link.name} gave is no model: {error}") from None
    except OSError as error:
        raise AskFault(f"cannot write {folder}: {error.strerror}") from None
    log.info("%s is as %s has it", name, link.name)
    return folder


def _header(link: AskingLink, file: str, size: int, room: int) -> bytes:
    """The header of the weight file *file* of *size* bytes, with its length before it: at most
    *room* bytes."""
    start = _range(link, file, 0, min(_LENGTH, size))
    length = int.from_bytes(start, "little")
    if len(start) < _LENGTH or length > min(MAX_HEADER, size - _LENGTH):
        raise AskFault(f"{file} of {link.name} is no safetensors file")
    if _LENGTH + length > room:
        raise AskFault(f"{link.name} tells more than {MAX_HEADERS >> 20} MiB of headers")
    return start + _range(link, file, _LENGTH, _LENGTH + length)


def _range(link: AskingLink, file: str, begin: int, end: int) -> bytes:
    return b"".join(bytes(piece.data) for _, piece in link.read(pieces(file, begin, end)))


def _content_name(
    small: Mapping[str, bytes], headers: Mapping[str, bytes], listing: MemberListing
) -> str:
    """A name for these files, by what is in them, of the form of a commit."""
    whole = hashlib.sha256(b"sealring members' model 1\n")
    for name, content in sorted([*small.items(), *headers.items()]):
        size, digest = listing.files[name], hashlib.sha256(content).hexdigest()
        whole.update(f"{name} {size} {digest}\n".encode())
    whole.update(f"{listing.pins}".encode())  # other weights with the same headers
    return whole.hexdigest()[:40]


def _ref(revision: str) -> str:
    """What a members' copy of *revision* is remembered by: not as the hub's."""
    return f"members-{revision}"

"""Finds the model that a person named, with errors for people, and fetches it meanwhile."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Final

import trio
from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import ModelInfo, describe, find, read_adapter
from sealring_model.loading.model_store import PartialModel, known_commit, split_id, stored_name

from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.fetcher import FetchProgress, check_room, fetch
from sealring_trio.fetching.hub import REACH_IT, Hub, find_hub_model, in_hub_cache
from sealring_trio.fetching.source import FetchFault

TINY = "tiny"
_USUAL = "models"
"""The folder that people have models in, as our examples do. Nobody on the hub is called so."""
_HUB = "models--"  # how the hub's cache names a model's folder

PATIENCE: Final = 60.0
"""Seconds without a byte after which a command gives up."""

_LINE_SECONDS: Final = 10.0
"""Seconds between two lines where there is no terminal."""


def find_model(model: str, hub: Hub | None = None, *, draft: str = "") -> Path:
    """The folder of *model*: a path, ``tiny`` for the one that ships with sealring, or a hub id.

    It can be described. The weights of one from the *hub* may still be to come. Raises `UserError`
    when there is no such model; it says that it is the draft model that *draft* names, if it is.
    """
    if not model:
        raise UserError(
            "the model's name is empty",
            f"Give a folder with config.json and safetensors, a hub id, or '{TINY}'.",
        )
    if model == TINY and not Path(TINY).is_dir():
        # Imported late: commands with another model have no use for it.
        from sealring_model.tiny import path  # noqa: PLC0415

        return path()
    try:
        if not is_hub_id(model):
            return find(model)
        refuse_absent_folder(model)
        return find_hub_model(model, hub or Hub())
    except (LoadError, FetchFault) as error:
        what, instead, fault = "the model", "", str(error)
        if isinstance(error, FetchFault) and "@" not in model:
            fault = f"there is no folder {model} here, and as a hub id: {fault}"
        if draft:
            what = f"the draft model ({draft})"
            instead = (
                " A draft model is a small one with the same vocabulary, which guesses tokens."
                f" Or leave out {draft}."
            )
        if isinstance(error, FetchFault) and not error.permanent:
            raise UserError(
                f"cannot find {what}: {fault}", f"{REACH_IT}, or give a folder.{instead}"
            ) from None
        meant = f"Did you mean '{TINY}'? " if get_close_matches(model, [TINY]) else ""
        raise UserError(
            f"cannot find {what}: {fault}",
            f"{meant}Give a folder with config.json and safetensors, a hub id, or '{TINY}'."
            f"{instead}",
        ) from None


def find_whole_model(model: str, hub: Hub | None = None) -> Path:
    """The folder of *model*, as `find_model`, with all of its weights: what is missing is fetched,
    and standard error shows how far that is.

    Raises `UserError`, also when it cannot be fetched.
    """
    hub = hub or Hub()
    folder = find_model(model, hub)
    try:
        here = PartialModel.open(folder)
    except LoadError as error:
        raise UserError(f"cannot use the model: {error}", "Delete its folder.") from None
    if here is not None:
        fetch_now(here, list(here.entries), hub)
    return folder


def is_hub_id(model: str) -> bool:
    """Whether *model* has the form of a hub id, and is no file or folder here."""
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        return False
    try:
        return not Path(model).exists()
    except OSError:
        return False


def refuse_absent_folder(model: str) -> None:
    """Raise `LoadError` if *model*, which has the form of a hub id, seems to be a folder that is
    not there: the folder that it would be in is, or its name is what people call that one; and no
    such model of the hub's is known here."""
    parent = Path(model).parent
    if "@" in model or not (parent.is_dir() or parent.name == _USUAL):
        return
    name, revision = split_id(model)
    if known_commit(name, revision) is None and in_hub_cache(name, revision) is None:
        here = f", and {parent} is a folder here" if parent.is_dir() else ""
        raise LoadError(
            f"there is no folder {model}{here}; if you mean the hub's model of that name, say "
            f"{model}@main"
        )


def model_name(folder: Path) -> str:
    """What to call the model in *folder*: its hub id, ``tiny``, or the folder's own name."""
    from sealring_model.tiny import path  # noqa: PLC0415 - as above

    if folder == path():
        return TINY
    if stored := stored_name(folder):
        return stored
    if folder.parent.name == "snapshots" and folder.parents[1].name.startswith(_HUB):
        return folder.parents[1].name.removeprefix(_HUB).replace("--", "/")
    return folder.name


def describe_model(folder: Path, adapter: Path | None = None) -> ModelInfo:
    """What the model in *folder* is, with its *adapter*. Raises `UserError` when it is
    incomplete."""
    try:
        if adapter is not None:
            read_adapter(adapter)
    except LoadError as error:
        raise UserError(
            f"cannot use the adapter: {error}", "Give the folder that mlx_lm.lora wrote."
        ) from None
    try:
        return describe(folder, adapter)
    except LoadError as error:
        advice = f"{error.cure[:1].upper()}{error.cure[1:]}." if error.cure else "Fetch it again."
        if not any(folder.glob("model*.safetensors")):
            advice = "Fetch it again, in the form of config.json and model*.safetensors."
        raise UserError(f"cannot use the model in {folder}: {error.what}", advice) from None


def fetch_now(model: PartialModel, names: Sequence[str], hub: Hub) -> None:
    """Fetch the tensors *names* of *model*, and show on standard error how far it is.

    Raises `OperationError`.
    """
    if not model.missing(names):
        return
    try:
        print(f"sealring: {check_room(model, names)}", file=sys.stderr, flush=True)
        with _shown(model.origin.model) as report:
            trio.run(partial(fetch, model, names, hub, report, patience=PATIENCE))
    except FetchFault as fault:
        raise OperationError(
            f"fetching {model.origin.model} failed: {fault.text}",
            "What has come is kept; the same command goes on from there.",
        ) from None


@contextlib.contextmanager
def _shown(model: str) -> Iterator[Callable[[FetchProgress], None]]:
    """Shows progress: one line that changes on a terminal, now and then a line elsewhere."""
    terminal = sys.stderr.isatty()
    before, after, pause = ("\r", "\x1b[K", 0.1) if terminal else ("", "\n", _LINE_SECONDS)
    shown = -pause

    def show(progress: FetchProgress) -> None:
        nonlocal shown
        if time.monotonic() - shown >= pause:
            shown = time.monotonic()
            line = f"{before}sealring: fetching {model}: {progress.text}{after}"
            print(line, end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if terminal:
            print(f"{before}{after}", end="", file=sys.stderr, flush=True)

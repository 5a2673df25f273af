"""Finding the model that a person named, with errors for people. `structure` and `engine_info`
import MLX, the others do not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import ModelInfo, describe, find, read_adapter
from sealring_model.loading.model_store import PartialModel, known_commit, split_id, stored_name
from sealring_model.text.tokens import Tokenizer, check_tokenizer
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.diagnosis import ADVICE, Cause

from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.hub import REACH_IT, FetchFault

if TYPE_CHECKING:
    from sealring_model.loading.structure import Structure

    from sealring_trio.fetching.hub import Hub
    from sealring_trio.files.config import NodeFile

TINY = "tiny"
NO_TEMPLATE = "this model has no chat template: a prompt is continued as it stands"
_USUAL = "models"
"""The folder that people have models in, as our examples do. Nobody on the hub is called so."""
_HUB = "models--"  # how the hub's cache names a model's folder


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
        from sealring_trio.fetching.finding import find_hub_model  # noqa: PLC0415 - takes 0.2 s
        from sealring_trio.fetching.hub import Hub  # noqa: PLC0415

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
    from sealring_trio.fetching.finding import fetch_now  # noqa: PLC0415
    from sealring_trio.fetching.hub import Hub  # noqa: PLC0415 - as above

    hub = hub or Hub()
    folder = find_model(model, hub)
    try:
        partial = PartialModel.open(folder)
    except LoadError as error:
        raise UserError(f"cannot use the model: {error}", "Delete its folder.") from None
    if partial is not None:
        fetch_now(partial, list(partial.entries), hub)
    return folder


def find_for_command(config: NodeFile, model: str) -> Path:
    """The folder of *model* as the node of *config* finds it. The hub is asked only if that node
    may ask it. Raises `UserError`."""
    from sealring_trio.fetching.hub import Hub  # noqa: PLC0415 - as above

    if config.fetch == "hub" or not is_hub_id(model):
        return find_model(model, Hub(offline=config.offline))
    from sealring_trio.weights.finding import known_folder  # noqa: PLC0415

    try:
        if folder := known_folder(model):
            return folder
    except LoadError as error:
        raise UserError(f"cannot find the model: {error}", "Delete its folder.") from None
    raise UserError(
        f"{model} has not come from a member to this machine yet", "Start its node first."
    )


def find_whole_for_command(config: NodeFile) -> Path:
    """The folder of the model of *config*, as `find_for_command`, with all of its weights: what is
    missing is fetched from the hub, if it comes from there. Raises `UserError`."""
    from sealring_trio.fetching.hub import Hub  # noqa: PLC0415 - as above

    if config.fetch == "hub" or not is_hub_id(config.model):
        return find_whole_model(config.model, Hub(offline=config.offline))
    folder = find_for_command(config, config.model)
    try:
        partial = PartialModel.open(folder)
        missing = partial.missing(partial.entries) if partial is not None else []
    except LoadError as error:
        raise UserError(f"cannot use the model: {error}", "Delete its folder.") from None
    if missing:
        raise UserError(
            f"this needs all of {config.model}, and only the layers of its rank are here",
            "Ask on a machine that has the model whole.",
        )
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
    from sealring_trio.fetching.finding import in_hub_cache  # noqa: PLC0415 - as above

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


def structure(info: ModelInfo) -> Structure:
    """What the model *info* allows and takes. Takes a second or more, and no weights. Raises
    `OperationError` when the model cannot be built."""
    from sealring_model.loading.structure import structure_of  # noqa: PLC0415 - imports MLX

    with _unservable(info):
        return structure_of(info)


def engine_info(info: ModelInfo, found: Structure, room: int) -> EngineInfo:
    """What an engine with the model *info*, whose structure was *found*, and *room* bytes would say
    of it. Raises `OperationError` when its weights cannot be read."""
    from sealring_model.loading.structure import describe_engine  # noqa: PLC0415 - imports MLX

    with _unservable(info):
        return describe_engine(info, found, room)


@contextlib.contextmanager
def _unservable(info: ModelInfo) -> Iterator[None]:
    try:
        yield
    except LoadError as error:
        raise OperationError(
            f"the model in {info.folder} cannot be served: {error}",
            "Take another model, or a release of mlx-lm that has this one.",
        ) from None


def check_text(folder: Path) -> None:
    """Raise `UserError` if the model in *folder* has no tokenizer that can be used."""
    try:
        check_tokenizer(folder)
    except LoadError as error:
        raise UserError(
            str(error),
            "Take a conversion of the model that has a tokenizer.json, or copy that file there.",
        ) from None


def load_text(folder: Path) -> None:
    """As `check_text`, and load the tokenizer, as a head does. Takes a second or more."""
    check_text(folder)
    try:
        Tokenizer(folder)
    except LoadError as error:
        raise UserError(str(error), ADVICE[Cause.NO_TOKENIZER]) from None

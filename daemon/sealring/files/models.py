"""Models as commands need them: as the node of a config has them, built without weights, or as the
hub has them now. `structure` and `engine_info` import MLX, the others do not."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.model_store import PartialModel, known_commit, split_id
from sealring_model.text.tokens import Tokenizer, check_tokenizer
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.diagnosis import ADVICE, Cause
from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.hub import Hub, find_hub_model, in_hub_cache
from sealring_trio.fetching.source import fault_of, known_model, start_model
from sealring_trio.files.models import find_model, find_whole_model, is_hub_id

if TYPE_CHECKING:
    from sealring_model.loading.structure import Structure
    from sealring_trio.files.config import NodeFile

log = logging.getLogger("sealring.fetch")

NO_TEMPLATE = "this model has no chat template: a prompt is continued as it stands"


def newest_hub_model(model: str, hub: Hub) -> Path:
    """The folder of *model* as `find_hub_model` gives it, but the hub is asked what its revision is
    now, if it may be. Raises `FetchFault`."""
    try:
        name, revision = split_id(model)
    except LoadError as error:
        raise fault_of(error) from None
    known = known_commit(name, revision)
    if known is not None and known != revision and (by := hub.forbidden_by):
        log.warning("%s forbids to ask the hub what %s is now: taking what is here", by, model)
        return find_hub_model(model, hub)
    if revision == known:
        return find_hub_model(model, hub)
    return in_hub_cache(name, revision) or start_model(name, revision, hub).folder


def find_for_command(config: NodeFile, model: str) -> Path:
    """The folder of *model* as the node of *config* finds it. The hub is asked only if that node
    may ask it. Raises `UserError`."""
    if config.fetch == "hub" or not is_hub_id(model):
        return find_model(model, Hub(offline=config.offline))
    # Imported late: it brings links with it, and other commands ask no member.
    from sealring_trio.fetching.members import Members  # noqa: PLC0415

    try:
        name, revision = split_id(model)
        if folder := in_hub_cache(name, revision):
            return folder
        if known := known_model(name, revision, Members):
            return known.folder
    except LoadError as error:
        raise UserError(f"cannot find the model: {error}", "Delete its folder.") from None
    raise UserError(
        f"{model} has not come from a member to this machine yet", "Start its node first."
    )


def find_whole_for_command(config: NodeFile) -> Path:
    """The folder of the model of *config*, as `find_for_command`, with all of its weights: what is
    missing is fetched from the hub, if it comes from there. Raises `UserError`."""
    model = config.needed_model
    if config.fetch == "hub" or not is_hub_id(model):
        return find_whole_model(model, Hub(offline=config.offline))
    folder = find_for_command(config, model)
    try:
        partial = PartialModel.open(folder)
        missing = partial.missing(partial.entries) if partial is not None else []
    except LoadError as error:
        raise UserError(f"cannot use the model: {error}", "Delete its folder.") from None
    if missing:
        raise UserError(
            f"this needs all of {model}, and only the layers of its rank are here",
            "Ask on a machine that has the model whole.",
        )
    return folder


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

"""Finding the model that a person named, with errors for people. Only `engine_info` imports MLX."""

from __future__ import annotations

from pathlib import Path

from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import ModelInfo, describe, find
from sealring_model.text.tokens import check_tokenizer
from sealring_protocol.codec.local_messages import EngineInfo

from sealring_trio.errors import OperationError, UserError

TINY = "tiny"
_HUB = "models--"  # how the hub's cache names a model's folder


def find_model(model: str) -> Path:
    """The folder of *model*: a path, ``tiny`` for the one that ships with sealring, or a hub id.

    Raises `UserError` when there is no such model.
    """
    if model == TINY and not Path(TINY).is_dir():
        # Imported late: commands with another model have no use for it.
        from sealring_model.tiny import path  # noqa: PLC0415

        return path()
    try:
        return find(model)
    except LoadError as error:
        raise UserError(
            f"cannot find the model: {error}",
            f"Give a folder with config.json and safetensors, a hub id, or '{TINY}'.",
        ) from None


def model_name(folder: Path) -> str:
    """What to call the model in *folder*: its hub id, ``tiny``, or the folder's own name."""
    from sealring_model.tiny import path  # noqa: PLC0415 - as above

    if folder == path():
        return TINY
    if folder.parent.name == "snapshots" and folder.parents[1].name.startswith(_HUB):
        return folder.parents[1].name.removeprefix(_HUB).replace("--", "/")
    return folder.name


def describe_model(folder: Path) -> ModelInfo:
    """What the model in *folder* is. Raises `UserError` when it is incomplete."""
    try:
        return describe(folder)
    except LoadError as error:
        advice = "Fetch it again."
        if not any(folder.glob("model*.safetensors")):
            advice = "Fetch it again, in the form of config.json and model*.safetensors."
        raise UserError(f"cannot use the model in {folder}: {error}", advice) from None


def engine_info(info: ModelInfo, room: int) -> EngineInfo:
    """What an engine with the model *info* and *room* bytes would say of it. Takes a second or
    more, and no weights. Raises `OperationError` when the model cannot be built."""
    from sealring_model.engine.description import describe_engine  # noqa: PLC0415 - imports MLX

    try:
        return describe_engine(info, room)
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

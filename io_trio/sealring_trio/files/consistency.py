"""Keys of a config that are right alone and cannot go together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sealring_trio.errors import UserError

if TYPE_CHECKING:
    from sealring_trio.files.config import NodeFile


def check_collectives(path: Path, file: NodeFile) -> None:
    """Raise `UserError` where the split of the model and what carries its sums do not fit."""
    unsealable = file.backend in ("jaccl", "nccl")
    if unsealable and file.collectives != "trusted-link" and file.tp == 1:
        raise UserError(
            f"{path}: backend = '{file.backend}' cannot be sealed, and collectives = "
            f"'{file.collectives}'",
            "Use backend = 'ring', or say collectives = 'trusted-link' if the network between the "
            "ranks is yours alone.",
        )
    if file.backend == "jaccl" and file.tp > 1:
        raise UserError(
            f"{path}: backend = 'jaccl' is for several machines, and tp = {file.tp} for one",
            "Use backend = 'auto', 'ring' or 'nccl'.",
        )
    if file.strategy == "tp" and file.layers:
        raise UserError(
            f"{path}: layers = {file.layers} deals layers out, and strategy = 'tp' shares out all "
            "of them",
            "Leave 'layers' out, or use strategy = 'pp'.",
        )

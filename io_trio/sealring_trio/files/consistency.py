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


def check_guesses(path: Path, file: NodeFile) -> None:
    """Raise `UserError` where a draft model is to guess, and nothing is to be guessed."""
    if file.draft is not None and not file.guesses:
        raise UserError(
            f"{path}: draft = '{file.draft}' names a model that guesses tokens, and guesses = "
            "false has none guessed",
            "Leave out one of the two.",
        )


def tls_files(path: Path, file: NodeFile) -> tuple[Path, Path] | None:
    """The files of the API's certificate and of its key. Raises `UserError` for one alone."""
    if file.tls_certificate is not None and file.tls_key is not None:
        base = path.resolve().parent
        return base / file.tls_certificate, base / file.tls_key
    if (file.tls_certificate, file.tls_key) == (None, None):
        return None
    given, lacks = ("tls_key", "tls_certificate")
    if file.tls_key is None:
        given, lacks = lacks, given
    raise UserError(
        f"{path}: '{given}' is there, and '{lacks}' is not",
        "TLS needs both: a certificate, and its private key.",
    )

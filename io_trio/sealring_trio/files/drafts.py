"""Finding the draft model that a person named, and whether it can guess, before anything starts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import attrs

from sealring_trio.errors import UserError
from sealring_trio.fetching.hub import Hub
from sealring_trio.files.models import find_model, find_whole_model, model_name
from sealring_trio.processes.interpreter import child_environment, run_module, signal_name

_MODULE: Final = "sealring_model.draft.main"
_LAUNCHER: Final = "sealring_trio.processes.launcher"

_SECONDS: Final = 60.0
"""Seconds that it may take to build a draft model without its weights; it takes half a second."""

OPTION: Final = "--draft"
"""Where commands have a draft model named."""


@attrs.frozen
class DraftModel:
    """A draft model: its *folder*, what it is called, and the bytes of *memory* that it takes."""

    folder: Path
    name: str
    memory: int


def find_draft(draft: str, model: Path, named: str, hub: Hub | None = None) -> DraftModel:
    """The model *draft*, all of which is here then, which is to guess the tokens of the one in the
    folder *model*. *named* says where a person named it. Raises `UserError`, also when it cannot
    guess; if their vocabularies differ, no weights are fetched."""
    found = _measured(_found(draft, named, hub), model)
    find_whole_model(draft, hub)
    return found


def plan_draft(draft: str, model: Path) -> DraftModel:
    """As `find_draft`, without its weights."""
    return _measured(_found(draft, OPTION, None), model)


def _found(draft: str, named: str, hub: Hub | None) -> Path:
    if not draft:
        raise UserError(
            f"{named} names no draft model", "Give a folder or a hub id, or leave it out."
        )
    return find_model(draft, hub, draft=named)


def _measured(folder: Path, model: Path) -> DraftModel:
    """The draft model in *folder*. Raises `UserError` if it cannot be built, or its vocabulary is
    not that of the one in the folder *model*."""
    try:
        done = subprocess.run(
            [
                *run_module(_LAUNCHER, "--alone", _MODULE),
                *("--model", str(folder), "--for", str(model)),
            ],
            check=False,
            env=child_environment(),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _cannot_guess(
            folder, model, f"it could not be built within {_SECONDS:g} seconds"
        ) from None
    code, printed = done.returncode, done.stdout.split()
    if code or not printed:
        ended = f"{signal_name(-code)} killed" if code < 0 else f"code {code} ended"
        said = done.stderr.strip().splitlines() or [f"{ended} the process that built it"]
        raise _cannot_guess(folder, model, said[-1])
    return DraftModel(folder, model_name(folder), int(printed[-1]))


def _cannot_guess(folder: Path, model: Path, why: str) -> UserError:
    return UserError(
        f"{model_name(folder)} cannot guess the tokens of {model_name(model)}: {why}",
        "Take a draft model of the same family, or none.",
    )

"""What the options of a command say of guessed tokens."""

from __future__ import annotations

from pathlib import Path

from sealring_trio.errors import UserError
from sealring_trio.files.drafts import OPTION, find_draft

from sealring.local.ring import Setting


def guess_options(draft: str | None, model: Path, *, no_guesses: bool) -> dict[str, Setting]:
    """The keys of a head's config by which *draft*, if it is given, guesses for the model in the
    folder *model*, or nothing is guessed. Raises `UserError`."""
    if draft is None:
        return {"guesses": False} if no_guesses else {}
    if no_guesses:
        raise UserError(
            "--draft names a model that guesses tokens, and --no-guesses has none guessed",
            "Give one of the two.",
        )
    return {"draft": str(find_draft(draft, model, OPTION).folder)}

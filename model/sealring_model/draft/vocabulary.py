"""Whether two models have the same vocabulary, so that one can guess the tokens of the other.

A guess is a token id. It can be right only where the same id stands for the same text in both. The
widths of the output heads may differ: many models of one family pad them differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sealring_model.errors import LoadError
from sealring_model.loading.weights import read_json
from sealring_model.text.tokens import Tokenizer


def check_vocabulary(draft: Path, model: Path) -> None:
    """Raise `LoadError` with the reason if the models in the folders *draft* and *model* have not
    the same vocabulary, or one of them has none."""
    if _same_file(draft / "tokenizer.json", model / "tokenizer.json"):
        return
    guessed, drawn = token_ids(draft), token_ids(model)
    if len(guessed) != len(drawn):
        raise LoadError(
            f"it has {len(guessed)} tokens, and the model that it is to guess for has {len(drawn)}"
        )
    for text, number in drawn.items():
        other = guessed.get(text)
        if other != number:
            place = "is no token of it" if other is None else f"is its token {other}"
            raise LoadError(
                f"{text!r} {place}, and token {number} of the model that it guesses for"
            )


def token_ids(folder: Path) -> dict[str, int]:
    """The id of each token's text in the model in *folder*. Raises `LoadError`."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return Tokenizer(folder).ids()
    told = read_json(file)
    try:
        return _ids(told)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise LoadError(f"{file} has no vocabulary: {error!r}") from None


def _ids(told: Mapping[str, Any]) -> dict[str, int]:
    known = told["model"]["vocab"]
    if isinstance(known, list):  # of pairs with scores, in the order of their ids
        found = {str(entry[0]): number for number, entry in enumerate(known)}
    else:
        found = {str(text): int(number) for text, number in known.items()}
    added = {str(each["content"]): int(each["id"]) for each in told.get("added_tokens") or ()}
    return found | added


def _same_file(one: Path, other: Path) -> bool:
    """Whether the two files are there, and equal to the byte."""
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False

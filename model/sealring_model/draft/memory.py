"""What a draft model takes of the memory of a head, or why it cannot be built.

    python -m sealring_model.draft.memory FOLDER MODEL

prints the bytes, or says why there are none and ends with 1: also if the draft model in FOLDER has
not the vocabulary of the MODEL that it is to guess for. Nodes and commands ask this process, since
it builds the model and reads two vocabularies: a node imports no MLX, and nobody ends by what a
model's class does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sealring_model.errors import FORWARD_ERRORS, LoadError, error_text
from sealring_model.loading.kernel_cache import keep_kernels_private
from sealring_model.loading.model_folder import ModelInfo, describe, memory_budget
from sealring_model.loading.structure import structure_of
from sealring_model.loading.weights import read_json
from sealring_model.text.tokens import Tokenizer

# ---------------------------------------------------------------------- vocabulary
# Whether two models have the same vocabulary, so that one can guess the tokens of the other.
#
# A guess is a token id. It can be right only where the same id stands for the same text in both.
# The widths of the output heads may differ: many models of one family pad them differently.


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


MOST_TOKENS: Final = 16_384
"""Tokens of all rows that a draft model follows, at most. A row that would exceed them is followed
no more."""


def memory_of(info: ModelInfo) -> int:
    """Bytes of the draft model *info*: its weights, and the caches of as many tokens as it may
    follow, in one row. Raises `LoadError` if it cannot be built."""
    found = structure_of(info)
    layers = len(info.layers)
    return found.held(0, layers) + found.cache(0, layers, min(MOST_TOKENS, info.context))


def limit_beside(beside: int, limit: int) -> int:
    """What an engine may take beside a draft model of *beside* bytes, if there is one: of *limit*
    bytes, or of what the device has free if that is 0. 0 if nothing limits it."""
    return max(1, memory_budget(limit) - beside) if beside else limit


def main() -> int:
    """The command of the child process."""
    keep_kernels_private()
    try:
        folder = Path(sys.argv[1])
        info = describe(folder)  # first, for it looks which files are none
        check_vocabulary(folder, Path(sys.argv[2]))
        print(memory_of(info))
    except (OSError, *FORWARD_ERRORS) as error:
        print(error_text(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a draft model takes of the memory of a head, or why it cannot be built.

    python -m sealring_model.draft.memory FOLDER MODEL

prints the bytes, or says why there are none and ends with 1: also if the draft model in FOLDER has
not the vocabulary of the MODEL that it is to guess for. Nodes and commands ask this process, since
it builds the model and reads two vocabularies: a node imports no MLX, and nobody ends by what a
model's class does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from sealring_model.draft.vocabulary import check_vocabulary
from sealring_model.errors import FORWARD_ERRORS, error_text
from sealring_model.loading.kernel_cache import keep_kernels_private
from sealring_model.loading.model_folder import ModelInfo, describe, memory_budget
from sealring_model.loading.structure import structure_of

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

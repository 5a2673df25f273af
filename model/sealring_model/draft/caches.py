"""The caches of one row of a draft model, which can go back to a shorter row.

Caches that hold every token are trimmed. Others (recurrent states, windows) are kept as they were
before the guesses, and the row is read from there again. Both are mlx-lm's own. A copy of a
cache shares its arrays: MLX copies one when it is next written to.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import mlx.core as mx

from sealring_model.loading.mlx_lm_import import mlx_lm
from sealring_model.stage.caches import arrays
from sealring_model.stage.undo import FULL_CACHES


class DraftCaches:
    """Caches of *model* for one row."""

    def __init__(self, model: Any) -> None:
        self._model: Final = model
        self._now: list[Any] = self._fresh()
        self.length = 0
        """Tokens that they hold."""
        self._kept: tuple[int, list[Any]] | None = None  # at a length, if they cannot be cut

    def read(self, ids: list[int]) -> mx.array:
        """Read *ids*; the logits after the last of them."""
        logits: mx.array = self._model(mx.array([ids], mx.uint32), cache=self._now)
        self.length += len(ids)
        return logits[0, -1]

    def evaluate(self) -> None:
        """Compute the caches."""
        mx.eval(arrays(self._now))

    def keep(self) -> None:
        """What is read from now on may be taken back."""
        if self._full:
            self._kept = None
        else:
            self._kept = self.length, copy.deepcopy(self._now)

    def cut(self, length: int) -> None:
        """Go back to the first *length* tokens, or to fewer of them."""
        if length >= self.length:
            return
        if self._full and self._can_cut:
            for cache in self._now:
                cache.trim(self.length - length)
            self.length = length
        elif self._kept is not None and self._kept[0] <= length:
            self.length, self._now = self._kept[0], copy.deepcopy(self._kept[1])
        else:
            self.length, self._now, self._kept = 0, self._fresh(), None

    @property
    def _full(self) -> bool:
        """Whether they hold every token, and so can always be cut."""
        return all(type(cache).__name__ in FULL_CACHES for cache in self._now)

    @property
    def _can_cut(self) -> bool:
        return all(cache.is_trimmable() for cache in self._now)

    def _fresh(self) -> list[Any]:
        made: list[Any] = mlx_lm("models.cache").make_prompt_cache(self._model)
        return made

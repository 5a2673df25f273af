"""A whole model, run by mlx-lm alone, whose layers are watched.

mlx-lm loads the model, makes its caches and runs its own loop over its own layers. Each layer notes
those of its arguments and outputs that a hop of the ring would carry, and changes nothing. What is
split in a ring is in one piece here, so nothing stands in for anything.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from sealring_model.loading.mlx_lm_import import mlx_lm
from sealring_model.stage.outline import Carried, HopTensor, Outline, new_caches
from sealring_model.stage.stage import joined
from sealring_model.stage.trees import leaves
from sealring_model.stage.views import arguments_of, override_call, part_at
from sealring_model.verify.numbers import CheckedRow, RowNumbers, hop_numbers


class WatchedModel:
    """The model in *folder*, with an *adapter* if there is one, watched at the cuts between the
    layers in *bounds*. Raises what mlx-lm raises, and `LoadError` for a cut that cannot be."""

    def __init__(self, folder: Path, adapter: Path | None, bounds: Sequence[int]) -> None:
        self._model: Final[Any] = mlx_lm("utils").load_model(folder)[0]
        if adapter is not None:
            mlx_lm("tuner.utils").load_adapters(self._model, str(adapter))
            self._model.eval()
        self._noted: dict[Carried, mx.array] = {}
        self.hops: tuple[tuple[HopTensor, ...], ...] = ()
        """What passes each cut after the first; empty if there is one part alone."""
        if len(bounds) > 2:
            outline = Outline.of(self._model)
            self.hops = tuple(outline.hop(cut) for cut in bounds[1:])
            self._watch(part_at(self._model, outline.place))

    def _watch(self, layers: Sequence[nn.Module]) -> None:
        parts = {part for hop in self.hops for tensor in hop for part in tensor.parts}
        for number, layer in enumerate(layers):
            mine = [part for part in parts if part.layer == number]
            if mine:
                self._watch_layer(layer, mine)

    def _watch_layer(self, layer: nn.Module, parts: Sequence[Carried]) -> None:
        run = type(layer).__call__

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = arguments_of(args, kwargs)
            self._note(parts, arguments, is_argument=True)
            output = run(layer, *args, **kwargs)
            self._note(parts, dict(leaves(output)), is_argument=False)
            return output

        override_call(layer, call)

    def _note(
        self, parts: Sequence[Carried], found: Mapping[Any, Any], *, is_argument: bool
    ) -> None:
        for part in parts:
            if part.is_argument == is_argument:
                key = part.path[0] if is_argument else part.path
                # A copy, for the loop may assign to parts of an array.
                self._noted[part] = copy.copy(found[key])

    def run(self, ids: Sequence[int], caches: list[Any]) -> tuple[mx.array, list[list[mx.array]]]:
        """Logits ``(tokens, vocabulary)`` of the next *ids* of a row, and what passed each cut."""
        self._noted.clear()
        logits: mx.array = self._model(mx.array([ids], mx.uint32), cache=caches)[0]
        passed = [[joined(tensor, self._noted) for tensor in hop] for hop in self.hops]
        return logits, passed

    def numbers(self, row: CheckedRow, *, otherwise: bool = False) -> RowNumbers:
        """What *row* gives; read *otherwise*, see `CheckedRow.pieces`."""
        caches, found = new_caches(self._model), RowNumbers()
        cuts: list[list[mx.array]] = [[] for _ in self.hops]
        begin = 0
        for piece in row.pieces(otherwise=otherwise):
            logits, passed = self.run(piece, caches)
            told = [hop_numbers(*pair) for pair in zip(self.hops, passed, strict=True)]
            mx.eval([each for each in told if each is not None])
            for cut, each in zip(cuts, told, strict=True):
                if each is not None:
                    cut.append(each)
            for at in range(max(0, row.prompt - 1 - begin), len(piece)):
                found.draw(row, begin + at, logits[at])
            begin += len(piece)
        found.cuts = [mx.concatenate(cut, axis=1) if cut else None for cut in cuts]
        return found

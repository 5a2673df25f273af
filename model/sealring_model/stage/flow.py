"""What becomes of what layers give, and which of their arguments are made of token ids.

The model's loop runs over stand-ins for all its layers, which give constants. It runs once more
with other token ids, and once more with other constants. What a layer is given is either the very
array that another gave, or it differs between runs, or it is the same in all of them: masks,
positions. The weights of the layers are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from sealring_model.stage.trees import Path, leaves, replaced
from sealring_model.stage.views import (
    Place,
    called,
    embeddings,
    given,
    hollow,
    part_at,
    with_parts,
)


class _Constant(nn.Module):
    """In place of an embedding: gives *value* everywhere."""

    def __init__(self, like: Any, value: int) -> None:
        super().__init__()
        quantized = isinstance(like, nn.QuantizedEmbedding)
        self._lines: Final = like.weight.shape[0]
        self._width: Final = like.dims if quantized else like.weight.shape[1]
        self._dtype: Final = like.scales.dtype if quantized else like.weight.dtype
        self._value: Final = value
        self.weight = mx.zeros((self._lines, self._width), self._dtype)

    def __call__(self, ids: mx.array) -> mx.array:
        return mx.full((*ids.shape, self._width), self._value, self._dtype)

    def as_linear(self, hidden: mx.array) -> mx.array:
        """Zeros in the logits' shape."""
        return mx.zeros((*hidden.shape[:-1], self._lines), hidden.dtype)


class _Recorder:
    """In place of a layer: notes what it is given, and gives *gave*."""

    def __init__(self, gave: Any) -> None:
        self.gave: Final = gave
        self.given: dict[Path, mx.array] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.given = {
            path: array
            for key, value in given(args, kwargs)
            for path, array in leaves(value, (key,))
        }
        return self.gave


class Flow:
    """The flow of arrays between the layers at *place* of *model*, which give *gives* for two rows
    of three tokens. *caches* are fresh."""

    def __init__(
        self, model: nn.Module, place: Place, gives: Sequence[Any], caches: list[Any]
    ) -> None:
        self._model: Final = model
        self._place: Final = place
        self._gives: Final = gives
        self._caches: Final = caches
        base = self._run(ids=0)
        # By identity, which holds as long as *base* does.
        sources = {
            id(array): (layer, path)
            for layer, recorder in enumerate(base)
            for path, array in leaves(recorder.gave)
        }
        made = [
            {path: array for path, array in recorder.given.items() if id(array) not in sources}
            for recorder in base
        ]
        self.of_ids: Final = _differing(made, self._run(ids=1), equal_nan=False)
        """By layer, the arguments that are made of token ids."""
        everywhere = range(len(gives))
        self.of_layers: Final = _differing(made, self._run(varied=everywhere), equal_nan=True)
        """By layer, the arguments that are made of what layers gave, and are not that itself."""
        self.uses: Final = [
            [sources[id(array)] for array in recorder.given.values() if id(array) in sources]
            for recorder in base
        ]
        """By layer, what it takes of what others gave: their numbers, and the paths."""
        if any(self.of_layers):
            for source in everywhere:
                found = _differing(made, self._run(varied=(source,)), equal_nan=True)
                for layer, paths in enumerate(found):
                    if paths:
                        self.uses[layer] += [(source, path) for path, _ in leaves(gives[source])]

    def _run(self, ids: int = 0, varied: Sequence[int] = ()) -> list[_Recorder]:
        """One run over token ids *ids*, in which layers *varied* give ones, and others zeros."""
        recorders = [
            _Recorder(replaced(gave, dict(_constants(gave, int(layer in varied)))))
            for layer, gave in enumerate(self._gives)
        ]
        layers = part_at(self._model, self._place)
        parts: dict[Place, Any] = {
            place: _Constant(module, ids)
            for place, module in embeddings(self._model, self._place).items()
        }
        parts[self._place] = [
            called(hollow(layer), recorder)
            for layer, recorder in zip(layers, recorders, strict=True)
        ]
        loop: Any = with_parts(self._model, parts)
        loop(mx.full((2, 3), ids, mx.int32), cache=list(self._caches))
        return recorders


def _constants(tree: Any, value: int) -> Iterator[tuple[Path, mx.array]]:
    for path, array in leaves(tree):
        yield path, mx.full(array.shape, value, array.dtype)


def _differing(
    base: Sequence[Mapping[Path, mx.array]], run: Sequence[_Recorder], *, equal_nan: bool
) -> list[set[Path]]:
    """By layer, which of the arguments *base* differ in *run*. Parameters of another rank are no
    numbers; *equal_nan* says whether they equal themselves."""
    known: dict[int, bool] = {}
    found: list[set[Path]] = [set() for _ in base]
    for layer, arrays in enumerate(base):
        for path, array in arrays.items():
            if id(array) not in known:
                known[id(array)] = _differ(array, run[layer].given.get(path), equal_nan)
            if known[id(array)]:
                found[layer].add(path)
    return found


def _differ(one: mx.array, other: mx.array | None, equal_nan: bool) -> bool:
    if other is None or one.shape != other.shape:
        return True
    equal_nan = equal_nan and mx.issubdtype(one.dtype, mx.inexact)
    return not mx.array_equal(one, other, equal_nan=equal_nan).item()

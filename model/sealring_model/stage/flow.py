"""Where the outputs of layers go, and which arguments of layers are made of token ids.

The model's loop runs over stand-ins for all its layers, which return constants. It runs once more
with other token ids, and once more with other constants. An argument of a layer is either the very
array that another returned, or it differs between runs, or it is the same in all of them: masks,
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
    arguments_of,
    embeddings,
    hollow,
    override_call,
    part_at,
    with_parts,
)


class _Constant(nn.Module):
    """In place of an embedding: returns *value* everywhere."""

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
    """In place of a layer: notes the arrays in its arguments, and returns *output*."""

    def __init__(self, output: Any) -> None:
        self.output: Final = output
        self.arguments: dict[Path, mx.array] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.arguments = {
            path: array
            for key, value in arguments_of(args, kwargs).items()
            for path, array in leaves(value, (key,))
        }
        return self.output


class Flow:
    """The flow of arrays between the layers at *place* of *model*, which return *outputs* for two
    rows of three tokens. *caches* are fresh."""

    def __init__(
        self, model: nn.Module, place: Place, outputs: Sequence[Any], caches: list[Any]
    ) -> None:
        self._model: Final = model
        self._place: Final = place
        self._outputs: Final = outputs
        self._caches: Final = caches
        base = self._run(ids=0)
        # By identity, which holds as long as *base* does.
        sources = {
            id(array): (layer, path)
            for layer, recorder in enumerate(base)
            for path, array in leaves(recorder.output)
        }
        made = [
            {path: array for path, array in recorder.arguments.items() if id(array) not in sources}
            for recorder in base
        ]
        self.of_ids: Final = _differing(made, self._run(ids=1), equal_nan=False)
        """By layer, the arguments that are made of token ids."""
        everywhere = range(len(outputs))
        self.of_layers: Final = _differing(made, self._run(varied=everywhere), equal_nan=True)
        """By layer, the arguments that are made of outputs of layers, and are no outputs."""
        self.uses: Final = [
            [sources[id(array)] for array in recorder.arguments.values() if id(array) in sources]
            for recorder in base
        ]
        """By layer, the outputs of others that it takes: their numbers, and the paths."""
        if any(self.of_layers):
            for source in everywhere:
                found = _differing(made, self._run(varied=(source,)), equal_nan=True)
                for layer, paths in enumerate(found):
                    if paths:
                        self.uses[layer] += [(source, path) for path, _ in leaves(outputs[source])]

    def _run(self, ids: int = 0, varied: Sequence[int] = ()) -> list[_Recorder]:
        """One run over token ids *ids*, in which layers *varied* return ones, and others zeros."""
        recorders = [
            _Recorder(replaced(output, dict(_constants(output, int(layer in varied)))))
            for layer, output in enumerate(self._outputs)
        ]
        layers = part_at(self._model, self._place)
        parts: dict[Place, Any] = {
            place: _Constant(module, ids)
            for place, module in embeddings(self._model, self._place).items()
        }
        parts[self._place] = [
            override_call(hollow(layer), recorder)
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
                known[id(array)] = _differ(array, run[layer].arguments.get(path), equal_nan)
            if known[id(array)]:
                found[layer].add(path)
    return found


def _differ(one: mx.array, other: mx.array | None, equal_nan: bool) -> bool:
    if other is None or one.shape != other.shape:
        return True
    equal_nan = equal_nan and mx.issubdtype(one.dtype, mx.inexact)
    return not mx.array_equal(one, other, equal_nan=equal_nan).item()

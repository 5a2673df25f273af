"""A pipeline stage of any mlx-lm model: layers ``first`` to ``last`` of it, and nothing else.

A stage runs the model's own loop (see `outline`), in which it replaces the layers of other ranks:

- A layer of another rank becomes hollow, and a `_StandIn` is called in place of it. That gives
  arrays of the shapes that the layer gives. What came over the hop is among them.
- An owned layer that gives something which the next hop carries notes it. Whatever the loop does
  after the last owned layer is a graph that nobody evaluates.
- The list of caches keeps its full length, too (see `layout`).

Rank 0 closes the ring: it has the embedding, the norm and the output head. Its head is a second
view of the same model, in which every layer is a stand-in, and the last one gives what came back.
So whatever a family does after its layers (scaling, soft caps) is done, too.

Token ids are ``(rows, tokens)``, logits ``(rows, vocabulary)``. What a hop carries has the shapes
of `Outline.hop`; for most families it is one array of hidden states, ``(rows, tokens, hidden)``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from sealring_model.errors import LoadError
from sealring_model.stage.layout import Layout
from sealring_model.stage.outline import (
    Axis,
    Carried,
    HopTensor,
    Outline,
    Spec,
    new_caches,
)
from sealring_model.stage.trees import Path, leaves, replaced
from sealring_model.stage.views import called, hollow, part_at, with_parts


class _Values:
    """What hops carry, while a loop runs: what came, and what goes on."""

    def __init__(self) -> None:
        self.rows, self.tokens = 1, 1
        self.come: dict[Carried, mx.array] = {}
        self.gone: dict[Carried, mx.array] = {}

    @contextmanager
    def holding(
        self, rows: int, tokens: int, come: Mapping[Carried, mx.array]
    ) -> Iterator[dict[Carried, mx.array]]:
        """Within the block *come* is there to be taken; gives what goes on. Afterwards nothing
        keeps its memory."""
        self.rows, self.tokens = rows, tokens
        self.come, self.gone = dict(come), dict(come)
        try:
            yield self.gone
        finally:
            self.come, self.gone = {}, {}


def _first(*args: Any, **kwargs: Any) -> Any:
    """In place of a layer that gives one array, of which nothing is carried: what it is given."""
    return args[0] if args else next(iter(kwargs.values()))


class _StandIn:
    """In place of a layer of another rank, which gives a tree like *gave*, with arrays of *shapes*.

    *gives* of it come over a hop, *notes* of its arguments go over the next.
    """

    def __init__(
        self,
        gave: Any,
        shapes: Mapping[Path, Spec],
        gives: Sequence[Carried],
        notes: Sequence[Carried],
        values: _Values,
    ) -> None:
        self._gave: Final = gave
        self._shapes: Final = shapes
        self._gives: Final = tuple(gives)
        self._notes: Final = tuple(notes)
        self._values: Final = values

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = self._values
        for part in self._notes:
            key = part.path[0]
            values.gone[part] = args[key] if isinstance(key, int) else kwargs[key]
        arrays = {
            path: mx.zeros(spec.shape(values.rows, values.tokens), spec.dtype)
            for path, spec in self._shapes.items()
        }
        arrays.update({part.path: values.come[part] for part in self._gives})
        return replaced(self._gave, arrays)


def _owned(
    layer: nn.Module, takes: Sequence[Carried], notes: Sequence[Carried], values: _Values
) -> nn.Module:
    """*layer*, changed to take arguments *takes* from a hop, and to note what it gives that the
    next hop carries. Without any it stays as it is."""
    if not takes and not notes:
        return layer
    run = type(layer).__call__

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = list(args)
        for part in takes:
            key = part.path[0]
            if isinstance(key, int):
                arguments[key] = values.come[part]
            else:
                kwargs[key] = values.come[part]
        gave = run(layer, *arguments, **kwargs)
        arrays = dict(leaves(gave))
        for part in notes:
            # A copy, for the loop may assign to parts of an array.
            values.gone[part] = copy.copy(arrays[part.path])
        return gave

    return called(layer, call)


class Stage:
    """One rank's part of a model. It takes tensors *comes* from the hop before, none on rank 0, and
    gives *goes* for the hop after."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        comes: tuple[HopTensor, ...] = (),
        goes: tuple[HopTensor, ...] = (),
    ) -> None:
        self._model: Any = model
        self.layout: Final = layout
        self.comes: Final = comes
        self.goes: Final = goes
        self.returns: tuple[HopTensor, ...] = ()
        """On rank 0 of several: what the last rank gives, from which the logits are made."""

    @property
    def carries_one(self) -> bool:
        """Whether each of its hops carries one tensor."""
        return all(len(tensors) < 2 for tensors in (self.comes, self.goes, self.returns))

    def sample(self, rows: int, tokens: int) -> list[mx.array]:
        """Some inputs for `run`."""
        return sample(self.comes, rows, tokens) or [mx.zeros((rows, tokens), mx.uint32)]

    def new_caches(self) -> list[Any]:
        """Fresh caches for one row, one per slot of the layout."""
        full = new_caches(self._model)
        return [full[index] for index in self.layout.picked]

    def parameters(self) -> Any:
        """Every array that this stage holds, as a tree."""
        return self._model.parameters()

    def modules(self) -> list[nn.Module]:
        """Every module that this stage runs."""
        return self._model.modules()

    def run(self, inputs: Sequence[mx.array], slots: Sequence[Any]) -> tuple[mx.array, ...]:
        """Run the layers over *inputs*, ids or what the hop before carried, and write *slots*'
        caches."""
        raise NotImplementedError

    def logits(self, outputs: Sequence[mx.array]) -> mx.array:
        """Logits of the last token of every row, from the *outputs* of the last stage's `run`."""
        raise NotImplementedError


class WholeStage(Stage):
    """The whole model, unchanged. Its `run` takes token ids, and gives the logits of every
    token."""

    def __init__(self, model: nn.Module) -> None:
        prototypes = new_caches(model)
        super().__init__(model, Layout(prototypes, range(len(prototypes)), 0, len(prototypes)))

    def run(self, inputs: Sequence[mx.array], slots: Sequence[Any]) -> tuple[mx.array, ...]:
        """Logits ``(rows, tokens, vocabulary)`` of ids ``(rows, tokens)``."""
        return (self._model(inputs[0], cache=self.layout.spread(slots)),)

    def logits(self, outputs: Sequence[mx.array]) -> mx.array:
        """The last token's part of *outputs*."""
        return outputs[0][:, -1, :]


class PartStage(Stage):
    """Layers *first* to *last* (excluded) of a model with *outline*. On rank 0, where *first* is 0,
    also the embedding and, for the closing pass, the final norm and the output head."""

    def __init__(self, model: nn.Module, outline: Outline, first: int, last: int) -> None:
        comes, goes, count = outline.hop(first), outline.hop(last), len(outline.gives)
        self._owned_layers: Final = part_at(model, outline.place)[first:last]
        self._values: Final = _Values()
        self.filler = 0
        """What token ids and stand-ins for caches are made of, where nothing depends on them."""
        loop = self._view(model, outline, comes, goes, first, last)
        layout = Layout(new_caches(model), outline.caches, first, last)
        super().__init__(loop, layout, comes, goes)
        self._head: Any = None
        if first == 0:
            self.returns = outline.hop(count)
            self._head = self._view(model, outline, self.returns, (), count, count)

    def _view(
        self,
        model: nn.Module,
        outline: Outline,
        comes: tuple[HopTensor, ...],
        goes: tuple[HopTensor, ...],
        first: int,
        last: int,
    ) -> nn.Module:
        """*model* with stand-ins for all layers but those from *first* to *last* (excluded)."""
        come = [part for tensor in comes for part in tensor.parts]
        go = [part for tensor in goes for part in tensor.parts if part not in come]
        layers = []
        for number, layer in enumerate(part_at(model, outline.place)):
            taken = [part for part in come if part.layer == number]
            noted = [part for part in go if part.layer == number]
            if first <= number < last:
                takes = [part for part in taken if part.given]
                layers.append(_owned(layer, takes, noted, self._values))
            else:
                gives = [part for part in taken if not part.given]
                gave, shapes = outline.gives[number], outline.specs[number]
                passes = isinstance(gave, mx.array) and not gives and not noted
                stand_in = _StandIn(gave, shapes, gives, noted, self._values)
                layers.append(called(hollow(layer), _first if passes else stand_in))
        return with_parts(model, {outline.place: layers})

    def parameters(self) -> Any:
        """Every array that this stage holds, as a tree."""
        owned = [layer.parameters() for layer in self._owned_layers]
        return owned if self._head is None else [*owned, self._head.parameters()]

    def modules(self) -> list[nn.Module]:
        """Every module that this stage runs."""
        head = [] if self._head is None else self._head.modules()
        return [*self._model.modules(), *head]

    def run(self, inputs: Sequence[mx.array], slots: Sequence[Any]) -> tuple[mx.array, ...]:
        """What the hop after carries, of ids ``(rows, tokens)`` or of what the hop before
        carried."""
        if self.comes:
            rows, tokens = _sizes(self.comes, inputs)
            ids = mx.full((rows, tokens), self.filler, mx.int32)
        else:
            (ids,) = inputs
            rows, tokens = ids.shape
        come = _parted(self.comes, inputs) if self.comes else {}
        with self._values.holding(rows, tokens, come) as gone:
            self._model(ids, cache=self.layout.spread(slots))
            outputs = tuple(_joined(tensor, gone) for tensor in self.goes)
        self.layout.advance(slots, rows, tokens, self.filler)
        return outputs

    def logits(self, outputs: Sequence[mx.array]) -> mx.array:
        """Logits of the last token of every row, from what the last rank gave."""
        if self._head is None:
            raise LoadError("this rank has no output head")
        rows, _ = _sizes(self.returns, outputs)
        last = [
            _last_token(tensor, array) for tensor, array in zip(self.returns, outputs, strict=True)
        ]
        with self._values.holding(rows, 1, _parted(self.returns, last)):
            logits: mx.array = self._head(mx.full((rows, 1), self.filler, mx.int32))[:, -1, :]
            return logits


def sample(tensors: Sequence[HopTensor], rows: int, tokens: int) -> list[mx.array]:
    """*tensors* of some values, none of them special."""
    shapes = [tensor.spec.shape(rows, tokens) for tensor in tensors]
    return [
        mx.sin(mx.arange(1, prod(shape) + 1)).reshape(shape).astype(tensor.spec.dtype)
        for tensor, shape in zip(tensors, shapes, strict=True)
    ]


def _parted(tensors: Sequence[HopTensor], arrays: Sequence[mx.array]) -> dict[Carried, mx.array]:
    """What *arrays*, which are *tensors*, have carried."""
    come: dict[Carried, mx.array] = {}
    for tensor, array in zip(tensors, arrays, strict=True):
        if len(tensor.parts) == 1:
            come[tensor.parts[0]] = array
        else:
            come.update({part: array[at] for at, part in enumerate(tensor.parts)})
    return come


def _joined(tensor: HopTensor, gone: Mapping[Carried, mx.array]) -> mx.array:
    """*tensor*, of what is *gone*."""
    if len(tensor.parts) == 1:
        return gone[tensor.parts[0]]
    return mx.stack([gone[part] for part in tensor.parts])


def _sizes(tensors: Sequence[HopTensor], arrays: Sequence[mx.array]) -> tuple[int, int]:
    """Rows and tokens of *arrays*, which are *tensors*."""
    sizes = {Axis.ROWS: 1, Axis.TOKENS: 1}
    for tensor, array in zip(tensors, arrays, strict=True):
        for dim, size in zip(tensor.spec.dims, array.shape, strict=True):
            if isinstance(dim, Axis):
                sizes[dim] = size
    return sizes[Axis.ROWS], sizes[Axis.TOKENS]


def _last_token(tensor: HopTensor, array: mx.array) -> mx.array:
    dims = tensor.spec.dims
    if Axis.TOKENS not in dims:
        return array
    axis = dims.index(Axis.TOKENS)
    return array[(*(slice(None) for _ in range(axis)), slice(-1, None))]

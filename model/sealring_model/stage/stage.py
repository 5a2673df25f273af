"""A pipeline stage of any mlx-lm model: layers ``first`` to ``last`` of it, and nothing else.

A stage runs the model's own loop (see `outline`), in which it replaces the layers of other ranks:

- A layer of another rank becomes hollow, and a `_StandIn` is called in place of it. That returns
  arrays of the shapes of the layer's output. What was received from the hop is among them.
- An owned layer that returns something which the next hop carries notes it. Whatever the loop does
  after the last owned layer is a graph that nobody evaluates.
- The list of caches keeps its full length, too (see `Layout`).

Rank 0 closes the ring: it has the embedding, the norm and the output head. Its head is a second
view of the same model, in which every layer is a stand-in. The last returns what came back.
So whatever a family does after its layers (scaling, soft caps) is done, too.

Token ids are ``(rows, tokens)``, logits ``(rows, vocabulary)``. What a hop carries has the shapes
of `Outline.hop`; for most families it is one array of hidden states, ``(rows, tokens, hidden)``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Final

import attrs
import mlx.core as mx
from mlx import nn

from sealring_model.errors import LoadError
from sealring_model.stage.outline import (
    Axis,
    Carried,
    HopTensor,
    Outline,
    Path,
    Spec,
    arguments_of,
    hollow,
    leaves,
    new_caches,
    override_call,
    part_at,
    replaced,
    with_parts,
)


class Stage:
    """One rank's part of a model. It takes tensors *hop_in* from the hop before, none on rank 0,
    and returns *hop_out* for the hop after."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        hop_in: tuple[HopTensor, ...] = (),
        hop_out: tuple[HopTensor, ...] = (),
    ) -> None:
        self._model: Any = model
        self.layout: Final = layout
        self.hop_in: Final = hop_in
        self.hop_out: Final = hop_out
        self.hop_back: tuple[HopTensor, ...] = ()
        """On rank 0 of several: what the last rank returns, from which the logits are made."""

    @property
    def carries_one(self) -> bool:
        """Whether each of its hops carries one tensor."""
        return all(len(tensors) < 2 for tensors in (self.hop_in, self.hop_out, self.hop_back))

    def dummy_inputs(self, rows: int, tokens: int) -> list[mx.array]:
        """Inputs for `run` that mean nothing."""
        return dummy_inputs(self.hop_in, rows, tokens) or [mx.zeros((rows, tokens), mx.uint32)]

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

    def returned(self, outputs: Sequence[mx.array], tokens: slice) -> list[mx.array]:
        """Those *tokens* of the *outputs* that the last rank returned."""
        pairs = zip(self.hop_back, outputs, strict=True)
        return [some_tokens(tensor, array, tokens) for tensor, array in pairs]

    def logits(self, outputs: Sequence[mx.array], tokens: int = 1) -> mx.array:
        """Logits of the last token of every row, or of the last *tokens* of the only row, from the
        *outputs* of the last stage's `run`."""
        raise NotImplementedError


class WholeStage(Stage):
    """The whole model, unchanged. Its `run` takes token ids, and returns the logits of every
    token."""

    def __init__(self, model: nn.Module) -> None:
        prototypes = new_caches(model)
        super().__init__(model, Layout(prototypes, range(len(prototypes)), 0, len(prototypes)))

    def run(self, inputs: Sequence[mx.array], slots: Sequence[Any]) -> tuple[mx.array, ...]:
        """Logits ``(rows, tokens, vocabulary)`` of ids ``(rows, tokens)``."""
        return (self._model(inputs[0], cache=self.layout.spread(slots)),)

    def logits(self, outputs: Sequence[mx.array], tokens: int = 1) -> mx.array:
        """The last tokens' part of *outputs*."""
        return _by_token(outputs[0], tokens)


class PartStage(Stage):
    """Layers *first* to *last* (excluded) of a model with *outline*. On rank 0, where *first* is 0,
    also the embedding and, for the closing pass, the final norm and the output head."""

    def __init__(self, model: nn.Module, outline: Outline, first: int, last: int) -> None:
        hop_in, hop_out, count = outline.hop(first), outline.hop(last), len(outline.outputs)
        self._owned_layers: Final = part_at(model, outline.place)[first:last]
        self._values: Final = _Values()
        self.filler = 0
        """What token ids and stand-ins for caches are made of, where nothing depends on them."""
        loop = self._view(model, outline, hop_in, hop_out, first, last)
        layout = Layout(new_caches(model), outline.caches, first, last)
        super().__init__(loop, layout, hop_in, hop_out)
        self._head: Any = None
        if first == 0:
            self.hop_back = outline.hop(count)
            self._head = self._view(model, outline, self.hop_back, (), count, count)

    def _view(
        self,
        model: nn.Module,
        outline: Outline,
        hop_in: tuple[HopTensor, ...],
        hop_out: tuple[HopTensor, ...],
        first: int,
        last: int,
    ) -> nn.Module:
        """*model* with stand-ins for all layers but those from *first* to *last* (excluded)."""
        received = [part for tensor in hop_in for part in tensor.parts]
        sent = [part for tensor in hop_out for part in tensor.parts if part not in received]
        layers = []
        for number, layer in enumerate(part_at(model, outline.place)):
            taken = [part for part in received if part.layer == number]
            noted = [part for part in sent if part.layer == number]
            if first <= number < last:
                arguments = [part for part in taken if part.is_argument]
                layers.append(_owned(layer, arguments, noted, self._values))
            else:
                outputs = [part for part in taken if not part.is_argument]
                output, shapes = outline.outputs[number], outline.specs[number]
                passes = isinstance(output, mx.array) and not outputs and not noted
                stand_in = _StandIn(output, shapes, outputs, noted, self._values)
                layers.append(override_call(hollow(layer), _identity if passes else stand_in))
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
        received: Mapping[Carried, mx.array] = {}
        if self.hop_in:
            rows, tokens = _sizes(self.hop_in, inputs)
            ids = mx.full((rows, tokens), self.filler, mx.int32)
            received = _parted(self.hop_in, inputs)
        else:
            (ids,) = inputs
            rows, tokens = ids.shape
        with self._values.holding(rows, tokens, received) as sent:
            self._model(ids, cache=self.layout.spread(slots))
            outputs = tuple([joined(tensor, sent) for tensor in self.hop_out])
        self.layout.advance(slots, rows, tokens, self.filler)
        return outputs

    def logits(self, outputs: Sequence[mx.array], tokens: int = 1) -> mx.array:
        """Logits of the last token of every row, or of the last *tokens* of the only row, from what
        the last rank returned."""
        if self._head is None:
            raise LoadError("this rank has no output head")
        rows, _ = _sizes(self.hop_back, outputs)
        last = self.returned(outputs, slice(-tokens, None))
        with self._values.holding(rows, tokens, _parted(self.hop_back, last)):
            logits = self._head(mx.full((rows, tokens), self.filler, mx.int32))
            return _by_token(logits, tokens)


def dummy_inputs(tensors: Sequence[HopTensor], rows: int, tokens: int) -> list[mx.array]:
    """*tensors* of values that are not special: neither zeros nor equal to each other."""
    shapes = [tensor.spec.shape(rows, tokens) for tensor in tensors]
    return [
        mx.sin(mx.arange(1, prod(shape) + 1)).reshape(shape).astype(tensor.spec.dtype)
        for tensor, shape in zip(tensors, shapes, strict=True)
    ]


def joined(tensor: HopTensor, sent: Mapping[Carried, mx.array]) -> mx.array:
    """*tensor*, made of what is *sent*."""
    if len(tensor.parts) == 1:
        array = sent[tensor.parts[0]]
    else:
        array = mx.stack([sent[part] for part in tensor.parts])
    return array if tensor.within is None else array.astype(tensor.spec.dtype)


def some_tokens(tensor: HopTensor, array: mx.array, tokens: slice) -> mx.array:
    """Those *tokens* of *array*, which is *tensor*."""
    dims = tensor.spec.dims
    if Axis.TOKENS not in dims:
        return array
    axis = dims.index(Axis.TOKENS)
    return array[(*(slice(None) for _ in range(axis)), tokens)]


class Layout:
    """Where the caches of the stage of layers *first* to *last* (excluded) stand in the full-length
    list that the model takes.

    A stage keeps one cache per *slot*. First come the caches that its layers write, in order; on
    rank 0 also those that the loop itself writes. Then come stand-ins for what other ranks have,
    whose masks and offsets the loop reads: a cache of an owned layer serves if it is of the same
    kind, and where there is none, an empty one does that `advance` keeps as long as the others.

    *owners* has for each cache the layer that writes it, None if that is no layer.
    """

    def __init__(
        self, prototypes: Sequence[Any], owners: Sequence[int | None], first: int, last: int
    ) -> None:
        owned = [
            index
            for index, owner in enumerate(owners)
            if (first == 0 if owner is None else first <= owner < last)
        ]
        places = {index: slot for slot, index in enumerate(owned)}
        by_kind: dict[tuple[Any, ...], int] = {}
        for slot, index in enumerate(owned):
            if owners[index] is not None:
                by_kind.setdefault(_kind(prototypes[index]), slot)
        picked = list(owned)
        for index, owner in enumerate(owners):
            if index not in places:
                # What the loop itself writes to is no other's.
                slot = len(picked)
                if owner is not None:
                    slot = by_kind.setdefault(_kind(prototypes[index]), slot)
                if slot == len(picked):
                    picked.append(index)
                places[index] = slot
        self.picked: Final = tuple(picked)
        self.owned: Final = len(owned)
        self._places: Final = tuple(places[index] for index in range(len(prototypes)))

    def spread(self, slots: Sequence[Any]) -> list[Any]:
        """The full-length list, with each of *slots* in all its places."""
        return [slots[place] for place in self._places]

    def advance(self, slots: Sequence[Any], rows: int, tokens: int, value: int = 0) -> None:
        """Lengthen the stand-ins among *slots* by *tokens* tokens of each of *rows* rows. A token
        takes two numbers, each *value*."""
        for cache in flat(slots[self.owned :]):
            if hasattr(cache, "update_and_fetch"):
                nothing = mx.full((rows, 1, tokens, 1), value, mx.float32)
                cache.update_and_fetch(nothing, nothing)


def flat(slots: Iterable[Any]) -> Iterator[Any]:
    """Each cache of *slots*; a list of caches counts as its members."""
    for cache in slots:
        if hasattr(cache, "caches"):
            yield from flat(cache.caches)
        else:
            yield cache


def _kind(cache: Any) -> tuple[Any, ...]:
    """Two caches of the same kind (class and window) give the same mask."""
    parts = tuple(_kind(part) for part in getattr(cache, "caches", ()))
    return type(cache), getattr(cache, "max_size", None), getattr(cache, "chunk_size", None), parts


class _Values:
    """What hops carry, while a loop runs: *received* from the one before, *sent* on the next."""

    def __init__(self) -> None:
        self.rows, self.tokens = 1, 1
        self.received: dict[Carried, mx.array] = {}
        self.sent: dict[Carried, mx.array] = {}

    @contextmanager
    def holding(
        self, rows: int, tokens: int, received: Mapping[Carried, mx.array]
    ) -> Iterator[dict[Carried, mx.array]]:
        """Within the block layers find what was *received*; yields what is sent. Afterwards nothing
        keeps its memory."""
        self.rows, self.tokens = rows, tokens
        self.received, self.sent = dict(received), dict(received)
        try:
            yield self.sent
        finally:
            self.received, self.sent = {}, {}


def _identity(*args: Any, **kwargs: Any) -> Any:
    """In place of a layer that returns one array, of which nothing is carried: its argument."""
    return args[0] if args else next(iter(kwargs.values()))


@attrs.frozen(eq=False)
class _StandIn:
    """In place of a layer of another rank: returns a tree like *output*, with arrays of *shapes*.

    Arrays *taken* of it were received from the hop before; arguments *noted* are sent on the next.
    """

    _output: Any
    _shapes: Mapping[Path, Spec]
    _taken: Sequence[Carried]
    _noted: Sequence[Carried]
    _values: _Values

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = self._values
        if self._noted:
            arguments = arguments_of(args, kwargs)
            values.sent.update({part: arguments[part.path[0]] for part in self._noted})
        arrays = {
            path: mx.zeros(spec.shape(values.rows, values.tokens), spec.dtype)
            for path, spec in self._shapes.items()
        }
        arrays.update({part.path: values.received[part] for part in self._taken})
        return replaced(self._output, arrays)


def _owned(
    layer: nn.Module, taken: Sequence[Carried], noted: Sequence[Carried], values: _Values
) -> nn.Module:
    """*layer*, changed so that arguments *taken* are those received from the hop before, and arrays
    *noted* of its output are sent on the next. Without any it stays as it is."""
    if not taken and not noted:
        return layer
    run = type(layer).__call__

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_of(args, kwargs)
        arguments.update({part.path[0]: values.received[part] for part in taken})
        positional = [arguments.pop(number) for number in range(len(args))]
        output = run(layer, *positional, **arguments)
        arrays = dict(leaves(output))
        # A copy, for the loop may assign to parts of an array.
        values.sent.update({part: copy.copy(arrays[part.path]) for part in noted})
        return output

    return override_call(layer, call)


def _parted(tensors: Sequence[HopTensor], arrays: Sequence[mx.array]) -> dict[Carried, mx.array]:
    parts: dict[Carried, mx.array] = {}
    for tensor, carried in zip(tensors, arrays, strict=True):
        array = carried if tensor.within is None else carried.astype(tensor.within)
        if len(tensor.parts) == 1:
            parts[tensor.parts[0]] = array
        else:
            parts.update({part: array[at] for at, part in enumerate(tensor.parts)})
    return parts


def _sizes(tensors: Sequence[HopTensor], arrays: Sequence[mx.array]) -> tuple[int, int]:
    sizes = {Axis.ROWS: 1, Axis.TOKENS: 1}
    for tensor, array in zip(tensors, arrays, strict=True):
        for dim, size in zip(tensor.spec.dims, array.shape, strict=True):
            if isinstance(dim, Axis):
                sizes[dim] = size
    return sizes[Axis.ROWS], sizes[Axis.TOKENS]


def _by_token(logits: mx.array, tokens: int) -> mx.array:
    """*logits* ``(rows, tokens, vocabulary)`` of the last token of every row, or of the last
    *tokens* of the only row."""
    return logits[:, -1, :] if tokens == 1 else logits[0, -tokens:, :]

"""How a model runs its layers, found by running its own loop without computing anything.

mlx-lm's models know nothing of stages. Each has a loop of its own that makes masks, runs the layers
one after the other, and hands on their outputs. `Outline.of` runs that loop over the real layers,
which builds graphs and evaluates none, and notes each layer's arguments and output. `Flow` then
runs it over stand-ins. From that follows where the model may be cut, and what a hop carries at each
cut:

- outputs of layers before the cut that a layer after it takes: the hidden states, a second stream,
  keys and values that the next layer uses again;
- arguments of layers after the cut that are made of the token ids, which only rank 0 has:
  embeddings for each layer.

A hop carries only arrays whose size depends on rows and tokens alone. Layers that share what grows
with the text (a cache, the keys and values of all tokens) must be on one rank.

The model itself stays as it is: `with_parts` gives second views of it, with some of its parts
replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, TypeAlias

import attrs
import mlx.core as mx
from mlx import nn
from sealring_protocol.limits import MAX_TENSORS

from sealring_model.errors import FORWARD_ERRORS, LoadError
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.stage.device import MLX_DTYPES

_CARRIED: Final = frozenset(MLX_DTYPES.values())
"""The dtypes that messages have."""

Path: TypeAlias = tuple[int | str, ...]
"""Leads to one array of a tree: of arrays within tuples, lists and objects, as layers give them to
each other. An index for a tuple or a list, a key for a dictionary, a name for an attribute. A tree
that is one array has the path ``()``."""

Place: TypeAlias = tuple[str, ...]
"""The names that lead from a model to a part of it."""


@attrs.frozen(eq=False)
class Outline:
    """Where a model's layers are, and what passes between them.

    *place* leads to their list. *outputs* has what each layer returns, with zeros in its arrays,
    and *specs* what of that a hop could carry. *caches* has for each of the model's caches the
    layer that writes it; None if that is no layer. *reasons* says why the model cannot be cut
    before a layer, for those before which it cannot.
    """

    place: Place
    outputs: tuple[Any, ...]
    specs: tuple[Mapping[Path, Spec], ...]
    caches: tuple[int | None, ...]
    reasons: Mapping[int, str]
    _hops: tuple[tuple[HopTensor, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Outline:
        """The outline of *model*. Raises `LoadError` if its layers cannot be found."""
        try:
            return _outline_of(model)
        except LoadError:
            raise
        except FORWARD_ERRORS as error:
            raise LoadError(
                f"{module_of(model)} cannot be split: without its other layers it stops with "
                f"{type(error).__name__}: {error}"
            ) from error

    def narrowed(self) -> Outline:
        """This outline, with hops that carry in BF16 what is in F32: half as many bytes, and
        rounded."""
        hops = tuple(tuple(tensor.narrowed() for tensor in tensors) for tensors in self._hops)
        return attrs.evolve(self, hops=hops)

    def hop(self, cut: int) -> tuple[HopTensor, ...]:
        """What passes from layer *cut* - 1 to layer *cut*. Raises `LoadError` if the model cannot
        be cut there."""
        if cut in self.reasons:
            raise LoadError(f"the model cannot be cut before layer {cut}: {self.reasons[cut]}")
        return self._hops[cut]


@attrs.frozen
class HopTensor:
    """One tensor of a hop, like *spec*. It is the only one of *parts*, or has them one after the
    other in a dimension of its own, the first."""

    parts: tuple[Carried, ...]
    spec: Spec
    within: mx.Dtype | None = None
    """The dtype that its arrays have in the model, where a hop carries them in another."""

    def narrowed(self) -> HopTensor:
        """This tensor in BF16, if it is in F32."""
        if self.spec.dtype != mx.float32:
            return self
        spec = attrs.evolve(self.spec, dtype=mx.bfloat16)
        return attrs.evolve(self, spec=spec, within=mx.float32)


@attrs.frozen
class Carried:
    """An array that a hop carries: the one at *path* of the output of *layer* or, if
    *is_argument*, of its arguments."""

    layer: int
    path: Path
    is_argument: bool


@attrs.frozen
class Spec:
    """Dimensions and dtype of an array whose size depends on rows and tokens alone."""

    dims: tuple[int | Axis, ...]
    dtype: mx.Dtype

    def shape(self, rows: int, tokens: int) -> tuple[int, ...]:
        """Its shape for *tokens* tokens of each of *rows* rows."""
        sizes: dict[Any, Any] = {Axis.ROWS: rows, Axis.TOKENS: tokens}
        return tuple(map(sizes.get, self.dims, self.dims))


class Axis(Enum):
    """A dimension whose size differs from step to step."""

    ROWS = "rows"
    TOKENS = "tokens"


def new_caches(model: nn.Module) -> list[Any]:
    """Fresh caches for one row of the whole model."""
    return list(mlx_lm("models.cache").make_prompt_cache(model))


def can_batch(model: nn.Module) -> bool:
    """Whether rows of different lengths can be decoded together: their caches can be merged, and
    the model takes merged ones. Evaluates nothing."""
    rows = [new_caches(model), new_caches(model)]
    if not all(hasattr(type(cache), "merge") for cache in rows[0]):
        return False
    try:
        for tokens, caches in enumerate(rows, 1):
            model(mx.zeros((1, tokens), mx.uint32), cache=caches)
        merged = [type(pair[0]).merge(list(pair)) for pair in zip(*rows, strict=True)]
        model(mx.zeros((2, 1), mx.uint32), cache=merged)
    except FORWARD_ERRORS:
        return False
    return True


@attrs.frozen(eq=False)
class _Call:
    """One call of a layer: the arrays in its *arguments*, its *output*, and the numbers of the
    *caches* among its arguments."""

    arguments: Mapping[Path, mx.array]
    output: Any
    caches: frozenset[int]


def _outline_of(model: nn.Module) -> Outline:
    place = layers_at(model)
    layers: list[nn.Module] = part_at(model, place)
    # Rows and tokens differ from run to run, and in the second one the caches hold three tokens.
    caches = new_caches(model)
    runs = [
        _calls(model, layers, caches, rows=2, tokens=3),
        _calls(model, layers, caches, rows=2, tokens=5),
        _calls(model, layers, new_caches(model), rows=3, tokens=3),
    ]
    calls = runs[0]
    by_layer = list(zip(*runs, strict=True))
    outputs = [_specs([dict(leaves(call.output)) for call in each]) for each in by_layer]
    arguments = [_specs([call.arguments for call in each]) for each in by_layer]
    flow = Flow(model, place, [call.output for call in calls], new_caches(model))
    reasons = _shared_caches(calls, len(caches))
    hops = [_hop(cut, outputs, arguments, flow, reasons) for cut in range(len(calls) + 1)]
    return Outline(
        place=place,
        outputs=tuple(_emptied(call.output) for call in calls),
        specs=tuple(outputs),
        caches=tuple(
            next((layer for layer, call in enumerate(calls) if index in call.caches), None)
            for index in range(len(caches))
        ),
        reasons=reasons,
        hops=tuple(hops),
    )


def _emptied(tree: Any) -> Any:
    """*tree* with arrays of zeros, which hold no graph."""
    arrays = {path: mx.zeros(array.shape, array.dtype) for path, array in leaves(tree)}
    return replaced(tree, arrays)


def _calls(
    model: Any, layers: list[nn.Module], caches: list[Any], rows: int, tokens: int
) -> list[_Call]:
    """The call of each of *layers* in one run of *model* over *caches*."""
    calls: list[_Call] = []
    number = {id(layer): at for at, layer in enumerate(layers)}
    index = {id(cache): at for at, cache in enumerate(caches)}

    def note(layer: nn.Module, kind: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if number[id(layer)] != len(calls):
            raise LoadError(
                f"{module_of(model)} runs its layers in another order than it has them, or more "
                "than once; it cannot be split"
            )
        arguments = arguments_of(args, kwargs)
        arrays = {
            path: array for key, each in arguments.items() for path, array in leaves(each, (key,))
        }
        held = frozenset(index[id(each)] for each in arguments.values() if id(each) in index)
        output = kind.__call__(layer, *args, **kwargs)
        # A copy, for layers after it may change the object.
        calls.append(_Call(arrays, replaced(output, dict(leaves(output))), held))
        return output

    with _noted(layers, note):
        model(mx.zeros((rows, tokens), mx.int32), cache=caches)
    if len(calls) != len(layers):
        raise LoadError(
            f"{module_of(model)} does not run its layers one by one; it cannot be split"
        )
    return calls


@contextmanager
def _noted(layers: list[nn.Module], note: Callable[..., Any]) -> Iterator[None]:
    """Within the block *note* gets every call of one of *layers*, and carries it out."""
    kinds = [type(layer) for layer in layers]
    for layer, kind in zip(layers, kinds, strict=True):

        def call(*args: Any, _layer: Any = layer, _kind: Any = kind, **kwargs: Any) -> Any:
            return note(_layer, _kind, args, kwargs)

        override_call(layer, call)
    try:
        yield
    finally:
        for layer, kind in zip(layers, kinds, strict=True):
            layer.__class__ = kind


def _specs(runs: Sequence[Mapping[Path, mx.array]]) -> dict[Path, Spec]:
    """Each array whose shape depends on rows and tokens alone, from its shapes with (2, 3), (2, 5)
    and (3, 3) rows and tokens."""
    specs = {}
    for path, array in runs[0].items():
        if all(path in run and run[path].ndim == array.ndim for run in runs):
            dims = [_dim(sizes) for sizes in zip(*(run[path].shape for run in runs), strict=True)]
            if None not in dims and array.dtype in _CARRIED:
                specs[path] = Spec(tuple(dim for dim in dims if dim is not None), array.dtype)
    return specs


def _dim(sizes: tuple[int, ...]) -> int | Axis | None:
    if len(set(sizes)) == 1:
        return sizes[0]
    rows, tokens = (2, 2, 3), (3, 5, 3)
    return Axis.ROWS if sizes == rows else Axis.TOKENS if sizes == tokens else None


def _shared_caches(calls: Sequence[_Call], count: int) -> dict[int, str]:
    """The cuts that would part layers which share one of *count* caches, and why they cannot be."""
    reasons = {}
    for index in range(count):
        users = [layer for layer, call in enumerate(calls) if index in call.caches]
        for cut in range(users[0] + 1, users[-1] + 1) if users else ():
            reasons[cut] = f"layers {users[0]} and {users[-1]} share a cache"
    return reasons


def _hop(
    cut: int,
    outputs: Sequence[Mapping[Path, Spec]],
    arguments: Sequence[Mapping[Path, Spec]],
    flow: Flow,
    reasons: dict[int, str],
) -> tuple[HopTensor, ...]:
    """What a hop carries before layer *cut*. If it cannot, *reasons* gets an entry."""
    if cut == 0:
        return ()
    tensors = []
    for (source, path), taker in sorted(_taken_across(cut, outputs, flow).items(), key=repr):
        if path in outputs[source]:
            tensors.append(HopTensor((Carried(source, path, False),), outputs[source][path]))
        else:
            why = f"layers {source} and {taker} share something that grows with the text"
            reasons.setdefault(cut, why)
    made: dict[Spec, list[Carried]] = {}
    for layer in range(cut, len(outputs)):
        for path in sorted(flow.of_ids[layer], key=repr):
            if path in arguments[layer] and len(path) == 1 and path not in flow.of_layers[layer]:
                made.setdefault(arguments[layer][path], []).append(Carried(layer, path, True))
            else:
                reasons.setdefault(cut, f"layer {layer} takes what only the first rank can make")
    tensors += [_stacked(parts, spec) for spec, parts in made.items()]
    if len(tensors) > MAX_TENSORS:
        reasons.setdefault(cut, f"a hop would carry {len(tensors)} tensors; {MAX_TENSORS} fit")
    return tuple(tensors)


def _taken_across(
    cut: int, outputs: Sequence[Mapping[Path, Spec]], flow: Flow
) -> dict[tuple[int, Path], int]:
    """The outputs of layers before *cut* that are taken after it: layer, path and first taker."""
    count = len(outputs)
    if cut == count:  # nobody knows what the head takes: all of the last output
        return {(count - 1, path): count for path in outputs[-1]}
    taken: dict[tuple[int, Path], int] = {}
    for layer in range(cut, count):
        for used in flow.uses[layer]:
            if used[0] < cut:
                taken.setdefault(used, layer)
    return taken


def _stacked(parts: Sequence[Carried], spec: Spec) -> HopTensor:
    if len(parts) > 1:
        spec = attrs.evolve(spec, dims=(len(parts), *spec.dims))
    return HopTensor(tuple(parts), spec)


class Flow:
    """The flow of arrays between the layers at *place* of *model*, which return *outputs* for two
    rows of three tokens. *caches* are fresh.

    The model's loop runs over stand-ins for all its layers, which return constants. It runs once
    more with other token ids, and once more with other constants. An argument of a layer is either
    the very array that another returned, or it differs between runs, or it is the same in all of
    them: masks, positions. The weights of the layers are not needed.
    """

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
        return mx.zeros((*hidden.shape[:-1], self._lines), hidden.dtype)


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


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, mx.array]]:
    """Each array of *tree* with its path, in order."""
    if isinstance(tree, mx.array):
        yield path, tree
    else:
        for key, child in _children(tree):
            yield from leaves(child, (*path, key))


def replaced(tree: Any, arrays: Mapping[Path, mx.array], path: Path = ()) -> Any:
    """A copy of *tree* with *arrays* at their paths. Arrays of other paths stay."""
    if isinstance(tree, mx.array):
        return arrays.get(path, tree)
    children = [(key, replaced(child, arrays, (*path, key))) for key, child in _children(tree)]
    if not children:
        return tree
    if isinstance(tree, tuple):
        return tuple(child for _, child in children)
    if isinstance(tree, list):
        return [child for _, child in children]
    if isinstance(tree, dict):
        return dict(children)
    twin = copy.copy(tree)
    for name, child in children:
        setattr(twin, str(name), child)
    return twin


def _children(tree: Any) -> Iterator[tuple[int | str, Any]]:
    if isinstance(tree, tuple | list):
        yield from enumerate(tree)
    elif isinstance(tree, dict) and not isinstance(tree, nn.Module):
        yield from tree.items()
    elif _is_record(tree):
        yield from vars(tree).items()


def _is_record(value: Any) -> bool:
    """Whether *value* is an object of mlx-lm's that only holds arrays: no module and no cache."""
    kind = type(value)
    ours = kind.__module__.startswith("mlx_lm.") and hasattr(value, "__dict__")
    return ours and not isinstance(value, nn.Module) and not hasattr(value, "empty")


def layers_at(model: nn.Module) -> Place:
    """Where *model* keeps the list of its layers. Raises `LoadError` if that is not to be found."""
    layers = getattr(model, "layers", None)
    if isinstance(layers, list) and layers:
        waiting: list[tuple[Place, nn.Module]] = [((), model)]
        while waiting:
            place, module = waiting.pop(0)
            for name, value in module.items():
                if isinstance(value, list) and value and value[0] is layers[0]:
                    return (*place, name)
                if isinstance(value, nn.Module):
                    waiting.append(((*place, name), value))
    raise LoadError(f"{module_of(model)} keeps its layers where they cannot be split")


def module_of(model: nn.Module) -> str:
    """The Python module that *model*'s class is from, which names the family."""
    return type(model).__module__


def part_at(model: nn.Module, place: Place) -> Any:
    """The part of *model* at *place*."""
    part: Any = model
    for name in place:
        part = part[name]
    return part


def with_parts(model: nn.Module, parts: Mapping[Place, Any]) -> nn.Module:
    """*model* with *parts* at their places."""
    view = model
    for place, part in parts.items():
        view = _with(view, place, part)
    return view


def _with(module: nn.Module, place: Place, part: Any) -> nn.Module:
    kind: Any = type(module)
    view: nn.Module = kind.__new__(kind)
    dict.update(view, module)
    vars(view).update(vars(module))
    name, *rest = place
    dict.update(view, {name: _with(module[name], tuple(rest), part) if rest else part})
    return view


def override_call(module: nn.Module, call: Callable[..., Any]) -> nn.Module:
    """Have *call* run in place of *module*, which stays the same object; returns it."""
    # Python looks `__call__` up on the class, so an attribute of the module would not do. A wrapper
    # would not do either: loops look at their layers' attributes and classes, and the arrays of a
    # layer are found by its place in the model.
    kind: Any = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"__call__": staticmethod(call)})
    return module


def hollow(module: nn.Module) -> nn.Module:
    """A module of *module*'s class with its plain attributes, at which loops look, and without its
    arrays."""
    kind: Any = type(module)
    shell: nn.Module = kind.__new__(kind)
    dict.update(shell, {name: _hollow(value) for name, value in module.items()})
    vars(shell).update({name: _hollow(value) for name, value in vars(module).items()})
    return shell


def _hollow(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return hollow(value)
    if isinstance(value, list):
        return [_hollow(each) for each in value]
    return None if isinstance(value, mx.array) else value


def embeddings(model: nn.Module, place: Place) -> dict[Place, nn.Module]:
    """The embeddings in the modules that lead to *place*."""
    found: dict[Place, nn.Module] = {}
    for length in range(len(place)):
        for name, value in part_at(model, place[:length]).items():
            if isinstance(value, nn.Embedding | nn.QuantizedEmbedding):
                found[*place[:length], name] = value
    return found


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Any, Any]:
    """The arguments of a call, by number or by name."""
    return {**dict(enumerate(args)), **kwargs}

"""Second views of a model, with some of its parts replaced. The model itself stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import mlx.core as mx
from mlx import nn

from sealring_model.errors import LoadError

# ---------------------------------------------------------------------- trees
# Values that layers give each other: an array, or arrays within tuples, lists and objects.
#
# A *path* leads to one array of a tree: an index for a tuple or a list, a key for a dictionary, a
# name for an attribute of an object. A tree that is one array has the path ``()``.


Path: TypeAlias = tuple[int | str, ...]


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


Place: TypeAlias = tuple[str, ...]
"""The names that lead from a model to a part of it."""


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

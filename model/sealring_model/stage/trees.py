"""Values that layers give each other: an array, or arrays within tuples, lists and objects.

A *path* leads to one array of a tree: an index for a tuple or a list, a key for a dictionary, a
name for an attribute of an object. A tree that is one array has the path ``()``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import mlx.core as mx
from mlx import nn

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

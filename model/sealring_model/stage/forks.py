"""Copies of caches that share their arrays. Whoever writes first writes to arrays of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

import mlx.core as mx

_PLAIN: Final = frozenset({int, float, bool, str, type(None)})
"""Types of immutable values."""


def forks(slots: Iterable[Any]) -> list[Any]:
    """Deep copies of *slots* that share their arrays, in a fraction of `copy.deepcopy`'s time."""
    return [fork(cache) for cache in slots]


def fork(cache: Any) -> Any:
    """A deep copy of *cache* that shares its arrays."""
    twin = object.__new__(type(cache))
    state = twin.__dict__
    state.update(cache.__dict__)
    for name, value in state.items():
        kind = type(value)
        if kind is mx.array:
            state[name] = copy.copy(value)  # += changes an array in place, also for others
        elif kind not in _PLAIN:
            state[name] = copy.deepcopy(value)
    return twin

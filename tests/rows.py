"""Tables of cases of which a few stand for all in every run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def rows(
    table: Mapping[str, Any] | Iterable[Any], *daily: Any, ci: Collection[Any] | None = None
) -> list[Any]:
    """The rows of *table* for `pytest.mark.parametrize`. *daily* are in every run; *ci*, all others
    if None, are slow; the rest are long. The names of a mapping's are their ids. Raises
    `ValueError` if a daily one or one of *ci* is none of them."""
    named = table if isinstance(table, Mapping) else {each: each for each in table}
    if unknown := {*daily, *(ci or ())} - set(named):
        raise ValueError(f"no rows: {unknown}")
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            id=name if isinstance(name, str) else None,
            marks=_marks(name in daily, ci is None or name in ci),
        )
        for name, row in named.items()
    ]


def _marks(daily: bool, ci: bool) -> Any:
    if daily:
        return ()
    return pytest.mark.slow if ci else pytest.mark.long

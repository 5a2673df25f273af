"""Tables of cases of which a few stand for all in every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def rows(table: Mapping[str, Any] | Iterable[Any], *daily: Any) -> list[Any]:
    """The rows of *table* for `pytest.mark.parametrize`; all but *daily* are slow. The names of a
    mapping's are their ids. Raises `ValueError` if a daily one is none of them."""
    named = table if isinstance(table, Mapping) else {each: each for each in table}
    if unknown := set(daily) - set(named):
        raise ValueError(f"no rows: {unknown}")
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            id=name if isinstance(name, str) else None,
            marks=() if name in daily else pytest.mark.slow,
        )
        for name, row in named.items()
    ]

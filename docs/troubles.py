"""Sections of ``operations.md``: why a ring does not serve, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sealring_protocol.diagnosis import ADVICE, DIAL_ADVICE, Cause

from docs import words
from docs.schemas import table


def _causes() -> str:
    rows = [
        (f"`{cause.value}`", words.CAUSES[cause], ADVICE[cause] or "Wait; it passes.")
        for cause in Cause
    ]
    return table(("cause", "what it means", "what to do"), *rows)


def _dials() -> str:
    rows = [(f"{word}", advice) for word, advice in DIAL_ADVICE]
    return table(("the reason has the words", "what to do"), *rows)


SECTIONS: Final[Mapping[str, Callable[[], str]]] = {"causes": _causes, "dials": _dials}

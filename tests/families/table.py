"""Writes the table of families in docs/models.md from the results of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.families.check import ALONE, NO_SHARD, SAME, Outcome

PAGE = Path(__file__).parent.parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- generated:families -->", "<!-- end -->"
COLUMNS = ("family", "one rank", "pipeline", "batch", "prefix", "4 bits", "tensor")


def write_table(outcomes: Sequence[Outcome]) -> None:
    """Replace the table of the page."""
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(outcomes)}{END}{after}", "utf-8")


def table(outcomes: Sequence[Outcome]) -> str:
    """The table, and below it why something is not."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    notes: dict[str, int] = {}
    for outcome in outcomes:
        tried = (outcome.whole, outcome.cuts, outcome.batch, outcome.prefix, outcome.quantized)
        cells = [*(_cell(each, notes) for each in tried), _tensor(outcome, notes)]
        lines.append(f"| {outcome.family} | {' | '.join(cells)} |")
    told = [f"{number}. {_plain(note)}" for note, number in notes.items()]
    return "\n".join([*lines, "", *told, ""])


def _cell(result: str, notes: dict[str, int]) -> str:
    if result == SAME:
        return "same"
    if result == ALONE:
        return "alone"
    word = "no" if result.startswith("(") else "**wrong**"
    return f"{word} ({notes.setdefault(result.strip('()'), len(notes) + 1)})"


def _tensor(outcome: Outcome, notes: dict[str, int]) -> str:
    return "no" if outcome.tensor == NO_SHARD else _cell(outcome.tensor, notes)


def _plain(note: str) -> str:
    return note.replace("|", "/").replace("<", "&lt;").replace("\n", " ")

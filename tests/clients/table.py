"""Writes the table of docs/clients.md from the results of a run."""

from __future__ import annotations

import datetime
import html
import re
from collections.abc import Sequence
from pathlib import Path

from tests.clients.catalog import CLIENTS, FEATURES
from tests.clients.trying import Outcome

PAGE = Path(__file__).parent.parent.parent / "docs" / "clients.md"


def table(outcomes: Sequence[Outcome]) -> str:
    """The features of each client, over each API that it speaks, and below it why one fails."""
    rows = list(dict.fromkeys((each.client, each.version, each.api) for each in outcomes))
    names = [name for name in FEATURES if any(each.feature == name for each in outcomes)]
    lines = [
        f"| client | version | API | {' | '.join(names)} |",
        f"|{' --- |' * 3}{' :-: |' * len(names)}",
    ]
    notes: dict[str, int] = {}
    for row in rows:
        cells = []
        for name in names:
            found = [e for e in outcomes if (e.client, e.version, e.api, e.feature) == (*row, name)]
            cells.append(_cell(found[0], notes) if found else "")
        lines.append(f"| {' | '.join([*row, *cells])} |")
    told = [f"{number}. {note}" for note, number in notes.items()]
    return "\n".join([*lines, *([""] if told else []), *told, ""])


def _cell(outcome: Outcome, notes: dict[str, int]) -> str:
    if not outcome.why:
        return "yes"
    why = outcome.may_fail or f"{outcome.client}, {outcome.feature}: {outcome.why}"
    number = notes.setdefault(_plain(why), len(notes) + 1)
    return f"{'no' if outcome.may_fail else '**fails**'} ({number})"


def _plain(note: str) -> str:
    return html.escape(note.replace("|", "/").replace("\n", " "), quote=False)


def meanings() -> str:
    """What each feature is."""
    return "\n".join(f"- **{name}**: {text}" for name, text in FEATURES.items()) + "\n"


def connecting() -> str:
    """The lines of each script that connect the client, which the scripts have between marks."""
    parts = []
    for client in CLIENTS:
        text = (Path(__file__).parent / client.script).read_text("utf-8")
        lines = text.partition("docs: connect\n")[2].partition("docs: end")[0].splitlines()[:-1]
        if not lines:
            continue
        language = {"py": "python", "mjs": "js"}[client.script.rpartition(".")[2]]
        if lines[0].startswith("# language: "):
            language = lines.pop(0).rpartition(" ")[2]
        told = [_for_people(line) for line in lines if not _OURS.fullmatch(line)]
        parts.append("\n".join([f"### {client.name}", "", f"```{language}", *told, "```", ""]))
    return "\n".join(parts)


_OURS = re.compile(r'\w+ = f"""|"""|    max_retries=0,')
"""A line that is there for the script's sake."""

_URL = "http://127.0.0.1:7480"
_INSTEAD = {
    'f"{TINY}/v1"': f'"{_URL}/v1"',
    "`${TINY}/v1`": f'"{_URL}/v1"',
    "{TINY}": _URL,
    "{SCRIPTED}": _URL,
    "{TOKENIZER}": "FOLDER",
    "scripted": "tiny",
    ", max_retries=0": "",
    ", maxRetries: 0": "",
    "=TINY": f'="{_URL}"',
    ": TINY": f': "{_URL}"',
    "=KEY,": '="KEY",',
    "=KEY)": '="KEY")',
    ": KEY": ': "KEY"',
    "{KEY}": "KEY",
}
"""What a person writes in place of what the scripts have."""


def _for_people(line: str) -> str:
    for ours, theirs in _INSTEAD.items():
        line = line.replace(ours, theirs)
    return line.replace("\\\\", "\\")


def sections() -> dict[str, str]:
    """The sections of the page that the scripts alone determine, by name."""
    return {"features": meanings(), "connecting": connecting()}


def section(name: str) -> str:
    """What the page has as the section *name*."""
    after = PAGE.read_text("utf-8").partition(f"<!-- generated:{name} -->\n")[2]
    return after.partition("<!-- end -->")[0]


def write_page(outcomes: Sequence[Outcome]) -> None:
    """Replace the sections of the page that a run makes."""
    text = PAGE.read_text("utf-8")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    made = f"Made on {today} by `uv run python -m tests.clients --write`.\n\n{table(outcomes)}"
    for name, body in {"clients": made, **sections()}.items():
        before, _, rest = text.partition(f"<!-- generated:{name} -->\n")
        text = f"{before}<!-- generated:{name} -->\n{body}{rest[rest.index('<!-- end -->') :]}"
    PAGE.write_text(text, "utf-8")

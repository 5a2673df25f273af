"""The clients that are installed, against real rings; and the page, against their scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.__main__ import CACHE
from tests.clients.catalog import CLIENTS, FEATURES, Client
from tests.clients.install import version_of
from tests.clients.rings import Rings, rings
from tests.clients.table import section, sections
from tests.clients.trying import attempt

SOME = ("openai", "openai, Node", "anthropic", "AI SDK, openai-compatible", "Codex", "Claude Code")
TRIED = ("answer", "stream", "tool result", "reasoning", "wrong model", "cancel")


@pytest.fixture(scope="module")
def running() -> Iterator[Rings]:
    with rings() as both:
        yield both


@pytest.mark.slow
@pytest.mark.parametrize(
    "client", [each for each in CLIENTS if each.name in SOME], ids=lambda client: client.name
)
def test_a_client_that_is_installed(client: Client, running: Rings) -> None:
    if (version := version_of(client, CACHE)) is None:
        pytest.skip(f"not installed: uv run python -m tests.clients --only '{client.name}'")
    outcomes = attempt(client, version, CACHE, running, TRIED)
    assert {each.feature for each in outcomes} >= {"stream", "tool result", "cancel"}
    assert [each for each in outcomes if not each.is_right] == []


@pytest.mark.parametrize("name", ["features", "connecting"])
def test_the_page_has_what_the_scripts_do(name: str) -> None:
    assert section(name) == sections()[name], "uv run python -m tests.clients --write"


def test_the_table_knows_every_client() -> None:
    rows = [line.split(" | ") for line in section("clients").splitlines() if line.startswith("| ")]
    assert rows[0][3] in FEATURES
    assert {row[0].removeprefix("| ") for row in rows[2:]} == {each.name for each in CLIENTS}

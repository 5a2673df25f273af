"""Facts on a terminal, whose lines have an end."""

from __future__ import annotations

import sys

import pytest
from sealring.output import print_facts


def test_a_long_value_goes_on_below_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = [("name", "a-word " * 10), ("key", "value")]
    print_facts(facts)
    assert capsys.readouterr().out.splitlines()[0] == "name  " + "a-word " * 10
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    print_facts(facts)
    one, two, three = capsys.readouterr().out.splitlines()
    assert one == "name  " + " ".join(["a-word"] * 6)
    assert two == "      " + " ".join(["a-word"] * 4)
    assert three == "key   value"
    monkeypatch.setenv("COLUMNS", "20")  # too narrow for that
    print_facts(facts[:1])
    assert len(capsys.readouterr().out.splitlines()) == 1

"""The commands of `tools`: what they find and how they count."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from sealring_protocol.conformance.kinds import ENGINE_KINDS, KINDS
from sealring_protocol.control.scheduler.rows import ROW_TABLE

from tools import forked, lines, ring, rows

ROOT = Path(__file__).parent.parent.parent


def test_every_row_of_every_listed_table_is_tried() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## 4. The state machines")[1]
    listed = re.findall(r"^\| `[^`]+` \| `([^`]+)` \|", section.split("\n## ")[0], re.MULTILINE)
    found = list(rows.rows())
    by_table = {(row.module, row.table) for row in found}
    assert sorted(table for _, table in by_table) == sorted(listed)
    assert sum(row.table == "ROW_TABLE" for row in found) == len(ROW_TABLE)
    for module, _ in by_table:
        for place in forked.tests_of(module):
            assert (ROOT / place).exists()


def test_what_is_left_out_is_there() -> None:
    for test in rows.COPIES:
        path, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / path).read_text()


def test_a_row_that_is_gone_is_noticed() -> None:
    name = "sealring_protocol.security.responder.TABLE (WAIT_FIN, FIN_VERIFIED)"
    row = next(row for row in rows.rows() if row.name == name)

    def without() -> str:
        row.take_out()
        return rows.by_vector(row.module)

    assert forked.in_a_fork(lambda: rows.by_vector(row.module), rows.CPU_LIMIT) == ""
    assert forked.in_a_fork(without, rows.CPU_LIMIT).startswith("vector ")


def test_tests_that_are_only_put_first_are_no_rooms_of_their_own() -> None:
    module = "sealring_protocol.control.epoch.tensor"
    assert forked.tests_of(module)[0] == "tests/control/test_tensor_leader.py"
    assert forked.rooms_of(module) == ("tests/control", "tests/node")


def test_a_fork_that_fails_or_goes_round_for_ever_has_noticed() -> None:
    def fails() -> str:
        raise KeyError("row")

    def goes_round() -> str:
        while True:
            pass

    assert "KeyError('row')" in forked.in_a_fork(fails, 10)
    assert forked.in_a_fork(goes_round, 1).endswith("it did not end")
    assert forked.in_a_fork(goes_round, 60, 1).endswith("it did not end")


def test_kinds_that_are_left_out_are_kinds() -> None:
    assert set(ENGINE_KINDS) < set(forked.LEFT_OUT) <= {*ENGINE_KINDS, *KINDS}


def test_lines_of_code_are_neither_blank_nor_comment_nor_docstring() -> None:
    text = (
        '"""Theory."""\n\n# why\nX = (\n    1\n)  # end\n\ndef f():\n    """It."""\n    return X\n'
    )
    assert lines.code_lines(text) == 5


@pytest.mark.parametrize(("more", "files"), [(100, 1), (99, 0)])
def test_what_is_rarer_than_every_other_token_is_left_out(more: int, files: int) -> None:
    call = "call protocol/a.py f"
    few = {"node 0": Counter({call: 1000, "lock": 7})}
    many = {"node 0": Counter({call: 1000 + more, "lock": 7 + ring.MANY - ring.FEW})}
    told = ring.summary(ring.steady(few, many)["node 0"])
    assert (told["files"], told["lock"]) == (files, 1.0)

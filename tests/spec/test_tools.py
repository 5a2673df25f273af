"""The commands of `tools`: what they find and how they count."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from sealring_protocol.conformance.kinds import ENGINE_KINDS, KINDS
from sealring_protocol.control.scheduler.rows import ROW_TABLE

from tests.test_architecture import listed_tables
from tools import forked, lines, reach, ring, rows

ROOT = Path(__file__).parent.parent.parent


def test_every_row_of_every_listed_table_is_tried() -> None:
    listed = [name for _, name in listed_tables()]
    found = list(rows.rows())
    by_table = {(row.module, row.table) for row in found}
    assert sorted(table for _, table in by_table) == sorted(listed)
    assert sum(row.table == "ROW_TABLE" for row in found) == len(ROW_TABLE)
    for module, _ in by_table:
        for place in forked.tests_of(module):
            assert (ROOT / place).exists()


def test_what_is_left_out_is_there() -> None:
    for test in reach.COPIES:
        path, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / path).read_text()


def test_rows_that_stay_unnoticed_are_rows_and_have_a_reason() -> None:
    assert set(rows.kept()) <= {row.name for row in rows.rows()}
    assert all(rows.kept().values())


def row_of(name: str) -> rows.Row:
    return next(row for row in rows.rows() if row.name.endswith(name))


def test_a_vector_notices_that_a_row_is_gone() -> None:
    row = row_of("responder.TABLE (WAIT_FIN, FIN_VERIFIED)")

    def without() -> str:
        recorder = reach.Recorder({row.key: row.name})
        done = {name: rows.run_vector(recorder, name) for name in rows.VECTORS}
        assert not any(reached.failed for reached in done.values())
        reaching = [name for name, reached in done.items() if row.name in reached.rows]
        assert 0 < len(reaching) < len(done)
        return rows.who_notices(recorder, row, reaching)

    assert forked.in_a_fork(without, rows.CPU_LIMIT).startswith("vector ")


def test_a_test_notices_that_a_row_is_gone_if_it_looks_that_row_up() -> None:
    row, file = row_of("FOLLOWER_TABLE (IDLE, ORDER)"), "tests/control/test_follower_states.py"

    def without() -> str:
        recorder = reach.Recorder({row.key: row.name})
        done = reach.run_tests(recorder, [file])
        assert not any(reached.failed for reached in done.values())
        reaching = [name for name, reached in done.items() if row.name in reached.rows]
        assert 0 < len(reaching) < len(done)
        return rows.who_notices(recorder, row, reaching)

    assert forked.in_a_fork(without, rows.CPU_LIMIT).startswith(f"test {file}::")


def test_a_test_that_fails_without_the_row_has_not_noticed(tmp_path: Path) -> None:
    row, file = row_of("FOLLOWER_TABLE (IDLE, ORDER)"), tmp_path / "test_other.py"
    file.write_text("def test_this() -> None:\n    raise KeyError\n")

    def failed() -> str:
        done = reach.run_tests(reach.Recorder({row.key: row.name}), [str(file)], row=row.name)
        return str([(reached.failed, *reached.rows) for reached in done.values()])

    assert forked.in_a_fork(failed, rows.CPU_LIMIT) == "[(True,)]"


def test_what_is_found_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rows, "kept", lambda: {"kept": "why", "seen": "why", "gone": "why"})
    assert rows.judge({"kept": "", "other": "test"}, {"kept", "seen", "gone"}) == 0
    assert capsys.readouterr().out.strip() == "nobody notices kept, for: why"
    for noticed, every, told in (
        ({"other": ""}, {"kept", "seen", "gone"}, "nobody notices other"),
        ({"seen": "test"}, {"kept", "seen", "gone"}, "says that nobody notices seen"),
        ({}, {"kept", "seen"}, "names gone"),
    ):
        assert rows.judge(noticed, every) == 1
        assert told in capsys.readouterr().out


def test_works_run_side_by_side_and_give_what_they_say() -> None:
    told, tell = os.pipe()

    def waits() -> str:
        return os.read(told, 1).decode()  # from the other one, which therefore runs meanwhile

    def tells() -> str:
        os.write(tell, b"x")
        return "y" * 200_000  # more than a pipe holds

    assert dict(forked.in_forks([waits, tells], 2, 10, 60)) == {0: "x", 1: "y" * 200_000}
    os.close(told)
    os.close(tell)


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

"""The program that takes checks out: it finds them, takes them out, and sees who notices."""

from __future__ import annotations

import pytest

from spec import mutants, mutate
from spec.swaps import SWAPS, Swap


def test_the_checks_are_found() -> None:
    changes = {mutant.change for mutant in mutants.checks("codec.frame")}
    assert "never length > limit" in changes
    assert "length >= limit for length > limit" in changes
    without = {module for module in mutants.MODULES if not mutants.checks(module)}
    assert without <= {"codec.tensor", "security.keys", "security.roles"}


@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: f"{swap.rule}: {swap.new}")
def test_what_is_swapped_stands_there_once(swap: Swap) -> None:
    assert mutants.path_of(swap.module).read_text("utf-8").count(swap.old) == 1
    assert swap.module in mutants.MODULES


def test_a_check_that_is_gone_is_noticed() -> None:
    found = mutants.checks("codec.frame")
    limit = next(mutant for mutant in found if mutant.change == "never length > limit")
    assert mutate.by_vector(limit).startswith("vector frame/")


def test_pytest_runs_the_changed_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "tests_of", lambda module: ("tests/codec/test_messages.py",))
    found = mutants.checks("codec.wire")
    sized = next(mutant for mutant in found if mutant.change == "never len(value) != size")
    assert mutate.by_test(sized).startswith("test tests/codec/test_messages.py::")


def test_an_operator_that_is_another_is_noticed() -> None:
    pytest.importorskip("cosmic_ray")
    found = mutants.operators("codec.frame")
    lines = mutants.path_of("codec.frame").read_text("utf-8").splitlines()
    limit = lines.index("        if length > limit:") + 1
    found = [
        each for mutant in found if mutant.line == limit and (each := mutants.described(mutant))
    ]
    edge = next(mutant for mutant in found if mutant.change.startswith("if length >= limit"))
    assert edge.place == "FrameDecoder._check"
    assert edge.change == "if length >= limit: for if length > limit:"
    assert mutate.by_vector(edge).startswith("vector frame/")


def test_what_is_in_an_annotation_is_no_mutant() -> None:
    pytest.importorskip("cosmic_ray")
    found = [m for m in mutants.operators("codec.frame") if m.place == "FrameDecoder.next_frame"]
    signature = min(mutant.line for mutant in found)
    assert next(mutants.described(mutant) for mutant in found if mutant.line == signature) is None


def test_survivors_are_mutants_that_there_can_be_and_have_a_reason() -> None:
    checks = {mutant.name for module in mutants.MODULES for mutant in mutants.checks(module)}
    for name, why in mutate.survivors().items():
        assert why
        line = name.partition(" for ")[2]
        code = mutants.path_of(name.partition(" ")[0]).read_text("utf-8")
        assert name in checks or f"{line}\n" in code or f"{line}  #" in code


def test_nothing_is_noticed_where_nothing_is_changed() -> None:
    same = mutants.Mutant("codec.frame", mutants.UNCHANGED, 0, "", "nothing")
    assert mutate.by_vector(same) == ""

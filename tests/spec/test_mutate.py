"""The program that takes checks out: it finds them, takes them out, and sees who notices."""

from __future__ import annotations

from spec import mutate


def test_the_checks_are_found() -> None:
    changes = {mutant.change for mutant in mutate.mutants("codec.frame")}
    assert "never length > limit" in changes
    assert "length >= limit for length > limit" in changes
    assert all(
        mutate.mutants(module) or module in {"security.keys", "security.schedule"}
        for module in mutate.MODULES
    )


def test_a_check_that_is_gone_is_noticed() -> None:
    found = mutate.mutants("codec.frame")
    limit = next(mutant for mutant in found if mutant.change == "never length > limit")
    assert mutate.by_vector(limit).startswith("vector frame/")


def test_survivors_are_checks_that_there_are_and_have_a_reason() -> None:
    every = {mutant.name for module in mutate.MODULES for mutant in mutate.mutants(module)}
    for name, why in mutate.survivors().items():
        assert name in every
        assert why

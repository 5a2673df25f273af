"""Each fuzz target over its inputs, whole and cut short, without the fuzzer: so that none rots."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest

from fuzz.corpora import inputs
from fuzz.main import LONGEST, ROOT, TARGETS
from fuzz.source import Source

MOST = 40
"""Inputs of a target that are run; the slow targets have hundreds. `fuzz.reach` runs them all."""


def module(name: str) -> ModuleType:
    return importlib.import_module(f"fuzz.targets.{name}")


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_over_its_inputs(name: str) -> None:
    target = module(name)
    assert list(target.seeds())
    seeds = list(inputs(name))
    assert len(seeds) > len(list(target.seeds()))  # what the fuzzer has found is committed
    assert max(len(seed) for seed in seeds) <= LONGEST.get(name, 4096)
    for seed in seeds[:: 1 + len(seeds) // MOST]:
        target.check(seed)
        target.check(seed[: len(seed) // 2])
        target.check(seed[:-1])
    target.check(b"")


def test_targets_are_these() -> None:
    """Whatever reads what others wrote; a new reader wants a new target."""
    assert set(TARGETS) == {
        "frame",
        "messages",
        "local_messages",
        "roster",
        "initiator",
        "invitation",
        "inviter",
        "joiner",
        "responder",
        "link",
        "middle",
        "inner_seal",
        "ledger",
        "scheduler",
        "lockstep",
        "addresses",
        "admission",
        "answers",
        "channels",
        "bodies",
        "configs",
        "listing",
        "neighbours",
        "relay",
        "tensor",
    }


def test_the_dictionary_is_in_libfuzzers_syntax() -> None:
    entry = re.compile(r'[a-z_0-9]+="(\\x[0-9a-f]{2})+"')
    lines = (ROOT / "fuzz" / "sealring.dict").read_text(encoding="ascii").splitlines()
    assert [line for line in lines if not line.startswith("#") and not entry.fullmatch(line)] == []


def test_choices_are_the_first_when_the_bytes_run_out() -> None:
    source = Source(b"\x07\x01")
    assert source.pick("abc") == "b"
    assert source.flag()
    assert source.empty
    assert (source.pick("abc"), source.flag(), source.number(4), source.rest()) == (
        "a",
        False,
        0,
        b"",
    )

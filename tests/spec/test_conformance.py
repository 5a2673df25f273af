"""`python -m sealring_protocol.conformance`: the vectors, for whoever implements the wire."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from sealring_protocol.conformance.__main__ import main

from tests.rows import rows
from tests.spec.files import VECTORS, family
from tests.spec.test_node import FOLDER, NODE, PACKAGES

Answers = list[dict[str, Any]]


def command(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """The command, in a process that has nothing but the protocol and what it needs."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "sealring_protocol.conformance", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def here(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """As `command`, in this process: a start of one takes half a second, and an answer 20 ms."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", io.StringIO(given))
        code = main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def lines(answers: Iterable[Any]) -> str:
    return "".join(json.dumps(answer) + "\n" for answer in answers)


def splits() -> Answers:
    """Right answers to every vector of the family of splits."""
    names = ("id", "result", "output", "released")
    return [
        {name: vector[name] for name in names if name in vector}
        for vector in family("splits")["vectors"]
    ]


def answered(*answers: Any) -> subprocess.CompletedProcess[str]:
    return here(VECTORS, "--family", "splits", "--answers", "-", given=lines(answers))


def test_it_runs_the_vectors_of_the_protocol_without_an_engine() -> None:
    done = command("--family", "frames", "--family", "draws", "--json", VECTORS)
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["families"]["frames"]["runs"]["bytewise"] == 19
    assert (facts["failed"], facts["families"]["draws"]["runs"]) == ([], {})
    draws = len(family("draws")["vectors"])
    assert facts["skipped"] == {"it takes an engine that draws tokens": draws}


def test_one_file_is_enough(tmp_path: Path) -> None:
    done = command(VECTORS / "splits.json")
    assert done.returncode == 0
    assert "22 runs of 22 vectors: all did as they say" in done.stdout
    file = family("splits")
    file["vectors"][0]["output"] = {"bounds": [0, 1]}
    (tmp_path / "splits.json").write_text(json.dumps(file))
    done = here(tmp_path / "splits.json")
    assert done.returncode == 1
    assert f"{file['vectors'][0]['id']} (whole): something else came of it" in done.stdout


def test_it_says_where_they_are() -> None:
    assert here("--where").stdout == f"{VECTORS}\n"


def test_where_nothing_can_be_run_nothing_is_right() -> None:
    done = here(VECTORS, "--family", "draws")
    assert done.returncode == 2
    assert "none of these vectors could be run" in done.stdout


SOME = ("frames", "initiators", "messages", "splits")
EVERY: tuple[str, ...] = ()
"""Families; the implementation in JavaScript is held to all of them by its own checker, too."""


@pytest.mark.skipif(NODE is None or not PACKAGES.exists(), reason="needs what spec/node needs")
@pytest.mark.parametrize("families", rows({"some": (SOME,), "every one": (EVERY,)}, "some"))
def test_another_implementation_is_asked_and_its_answers_are_compared(
    tmp_path: Path, families: tuple[str, ...]
) -> None:
    chosen = [part for name in families for part in ("--family", name)]
    asked = here("--ask", VECTORS, *chosen).stdout
    said = subprocess.run(
        [NODE or "", "answer.js"],
        cwd=FOLDER,
        input=asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (tmp_path / "answers").write_text(said.stdout)
    done = command("--answers", tmp_path / "answers", VECTORS, *chosen)
    assert done.returncode == 0, done.stdout
    count = len(asked.splitlines())
    assert count > (300 if families else 800)
    assert f"{count:,} runs of {count:,} vectors: all did as they say" in done.stdout


def _first(**changes: Any) -> Callable[[Answers], Answers]:
    """The first answer changed."""
    return lambda right: [{**right[0], **changes}, *right[1:]]


def _refused(**changes: Any) -> Callable[[Answers], Answers]:
    """The first refusal changed."""

    def change(right: Answers) -> Answers:
        at = next(i for i, answer in enumerate(right) if answer["result"] != "valid")
        return [*right[:at], {**right[at], **changes}, *right[at + 1 :]]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_first(output={"bounds": []}), "something else came of it"),
        (_first(result="TIMEOUT", why="slow"), "it was refused: slow"),
        (_refused(result="valid"), "it was taken"),
        (_refused(result="TIMEOUT", why="slow"), "it was refused as TIMEOUT: slow"),
        (_refused(released="00"), "other plaintext was given out before"),
        (lambda right: right[1:], "it was not answered"),
    ],
)
def test_a_wrong_answer_is_told(change: Callable[[Answers], Answers], says: str) -> None:
    right = answered(*splits())
    assert (right.returncode, "all did as they say" in right.stdout) == (0, True)
    done = answered(*change(splits()))
    assert done.returncode == 1
    assert f" (whole): {says}\n" in done.stdout
    assert ": 1 failed" in done.stdout


def test_what_is_skipped_is_counted_and_fails_nothing() -> None:
    first, *rest = splits()
    done = answered({"id": first["id"], "skip": "not yet"}, *rest)
    assert done.returncode == 0
    assert "1 not run: not yet" in done.stdout
    done = answered(*({"id": answer["id"], "skip": "not yet"} for answer in splits()))
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("yes", "line 2 of the answers is none: "),
        ({"result": "valid"}, "line 2 of the answers is none: "),
        ({"id": "split/none", "outcome": "valid"}, "line 2 of the answers is none: "),
        ({"id": "split/none", "result": "valid"}, "split/none is answered, and no vector has"),
        (splits()[0], "line 2 answers "),
    ],
)
def test_an_answer_that_is_none_is_told(wrong: Any, says: str) -> None:
    done = answered(splits()[0], wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(says)


def test_mistakes_are_told(tmp_path: Path) -> None:
    for arguments, says in (
        ([tmp_path / "none"], "is not a folder"),
        ([tmp_path], "holds no vectors"),
        ([VECTORS, VECTORS / "frames.json"], "a second file of the family frames"),
        ([VECTORS, "--family", "poems"], "no family poems"),
        ([VECTORS, "--answers", tmp_path / "none"], "cannot be read"),
    ):
        done = here(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
        assert "Traceback" not in done.stderr

"""Whether a model can guess the tokens of another: the same ids for the same texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealring_model import tiny
from sealring_model.draft.main import check_vocabulary, token_ids
from sealring_model.errors import LoadError
from sealring_model.text.tokens import Tokenizer


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A copy of the tiny model's tokenizer."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(tiny.path() / name, tmp_path / name)
    return tmp_path


def change(folder: Path, how: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "tokenizer.json"
    told = json.loads(file.read_text())
    how(told)
    file.write_text(json.dumps(told))


def test_the_ids_are_those_of_the_tokenizer() -> None:
    assert token_ids(tiny.path()) == Tokenizer(tiny.path()).ids()


def test_the_same_vocabulary_in_other_words(other: Path) -> None:
    check_vocabulary(other, tiny.path())
    change(other, lambda told: told.pop("post_processor", None))
    check_vocabulary(other, tiny.path())


def _swap(told: dict[str, Any]) -> None:
    known = told["model"]["vocab"]
    known[300], known[301] = known[301], known[300]


def _rename(told: dict[str, Any]) -> None:
    told["model"]["vocab"][300][0] = "another"


CASES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "one more": (lambda told: told["model"]["vocab"].append(["more", -9.0]), r"it has \d+ tokens"),
    "two swapped": (_swap, r"is its token 301, and token 300 of"),
    "another text": (_rename, r"is no token of it, and token 300 of"),
    "no vocabulary": (lambda told: told["model"].pop("vocab"), "has no vocabulary"),
    "ids that are none": (
        lambda told: told["model"].update(vocab={"a": "b"}),
        "has no vocabulary",
    ),
}


@pytest.mark.parametrize(("how", "why"), CASES.values(), ids=CASES)
def test_what_differs_is_told(other: Path, how: Callable[[dict[str, Any]], Any], why: str) -> None:
    change(other, how)
    with pytest.raises(LoadError, match=why):
        check_vocabulary(other, tiny.path())


@pytest.mark.parametrize(
    "known", [{"<unk>": 0, "b": 2, "a": 1}, [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]]
)
def test_a_vocabulary_of_either_form(tmp_path: Path, known: object) -> None:
    """With ids (BPE), or in their order, with scores (unigram)."""
    told = {"model": {"vocab": known}, "added_tokens": [{"id": 3, "content": "<s>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(told))
    assert token_ids(tmp_path) == {"<unk>": 0, "a": 1, "b": 2, "<s>": 3}

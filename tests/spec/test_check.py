"""`sealring vectors check`: what it counts, and that it can fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.io_trio.helpers import sealring
from tests.spec.files import VECTORS


def test_it_counts_by_family_and_way() -> None:
    done = sealring("vectors", "check", VECTORS, "--family", "frames", "--family", "rosters")
    assert done.code == 0
    assert "all did as they say" in done.out
    facts = sealring("vectors", "check", VECTORS, "--family", "frames", "--json").json()
    assert facts["families"].keys() == {"frames"}
    frames = facts["families"]["frames"]
    assert (frames["vectors"], frames["failed"]) == (19, [])
    assert frames["runs"]["bytewise"] == 19
    assert frames["runs"]["truncated"] > 500


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("frame/one", {"result": "LIMIT_EXCEEDED"}, "it was taken"),
        ("frame/one", {"output": {"frames": []}}, "something else came of it"),
        ("frame/version-0", {"result": "valid"}, "it was refused: "),
        ("frame/version-0", {"result": "TIMEOUT"}, "it was refused as PROTOCOL_ERROR"),
        ("frame/second-long", {"released": "00"}, "other plaintext was given out before"),
        ("frame/one", {"kind": "telegram"}, "kind 'telegram' is unknown"),
        ("frame/one", {"input": {}}, "KeyError"),
    ],
)
def test_what_differs_is_told(tmp_path: Path, name: str, change: dict[str, Any], says: str) -> None:
    file = json.loads((VECTORS / "frames.json").read_text())
    next(vector for vector in file["vectors"] if vector["id"] == name).update(change)
    (tmp_path / "frames.json").write_text(json.dumps(file))
    done = sealring("vectors", "check", tmp_path)
    assert done.code == 3
    assert f"{name} (whole): {says}" in done.out


def test_mistakes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not a folder" in sealring("vectors", "check", tmp_path / "none").err
    assert "holds no vectors" in sealring("vectors", "check", tmp_path).err
    done = sealring("vectors", "check", VECTORS, "--family", "poems")
    assert (done.code, "no family poems" in done.err) == (2, True)
    (tmp_path / "frames.json").write_text("[]")
    assert "is no file of vectors" in sealring("vectors", "check", tmp_path).err


def test_it_finds_the_vectors_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec").mkdir()
    shutil.copytree(VECTORS, tmp_path / "spec" / "vectors")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    done = sealring("vectors", "check", "--family", "splits", "--json")
    assert (done.code, done.json()["folder"]) == (0, str(tmp_path / "spec" / "vectors"))

"""The files of others that the page ships are those that are recorded, and all of them are."""

from __future__ import annotations

import hashlib
import json

from sealring.dashboard.pages import FILES

VENDOR = FILES / "vendor"
RECORDED = json.loads((VENDOR / "versions.json").read_text())


def test_the_files_are_those_that_are_recorded() -> None:
    expected = {"README.md", "versions.json"}
    for entry in RECORDED:
        data = (VENDOR / entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], entry["file"]
        assert entry["version"].encode() in data
        licence = (VENDOR / entry["licence_file"]).read_text()
        assert "Permission" in licence or "Redistribution" in licence
        for contained in entry["contains"]:
            assert f"==== {contained}\n" in licence
        expected |= {entry["file"], entry["licence_file"]}
    assert {path.name for path in VENDOR.iterdir()} == expected


def test_the_worker_alone_loads_them() -> None:
    loading = [path.name for path in FILES.rglob("*.js") if b"vendor/" in path.read_bytes()]
    assert loading == ["worker.js"]

"""Files of weights are held to the hashes that the hub's own tools keep of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from model_families import config_of, random_weights, write_model
from sealring_model.errors import LoadError
from sealring_model.loading.assemble import load_shard, load_stage
from sealring_model.loading.model_folder import describe, pins_of
from sealring_model.loading.weights import write_manifest


def in_cache(folder: Path) -> None:
    """Each file as a link to one that is named by its hash."""
    for file in folder.glob("model*.safetensors"):
        blob = folder.parent / hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blob)
        file.symlink_to(blob)


def by_note(folder: Path, *, later: float = 0) -> None:
    """Each file beside what `hf download --local-dir` notes of it, that many seconds after it."""
    notes = folder / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    for file in folder.glob("model*.safetensors"):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        when = file.stat().st_mtime + later
        (notes / f"{file.name}.metadata").write_text(f"{'c' * 40}\n{digest}\n{when}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = config_of("llama")
    weights = random_weights(config)
    write_model(tmp_path / "model", config, weights, shards=len(weights))  # a file for each
    return tmp_path / "model"


def flip(folder: Path, name: str) -> Path:
    """Change a byte of tensor *name* that no pin samples; the file's time stays."""
    info = describe(folder)
    before = pins_of(info)
    entry = info.entries[name]
    at = 4096 + 1
    assert entry.size > 2 * at
    times = entry.file.stat()
    with entry.file.open("r+b") as stream:
        stream.seek(entry.offset + at)
        byte = stream.read(1)[0]
        stream.seek(entry.offset + at)
        stream.write(bytes([byte ^ 1]))
    os.utime(entry.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert pins_of(describe(folder)) == before
    return entry.file


@pytest.mark.parametrize("known", [in_cache, by_note])
def test_a_byte_that_no_pin_samples_is_found(folder: Path, known: Callable[[Path], None]) -> None:
    known(folder)
    count = len(describe(folder).layers)
    load_stage(describe(folder), 0, count)
    wrong = flip(folder, f"model.layers.{count - 1}.mlp.down_proj.weight")
    info = describe(folder)
    assert not any("sample" in note for note in info.notes)
    for load in (
        lambda: load_stage(info, count - 1, count),
        lambda: load_shard(info, 0, count, 0, 2),
    ):
        with pytest.raises(LoadError, match=f"{wrong} is not the file that the hub has"):
            load()
    load_stage(info, 1, 2)  # which reads nothing of that file
    load_stage(describe(folder, trusted=True), count - 1, count)


def test_a_file_that_was_written_after_its_download_is_the_users_own(folder: Path) -> None:
    by_note(folder, later=-60)
    info = describe(folder)
    assert set(info.hub_hashes.values()) == {""}
    assert any("a sample is compared" in note for note in info.notes)


@pytest.mark.parametrize(
    "note", [b"", b"c\nd\ne\n", b"c\n" + b"0" * 64 + b"\nsoon\n", b"\xff" * 99]
)
def test_a_note_that_cannot_be_read_tells_nothing(folder: Path, note: bytes) -> None:
    by_note(folder)
    for file in (folder / ".cache/huggingface/download").iterdir():
        file.write_bytes(note)
    assert set(describe(folder).hub_hashes.values()) == {""}


def test_a_manifest_is_asked_instead(folder: Path) -> None:
    """It is of tensors, so a file may have been written anew."""
    in_cache(folder)
    flip(folder, "model.layers.0.mlp.down_proj.weight")
    write_manifest(folder)
    load_stage(describe(folder), 0, 2)

"""Pins of weights: equal where the weights are, and not where they differ."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from model_families import config_of, random_weights, write_model
from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import ModelInfo, describe, pins_of
from sealring_model.loading.model_store import HubOrigin, PartialModel, WeightFile
from sealring_model.loading.weights import owner, tensors_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = config_of("llama")
    write_model(tmp_path / "model", config, random_weights(config), shards=2)
    return tmp_path / "model"


def begun(whole: ModelInfo, folder: Path, pins: tuple[int, ...]) -> PartialModel:
    """The model *whole* in *folder*, with its headers and no tensor; its source told *pins*."""
    files = {entry.file for entry in whole.entries.values()}
    starts = {f: min(e.offset for e in whole.entries.values() if e.file == f) for f in files}
    headers = {file.name: file.read_bytes()[:start] for file, start in starts.items()}
    small = {"config.json": (whole.folder / "config.json").read_bytes()}
    sizes = {file.name: WeightFile(file.stat().st_size, "") for file in files}
    return PartialModel.create(folder, HubOrigin("a/b", "main", "c", sizes, pins), small, headers)


def flip(info: ModelInfo, name: str, at: int) -> None:
    entry = info.entries[name]
    with entry.file.open("r+b") as file:
        file.seek(entry.offset + at)
        byte = file.read(1)[0]
        file.seek(entry.offset + at)
        file.write(bytes([byte ^ 1]))


def test_each_part_has_its_own_pin(folder):
    info = describe(folder)
    files, *parts = pins_of(info)
    assert files == 0  # it would take reading the files
    assert len(parts) == len(info.layers) + 1
    assert all(parts)
    assert len(set(parts)) == len(parts)


def test_a_byte_of_any_tensor_changes_the_pin_of_its_part_alone(folder):
    info = describe(folder)
    before = pins_of(info)
    for name, entry in info.entries.items():
        flip(info, name, entry.size - 1)  # the last piece goes to the end
        after = pins_of(info)
        part = owner(name, len(info.layers)) + 2
        assert [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [part]
        flip(info, name, entry.size - 1)
    assert pins_of(info) == before


def test_pins_are_of_tensors_and_not_of_how_they_are_put_into_files(folder, tmp_path):
    config = config_of("llama")
    write_model(tmp_path / "other", config, random_weights(config), shards=1)
    assert pins_of(describe(folder)) == pins_of(describe(tmp_path / "other"))


def test_some_of_every_kind_of_tensor_are_in_the_sample_of_a_layer_of_many(folder, tmp_path):
    """A fine-tuning changes the few weights of attention, and not those of the many experts."""
    config = config_of("llama")
    weights = random_weights(config)
    for expert in range(200):
        for part in ("down_proj", "gate_proj", "up_proj"):
            name = f"model.layers.1.mlp.experts.{expert}.{part}.weight"
            weights[name] = mx.full((8, 8), float(expert))
    info = describe(write_model(tmp_path / "many", config, weights))
    before, experts = pins_of(info), set()
    for name in info.entries:
        if not name.startswith("model.layers.1."):
            continue
        flip(info, name, 0)
        if pins_of(info)[3] != before[3]:
            experts.add(name) if "experts" in name else None
        else:
            assert "experts" in name
        flip(info, name, 0)
    assert len(experts) == 3 * (64 // 12)  # a layer of this model has 9 tensors beside experts
    assert len({int(name.split(".")[5]) for name in experts}) == 64 // 12


def test_files_in_the_hubs_cache_have_a_pin_too(folder, tmp_path):
    """There each file is a link to one that is named by its SHA-256."""
    snapshot = tmp_path / "models--a--b" / "snapshots" / "c"
    shutil.copytree(folder, snapshot)
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for file in snapshot.glob("model*.safetensors"):
        blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blob)
        file.symlink_to(Path("../../blobs") / blob.name)
    files, *parts = pins_of(describe(snapshot))
    assert files
    assert (0, *parts) == pins_of(describe(folder))


def test_a_file_that_became_shorter_is_told(folder):
    info = describe(folder)
    file = next(iter(info.entries.values())).file
    with file.open("r+b") as stream:
        stream.truncate(200)
    with pytest.raises(LoadError, match="ends within tensor"):
        pins_of(info)


def test_of_a_model_that_is_here_in_part_the_pins_of_what_is_here(folder, tmp_path):
    whole = describe(folder)
    partial = begun(whole, tmp_path / "part", ())
    info = describe(tmp_path / "part")
    assert pins_of(info) == (0,) * (len(info.layers) + 2)
    for name in tensors_of(info.entries, len(info.layers), 1, 2)[1]:
        entry = whole.entries[name]
        data = entry.file.read_bytes()[entry.offset :][: entry.size]
        partial.write(entry.file.name, entry.offset, data)
        partial.sync(entry.file.name)
        partial.wrote(entry.file.name, entry.offset, entry.offset + entry.size)
        partial.keep(name, hashlib.sha256(data).hexdigest())
    pins = pins_of(info)
    assert pins[3] == pins_of(whole)[3]
    assert not any(pins[:3] + pins[4:])


def test_pins_that_the_source_told_stand_for_what_is_not_here(folder, tmp_path):
    whole = describe(folder)
    begun(whole, tmp_path / "part", pins_of(whole))
    assert pins_of(describe(tmp_path / "part")) == pins_of(whole)

"""Which files of a model's folder other members get, byte for byte, and which they do not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from sealring_model import tiny
from sealring_model.loading.model_folder import describe, pins_of
from sealring_model.loading.model_store import HubOrigin, PartialModel, WeightFile
from sealring_model.loading.weights import read_entries, write_manifest
from sealring_protocol.codec.messages import Get, Piece
from sealring_trio.fetching.shared_files import LISTING_SECONDS, SharedFiles
from sealring_trio.fetching.source import is_shared

WEIGHTS = "model.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the tiny model, without a manifest."""
    folder = tmp_path / "model"
    shutil.copytree(tiny.path(), folder)
    (folder / "sealring.json").unlink(missing_ok=True)
    return folder


def get(folder: Path, name: str, offset: int = 0, length: int = 1 << 18) -> Piece:
    return SharedFiles(folder).answer(Get(name, offset, length))


def listing(files: SharedFiles) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(bytes(files.answer(Get("", 0, 1 << 20)).data))
    return found


def test_every_needed_file_comes_byte_for_byte(model: Path) -> None:
    files = SharedFiles(model)
    told = listing(files)
    assert {"config.json", "tokenizer.json", WEIGHTS} <= set(told["files"])
    for name, size in told["files"].items():
        content = bytearray()
        while len(content) < int(size):
            piece = files.answer(Get(name, len(content), 100_000))
            assert piece.size == int(size)
            content += piece.data
        assert content == (model / name).read_bytes()


def test_what_is_asked_beyond_the_end_is_cut_or_empty(model: Path) -> None:
    size = (model / "config.json").stat().st_size
    assert len(get(model, "config.json", size - 3).data) == 3
    assert get(model, "config.json", size) == Piece(size)
    assert get(model, "config.json", 2**64 - 1, 1 << 20) == Piece(size)
    assert get(model, "config.json", 3, 0) == Piece(size)


SECRETS = {
    "hidden": ".env.json",
    "code": "modeling.py",
    "notes": "notes.txt",
    "other weights": "adapter.safetensors",
}


@pytest.mark.parametrize("name", SECRETS.values(), ids=SECRETS)
def test_other_files_of_the_folder_are_not_given(model: Path, name: str) -> None:
    (model / name).write_text("secret")
    assert not is_shared(name)
    told = get(model, name)
    assert (bytes(told.data), told.size) == (b"", 0)
    assert name in told.reason
    assert name not in listing(SharedFiles(model))["files"]


def test_no_link_leads_out_of_the_folder(model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "deep.json").write_text("secret")
    (model / "absolute.json").symlink_to(secret)
    (model / "relative.json").symlink_to("../secret.json")
    (model / "chain.json").symlink_to("relative.json")
    (model / "through.json").symlink_to("../model/../elsewhere/deep.json")
    (model / "same.json").symlink_to("config.json")
    for name in ("absolute.json", "relative.json", "chain.json", "through.json"):
        told = get(model, name)
        assert (bytes(told.data), told.reason) == (
            b"",
            f"{name} is a link out of the model's folder there",
        )
    assert get(model, "same.json").data == (model / "config.json").read_bytes()
    assert "absolute.json" not in listing(SharedFiles(model))["files"]


def test_a_folder_that_is_swapped_while_a_file_is_opened_leads_nowhere(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.json").write_text("secret")
    (model / "below").mkdir()
    (model / "below" / "a.json").write_text("{}")
    (model / "a.json").symlink_to("below/a.json")
    real = os.path.realpath

    def swapped(path: Path) -> str:
        found = real(path)
        if (model / "below").is_dir() and not (model / "below").is_symlink():
            (model / "below").rename(tmp_path / "gone")
            (model / "below").symlink_to(tmp_path / "elsewhere")
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    assert bytes(get(model, "a.json").data) == b""


def test_a_folder_whose_name_begins_alike_is_another(model: Path) -> None:
    beside = model.with_name("model-private")
    beside.mkdir()
    (beside / "key.json").write_text("secret")
    (model / "key.json").symlink_to(beside / "key.json")
    assert "link out" in get(model, "key.json").reason


def test_the_hubs_cache_is_given_through_its_links_into_its_blobs_alone(
    model: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "hub" / "models--owner--name"
    snapshot = cache / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    shutil.copy(model / "config.json", cache / "blobs" / "1234")
    (snapshot / "config.json").symlink_to("../../blobs/1234")
    (cache / "token.json").write_text("secret")
    (snapshot / "token.json").symlink_to("../../token.json")
    assert get(snapshot, "config.json").data == (model / "config.json").read_bytes()
    assert "link out" in get(snapshot, "token.json").reason


def test_pipes_devices_and_folders_are_refused_at_once(model: Path) -> None:
    os.mkfifo(model / "pipe.json")
    (model / "folder.json").mkdir()
    (model / "zero.json").symlink_to("/dev/zero")
    assert "no regular file" in get(model, "pipe.json").reason
    assert "no regular file" in get(model, "folder.json").reason
    assert "link out" in get(model, "zero.json").reason


def test_what_cannot_be_read_is_said(model: Path) -> None:
    shutil.rmtree(model)
    told = get(model, "config.json")
    assert "cannot be read: No such file or directory" in told.reason
    assert get(model, "").reason


def test_the_listing_has_the_manifests_hashes_or_none(model: Path) -> None:
    names = set(read_entries(model))
    assert listing(SharedFiles(model))["tensors"] == dict.fromkeys(names, "")
    manifest = json.loads(write_manifest(model).read_text())["tensors"]
    assert listing(SharedFiles(model))["tensors"] == manifest


def test_the_listing_has_the_models_pins(model: Path) -> None:
    pins = pins_of(describe(model))
    told = json.loads(bytes(SharedFiles(model).answer(Get("", 0, 1 << 20)).data))
    assert told["pins"] == [str(pin) for pin in pins]


def test_a_listing_that_is_read_in_parts_stays_the_same(model: Path) -> None:
    now = [0.0]
    files = SharedFiles(model, lambda: now[0])
    first = files.answer(Get("", 0, 50))
    (model / "more.json").write_text("{}")
    assert files.answer(Get("", 0, 50)) == first
    now[0] += LISTING_SECONDS + 1
    assert files.answer(Get("", 50, 50)).size == first.size
    assert files.answer(Get("", 0, 50)).size > first.size


@pytest.fixture
def partial(model: Path, tmp_path: Path) -> PartialModel:
    """The same model, without a tensor yet."""
    weights = (model / WEIGHTS).read_bytes()
    header = weights[: 8 + int.from_bytes(weights[:8], "little")]
    origin = HubOrigin("owner/name", "main", "a" * 40, {WEIGHTS: WeightFile(len(weights), "")})
    small = {"config.json": (model / "config.json").read_bytes()}
    return PartialModel.create(tmp_path / ("a" * 40), origin, small, {WEIGHTS: header})


def test_of_a_partial_model_only_what_is_here_is_given(model: Path, partial: PartialModel) -> None:
    whole = (model / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    files = SharedFiles(partial.folder)
    for ours in partial.folder.glob("sealring.partial.*"):
        assert "no file" in files.answer(Get(ours.name, 0, 1)).reason
    order = sorted(partial.entries.values(), key=lambda entry: entry.offset)
    first, second, third = order[:3]

    def given(begin: int, end: int) -> bytes | None:
        piece = files.answer(Get(WEIGHTS, begin, end - begin))
        assert piece.reason in ("", f"that part of {WEIGHTS} is not there yet")
        return None if piece.reason else bytes(piece.data)

    assert given(0, header) == whole[:header]
    assert given(0, header + 1) is None
    for entry in (first, third):
        end = entry.offset + entry.size
        partial.write(WEIGHTS, entry.offset, whole[entry.offset : end])
        partial.wrote(WEIGHTS, entry.offset, end)
        assert given(entry.offset, end) is None, "it has come, and was not checked yet"
        partial.keep(entry.name, "5" * 64)
        assert given(entry.offset, end) == whole[entry.offset : end]
    assert given(0, first.offset + first.size) == whole[: first.offset + first.size]
    assert given(first.offset + 1, second.offset) == whole[first.offset + 1 : second.offset]
    assert given(first.offset, second.offset + 1) is None
    assert given(second.offset + second.size - 1, third.offset + 1) is None
    assert given(third.offset + 1, third.offset + third.size + 1) is None
    assert given(len(whole) - 1, len(whole)) is None
    partial.drop([first.name])
    assert given(first.offset, first.offset + 1) is None
    assert listing(SharedFiles(partial.folder))["tensors"] == {third.name: "5" * 64}

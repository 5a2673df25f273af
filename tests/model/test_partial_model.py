"""A model of which a part is here: what is kept of it, and what the loader makes of that."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import stat
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_families import make_model
from model_rings import Ring
from sealring_model.errors import LoadError, NotHereError, failure_of_loading
from sealring_model.loading import model_store
from sealring_model.loading.assemble import load_shard, load_stage
from sealring_model.loading.model_folder import describe
from sealring_model.loading.model_store import (
    FAULT,
    LOG,
    ORIGIN,
    ByteRanges,
    HubOrigin,
    PartialModel,
    WeightFile,
    check_whole,
    clear_fault,
)
from sealring_model.loading.weights import read_entries, tensors_of, write_manifest
from sealring_protocol.codec.messages import FailureKind

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(20)]
COMMIT = "c0ffee" + "0" * 34


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("whole") / "m", "llama", shards=2)


@pytest.fixture
def model(whole, tmp_path):
    """*whole*, of which nothing is here but small files and headers."""
    return emptied(whole, tmp_path / "store" / COMMIT)


def emptied(whole, folder):
    weights = {file.name: file for file in whole.glob("model*.safetensors")}
    headers = {}
    for name, file in weights.items():
        content = file.read_bytes()
        headers[name] = content[: 8 + int.from_bytes(content[:8], "little")]
    files = {
        name: WeightFile(file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
        for name, file in weights.items()
    }
    small = {f.name: f.read_bytes() for f in whole.iterdir() if f.name not in weights}
    return PartialModel.create(folder, HubOrigin("a/b", "main", COMMIT, files), small, headers)


def bring(model, whole, names):
    """Have the tensors *names* come."""
    source = read_entries(whole)
    for name in names:
        entry = source[name]
        with entry.file.open("rb") as stream:
            stream.seek(entry.offset)
            data = stream.read(entry.size)
        file = entry.file.name
        model.write(file, entry.offset, data)
        model.sync(file)
        model.wrote(file, entry.offset, entry.offset + entry.size)
    for name in model.finished(names):
        model.keep(name, model.digest_of(name))


def names_of(model, first, last):
    layers = len(describe(model.folder).layers)
    return [n for names in tensors_of(model.entries, layers, first, last).values() for n in names]


# ----------------------------------------------------------------- what is here


def test_it_is_described_like_the_whole_and_takes_no_room(model, whole):
    assert describe(model.folder).digest == describe(whole).digest
    assert model.missing(model.entries) == list(model.entries)
    size = sum(entry.size for entry in model.entries.values())
    files = [model.folder / name for name in model.origin.files]
    assert sum(file.stat().st_size for file in files) > size
    assert sum(file.stat().st_blocks * 512 for file in files) < size / 4
    assert model.bytes_here(model.entries) == 0


def test_what_came_is_known_to_the_next_process(model, whole):
    names = names_of(model, 2, 3)
    bring(model, whole, names)
    again = PartialModel.open(model.folder)
    assert again is not None
    assert again.origin == model.origin
    assert sorted(again.hashes) == sorted(names)
    assert not again.missing(names)
    assert not again.gaps(names)
    assert again.bytes_here(names) == sum(again.entries[name].size for name in names)


def test_a_tensor_is_resumed_where_it_was(model, whole):
    entry = max(model.entries.values(), key=lambda e: e.size)
    data = read_entries(whole)[entry.name].file.read_bytes()
    half = entry.offset + entry.size // 2
    model.write(entry.file.name, entry.offset, data[entry.offset : half])
    model.wrote(entry.file.name, entry.offset, half)
    again = PartialModel.open(model.folder)
    assert again.gaps([entry.name]) == {entry.file.name: [(half, entry.offset + entry.size)]}
    assert again.finished([entry.name]) == []
    assert again.bytes_here([entry.name]) == entry.size // 2


def test_a_torn_line_is_lost_and_no_other(model, whole):
    first, second = names_of(model, 1, 2), names_of(model, 3, 4)
    bring(model, whole, first)
    with (model.folder / LOG).open("ab") as stream:
        stream.write(b'{"tensor": "model.layers.3.mlp.up_')
    again = PartialModel.open(model.folder)
    assert sorted(again.hashes) == sorted(first)
    bring(again, whole, second)
    assert sorted(PartialModel.open(model.folder).hashes) == sorted(first + second)


@pytest.mark.parametrize(
    "line",
    [
        "5",
        "[]",
        "[" * 100_000,
        '{"tensor": [], "sha256": 5}',
        '{"tensor": "nothing", "sha256": "00"}',
        '{"dropped": {}}',
        '{"verified": []}',
        '{"file": "model.safetensors", "begin": "a", "end": "b"}',
        '{"file": "model.safetensors", "begin": NaN, "end": Infinity}',
        '{"file": [], "begin": 0, "end": 5}',
    ],
    ids=lambda line: line[:50],
)
def test_a_line_that_makes_no_sense_is_left_out(model, whole, line):
    with (model.folder / LOG).open("a") as log:
        for file in model.origin.files:
            log.write(line.replace("model.safetensors", file) + "\n")
    bring(model, whole, model.entries)
    again = PartialModel.open(model.folder)
    assert not again.missing(again.entries)
    assert not again.gaps(again.entries)
    assert all(map(again.is_whole, again.origin.files))


def test_a_log_without_bound(model, monkeypatch):
    monkeypatch.setattr(model_store, "MAX_LOG", 1000)
    with (model.folder / LOG).open("ab") as log:
        log.write(b" " * 1000)
    with pytest.raises(LoadError, match="delete"):
        PartialModel.open(model.folder)


@pytest.mark.parametrize("name", [LOG, FAULT, ORIGIN])
def test_records_that_are_pipes_hold_nobody_up(model, name):
    (model.folder / name).unlink(missing_ok=True)
    os.mkfifo(model.folder / name)
    clear_fault(model.folder)
    model.set_fault("x", permanent=True)
    with contextlib.suppress(LoadError):
        found = PartialModel.open(model.folder)
        assert found.fault is None


@pytest.mark.parametrize("pins", ["[-1]", "[18446744073709551616]", "[Infinity]"])
def test_pins_beyond_their_width_are_no_record(model, pins):
    origin = json.loads((model.folder / ORIGIN).read_bytes())
    text = json.dumps({**origin, "pins": "PINS"}).replace('"PINS"', pins)
    (model.folder / ORIGIN).write_text(text)
    with pytest.raises(LoadError, match="no record"):
        PartialModel.open(model.folder)


def test_two_that_write_know_of_each_other(model, whole):
    other = PartialModel.open(model.folder)
    names = names_of(model, 1, 2)
    bring(model, whole, names)
    assert other.missing(names) == names
    other.refresh()
    assert other.missing(names) == []


def test_one_process_at_a_time_fetches(model):
    other = PartialModel.open(model.folder)
    with model.lock() as ours:
        assert ours
        with other.lock() as theirs:
            assert not theirs
    with other.lock() as theirs:
        assert theirs


def test_who_makes_a_model_that_is_there_gets_what_is_there(model, whole):
    names = names_of(model, 1, 2)
    bring(model, whole, names)
    again = emptied(whole, model.folder)
    assert sorted(again.hashes) == sorted(names)
    assert not [f for f in model.folder.parent.iterdir() if f != model.folder]


def test_headers_that_are_none_leave_nothing_behind(whole, tmp_path):
    name = "model.safetensors"
    origin = HubOrigin("a/b", "main", COMMIT, {name: WeightFile(100, "")})
    with pytest.raises(LoadError, match="no safetensors file"):
        PartialModel.create(tmp_path / "s" / COMMIT, origin, {}, {name: b"\xff" * 8})
    assert not list((tmp_path / "s").iterdir())


def test_a_file_is_whole_once_every_byte_is_here(model, whole):
    file = model.entries["model.norm.weight"].file.name
    names = [name for name, entry in model.entries.items() if entry.file.name == file]
    bring(model, whole, names[1:])
    assert not model.is_whole(file)
    bring(model, whole, names)
    assert model.is_whole(file)
    assert model.digest_of_file(file) == model.origin.files[file].sha256


@pytest.mark.parametrize("text", ['{"files": []}', "{}", "["])
def test_a_record_that_is_none(model, text):
    (model.folder / ORIGIN).write_text(text)
    with pytest.raises(LoadError):
        PartialModel.open(model.folder)


def test_a_log_that_leads_elsewhere_is_not_written(model, tmp_path):
    profile = tmp_path / "profile"
    profile.write_text("of the operator\n")
    (model.folder / LOG).unlink()
    (model.folder / LOG).symlink_to(profile)
    with pytest.raises(OSError, match="symbolic links"):
        model.keep("model.norm.weight", "0" * 64)
    assert profile.read_text() == "of the operator\n"


# ----------------------------------------------------------------- the loader


@pytest.mark.parametrize("load", [load_stage, partial(load_shard, rank=0, size=2)])
def test_layers_that_are_not_here_are_refused_and_not_for_good(model, whole, load):
    info = describe(model.folder)
    bring(model, whole, names_of(model, 1, 2))
    told = r"^its layers are still being fetched; 0\.\d of 0\.\d MB are here$"
    with pytest.raises(NotHereError, match=told) as refused:
        load(info, 1, 3)
    assert failure_of_loading(refused.value) is FailureKind.LOAD


def test_layers_that_are_here_are_loaded_and_no_others_are_needed(model, whole):
    bring(model, whole, names_of(model, 0, 2))
    bring(model, whole, names_of(model, 2, 5))
    assert load_stage(describe(model.folder), 2, 5).read
    assert Ring(model.folder, (0, 2, 5)).generate(PROMPT, 12) == Ring(whole).generate(PROMPT, 12)


def test_what_holds_the_rest_up_is_told(model):
    info = describe(model.folder)
    model.set_fault("the hub does not answer", permanent=False)
    with pytest.raises(NotHereError, match=r"held up .*: the hub does not answer; 0\.0 of"):
        load_stage(info, 1, 2)
    model.set_fault("the hub asks for consent", permanent=True)
    with pytest.raises(LoadError, match="cannot be fetched: the hub asks for consent") as told:
        load_stage(info, 1, 2)
    assert failure_of_loading(told.value) is FailureKind.UNSERVABLE
    clear_fault(model.folder)
    with pytest.raises(NotHereError, match="being fetched"):
        load_stage(info, 1, 2)
    size = (model.folder / FAULT).stat().st_size
    model.set_fault("x" * 10_000, permanent=True)
    assert model.fault is not None
    assert (model.folder / FAULT).stat().st_size == size  # it needs no room on a full disk


def test_a_tensor_that_has_changed_on_the_disk_is_given_up_and_fetched_again(model, whole):
    names = names_of(model, 1, 2)
    bring(model, whole, names)
    name = "model.layers.1.mlp.up_proj.weight"
    entry = model.entries[name]
    model.write(entry.file.name, entry.offset + 8, b"\x01\x02\x03\x04")
    info = describe(model.folder)
    with pytest.raises(NotHereError, match=f"tensor {name} on the disk is not what was fetched"):
        load_stage(info, 1, 2)
    model.refresh()
    assert model.missing(names) == [name]
    bring(model, whole, [name])
    assert load_stage(info, 1, 2).read


def test_a_manifest_is_asked_too(model, whole, tmp_path):
    pinned = shutil.copytree(whole, tmp_path / "pinned")
    write_manifest(pinned)
    manifest = json.loads((pinned / "sealring.json").read_text())
    name = "model.layers.1.mlp.up_proj.weight"
    manifest["tensors"][name] = "0" * 64
    (model.folder / "sealring.json").write_text(json.dumps(manifest))
    bring(model, whole, names_of(model, 1, 2))
    with pytest.raises(LoadError, match=f"tensor {name} does not match the manifest"):
        load_stage(describe(model.folder), 1, 2)


def test_who_needs_all_of_a_model_is_told_that_a_part_is_missing(model, whole):
    check_whole(whole)
    bring(model, whole, names_of(model, 1, 2))
    with pytest.raises(NotHereError, match=r"only a part of a/b .* `sealring pull a/b@c0ffee"):
        check_whole(model.folder)
    bring(model, whole, model.entries)
    check_whole(model.folder)


# ------------------------------------------------------------------ the ranges

Spans = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 40)), max_size=20)


@given(changes=Spans, begin=st.integers(0, 40), end=st.integers(0, 40))
def test_ranges_are_the_set_of_their_bytes(changes, begin, end):
    ranges, expected = ByteRanges(), set()
    for adds, start, stop in changes:
        if adds:
            ranges.add(start, stop)
            expected |= set(range(start, stop))
        else:
            ranges.remove(start, stop)
            expected -= set(range(start, stop))
    listed = ranges.all()
    assert {byte for start, stop in listed for byte in range(start, stop)} == expected
    assert all(one[1] < two[0] for one, two in itertools.pairwise(listed))
    gaps = [byte for start, stop in ranges.gaps(begin, end) for byte in range(start, stop)]
    assert gaps == [byte for byte in range(begin, end) if byte not in expected]
    if begin <= end:
        assert ranges.count(begin, end) == len(expected & set(range(begin, end)))
        assert ranges.covers(begin, end) == (not gaps)


# ------------------------------------------------------------------- the store


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(model_store.VARIABLE, str(tmp_path / "models"))
    return tmp_path / "models"


def test_a_commit_is_remembered(place):
    assert model_store.known_commit("a/b", "main") is None
    model_store.remember_commit("a/b", "main", COMMIT)
    assert model_store.known_commit("a/b", "main") == COMMIT
    assert model_store.known_commit("a/b", COMMIT) == COMMIT
    assert model_store.folder_of("a/b", COMMIT) == place / "a--b" / COMMIT


def test_models_of_the_store_are_listed_and_named(place, whole):
    assert list(model_store.stored_models()) == []
    folder = emptied(whole, model_store.folder_of("a-1/b.2", COMMIT)).folder
    assert list(model_store.stored_models()) == [("a-1/b.2", folder)]
    assert model_store.stored_name(folder.resolve()) == "a-1/b.2"
    assert model_store.stored_name(whole.resolve()) is None


def test_what_is_odd_in_the_store_is_passed_over(place, whole):
    folder = emptied(whole, model_store.folder_of("a/b", COMMIT)).folder
    model_store.remember_commit("a/b", "main", COMMIT)
    refs = folder.parent / "refs"
    (refs / "folder").mkdir()
    os.mkfifo(refs / "pipe")
    (refs / "link").symlink_to("/dev/zero")
    (refs / "words").write_bytes(b"\xff" * 100)
    (place / "c--d").write_bytes(b"")
    (place / "e--f").symlink_to("/nowhere")
    assert list(model_store.stored_models()) == [("a/b", folder)]
    assert model_store.refs_of(folder) == ["main"]
    for name in ("folder", "pipe", "link", "words"):
        assert model_store.known_commit("a/b", name) is None


@pytest.mark.parametrize("model", ["a", "a/b/c", "../b", "a/..", "a/b@", "a/b@../x", "/b", "a/b@ "])
def test_what_is_no_hub_id(model):
    with pytest.raises(LoadError):
        model_store.split_id(model)


def test_a_hub_id_has_a_revision():
    assert model_store.split_id("a/b") == ("a/b", "main")
    assert model_store.split_id("a/b@v1") == ("a/b", "v1")


def test_where_models_are_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv(model_store.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model_store.store() == tmp_path / "sealring" / "models"


def test_a_file_appears_whole_and_for_others_to_read(tmp_path):
    model_store.write_whole(tmp_path / "x" / "file", b"abc")
    assert (tmp_path / "x" / "file").read_bytes() == b"abc"
    assert stat.S_IMODE(os.stat(tmp_path / "x" / "file").st_mode) == 0o644
    assert [file.name for file in (tmp_path / "x").iterdir()] == ["file"]

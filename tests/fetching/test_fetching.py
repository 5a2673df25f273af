"""A model is found on a hub, and parts of its weights are fetched from there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from huggingface_hub import constants
from sealring_model.loading import model_store
from sealring_model.loading.model_folder import describe
from sealring_model.loading.model_store import LOG, PartialModel
from sealring_model.loading.weights import read_entries, tensors_of, write_manifest
from sealring_trio.errors import UserError
from sealring_trio.fetching import fetcher
from sealring_trio.fetching.fetcher import PIECE, SLACK, FetchProgress, cut, fetch
from sealring_trio.fetching.hub import Hub, find_hub_model
from sealring_trio.fetching.source import FetchFault, is_shared
from sealring_trio.files.models import find_model

from tests.fetching.conftest import MODEL
from tests.fetching.stand_in import COMMIT, TOKEN

PERSON_SECONDS = 60


def opened(hub: Hub, model: str = MODEL) -> PartialModel:
    found = PartialModel.open(find_hub_model(model, hub))
    assert found is not None
    return found


def names_of(model: PartialModel, first: int, last: int) -> list[str]:
    layers = len(describe(model.folder).layers)
    return [n for names in tensors_of(model.entries, layers, first, last).values() for n in names]


def size_of(model: PartialModel, names: Sequence[str]) -> int:
    return sum(model.entries[name].size for name in names)


def quiet(_: FetchProgress) -> None:
    pass


async def fetched(model: PartialModel, names: Sequence[str], hub: Hub) -> None:
    with trio.fail_after(PERSON_SECONDS):
        await fetch(model, names, hub, quiet)


def same(model: PartialModel, source: Path, names: Sequence[str]) -> bool:
    entries = read_entries(source)

    def content(entry):
        with entry.file.open("rb") as stream:
            stream.seek(entry.offset)
            return stream.read(entry.size)

    return all(content(model.entries[name]) == content(entries[name]) for name in names)


# ---------------------------------------------------------------- finding


def test_a_model_is_described_before_its_weights_are_fetched(hub, server, source):
    folder = find_hub_model(MODEL, hub)
    assert describe(folder).digest == describe(source).digest
    header = (source / "model.safetensors").read_bytes()[:8]
    assert server.weights_sent == 8 + int.from_bytes(header, "little")
    assert {file.name for file in source.iterdir()} <= {file.name for file in folder.iterdir()}


def test_the_hub_is_asked_once(hub, server):
    folder = find_hub_model(MODEL, hub)
    asked = len(server.seen)
    assert find_hub_model(MODEL, hub) == folder
    assert find_hub_model(f"{MODEL}@{COMMIT}", Hub(endpoint=server.url, offline=True)) == folder
    assert len(server.seen) == asked


def test_the_hubs_own_cache_is_used_where_it_is_whole(hub, server, source, tmp_path):
    snapshots = Path(constants.HF_HUB_CACHE) / "models--someone--model-1" / "snapshots"
    refs = snapshots.parent / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    cached = Path(shutil.copytree(source, snapshots / COMMIT))
    assert find_hub_model(MODEL, hub) == cached
    assert not server.seen
    (cached / "model.safetensors").unlink()
    assert find_hub_model(MODEL, hub) != cached


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("someone/nothing", "the hub has no model someone/nothing"),
        (f"{MODEL}@v2", "no such revision of"),
        ("a/b/c", "no hub id"),
        ("some one/x", "no hub id"),
    ],
)
def test_what_the_hub_does_not_have(hub, model, told):
    with pytest.raises(FetchFault, match=told) as fault:
        find_hub_model(model, hub)
    assert fault.value.permanent


def test_a_model_that_asks_for_consent(hub, server, monkeypatch):
    server.gated.add(MODEL)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(FetchFault, match="asks for consent on the hub first, and for HF_TOKEN"):
        find_hub_model(MODEL, hub)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert find_hub_model(MODEL, hub)
    # The token is for the hub; the server that it redirects to never gets it.
    assert {where for where, with_token in server.authorized if with_token} == {"hub"}


def test_offline(server, store):
    for one, told in ((Hub(endpoint=server.url, offline=True), "offline = true"),):
        with pytest.raises(FetchFault, match=f"not on this machine, and {told} forbids"):
            find_hub_model(MODEL, one)
    assert not server.seen


def test_offline_by_the_environment(hub, server, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchFault, match="HF_HUB_OFFLINE forbids"):
        find_hub_model(MODEL, hub)
    assert not server.seen


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("127.0.0.1:9", "127.0.0.1 cannot be reached: "),
        ("hub.invalid", "hub.invalid does not resolve"),
    ],
)
def test_a_hub_that_cannot_be_reached(store, monkeypatch, caplog, host, told):
    monkeypatch.setattr("sealring_trio.fetching.source._PAUSE", 0.0)
    with pytest.raises(UserError, match=told) as fault:
        find_model(MODEL, Hub(endpoint=f"http://{host}"))
    assert "name a mirror (HF_ENDPOINT), or give a folder" in fault.value.advice
    tries = [text for text in caplog.messages if told in text]
    ends = [f"; trying again in 0 s ({each} of 3)" for each in (1, 2, 3)]
    assert [text.endswith(end) for text, end in zip(tries, ends, strict=True)] == [True] * 3


def test_a_folder_that_is_not_there_is_asked_of_no_hub(hub, server, monkeypatch, tmp_path):
    """Of MODEL, which the hub has, only if that is what is said, or it is known here."""
    monkeypatch.chdir(tmp_path)
    Path(MODEL).parent.mkdir()
    with pytest.raises(UserError, match=f"there is no folder {MODEL}, and someone is a folder"):
        find_model(MODEL, hub)
    assert not server.seen
    assert find_model(f"{MODEL}@main", hub) == find_model(MODEL, hub)
    assert server.seen


def test_what_a_hub_lacks_may_have_been_meant_for_a_folder(hub):
    with pytest.raises(UserError, match=r"no folder a/b here, and as a hub id: .* no model a/b"):
        find_model("a/b", hub)


def test_a_model_without_safetensors(hub, server, source, tmp_path):
    folder = Path(shutil.copytree(source, tmp_path / "bin"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    server.models["someone/bin"] = folder
    with pytest.raises(FetchFault, match=r"has no model\*\.safetensors"):
        find_hub_model("someone/bin", hub)


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("config.json", True),
        ("model-00001-of-00002.safetensors", True),
        ("chat_template.jinja", True),
        ("modeling_x.py", False),
        ("original/params.json", False),
        ("../config.json", False),
        ("sealring.partial.json", False),
        (".config.json", False),
    ],
)
def test_what_is_fetched(name, needed):
    assert is_shared(name) is needed


# --------------------------------------------------------------- fetching


async def test_a_ranks_layers_are_fetched_and_little_else(hub, server, source):
    model = opened(hub)
    names = names_of(model, 2, 4)
    before = server.weights_sent
    await fetched(model, names, hub)
    assert not model.missing(names)
    assert sorted(model.hashes) == sorted(names)
    assert same(model, source, names)
    size = size_of(model, names)
    assert size <= server.weights_sent - before <= 1.02 * size
    taken = sum(file.stat().st_blocks * 512 for file in model.folder.iterdir())
    assert taken < size_of(model, list(model.entries)) / 2


async def test_everything_has_the_hash_that_the_hub_tells(hub, server, source):
    model = opened(hub)
    await fetched(model, list(model.entries), hub)
    assert model.verified == {"model.safetensors"}
    assert (model.folder / "model.safetensors").read_bytes() == (
        source / "model.safetensors"
    ).read_bytes()
    sent = server.weights_sent
    await fetched(model, list(model.entries), hub)
    assert server.weights_sent == sent


async def test_connections_that_break_go_on_where_they_were(hub, server, source):
    model = opened(hub)
    names = names_of(model, 1, 3)
    server.cut, server.broken, server.busy = 3, 2, 1
    before = server.weights_sent
    await fetched(model, names, hub)
    assert same(model, source, names)
    assert server.weights_sent - before <= 1.02 * size_of(model, names)


async def test_an_address_that_has_run_out_is_asked_for_again(hub, server, source):
    model = opened(hub)
    await fetched(model, names_of(model, 1, 2), hub)
    redirected = server.requests("hub")
    server.expired = 1
    await fetched(model, names_of(model, 2, 3), hub)
    assert server.requests("hub") > redirected
    assert same(model, source, names_of(model, 1, 3))


async def test_a_wrong_byte_is_caught_and_fetched_again(hub, server, source):
    model = opened(hub)
    entry = model.entries["model.layers.3.mlp.up_proj.weight"]
    server.wrong["model.safetensors"] = [entry.offset + 5]
    await fetched(model, list(model.entries), hub)
    assert same(model, source, list(model.entries))


async def test_bytes_that_stay_wrong_are_named_by_the_file(hub, server):
    model = opened(hub)
    entry = model.entries["model.layers.3.mlp.up_proj.weight"]
    server.wrong["model.safetensors"] = [entry.offset + 5, entry.offset + 5]
    with pytest.raises(FetchFault, match=r"model\.safetensors of someone/model-1 came with wrong"):
        await fetched(model, list(model.entries), hub)
    assert model.fault is not None
    assert model.fault.permanent


async def test_with_a_manifest_they_are_named_by_the_tensor(hub, server, source, tmp_path):
    folder = Path(shutil.copytree(source, tmp_path / "pinned"))
    write_manifest(folder)
    server.models["someone/pinned"] = folder
    model = opened(hub, "someone/pinned")
    name = "model.layers.3.mlp.up_proj.weight"
    server.wrong["model.safetensors"] = [model.entries[name].offset + 5]
    names = names_of(model, 3, 4)
    await fetched(model, names, hub)
    assert same(model, source, names)
    model.drop([name])
    server.wrong["model.safetensors"] = [model.entries[name].offset + 5] * 2
    with pytest.raises(FetchFault, match=f"tensor {name} of someone/pinned came with wrong"):
        await fetched(model, names, hub)


def test_a_mirror_without_ranges_gives_what_is_wanted_whole(hub, server, source):
    server.ranges = server.small_ranges = False
    with pytest.raises(FetchFault, match=r"does not serve parts of model\.safetensors; fetch"):
        find_hub_model(MODEL, hub)
    server.ranges = True
    folder = find_hub_model(MODEL, hub)
    for name in ("config.json", "tokenizer.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()


async def test_a_server_that_ignores_ranges_is_noticed(hub, server):
    model = opened(hub)
    server.ranges = False
    with pytest.raises(FetchFault, match=r"does not serve parts of model\.safetensors; fetch"):
        await fetched(model, names_of(model, 1, 2), hub)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Content-Range", "bytes 0-9/1000"),
        ("Content-Range", "bytes 0-9"),
        ("Content-Range", ""),
        ("Content-Encoding", "gzip"),
    ],
)
async def test_a_server_that_sends_something_else(hub, server, header, value):
    model = opened(hub)
    server.headers = {header: value}
    with pytest.raises(FetchFault, match=r"sent another part of model\.safetensors than was asked"):
        await fetched(model, names_of(model, 1, 2), hub)
    assert not model.bytes_here(names_of(model, 1, 2))


async def test_a_file_that_has_another_size_than_the_hub_said(hub, server, source, tmp_path):
    model = opened(hub)
    longer = Path(shutil.copytree(source, tmp_path / "longer"))
    with (longer / "model.safetensors").open("ab") as stream:
        stream.write(b"more")
    server.models[MODEL] = longer
    with pytest.raises(FetchFault, match="sent another part of"):
        await fetched(model, names_of(model, 1, 2), hub)


async def test_what_vanished_from_the_hub(hub, server, source):
    model = opened(hub)
    del server.models[MODEL]
    with pytest.raises(FetchFault, match=r"the hub has no model\.safetensors of"):
        await fetched(model, names_of(model, 1, 2), hub)
    assert model.fault is not None
    assert model.fault.permanent


async def test_a_file_that_becomes_shorter_is_a_fault_in_words(hub, monkeypatch):
    model = opened(hub)
    write = PartialModel.write

    def shorter(self: PartialModel, file: str, offset: int, data: bytes) -> None:
        write(self, file, offset, data)
        os.truncate(self.folder / file, offset)

    monkeypatch.setattr(PartialModel, "write", shorter)
    with pytest.raises(FetchFault, match="ends within tensor") as caught:
        await fetched(model, names_of(model, 0, 1), hub)
    assert caught.value.permanent
    assert model.fault is not None
    assert "ends within tensor" in model.fault.text


async def test_too_little_room_is_said_with_both_numbers(hub, monkeypatch):
    model = opened(hub)
    real = os.statvfs(model.folder)
    small = os.statvfs_result((*real[:4], 10, *real[5:]))
    monkeypatch.setattr(fetcher.os, "statvfs", lambda _: small)
    with pytest.raises(FetchFault, match=r"0\.\d+ GB of .* to come, and 0\.00 GB are free in"):
        await fetched(model, list(model.entries), hub)


async def test_it_gives_up_a_hub_that_is_silent_for_long(hub, server, monkeypatch):
    model = opened(hub)
    server.broken = 10_000
    with trio.fail_after(PERSON_SECONDS), pytest.raises(FetchFault, match="answers 503"):
        await fetch(model, names_of(model, 1, 2), hub, quiet, patience=0.5)


async def test_what_holds_it_up_is_told_and_taken_back(hub, server, monkeypatch):
    monkeypatch.setattr(fetcher, "_QUIET", 0.0)
    model = opened(hub)
    server.broken = 4
    told = []

    def look(_: FetchProgress) -> None:
        if (fault := model.fault) is not None:
            told.append(fault)

    monkeypatch.setattr(fetcher, "_LOOK", 0.05)
    with trio.fail_after(PERSON_SECONDS):
        await fetch(model, names_of(model, 1, 2), hub, look)
    assert "answers 503" in told[0].text
    assert not told[0].permanent
    assert model.fault is None


async def test_a_long_time_that_a_server_asks_to_wait_is_told_at_once(hub, server, monkeypatch):
    model = opened(hub)
    monkeypatch.setattr("tests.fetching.stand_in.PAUSE", "200")
    server.busy = 10_000
    told = trio.Event()
    tell = PartialModel.set_fault

    def set_fault(model: PartialModel, text: str, *, permanent: bool) -> None:
        tell(model, text, permanent=permanent)
        told.set()

    monkeypatch.setattr(PartialModel, "set_fault", set_fault)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, model, names_of(model, 1, 2), hub, quiet)
        with trio.fail_after(5):
            await told.wait()
        nursery.cancel_scope.cancel()
    assert model.fault is not None
    assert "answers 429 for model.safetensors, and asks to wait 200 s" in model.fault.text


async def test_who_has_no_patience_for_that_long_is_told_at_once(hub, server, monkeypatch):
    model = opened(hub)
    monkeypatch.setattr("tests.fetching.stand_in.PAUSE", "200")
    server.busy = 10_000
    with trio.fail_after(10), pytest.raises(FetchFault, match="asks to wait 200 s"):
        await fetch(model, names_of(model, 1, 2), hub, quiet, patience=60)


async def test_who_waits_for_another_process_says_so(hub, monkeypatch, caplog):
    monkeypatch.setattr(fetcher, "_LOOK", 0.01)
    one, other = opened(hub), opened(hub)
    names = names_of(one, 1, 2)
    told: list[tuple[int, int]] = []
    with one.lock() as ours, trio.move_on_after(0.2):
        assert ours
        await fetch(other, names, hub, lambda p: told.append((p.here, p.total)))
    assert told[0] == (0, size_of(one, names))
    assert caplog.text.count("another process fetches into") == 1
    await fetched(other, names, hub)


async def test_what_is_cancelled_is_resumed(hub, server, source, monkeypatch):
    monkeypatch.setattr(fetcher, "KEEP_BYTES", 256 * 1024)
    model = opened(hub)
    names = names_of(model, 0, 4)
    before, size = server.weights_sent, size_of(model, names)
    server.stop_at = before + size // 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, model, names, hub, quiet)
        with trio.fail_after(PERSON_SECONDS):
            await trio.to_thread.run_sync(server.fell_silent.wait)
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(server.speak_again)
    again = PartialModel.open(model.folder)
    assert again is not None
    here, before = again.bytes_here(names), server.weights_sent
    assert here > size // 4
    await fetched(again, names, hub)
    assert same(again, source, names)
    assert server.weights_sent - before <= 1.02 * (size - here)


async def test_two_processes_fetch_each_thing_once(hub, server, source):
    one, other = opened(hub), opened(hub)
    before = server.weights_sent
    names = names_of(one, 0, 3)
    with trio.fail_after(PERSON_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, one, names, hub, quiet)
            nursery.start_soon(fetch, other, names, hub, quiet)
    assert server.weights_sent - before <= 1.02 * size_of(one, names)
    assert not other.missing(names)


async def test_progress_is_told(hub):
    model = opened(hub)
    names = names_of(model, 1, 3)
    told: list[tuple[int, int]] = []
    with trio.fail_after(PERSON_SECONDS):
        await fetch(model, names, hub, lambda p: told.append((p.here, p.total)))
    assert told[0] == (0, size_of(model, names))
    assert told[-1] == (size_of(model, names),) * 2
    assert told == sorted(told)


def test_progress_in_words():
    progress = FetchProgress(16 * 10**9, 10**9)
    assert progress.text == "1.0 of 16.0 GB"
    progress._marks.appendleft((progress._marks[0][0] - 10, 0))
    progress.came(2 * 10**9)
    assert progress.text.startswith("2.0 of 16.0 GB, ")
    assert progress.text.endswith(" left")


# ------------------------------------------------------------------ pieces


def test_near_ranges_are_one_and_long_ones_are_cut():
    mib = 1 << 20
    gaps = {"a": [(0, mib), (mib + 100, 2 * mib)], "b": [(0, 10), (50, 60), (mib, 80 * mib)]}
    pieces = [(piece.file, piece.begin, piece.end) for piece in cut(gaps, lambda *_: False)]
    assert pieces == [
        ("a", 0, 2 * mib),
        ("b", 0, 10),
        ("b", 50, 60),
        ("b", mib, mib + PIECE),
        ("b", mib + PIECE, mib + 2 * PIECE),
        ("b", mib + 2 * PIECE, 80 * mib),
    ]


@pytest.mark.parametrize("way", ["deleted", "cut short"])
def test_what_others_did_to_the_weights_is_mended_as_it_says(hub, way):
    folder = opened(hub).folder
    (file,) = folder.glob("*.safetensors")
    if way == "deleted":
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(FetchFault, match=f"delete {folder} and fetch it again"):
        opened(hub)
    shutil.rmtree(folder)
    assert opened(hub).folder == folder


async def test_what_is_kept_does_not_come_again_between_others(hub, server):
    """A wrong byte of it would be recorded as right."""
    model = opened(hub)
    order = sorted(model.entries.values(), key=lambda entry: entry.offset)
    within = {e.file.name for e in order}
    assert len(within) == 1
    before, kept, after = max(
        zip(order, order[1:], order[2:], strict=False),
        key=lambda three: (three[0].size + three[2].size) / three[1].size,
    )
    assert kept.size <= SLACK * (before.size + kept.size + after.size)
    with trio.fail_after(PERSON_SECONDS):
        await fetch(model, [kept.name], hub, quiet)
        server.wrong[kept.file.name] = [kept.offset + 1]
        await fetch(model, [before.name, after.name], hub, quiet)
    assert model.digest_of(kept.name) == model.hashes[kept.name]


def test_a_log_of_another_model_is_no_harm(hub):
    model = opened(hub)
    with (model.folder / LOG).open("a") as stream:
        stream.write(json.dumps({"tensor": "nobody", "sha256": "0"}) + "\n")
        stream.write("[1]\n")
    assert not opened(hub).hashes


def test_the_store_is_where_the_environment_says(hub, store):
    assert find_hub_model(MODEL, hub).parents[1] == store
    assert [name for name, _ in model_store.stored_models()] == [MODEL]


@pytest.mark.parametrize("commit", ["../../elsewhere", "", "0123", "/etc"])
def test_a_hub_that_names_a_commit_which_is_none(hub, server, commit, monkeypatch):
    monkeypatch.setattr("tests.fetching.stand_in.COMMIT", commit)
    with pytest.raises(FetchFault, match="listing of someone/model-1 cannot be read"):
        find_hub_model(MODEL, hub)


def test_a_weight_file_whose_header_cannot_be(hub, server, source, tmp_path):
    folder = Path(shutil.copytree(source, tmp_path / "odd"))
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.write(b"\xff" * 8)
    server.models["someone/odd"] = folder
    with pytest.raises(FetchFault, match=r"model\.safetensors of someone/odd is no safetensors"):
        find_hub_model("someone/odd", hub)
    assert not list(model_store.stored_models())


def test_a_size_that_cannot_be(hub, server, source, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(source, tmp_path / "huge"))
    server.models["someone/huge"] = folder
    real = Hub.list

    def huge(self, model, revision):
        found = real(self, model, revision)
        file = found.files["model.safetensors"]
        found.files["model.safetensors"] = type(file)(1 << 62, file.sha256)
        return found

    monkeypatch.setattr(Hub, "list", huge)
    with pytest.raises(FetchFault) as fault:
        find_hub_model("someone/huge", hub)
    assert fault.value.permanent
    assert not list(model_store.stored_models())

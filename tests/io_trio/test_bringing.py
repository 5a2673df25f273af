"""Tensors come from other members, are checked, and go on after a kill; wrong ones are named."""

from __future__ import annotations

import errno
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
from sealring_model.loading import model_store
from sealring_model.loading.model_folder import describe
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import TensorEntry, read_entries, tensors_of, write_manifest
from sealring_protocol.codec.messages import Get, Piece
from sealring_trio.fetching import fetcher, shared_files
from sealring_trio.fetching.fetcher import FetchProgress, fetch
from sealring_trio.fetching.members import PART
from sealring_trio.fetching.shared_files import SharedFiles
from sealring_trio.fetching.source import FetchFault, start_model

from tests.io_trio.holders import Ring, copy_of_tiny, holding, store
from tests.serving import PATIENCE

__all__ = ["store"]

WEIGHTS = "model.safetensors"
ROUNDS = 3
"""As many looks at what has come as are several rounds of asking."""
Given = list[tuple[int, Get]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """What holders were asked for weights, with how many bytes they gave."""
    found: Given = []

    class Noted(SharedFiles):
        def answer(self, get: Get) -> Piece:
            piece = super().answer(get)
            if get.name == WEIGHTS:
                found.append((len(piece.data), get))
            return piece

    monkeypatch.setattr(shared_files, "SharedFiles", Noted)
    return found


def shares(folder: Path, first: int, last: int) -> list[str]:
    info = describe(folder)
    owned = tensors_of(info.entries, len(info.layers), first, last)
    return [name for names in owned.values() for name in names]


async def begun(ring: Ring, asker: int) -> PartialModel:
    """The model of the ring's members, without a tensor yet, for member *asker*."""
    with trio.fail_after(PATIENCE):
        return await trio.to_thread.run_sync(
            lambda: start_model("home/tiny", "main", ring.members(asker))
        )


async def fetched(
    ring: Ring, asker: int, model: PartialModel, names: Sequence[str]
) -> FetchProgress:
    """Fetch *names*; how far that was, when it was last told."""
    told: list[FetchProgress] = []
    with trio.fail_after(PATIENCE):
        await fetch(model, names, ring.members(asker), told.append)
    return told[-1]


async def held_up(ring: Ring, asker: int, model: PartialModel, names: Sequence[str]) -> None:
    """Fetch *names* until something has held up the rest for several rounds."""
    looks = itertools.count()

    def look(_: FetchProgress) -> None:
        if model.fault is not None and next(looks) == ROUNDS:
            scope.cancel()

    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        await fetch(model, names, ring.members(asker), look)
    assert scope.cancelled_caught


def assert_same(model: PartialModel, names: Sequence[str], source: Path) -> None:
    there = read_entries(source)
    for name in names:
        one, two = model.entries[name], there[name]
        assert read(one.file, one.offset, one.size) == read(two.file, two.offset, two.size), name


def read(file: Path, offset: int, size: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(size)


async def test_a_rank_gets_its_share_from_a_member_and_no_more(
    tmp_path: Path, store: Path, given: Given
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    async with holding({0: source, 1: None}) as ring:
        model = await begun(ring, 1)
        names = shares(model.folder, 2, 4)
        given.clear()
        await fetched(ring, 1, model, names)
    assert not model.missing(names)
    assert_same(model, names, source)
    size = sum(model.entries[name].size for name in names)
    assert sum(count for count, _ in given) == size
    assert len(model.hashes) == len(names)
    assert model.fault is None


@pytest.mark.parametrize("step", [1 << 20, 1 << 30])
async def test_what_has_come_before_an_end_does_not_come_again(
    tmp_path: Path, store: Path, given: Given, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "KEEP_BYTES", step)
    source = copy_of_tiny(tmp_path / "model")
    write_manifest(source)
    async with holding({0: source, 1: None}) as ring:
        model = await begun(ring, 1)
        names = list(model.entries)
        size = sum(entry.size for entry in model.entries.values())
        given.clear()
        stop, told = trio.CancelScope(), trio.Event()
        tell = PartialModel.set_fault

        def set_fault(model: PartialModel, text: str, *, permanent: bool) -> None:
            tell(model, text, permanent=permanent)
            told.set()

        monkeypatch.setattr(PartialModel, "set_fault", set_fault)

        class Stopping(SharedFiles):
            def answer(self, get: Get) -> Piece:
                if sum(count for count, _ in given) > size // 2:
                    return Piece(0, b"", "enough")  # the link ends, as by a kill
                piece = super().answer(get)
                if get.name == WEIGHTS:
                    given.append((len(piece.data), get))
                return piece

        runtime = ring.runtimes[0]
        honest = runtime._sockets._giving._files
        runtime._sockets._giving._files = Stopping(source)
        with stop, trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch, model, names, ring.members(1), lambda _: None)
                await told.wait()
                assert model.fault is not None
                assert model.fault.text == "node0: enough"
                stop.cancel()
        again = PartialModel.open(model.folder)
        assert again is not None
        here = again.bytes_here(names)
        assert here > size // 3
        runtime._sockets._giving._files = honest
        given.clear()
        await fetched(ring, 1, again, names)
    assert sum(count for count, _ in given) == size - here
    assert_same(again, names, source)
    assert again.fault is None


def spoil(folder: Path, name: str, at: int = 0) -> None:
    """Change one byte of tensor *name* in *folder*."""
    entry = read_entries(folder)[name]
    with entry.file.open("r+b") as stream:
        stream.seek(entry.offset + at)
        byte = stream.read(1)
        stream.seek(entry.offset + at)
        stream.write(bytes([byte[0] ^ 1]))


async def test_one_wrong_byte_is_named_and_the_next_member_is_asked(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (copy_of_tiny(tmp_path / f"model{i}") for i in (0, 1))
    for folder in (one, two):
        write_manifest(folder)
    async with holding({0: one, 1: two, 2: None}) as ring:
        model = await begun(ring, 2)
        names = shares(model.folder, 0, 3)
        wrong = max(names, key=lambda name: model.entries[name].size)
        spoil(one, wrong, model.entries[wrong].size - 1)
        with caplog.at_level(logging.ERROR, "sealring.fetch"):
            await fetched(ring, 2, model, names)
    assert_same(model, names, two)
    assert f"tensor {wrong} of node0 is not what the manifest says" in caplog.text
    assert model.hashes[wrong] == json.loads((two / "sealring.json").read_text())["tensors"][wrong]


async def test_a_wrong_byte_that_the_only_holder_has_holds_the_rest_up_with_the_reason(
    tmp_path: Path, store: Path, given: Given
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    write_manifest(source)
    async with holding({0: source, 1: None}) as ring:
        model = await begun(ring, 1)
        names = shares(model.folder, 0, 2)
        wrong = names[0]
        spoil(source, wrong)
        await held_up(ring, 1, model, names)
    assert model.missing(names) == [wrong]
    assert model.fault is not None
    assert model.fault.text.startswith(f"tensor {wrong} of node0 is not what the manifest says")
    assert not model.fault.permanent
    offset = model.entries[wrong].offset
    asked = [get for _, get in given if get.offset == offset and get.length > 8]
    assert len(asked) == 1, "it is not asked for the same again"


async def test_a_tensor_that_is_not_what_its_holder_recorded_is_named(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a manifest the hash counts with which the holder's own copy came."""
    source = copy_of_tiny(tmp_path / "model")
    async with holding({0: source, 1: None}) as ring:
        first = await begun(ring, 1)
        await fetched(ring, 1, first, list(first.entries))
    wrong = next(iter(first.hashes))
    spoil(first.folder, wrong)
    monkeypatch.setenv("SEALRING_MODELS", str(tmp_path / "another"))
    async with holding({0: first.folder, 1: None}) as ring:
        model = await begun(ring, 1)
        assert model.folder != first.folder
        with caplog.at_level(logging.ERROR, "sealring.fetch"):
            await held_up(ring, 1, model, list(model.entries))
    assert model.missing(model.entries) == [wrong]
    assert f"tensor {wrong} of node0 is not what node0 itself says" in caplog.text


async def test_what_one_member_lacks_comes_from_another(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    async with holding({0: source, 1: None}) as ring:
        part = await begun(ring, 1)
        await fetched(ring, 1, part, shares(part.folder, 0, 2))
    folders = {0: part.folder, 1: source, 2: None}
    async with holding(folders) as ring:
        monkeypatch.setenv("SEALRING_MODELS", str(tmp_path / "third"))
        model = await begun(ring, 2)
        await fetched(ring, 2, model, list(model.entries))
    assert_same(model, list(model.entries), source)


async def test_members_that_are_away_are_asked_until_one_is_there(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    async with holding({0: source, 1: None}) as ring:
        model = await begun(ring, 1)
    names = shares(model.folder, 0, 1)
    async with holding({0: None, 1: None}) as ring:
        await held_up(ring, 1, model, names)
        assert model.fault is not None
        assert "node0 at 127.0.0.1:" in model.fault.text
    async with holding({0: source, 1: None}) as ring:
        await fetched(ring, 1, model, names)
    assert model.fault is None


LIES: dict[str, Callable[[Piece, Get], Piece]] = {
    "zeros": lambda piece, get: Piece(piece.size, bytes(len(piece.data))),
    "another place": lambda piece, get: Piece(piece.size, bytes(piece.data)[::-1]),
    "cut": lambda piece, get: Piece(piece.size, piece.data[:-1]),
    "another size": lambda piece, get: Piece(1 << 62, piece.data),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_no_lie_of_a_member_gets_into_a_model_with_a_manifest(
    tmp_path: Path, store: Path, lie: Callable[[Piece, Get], Piece]
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    write_manifest(source)
    async with holding({0: source, 1: source, 2: None}) as ring:
        model = await begun(ring, 2)

        class Lying(SharedFiles):
            def answer(self, get: Get) -> Piece:
                piece = super().answer(get)
                wrong = get.name == WEIGHTS and get.length > PART // 8
                return lie(piece, get) if wrong else piece

        ring.runtimes[0]._sockets._giving._files = Lying(source)
        names = shares(model.folder, 0, 2)
        await fetched(ring, 2, model, names)
    assert_same(model, names, source)


async def test_a_full_disk_ends_the_fetching_and_is_told(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    async with holding({0: source, 1: None}) as ring:
        model = await begun(ring, 1)

        def full(model: PartialModel, file: str, offset: int, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", file)

        monkeypatch.setattr(PartialModel, "write", full)
        with pytest.raises(FetchFault, match="the disk is full"):
            await fetched(ring, 1, model, shares(model.folder, 0, 1))
    assert model.fault is not None
    assert (model.fault.permanent, "make room" in model.fault.text) == (True, True)


async def test_who_gives_one_wrong_tensor_after_another_is_left_for_the_next_member(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (copy_of_tiny(tmp_path / f"model{i}") for i in (0, 1))
    for folder in (one, two):
        write_manifest(folder)
    async with holding({0: one, 1: two, 2: None}) as ring:
        model = await begun(ring, 2)
        names = list(model.entries)
        for name in names:
            spoil(one, name)
        with caplog.at_level(logging.ERROR, "sealring.fetch"):
            await fetched(ring, 2, model, names)
    assert_same(model, names, two)
    wrong = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(wrong) == fetcher.MAX_WRONG < len(names)


async def test_a_record_that_cannot_be_read_any_more_is_told(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    async with holding({0: source, 1: None}) as ring:
        model = await begun(ring, 1)
        write = PartialModel.write

        def spoilt(self: PartialModel, file: str, offset: int, data: bytes) -> None:
            write(self, file, offset, data)
            monkeypatch.setattr(model_store, "MAX_LOG", 0)

        monkeypatch.setattr(PartialModel, "write", spoilt)
        with pytest.raises(FetchFault, match="delete"):
            await fetched(ring, 1, model, shares(model.folder, 0, 1))
    assert model.fault is not None
    assert model.fault.permanent


class WrongBeginning(SharedFiles):
    """Gives wrong bytes of the beginning of *tensor*, and then no more of it; the rest is right."""

    def __init__(self, folder: Path, tensor: TensorEntry) -> None:
        super().__init__(folder)
        self._tensor = tensor

    def answer(self, get: Get) -> Piece:
        piece = super().answer(get)
        if get.name != WEIGHTS or not 0 <= get.offset - self._tensor.offset < self._tensor.size:
            return piece
        if get.offset > self._tensor.offset:
            return Piece(0, b"", "enough")
        return Piece(piece.size, bytes(len(piece.data)))


async def test_who_completes_what_another_member_began_wrongly_is_not_blamed(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    write_manifest(source)
    async with holding({0: source, 1: source, 2: None}) as ring:
        model = await begun(ring, 2)
        names = shares(model.folder, 0, 2)
        half = model.entries[max(names, key=lambda name: model.entries[name].size)]
        assert half.size > PART

        ring.runtimes[0]._sockets._giving._files = WrongBeginning(source, half)
        await fetched(ring, 2, model, names)
    assert_same(model, names, source)
    assert "of node1 is not what" not in caplog.text


async def test_who_began_the_last_tensor_wrongly_does_not_begin_it_again(
    tmp_path: Path, store: Path
) -> None:
    source = copy_of_tiny(tmp_path / "model")
    write_manifest(source)
    async with holding({0: source, 1: source, 2: None}) as ring:
        model = await begun(ring, 2)
        last = max(model.entries.values(), key=lambda entry: entry.size)
        given = []

        class Honest(SharedFiles):
            def answer(self, get: Get) -> Piece:
                given.append(get.offset - last.offset)
                return super().answer(get)

        ring.runtimes[0]._sockets._giving._files = WrongBeginning(source, last)
        ring.runtimes[1]._sockets._giving._files = Honest(source)
        await fetched(ring, 2, model, [last.name])
    assert_same(model, [last.name], source)
    assert given.count(0) == 1  # once whole, after what the other one began

"""A node that has nothing asks other members what a model is; and what they may not tell it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import describe, pins_of
from sealring_model.loading.model_store import ORIGIN, PartialModel, WeightFile
from sealring_model.loading.weights import read_entries, write_manifest
from sealring_protocol.codec.messages import Get, Piece
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import sign_roster
from sealring_trio.fetching import members, shared_files
from sealring_trio.fetching.members import PART, MemberLink, Members, find_with_members
from sealring_trio.fetching.shared_files import SharedFiles
from sealring_trio.fetching.source import FetchFault, Listing, start_model

from tests.io_trio.holders import Ring, copy_of_tiny, holding, store
from tests.serving import PATIENCE
from tests.sim.rosters import COORDINATOR

__all__ = ["store"]

WEIGHTS = "model.safetensors"
Lie = Callable[[SharedFiles, Get], Piece]


def link_to(ring: Ring, index: int, asker: int) -> MemberLink:
    return MemberLink(ring.members(asker), ring.roster.roster.members[index], lambda: None)


def started(model: str, revision: str, members: Members) -> Path:
    return start_model(model, revision, members).folder


async def in_thread(call: Callable[[], object]) -> object:
    with trio.fail_after(PATIENCE):
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


@pytest.fixture
def lie(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lie], None]:
    """Have holders answer by a function instead."""

    def use(answer: Lie) -> None:
        class Lying(SharedFiles):
            def answer(self, get: Get) -> Piece:
                return answer(SharedFiles(self._folder), get)

        monkeypatch.setattr(shared_files, "SharedFiles", Lying)

    return use


async def test_a_member_without_anything_gets_what_describes_the_model(
    tmp_path: Path, store: Path
) -> None:
    model = copy_of_tiny(tmp_path / "model")
    write_manifest(model)
    async with holding({0: model, 1: None}) as ring:
        folder = await in_thread(lambda: find_with_members("home/tiny", ring.members(1)))
        assert isinstance(folder, Path)
        assert folder.is_relative_to(store / "home--tiny")
        here, there = describe(folder), describe(model)
        assert (here.digest, here.layers) == (there.digest, there.layers)
        assert pins_of(here) == pins_of(there)
        partial = PartialModel.open(folder)
        assert partial is not None
        assert not partial.hashes
    # The member is away now.
    again = await in_thread(lambda: find_with_members("home/tiny", ring.members(1)))
    assert again == folder


async def test_pieces_of_a_large_file_come_in_order(tmp_path: Path) -> None:
    model = copy_of_tiny(tmp_path / "model")
    whole = (model / WEIGHTS).read_bytes()
    assert len(whole) > 8 * PART
    async with holding({0: model, 1: None}) as ring:

        def read() -> bytes:
            with link_to(ring, 0, 1) as link:
                return link.content(WEIGHTS, len(whole))

        assert await in_thread(read) == whole


async def test_both_ends_may_ask_each_other_at_the_same_time(tmp_path: Path) -> None:
    folders = {i: copy_of_tiny(tmp_path / f"model{i}") for i in (0, 1)}
    async with holding(folders) as ring:

        def read(index: int) -> bytes:
            with link_to(ring, index, 1 - index) as link:
                content = link.content(WEIGHTS, 1 << 30)
                both.wait(10)  # while this link stands, the other one comes up
                return content + link.content("config.json", 1 << 20)

        both = threading.Barrier(2)
        found: list[object] = []

        async def one(index: int) -> None:
            found.append(await in_thread(lambda: read(index)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, 0)
            nursery.start_soon(one, 1)
        assert found[0] == found[1]


async def test_a_member_that_is_away_and_one_that_refuses_are_told_by_name(
    tmp_path: Path, store: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    async with holding({0: None, 1: empty, 2: None}) as ring:

        def ask() -> str:
            with pytest.raises(FetchFault) as told:
                started("home/tiny", "main", ring.members(2))
            return str(told.value)

        text = await in_thread(ask)
    assert isinstance(text, str)
    assert "node0 at 127.0.0.1:" in text
    assert "onnection refused" in text
    assert "node1: the model there cannot be read" in text


async def test_the_next_member_is_asked(tmp_path: Path, store: Path) -> None:
    async with holding({0: None, 1: copy_of_tiny(tmp_path / "model"), 2: None}) as ring:
        folder = await in_thread(lambda: started("home/tiny", "main", ring.members(2)))
    assert isinstance(folder, Path)
    assert describe(folder).layers


# ---------------------------------------------------------------------- lies


def kept(store: Path) -> list[Path]:
    """The models in *store*, whole or in part."""
    return list(store.glob("*/*/config.json"))


def refused(ring: Ring, words: str) -> None:
    with pytest.raises(FetchFault, match=words):
        started("home/tiny", "main", ring.members(1))


LISTINGS = {
    "no JSON": b"{",
    "no object": b"[]",
    "nested deep": b"[" * 100_000,
    "no files": b'{"files": 3, "tensors": {}, "pins": []}',
    "a pin beyond u64": b'{"files": {}, "tensors": {}, "pins": ["99999999999999999999"]}',
    "no model": b'{"files": {"notes.json": 3}, "tensors": {}, "pins": []}',
    "half a character": b'{"files": {"\\ud800.json": 3}, "tensors": {}, "pins": []}',
    "too much": json.dumps(
        {
            "files": {"config.json": 1 << 30, WEIGHTS: 1 << 40},
            "tensors": {},
            "pins": [],
        }
    ).encode(),
}


@pytest.mark.parametrize("text", LISTINGS.values(), ids=LISTINGS)
async def test_a_listing_that_lies_is_refused_in_words(
    text: bytes, tmp_path: Path, store: Path, lie: Callable[[Lie], None]
) -> None:
    lie(lambda _, get: Piece(len(text), text[get.offset : get.offset + get.length]))
    async with holding({0: tmp_path, 1: None}) as ring:
        await in_thread(lambda: refused(ring, "node0"))
    assert not kept(store)


async def test_names_that_lead_elsewhere_and_our_own_records_are_left_out(
    tmp_path: Path, lie: Callable[[Lie], None]
) -> None:
    names = ["../x.json", "/etc/x.json", "a/b.json", "sealring.partial.json", ".x.json", "x.py"]
    text = json.dumps({"files": dict.fromkeys([*names, "a.json"], 1), "tensors": {}, "pins": []})
    lie(lambda _, get: Piece(len(text), text.encode()[get.offset : get.offset + get.length]))
    async with holding({0: tmp_path, 1: None}) as ring:

        def read() -> Listing:
            with link_to(ring, 0, 1) as link:
                return link.list("home/tiny", "main")

        assert await in_thread(read) == Listing({"a.json": WeightFile(1, "")})


ANSWERS: dict[str, tuple[Lie, str]] = {
    "less than asked": (lambda _, get: Piece(1 << 20, b"x" * (get.length // 2)), "another length"),
    "more than asked": (lambda _, get: Piece(1 << 20, b"x" * (get.length + 1)), "another length"),
    "a listing without end": (lambda _, get: Piece(1 << 62, bytes(get.length)), "has 4611"),
    "a reason": (lambda _, get: Piece(0, b"", "not today"), "node0: not today"),
}


@pytest.mark.parametrize(("answer", "words"), ANSWERS.values(), ids=ANSWERS)
async def test_answers_that_are_not_what_was_asked_end_the_asking(
    answer: Lie, words: str, tmp_path: Path, store: Path, lie: Callable[[Lie], None]
) -> None:
    lie(answer)
    async with holding({0: tmp_path, 1: None}) as ring:
        await in_thread(lambda: refused(ring, words))


async def test_a_member_whose_files_are_no_model_leaves_nothing_behind(
    tmp_path: Path, store: Path
) -> None:
    model = copy_of_tiny(tmp_path / "model")
    (model / "config.json").write_text('{"num_hidden_layers": 99, "hidden_size": 8}')
    (model / "sealring.json").unlink(missing_ok=True)

    async with holding({0: model, 1: None}) as ring:
        await in_thread(lambda: refused(ring, "node0"))
    assert not kept(store)


async def test_a_folder_that_was_here_before_is_left_as_it_is(tmp_path: Path, store: Path) -> None:
    """Its record is gone, and a person's file lies in it: no member is to be blamed for that."""
    async with holding({0: copy_of_tiny(tmp_path / "model"), 1: None}) as ring:
        folder = await in_thread(lambda: started("home/tiny", "main", ring.members(1)))
        assert isinstance(folder, Path)
        (folder / ORIGIN).unlink()
        (folder / "notes.txt").write_text("mine")
        before = sorted(folder.iterdir())

        def ask() -> None:
            with pytest.raises(FetchFault, match=r"^\S+ is in the way .*; move it away$"):
                started("home/tiny", "main", ring.members(1))

        await in_thread(ask)
    assert sorted(folder.iterdir()) == before


# ------------------------------------------------------- holders that do not play along


UNASKED = {
    "an answer to nothing": (Piece(3, b"abc"), "PIECE without a GET"),
    "a question": (Get("config.json", 0, 1), "only the end that dials asks"),
}


@pytest.mark.parametrize(("message", "words"), UNASKED.values(), ids=UNASKED)
async def test_what_nobody_asked_for_ends_the_link(
    message: Get | Piece, words: str, tmp_path: Path
) -> None:
    async with holding({0: copy_of_tiny(tmp_path / "model"), 1: None}) as ring:
        up, said = threading.Event(), threading.Event()

        def read() -> None:
            with link_to(ring, 0, 1) as link:
                up.set()
                assert said.wait(PATIENCE)
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    with link._named(link.name):
                        link._turn()

        def refusal() -> str:
            with pytest.raises(FetchFault) as told:
                read()
            return str(told.value)

        async with trio.open_nursery() as nursery:
            found: list[object] = []

            async def ask() -> None:
                found.append(await in_thread(refusal))

            nursery.start_soon(ask)
            await trio.to_thread.run_sync(up.wait, 10)
            runtime = ring.runtimes[0]

            def say(now: float) -> None:
                runtime.node._links.send(1, Purpose.WEIGHTS, message, now)

            runtime.enter(say)
            said.set()
        assert words in str(found[0])


async def test_a_member_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Callable[[Lie], None]
) -> None:
    monkeypatch.setattr(members, "ANSWER_SECONDS", 0.6)
    release = threading.Event()

    def answer(files: SharedFiles, get: Get) -> Piece:
        release.wait(20)  # as a disk that hangs
        return files.answer(get)

    lie(answer)
    async with holding({0: copy_of_tiny(tmp_path / "model"), 1: None}) as ring:
        try:
            await in_thread(lambda: refused(ring, "node0 has given no answer for"))
        finally:
            release.set()


async def test_who_takes_connections_and_says_nothing_is_given_up(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "DIAL_SECONDS", 0.5)
    monkeypatch.setattr("sealring_protocol.link.HANDSHAKE_TIMEOUT", 0.5)
    async with holding({0: None, 1: copy_of_tiny(tmp_path / "model"), 2: None}) as ring:
        address = ring.roster.roster.members[0].addresses[0]
        host, _, port = address.rpartition(":")
        with socket.create_server((host, int(port))):
            folder = await in_thread(lambda: started("home/tiny", "main", ring.members(2)))
    assert isinstance(folder, Path)


async def test_what_ends_the_asking_closes_its_socket(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    async with holding({0: copy_of_tiny(tmp_path / "model"), 1: None}) as ring:
        left = iter(range(4))

        def check() -> None:
            if next(left, None) is None:
                raise Enough

        def read() -> None:
            with MemberLink(ring.members(1), ring.roster.roster.members[0], check) as link:
                while True:
                    link.content(WEIGHTS, 1 << 30)

        with pytest.raises(Enough):
            await in_thread(read)
        with trio.fail_after(PATIENCE):
            while ring.runtimes[0].links():
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_link_ends_when_another_roster_is_in_force(tmp_path: Path) -> None:
    """It may have put out the member that is asked."""
    async with holding({0: copy_of_tiny(tmp_path / "model"), 1: None}) as ring:
        old = ring.roster

        def read() -> None:
            with link_to(ring, 0, 1) as link:
                link.content("config.json", 1 << 20)
                ring.roster = sign_roster(attrs.evolve(old.roster, serial=2), COORDINATOR)
                link.content("config.json", 1 << 20)

        def refusal() -> None:
            with pytest.raises(FetchFault, match="another roster"):
                read()

        await in_thread(refusal)


# ----------------------------------------------------------------- the next start


async def found(ring: Ring, asker: int) -> Path:
    folder = await in_thread(lambda: find_with_members("home/tiny", ring.members(asker)))
    assert isinstance(folder, Path)
    return folder


async def test_what_is_here_counts_while_the_head_has_it_too_or_is_away(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = copy_of_tiny(tmp_path / "model")
    async with holding({0: model, 1: None}) as ring:
        first = await found(ring, 1)
        with caplog.at_level("INFO", "sealring.fetch"):
            assert await found(ring, 1) == first
        assert "asking" not in caplog.text
    async with holding({0: None, 1: model, 2: None}) as ring:
        with caplog.at_level("INFO", "sealring.fetch"):
            assert await found(ring, 2) == first
        assert "beginning with the home/tiny that is here: node0 at" in caplog.text


def other_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 12345}))


def other_weights(folder: Path) -> None:
    entry = next(iter(read_entries(folder).values()))
    with entry.file.open("r+b") as stream:
        stream.seek(entry.offset)
        stream.write(b"\1" * entry.size)


CHANGES = {
    "configuration": other_config,
    "weights with the same headers": other_weights,
    "a manifest": write_manifest,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_another_model_of_the_head_takes_the_place_of_what_is_here(
    tmp_path: Path, store: Path, change: Callable[[Path], object]
) -> None:
    model = copy_of_tiny(tmp_path / "model")
    async with holding({0: model, 1: None}) as ring:
        first = await found(ring, 1)
    change(model)
    async with holding({0: model, 1: None}) as ring:
        second = await found(ring, 1)
        assert second != first
        assert await found(ring, 1) == second
    assert describe(second).digest == describe(model).digest
    assert pins_of(describe(second)) == pins_of(describe(model))


async def test_a_head_without_weights_of_its_own_keeps_what_it_has(
    tmp_path: Path, store: Path
) -> None:
    model = copy_of_tiny(tmp_path / "model")
    async with holding({0: None, 1: model}) as ring:
        first = await found(ring, 0)
        other_config(model)
        assert await found(ring, 0) == first


async def test_who_is_not_to_wait_is_told_at_once(tmp_path: Path, store: Path) -> None:
    async with holding({0: None, 1: None}) as ring:

        def find() -> None:
            with pytest.raises(LoadError, match="no member gives home/tiny: node0 at"):
                find_with_members("home/tiny", ring.members(1), None)

        await in_thread(find)

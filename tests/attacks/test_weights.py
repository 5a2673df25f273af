"""A member that asks for files: it gets those of the model, and what it costs has bounds."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
import trio
from sealring_model import tiny
from sealring_protocol.codec.messages import Get, Piece
from sealring_protocol.errors import CloseCode
from sealring_protocol.limits import MAX_GETS, MAX_PIECE
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.roles import Purpose

from tests.attacks.test_floods import AtWork, Hostile, at_work

WEIGHTS = "model.safetensors"


async def ask(hostile: Hostile, *gets: Get) -> list[Piece]:
    """The answers to *gets*, sent in one piece."""
    await trio.to_thread.run_sync(hostile.send, *gets)
    return await trio.to_thread.run_sync(hostile.receive, len(gets))


async def test_a_member_gets_the_model_byte_for_byte() -> None:
    async with at_work() as head, head.linked(Purpose.WEIGHTS) as member:
        (told,) = await ask(member, Get("", 0, MAX_PIECE))
        sizes = json.loads(bytes(told.data))["files"]
        assert set(sizes) >= {"config.json", "tokenizer.json", WEIGHTS}
        for name, size in sizes.items():
            content = b""
            while len(content) < size:
                offsets = range(len(content), size, 100_000)[:MAX_GETS]
                answers = await ask(member, *(Get(name, offset, 100_000) for offset in offsets))
                content += b"".join(bytes(piece.data) for piece in answers)
            assert content == (tiny.path() / name).read_bytes()


NAMES = ["/etc/passwd", "../secret.json", "..", ".", "a/b.json", "a\\b.json", "a\0.json"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_leads_elsewhere_ends_the_link_and_nothing_else(name: str) -> None:
    async with at_work() as head:
        async with head.linked(Purpose.WEIGHTS) as hostile:
            get = Get("x" * len(name), 0, 100)
            object.__setattr__(get, "name", name)
            (end,) = await ask(hostile, get)
            assert isinstance(end, LinkClosed)
            assert end.code == CloseCode.PROTOCOL_ERROR
        async with head.linked(Purpose.WEIGHTS) as member:
            (piece,) = await ask(member, Get("config.json", 0, 10))
            assert len(piece.data) == 10


async def test_files_that_are_not_the_models_are_refused_in_words() -> None:
    names = ["id_rsa", "desk.key", "__init__.py", "model.safetensors.bak", "é" * 127, "*.json"]
    async with at_work() as head, head.linked(Purpose.WEIGHTS) as hostile:
        for name in names:
            (piece,) = await ask(hostile, Get(name, 0, 100))
            assert (piece.size, bytes(piece.data)) == (0, b"")
            assert "no file" in piece.reason
        for offset in (2**64 - 1, 2**63, 1 << 40):
            (piece,) = await ask(hostile, Get(WEIGHTS, offset, MAX_PIECE))
            assert (bytes(piece.data), piece.reason) == (b"", "")


async def test_questions_without_end_end_the_link_alone() -> None:
    async with at_work() as head:
        async with head.linked(Purpose.WEIGHTS) as hostile:
            await trio.to_thread.run_sync(hostile.send, *[Get(WEIGHTS, 0, MAX_PIECE)] * 3000)
            came = await trio.to_thread.run_sync(hostile.receive, 4000)
            assert isinstance(came[-1], LinkClosed)
            assert came[-1].code == CloseCode.LIMIT_EXCEEDED
            assert len(came) <= 3 * MAX_GETS
        async with head.linked(Purpose.WEIGHTS) as member:
            (piece,) = await ask(member, Get("config.json", 0, 10))
            assert len(piece.data) == 10


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model's folder whose weights are a hole of 64 pieces."""
    folder = tmp_path / "model"
    shutil.copytree(tiny.path(), folder)
    with (folder / WEIGHTS).open("r+b") as stream:
        stream.truncate(64 * MAX_PIECE)
    return folder


async def settled(head: AtWork) -> None:
    """Wait until the head has sent all that it can."""
    before = -1
    while before != head.runtime.bytes_sent:
        before = head.runtime.bytes_sent
        for _ in range(50):
            await trio.to_thread.run_sync(lambda: None)


async def test_who_asks_and_never_reads_costs_a_few_pieces_of_memory(large: Path) -> None:
    async with at_work(large) as head:
        async with head.linked(Purpose.WEIGHTS) as hostile:
            most = 0
            tracemalloc.start()
            try:
                for _ in range(40):
                    await trio.to_thread.run_sync(hostile.send, Get(WEIGHTS, 0, MAX_PIECE))
                    await settled(head)
                    most = max(most, tracemalloc.get_traced_memory()[0])
            except OSError:  # the ninth question without an answer has ended the link
                assert not head.runtime.links()
            finally:
                tracemalloc.stop()
            assert most < 5 * MAX_PIECE
        async with head.linked(Purpose.WEIGHTS) as member:
            (piece,) = await ask(member, Get("config.json", 0, 10))
            assert len(piece.data) == 10

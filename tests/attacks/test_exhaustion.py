"""A node without a thread, a file descriptor or room on its disk: it says so, and runs on."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio
from sealring.generation.generation import Generator
from sealring.generation.status import describe_node
from sealring_model import tiny
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.handshake import TrafficSecrets
from sealring_protocol.security.keys import SECRET, Suite
from sealring_tools.capture.decoding import read_key_log
from sealring_trio.engine.supervisor import Engine, EngineCommand
from sealring_trio.errors import OperationError
from sealring_trio.files.key_files import KeyLog
from sealring_trio.net.connecting import dial
from sealring_trio.node.runtime import Runtime

from tests.attacks.test_control_socket import ECHO, lives
from tests.attacks.test_floods import two
from tests.io_trio.test_control import serving
from tests.io_trio.test_engine_supervisor import FAKE
from tests.sim.rosters import COORDINATOR, signer

SECRETS = TrafficSecrets(Suite.AES256GCM, bytes(SECRET), bytes(SECRET), bytes(SECRET))

REFUSALS = {
    "thread": RuntimeError("can't start new thread"),
    "descriptor": OSError(errno.EMFILE, "Too many open files"),
    "descriptor for a module": ImportError("cannot import name"),
}


@pytest.fixture
def no_descriptor() -> Iterator[Callable[[], None]]:
    """What is given takes every file descriptor that is left to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def take() -> None:
        lowest = os.open(os.devnull, os.O_RDONLY)
        taken.append(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))

    try:
        yield take
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Have whatever needs a thread get *error*."""

    async def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(trio.to_thread, "run_sync", refused)


def idle() -> Runtime:
    """A node that does not run."""
    about = NodeConfig(signer(0).public_key, two(), COORDINATOR.public_key, 5)
    node = Node(about, trio.current_time())

    def engine(owner: Any) -> Engine:
        return Engine(EngineCommand(FAKE, ("good",)), owner)

    at = ("127.0.0.1", 0)
    return Runtime(
        node,
        signer=signer(0),
        engine=engine,
        listen=at,
        keep=lambda _: None,
        keep_vote=lambda *_: None,
        model=tiny.path(),
    )


async def test_a_name_that_no_thread_looks_up_is_a_dial_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse(monkeypatch, REFUSALS["thread"])
    with pytest.raises(OperationError, match="no thread to look it up"):
        await dial("localhost:1")


async def test_a_text_worker_that_cannot_start_starts_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = Generator(idle(), tiny.path())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generator.texts.serve)
        for refusal in REFUSALS.values():
            with monkeypatch.context() as without:
                without.setattr(EngineCommand, "start", Mock(side_effect=refusal))
                nursery.start_soon(generator.warm_up)  # as the head does, again and again
                with pytest.raises(OperationError, match="no text worker starts"):
                    await generator.vocabulary()
            assert generator.loading
        assert (await generator.vocabulary()).stream().add(300)
        nursery.cancel_scope.cancel()


async def test_the_control_socket_opens_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, REFUSALS["thread"])
    with trio.fail_after(20):
        async with serving(tmp_path / "s", ECHO):
            await lives(tmp_path / "s")


async def test_the_status_needs_no_descriptor(no_descriptor: Callable[[], None]) -> None:
    """The connection that asks for it may be the last that there is one for."""
    runtime = idle()
    assert describe_node(runtime, tiny.path())["daemon_memory"] > 0
    no_descriptor()
    assert describe_node(runtime, tiny.path())["rank"] == 0


def test_a_link_comes_up_though_its_keys_cannot_be_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"  # a pipe that nobody reads is full sooner than a disk
    os.mkfifo(path, 0o600)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    keys = KeyLog(path)
    for _ in range(1000):
        keys.write(SECRETS)
    os.close(reader)
    assert caplog.text.count("not in the key log") == 1
    path.unlink()
    again = KeyLog(path)
    again.write(SECRETS)
    assert read_key_log(path) == [SECRETS]

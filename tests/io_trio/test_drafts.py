"""A draft model beside a real ring: the tiny model guesses for itself, so that it could be always
right."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sealring.local.ring import (
    LocalApi,
    LocalNode,
    local_ring,
    running_node,
    wait_until_up,
    write_cluster,
)
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import UserError
from sealring_trio.node import drafts
from sealring_trio.node.drafts import LIVES

from tests.io_trio.helpers import sealring
from tests.rows import rows
from tests.verify.faults import VARIABLE
from tests.verify.rings import ROOT

PATIENCE = 90.0
"""Seconds after which what should have happened has not."""

STORY = {
    "prompt": "Tell me a story about a fox named Pip.",
    "max_tokens": 48,
    "temperature": 1.2,
    "seed": 7,
}


@pytest.fixture(scope="module")
def plain() -> list[int]:
    """The tokens of the story, from a ring without a draft model. One of one node gives those of
    two."""
    with local_ring(1, tiny.path()) as nodes:
        return ask(nodes[0])["token_ids"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalApi]:
    """A ring with a draft model. It takes its time, as one whose model is larger would: a draft
    model that gives way to all others is late in a ring that has no more to compute than itself."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = {"draft": str(tiny.path())}
    configs = write_cluster(
        tmp_path_factory.mktemp("ring"), 2, tiny.path(), api=address, options=options
    )
    slow = {VARIABLE: "slowness", "PYTHONPATH": str(ROOT)}
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(running_node(config, (), slow, "tests.verify.faulty_node"))
            for config in configs
        ]
        for node in nodes:
            wait_until_up(node)
        yield LocalApi(nodes, f"http://{address}", "tiny")


@pytest.fixture(scope="module")
def head(api: LocalApi) -> LocalNode:
    return api.nodes[0]


def ask(node: LocalNode) -> dict[str, Any]:
    *_, done = node.ask("generate", STORY)
    return done


def until(node: LocalNode, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The status of *node* once it *holds*."""
    end = time.monotonic() + PATIENCE
    while not holds(status := node.status()):
        assert time.monotonic() < end, (status["draft"], status["guesses"], node.log_tail())
        time.sleep(0.05)
    return status


def is_guessing(status: dict[str, Any]) -> bool:
    return status["draft"]["state"] == "guessing"


@pytest.mark.slow
def test_the_tokens_are_the_same_and_most_guesses_right(
    api: LocalApi, head: LocalNode, plain: list[int]
) -> None:
    """A sampled text, which nothing but the same draw could guess."""
    until(head, is_guessing)

    def asked_again(status: dict[str, Any]) -> bool:
        """Whether most tokens of one answer were guessed: from the text itself few are. How often
        the draft model is in time depends on the machine's other work."""
        assert ask(head)["token_ids"] == plain
        now = head.status()["guesses"]
        right, wrong = (now[name] - status["guesses"][name] for name in ("accepted", "rejected"))
        return right > len(plain) / 2 and right > 4 * wrong

    until(head, asked_again)
    for told in (("--config", head.config), ("--url", api.url)):
        shown = sealring("status", *told).out
        assert re.search(r"draft model +tiny, guessing\n", shown)
        assert re.search(r"a token takes +[0-9.]+ ms without guesses\n", shown)
        assert "tokens right" in shown
    # A client learns no path, and no process.
    cluster = httpx2.get(f"{api.url}/v1/cluster").json()
    assert cluster["draft"] == {"model": "tiny", "state": "guessing", "fault": ""}
    assert "the draft model tiny guesses tokens" in head.log.read_text()


@pytest.mark.long
def test_a_draft_model_that_dies_is_no_loss(head: LocalNode, plain: list[int]) -> None:
    """It is started again, and at last done without; each death has one line in the log."""
    for life in range(LIVES):
        status = until(head, is_guessing)
        os.kill(status["draft"]["pid"], signal.SIGKILL)
        assert ask(head)["token_ids"] == plain
        pid = status["draft"]["pid"]
        status = until(head, lambda status, pid=pid: status["draft"]["pid"] != pid)
        assert "SIGKILL" in status["draft"]["fault"] or life < LIVES - 1
    status = until(head, lambda status: status["draft"]["state"] == "given up")
    assert ask(head)["token_ids"] == plain
    lines = [line for line in head.log.read_text().splitlines() if "WARNING" in line]
    told = [line for line in lines if "draft model" in line]
    assert len(told) == LIVES
    assert "goes on without it" in told[-1]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with another vocabulary."""
    folder = tmp_path_factory.mktemp("foreign") / "other"
    shutil.copytree(tiny.path(), folder)
    told = json.loads((folder / "tokenizer.json").read_text())
    known = told["model"]["vocab"]
    known[300], known[301] = known[301], known[300]
    (folder / "tokenizer.json").write_text(json.dumps(told))
    return folder


@pytest.fixture(scope="module")
def unbuildable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a config that does not fit its weights."""
    folder = tmp_path_factory.mktemp("unbuildable") / "odd"
    shutil.copytree(tiny.path(), folder)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | {"vocab_size": 1000}))
    return folder


COMMANDS = pytest.mark.parametrize(
    "command", [("demo",), ("serve",), ("plan", "--model", "tiny", "--memory", "1G")]
)


@COMMANDS
def test_another_vocabulary_is_refused_at_once(foreign: Path, command: tuple[str, ...]) -> None:
    outcome = sealring(*command, "--draft", foreign)
    assert outcome.code == 2
    assert "other cannot guess the tokens of tiny" in outcome.err
    assert "token 300" in outcome.err


@COMMANDS
def test_one_that_cannot_be_built_is_refused_at_once(
    unbuildable: Path, command: tuple[str, ...]
) -> None:
    outcome = sealring(*command, "--draft", unbuildable)
    assert outcome.code == 2
    assert "odd cannot guess the tokens of tiny: mlx-lm cannot load this" in outcome.err


@COMMANDS
@pytest.mark.parametrize("name", ["./none", "none/such@"])
def test_one_that_is_not_there_is_named_as_the_draft_model(
    command: tuple[str, ...], name: str
) -> None:
    outcome = sealring(*command, "--draft", name)
    assert outcome.code == 2
    assert "cannot find the draft model (--draft): " in outcome.err
    assert "Or leave out --draft." in outcome.err


@COMMANDS
def test_no_name_is_not_the_folder_that_one_is_in(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny.path())
    outcome = sealring(*command, "--draft", "")
    assert outcome.code == 2
    assert "--draft names no draft model" in outcome.err


CANNOT = {
    "foreign": "cannot guess the tokens of tiny",
    "unbuildable": "odd cannot guess the tokens of tiny: mlx-lm cannot load this",
    "none": r"cannot find the draft model \('draft' in .*rank0.toml\): there is no folder",
}


@pytest.mark.parametrize("name", rows([*CANNOT], "foreign"))
def test_a_head_does_not_begin_with_one_that_cannot_guess(
    request: pytest.FixtureRequest, name: str
) -> None:
    draft = "./none" if name == "none" else str(request.getfixturevalue(name))
    with (
        pytest.raises(Exception, match=CANNOT[name]),
        local_ring(1, tiny.path(), options={"draft": draft}),
    ):
        pass


@pytest.mark.slow
def test_a_ring_goes_on_without_one_that_can_no_longer_be_loaded(
    tmp_path: Path, plain: list[int]
) -> None:
    """Its weights are damaged once the ring has begun: the engine does not see them."""
    folder = tmp_path / "damaged"
    shutil.copytree(tiny.path(), folder)
    with local_ring(1, tiny.path(), options={"draft": str(folder)}) as nodes:
        status = until(nodes[0], is_guessing)
        (folder / "model.safetensors").write_bytes(b"")
        (folder / "config.json").write_text("{}")
        for pid in [*status["engine_pids"], status["draft"]["pid"]]:
            os.kill(pid, signal.SIGKILL)
        status = until(nodes[0], lambda status: status["draft"]["state"] == "given up")
        assert ask(nodes[0])["token_ids"] == plain
        assert nodes[0].log.read_text().count("the ring goes on without it") == 1


def test_a_file_that_is_none_is_not_read(tmp_path: Path) -> None:
    """A pipe would have nobody answer."""
    folder = tmp_path / "odd"
    shutil.copytree(tiny.path(), folder)
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    outcome = sealring("plan", "--model", "tiny", "--memory", "4G", "--draft", str(folder))
    assert outcome.code == 2
    assert "odd cannot guess the tokens of tiny: " in outcome.err


def test_one_that_takes_too_long_to_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "_SECONDS", 0.01)
    with pytest.raises(UserError, match="it could not be built within"):
        drafts.plan_draft("tiny", tiny.path())

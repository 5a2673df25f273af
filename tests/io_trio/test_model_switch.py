"""A running node gets another model, and keeps or takes back the old one if that fails."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sealring.local.ring import LocalNode, running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_tools.bench.random_model import write_random_model
from sealring_trio.collective.loopback import free_ports

from tests.attacks.test_hub import Send, head, hostile
from tests.io_trio.helpers import Outcome, sealring, until
from tests.serving import PATIENCE


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("other"), "5m")


def answer(node: LocalNode, count: int = 8) -> list[int]:
    asked = {"prompt": "Once upon a time", "max_tokens": count}
    return next(e["token_ids"] for e in node.ask("generate", asked) if e["event"] == "done")


def use(node: LocalNode, model: Path | str, *more: str) -> Outcome:
    return sealring("model", "use", str(model), "--config", node.config, "--json", *more)


def served(url: str) -> list[str]:
    return [model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalNode, str]]:
    """A ring of one with the tiny model, which each test leaves as it was, and its API."""
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("alone")
    (config,) = write_cluster(folder, 1, tiny.path(), api=f"127.0.0.1:{port}")
    with running_node(config) as node:
        wait_until_up(node)
        yield node, f"http://127.0.0.1:{port}"


@pytest.mark.slow
def test_a_ring_of_one(alone, other):
    node, url = alone
    first = answer(node)
    assert served(url) == ["tiny"]
    outcome = use(node, other)
    assert outcome.code == 0, outcome.err
    assert outcome.json() == {"model": str(other), "serving": True, "why": []}
    assert served(url) == [other.name]
    assert answer(node) != first
    assert node.status()["layers"] == [0, 6]
    assert use(node, tiny.path()).code == 0
    assert answer(node) == first


@pytest.mark.long
def test_requests_that_run_are_finished(tmp_path, other):
    (config,) = write_cluster(tmp_path, 1, tiny.path())
    with running_node(config) as node:
        wait_until_up(node)
        answer(node)
        began, found = threading.Event(), []

        def ask() -> None:
            asked: dict[str, Any] = {"prompt": "Once", "max_tokens": 400}
            for event in node.ask("generate", asked):
                began.set()
                found.append(event)

        thread = threading.Thread(target=ask)
        thread.start()
        assert began.wait(60)
        assert use(node, other).code == 0
        thread.join(60)
        assert found[-1]["event"] == "done"
        assert found[-1]["reason"] in ("length", "stop", "end")


@pytest.mark.long
def test_what_cannot_be_described_changes_nothing(tmp_path):
    (config,) = write_cluster(tmp_path, 1, tiny.path())
    with running_node(config) as node:
        wait_until_up(node)
        first = answer(node)
        pid = node.status()["engine_pid"]
        for model, told in (
            (tmp_path, "config.json"),
            ("no/such model", "hub id"),
        ):
            outcome = use(node, model)
            assert outcome.code == 2
            assert told in outcome.err
        assert answer(node) == first
        assert node.status()["engine_pid"] == pid


@pytest.mark.slow
def test_the_old_one_is_back_if_the_new_one_fails(alone, tmp_path, other):
    """Its manifest says that a weight is another, which only loading shows."""
    node, _ = alone
    broken = Path(shutil.copytree(other, tmp_path / "broken"))
    assert sealring("digest", broken).code == 0
    manifest = json.loads((broken / "sealring.json").read_text())
    manifest["tensors"]["model.norm.weight"] = "0" * 64
    (broken / "sealring.json").write_text(json.dumps(manifest))
    first = answer(node)
    outcome = use(node, broken)
    assert outcome.code == 1
    assert "cannot be served: tensor model.norm.weight does not match" in outcome.err
    assert "again, and it serves." in outcome.err
    assert node.status()["state"] == "serving"
    assert answer(node) == first


def refuses(node: LocalNode, model: Path, folder: Path) -> str:
    """What *node* says when it is to use *model*, whose tokenizer is there and cannot be loaded:
    only loading shows it."""
    broken = Path(shutil.copytree(model, folder / "broken"))
    (broken / "tokenizer.json").write_text("{}")
    outcome = use(node, broken)
    assert outcome.code == 1
    assert "cannot be served: the tokenizer of" in outcome.err
    return outcome.err


@pytest.mark.slow
def test_the_old_one_is_back_if_the_new_ones_tokenizer_cannot_be_loaded(alone, tmp_path, other):
    node, _ = alone
    said = refuses(node, other, tmp_path)
    assert f"The node has {tiny.path()} again, and it serves" in said


@pytest.mark.long
def test_it_is_back_in_a_ring_that_does_not_serve(tmp_path, other):
    with running_node(write_cluster(tmp_path, 2, tiny.path())[0]) as node:
        wait_until_up(node)
        said = refuses(node, other, tmp_path)
        assert f"The node has {tiny.path()} again, and does not serve yet: rank 1" in said


@pytest.mark.long
def test_a_ring_of_two_serves_once_both_have_it(tmp_path, other):
    configs = write_cluster(tmp_path, 2, tiny.path())
    with running_node(configs[0]) as head, running_node(configs[1]) as last:
        for node in (head, last):
            wait_until_up(node)
        first = answer(head)
        outcome = use(last, other, "--wait", "15")
        assert outcome.code == 1
        assert outcome.json()["serving"] is False
        assert "other" in " ".join(outcome.json()["why"])
        assert use(head, other).json()["serving"] is True
        assert answer(head) != first
        assert last.status()["layers"] == [2, 6]  # the output head counts as layers of rank 0


@pytest.mark.long
def test_a_node_that_is_stopped_meanwhile_stops(tmp_path, other):
    configs = write_cluster(tmp_path, 2, tiny.path())
    with running_node(configs[1]) as node:
        wait_until_up(node)
        thread = threading.Thread(target=use, args=(node, other, "--wait", "60"))
        thread.start()
        until(lambda: "other model" in node.log.read_text(), node.log_tail)
        node.process.terminate()
        assert node.process.wait(60) == 0
        thread.join(60)


@pytest.mark.long
def test_a_node_that_is_stopped_while_it_asks_a_slow_hub_stops(tmp_path, monkeypatch):
    asked, over = threading.Event(), threading.Event()

    def answer(_: str, send: Send) -> None:
        send(head("200 OK"))
        asked.set()
        while not over.wait(0.1):
            send(b" " * 400)  # it is never silent, nor too slow

    (config,) = write_cluster(tmp_path, 1, tiny.path())
    with hostile(answer) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with running_node(config) as node:
            request = {"model": "someone/model-1", "seconds": 60}

            def ask() -> None:
                with contextlib.suppress(Exception):  # the node is gone
                    list(node.ask("use", request))

            thread = threading.Thread(target=ask)
            try:
                wait_until_up(node)
                thread.start()
                assert asked.wait(60)
                node.process.terminate()
                assert node.process.wait(PATIENCE) == 0
            finally:
                over.set()
                if thread.ident:
                    thread.join(60)

"""`sealring pull`, `models`, and commands that need a model of the hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from sealring.local.ring import write_cluster
from sealring_model.loading import model_store
from sealring_model.loading.model_store import PartialModel

from tests.fetching.conftest import MODEL
from tests.fetching.stand_in import COMMIT, StandIn
from tests.io_trio.helpers import Outcome, sealring

pytestmark = pytest.mark.usefixtures("quick_paces")


@pytest.fixture
def run(server: StandIn, store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run a command whose hub is the stand-in."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    return sealring


def listed(outcome: Outcome, place: str) -> dict[str, Any]:
    (found,) = (model for model in outcome.json()["models"] if model["place"] == place)
    return found


def test_some_layers_and_then_the_rest(run, server, source):
    first = run("pull", MODEL, "--layers", "2:4", "--json")
    assert first.code == 0
    assert first.json()["layers"] == [2, 4]
    assert first.json()["fetched"] == first.json()["bytes"] > 0
    assert "are to come, and" in first.err
    found = listed(run("models", "--json"), "store")
    assert (found["model"], found["revision"], found["commit"]) == (MODEL, "main", COMMIT)
    assert (found["whole"], found["layers"], found["ends"]) == (False, [[2, 4]], False)
    assert found["disk"] < found["weights"]
    again = run("pull", MODEL, "--layers", "2:4", "--json").json()
    assert again["fetched"] == 0
    rest = run("pull", MODEL)
    assert rest.code == 0
    assert "whole" in rest.out
    found = listed(run("models", "--json"), "store")
    assert (found["whole"], found["layers"], found["ends"]) == (True, [[0, 7]], True)
    folder = Path(found["path"])
    assert (folder / "model.safetensors").read_bytes() == (
        source / "model.safetensors"
    ).read_bytes()
    told = run("models")
    assert "whole, 7 layers" in told.out
    assert str(folder) in told.out


def test_offline_what_is_here_is_here(run, server, monkeypatch):
    assert run("pull", MODEL, "--layers", "2:4").code == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(server.seen)
    again = run("pull", MODEL, "--layers", "2:4", "--json")
    assert (again.code, again.json()["fetched"]) == (0, 0)
    rest = run("pull", MODEL)
    assert rest.code == 1
    assert f"a part of model.safetensors of {MODEL} is not on this machine, and HF_HUB" in rest.err
    other = run("pull", "someone/nothing")
    assert other.code == 1
    assert "someone/nothing is not on this machine, and HF_HUB_OFFLINE forbids" in other.err
    assert len(server.seen) == asked


def test_in_part_for_people(run):
    assert run("pull", MODEL, "--layers", "0:3").code == 0
    told = run("models").out
    assert "the ends and layers 0 to 2, of 7" in told
    assert "tiny" in told


def test_what_the_hubs_cache_has_is_not_fetched(run, server, source):
    snapshots = Path(constants.HF_HUB_CACHE) / "models--someone--model-1" / "snapshots"
    (snapshots.parent / "refs").mkdir(parents=True)
    (snapshots.parent / "refs" / "main").write_text(COMMIT)
    shutil.copytree(source, snapshots / COMMIT)
    outcome = run("pull", MODEL, "--json")
    assert outcome.json()["path"] == str(snapshots / COMMIT)
    assert outcome.json()["fetched"] == 0
    assert not server.seen


@pytest.mark.parametrize("line", ["offline = true", 'fetch = "members"'])
@pytest.mark.parametrize("command", [("verify",), ("model", "use", MODEL)], ids=lambda c: c[0])
def test_commands_ask_no_hub_that_the_config_forbids(run, server, tmp_path, line, command):
    (config,) = write_cluster(tmp_path, 1, Path(MODEL))
    config.write_text(config.read_text() + line + "\n")
    outcome = run(*command, "--config", config)
    assert outcome.code != 0
    assert not server.seen


@pytest.mark.parametrize("layers", ["3", "4:2", "0:8", "a:b", "-1:2", "2:2"])
def test_layers_that_are_none(run, layers):
    outcome = run("pull", MODEL, f"--layers={layers}")
    assert outcome.code == 2
    assert "is no range of at most" in outcome.err


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("someone/nothing", "the hub has no model"),
        ("models/nothing", "there is no folder models/nothing"),
        ("nothing", "no hub id"),
        (".", "no hub id"),
    ],
)
def test_what_cannot_be_pulled(run, model, told):
    outcome = run("pull", model)
    assert outcome.code == 1
    assert told in outcome.err


def test_plan_needs_no_weights_and_digest_all(run, server, source):
    sent = (source / "model.safetensors").stat().st_size
    outcome = run("plan", "--model", MODEL, "--memory", "4G,4G", "--json")
    assert outcome.json()["layers"] == 7
    assert server.weights_sent < sent / 100
    outcome = run("digest", MODEL, "--json")
    assert outcome.code == 0
    assert server.weights_sent >= sent
    assert (model_store.folder_of(MODEL, COMMIT) / "sealring.json").is_file()


def test_a_folder_with_a_part_is_fetched_too(run, server):
    assert run("pull", MODEL, "--layers", "0:1").code == 0
    outcome = run("digest", model_store.folder_of(MODEL, COMMIT), "--json")
    assert outcome.code == 0


def test_a_pull_that_is_killed_goes_on(server, store, tmp_path, source):
    """As a person does it: in a process of its own. All bytes count, also those that had come and
    were not kept yet."""
    size = (source / "model.safetensors").stat().st_size
    command = [sys.executable, "-m", "sealring", "pull", MODEL, "--json"]
    env = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path / "empty"),
        model_store.VARIABLE: str(store),
    }
    server.stop_at = size // 2
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as process:
        assert server.fell_silent.wait(60)
        model = PartialModel.open(model_store.folder_of(MODEL, COMMIT))
        assert model is not None
        end = time.monotonic() + 20
        # What is on its way is no loss of a kill: wait until all of it has been read.
        while server.weights_sent - model.bytes_here(model.entries) > 0.02 * size:
            assert time.monotonic() < end
            model.refresh()
        process.kill()
    server.speak_again()
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    assert 0 < json.loads(done.stdout)["fetched"] < size
    assert server.weights_sent <= 1.02 * size


def test_a_cache_of_the_hub_that_is_no_folder_is_none(run, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "file"))
    assert [model["model"] for model in run("models", "--json").json()["models"]] == ["tiny"]

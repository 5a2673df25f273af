"""A model on a hub of this machine, and a store of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from sealring.local.ring import local_ring
from sealring_model.loading import model_store
from sealring_tools.bench.random_model import write_random_model
from sealring_trio.fetching.hub import Hub

from tests.fetching.stand_in import StandIn, stand_in

MODEL = "someone/model-1"
ASKED = {"prompt": "Once upon a time", "max_tokens": 12}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model that the hub has."""
    return write_random_model(tmp_path_factory.mktemp("source"), "25m")


@pytest.fixture(scope="session")
def expected(source: Path) -> list[int]:
    """What a ring that has the model answers when it is `ASKED`."""
    with local_ring(1, source) as nodes:
        *_, done = nodes[0].ask("generate", ASKED)
    assert done["token_ids"]
    return done["token_ids"]


@pytest.fixture
def server(source: Path) -> Iterator[StandIn]:
    with stand_in({MODEL: source}) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's models. The hub's cache is empty."""
    monkeypatch.setenv(model_store.VARIABLE, str(tmp_path / "store"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "store"


@pytest.fixture
def hub(server: StandIn, store: Path) -> Hub:
    return Hub(endpoint=server.url)

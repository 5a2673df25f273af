"""Models for the tests of the compute side, made once per session."""

from pathlib import Path

import mlx.core as mx
import pytest
from model_families import FAMILIES, SHARDED, make_model, reference_model
from model_rings import SAMPLING, Ring


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not mx.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """A folder for each family."""
    root = tmp_path_factory.mktemp("models")
    return {family: make_model(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="session")
def sharded(tmp_path_factory) -> dict[str, Path]:
    """A folder for each family that can be shared."""
    root = tmp_path_factory.mktemp("shared")
    return {
        name: make_model(root / name, family, **changes)
        for name, (family, changes) in SHARDED.items()
    }


@pytest.fixture(scope="session")
def references(models):
    """mlx-lm's own model of each family, whole."""
    return {family: reference_model(folder) for family, folder in models.items()}


@pytest.fixture(scope="session")
def alone(models):
    """The text of a prompt alone, 20 tokens of it, from a ring of one: test_stage compares that
    with mlx-lm's."""
    known: dict[tuple, list[int]] = {}
    rings = {family: Ring(folder) for family, folder in models.items()}

    def text(family: str, prompt: tuple[int, ...], way: int) -> list[int]:
        key = (family, prompt, way)
        if key not in known:
            known[key] = rings[family].generate(list(prompt), 20, **SAMPLING[way])
        return known[key]

    return text

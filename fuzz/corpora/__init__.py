"""The committed inputs of every target; `fuzz.minimise` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path


def path_of(target: str) -> Path:
    """Where the inputs of *target* stand, one in hexadecimal on each line."""
    return Path(__file__).parent / f"{target}.txt"


def inputs(target: str) -> Iterator[bytes]:
    """The seeds of *target*, and its committed inputs."""
    yield from import_module(f"fuzz.targets.{target}").seeds()
    if path_of(target).exists():
        yield from map(bytes.fromhex, path_of(target).read_text(encoding="ascii").splitlines())

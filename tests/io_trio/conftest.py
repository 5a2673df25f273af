"""A real ring of two ranks for the tests that look at one, with relays between the ranks."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from sealring.local.ring import (
    LocalNode,
    running_node,
    wait_until_up,
    write_cluster,
)
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports

from tests.io_trio.relay import Relay, relay


@attrs.define
class Ring:
    """The nodes in rank order, and what went between them."""

    folder: Path
    configs: list[Path]
    nodes: list[LocalNode]
    relays: list[Relay]


def relayed_cluster(folder: Path, stack: contextlib.ExitStack) -> tuple[list[Path], list[Relay]]:
    """Two configs whose roster names a relay's port for each rank, and the relays."""
    configs = write_cluster(folder, 2, tiny.path())
    relays = []
    for config, behind in zip(configs, free_ports(2), strict=True):
        text = config.read_text()
        port = int(text.split('listen = "127.0.0.1:')[1].split('"')[0])
        config.write_text(text.replace(str(port), str(behind)))
        relays.append(stack.enter_context(relay(port, behind)))
    return configs, relays


@pytest.fixture(scope="package")
def ring() -> Iterator[Ring]:
    """Two ranks of the tiny model; the head is the last to start."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        configs, relays = relayed_cluster(folder, stack)
        nodes = []
        for config in reversed(configs):
            nodes.insert(0, stack.enter_context(running_node(config)))
            wait_until_up(nodes[0])
        yield Ring(folder, configs, nodes, relays)


@pytest.fixture
def home(made: Path) -> Iterator[Path]:
    """A copy of the home *made* by a module, to change, in a short folder for the sockets' sake."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        yield Path(shutil.copytree(made, Path(folder) / "home"))

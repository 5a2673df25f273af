"""Two real nodes that cannot serve: what status of either, `/health` and a 503 say of it."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx2
import pytest
from sealring.files.cluster import create_key
from sealring.local.ring import LocalNode, running_node, wait_until_up, write_cluster
from sealring_model.loading.weights import owner, read_entries, write_manifest
from sealring_protocol.security.roster import open_roster, sign_roster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.files.key_files import read_key
from sealring_trio.files.models import TINY, find_model

from tests.io_trio.helpers import until


class Pair:
    """Two nodes, their configs as a test has changed them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.configs = write_cluster(folder, 2, find_model(TINY), api=f"127.0.0.1:{port}")
        self.nodes: list[LocalNode] = []

    def edit(self, rank: int, key: str, value: object) -> None:
        """Have the config of *rank* say that *key* is *value*."""
        lines = self.configs[rank].read_text().splitlines()
        kept = [line for line in lines if not line.startswith(f"{key} =")]
        self.configs[rank].write_text("\n".join([*kept, f"{key} = {json.dumps(value)}"]) + "\n")

    def model(self, rank: int) -> Path:
        """A model folder of its own for *rank*."""
        folder = self.folder / f"model{rank}"
        shutil.copytree(find_model(TINY), folder)
        self.edit(rank, "model", str(folder))
        return folder

    def sign(self, rank: int, lifetime_ms: int | None = None, **changes: Any) -> None:
        """Give *rank* a roster of its own."""
        coordinator = read_key(self.folder / "coordinator.key")
        data = (self.folder / "demo.roster").read_bytes()
        roster = attrs.evolve(open_roster(coordinator.public_key, data).roster, **changes)
        if lifetime_ms is not None:
            expires = time.time_ns() // 1_000_000 + lifetime_ms
            roster = attrs.evolve(roster, issued_ms=expires - 10**6, expires_ms=expires)
        path = self.folder / f"own{rank}.roster"
        path.write_bytes(sign_roster(roster, coordinator).encode())
        self.edit(rank, "roster", path.name)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            self.nodes = [stack.enter_context(running_node(config)) for config in self.configs]
            for node in self.nodes:
                wait_until_up(node)
            yield

    def told(self, rank: int, cause: str) -> str:
        """What status of *rank* says of *cause*, once it does."""
        return self._until(cause, lambda: self.nodes[rank].status()["why"])

    def health(self, cause: str) -> str:
        """The same of the head's `/health`."""
        return self._until(cause, lambda: httpx2.get(f"{self.url}/health").json()["why"])

    def refusal(self) -> str:
        """The message of the 503 that a request gets."""
        model = httpx2.get(f"{self.url}/v1/models").json()["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
        answer = httpx2.post(f"{self.url}/v1/chat/completions", json=body)
        assert answer.status_code == 503, answer.text
        return str(answer.json()["error"]["message"])

    def _until(self, cause: str, look: Callable[[], list[dict[str, Any]]]) -> str:
        return until(lambda: "\n".join(w["text"] for w in look() if w["cause"] == cause), look)


def wrong_address(pair: Pair) -> None:
    (nobody,) = free_ports(1)
    pair.edit(1, "listen", f"127.0.0.1:{nobody}")
    pair.sign(1, cluster=b"x" * 32)


def expired(pair: Pair) -> None:
    for rank in range(2):
        pair.sign(rank, lifetime_ms=15_000)  # for both nodes to start within, on a busy machine


def other_model(pair: Pair) -> None:
    config = pair.model(1) / "config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "sealring_test": 1}))


def manifest(pair: Pair) -> None:
    """The head alone has the manifest that the tiny model comes with."""
    (pair.model(1) / "sealring.json").unlink()


def manifest_of_the_rank(pair: Pair) -> None:
    (pair.model(0) / "sealring.json").unlink()


def little_room(pair: Pair) -> None:
    for rank in range(2):
        pair.edit(rank, "memory", "1M")


def other_key(pair: Pair) -> None:
    """The rank has a key that no roster of the head's knows."""
    key = create_key(pair.folder / "other.key")
    data = (pair.folder / "demo.roster").read_bytes()
    coordinator = read_key(pair.folder / "coordinator.key")
    members = open_roster(coordinator.public_key, data).roster.members
    other = attrs.evolve(members[1], public_key=key.public_key)
    pair.edit(1, "key", "other.key")
    pair.sign(1, members=(members[0], other), cluster=b"y" * 32)


def broken_weights(pair: Pair) -> None:
    """The rank's weights are not those of the manifest that both have."""
    folder = pair.model(1)
    write_manifest(folder)
    shutil.copytree(folder, pair.folder / "model0")
    pair.edit(0, "model", str(pair.folder / "model0"))
    spoil(folder, 4096)  # beyond the sample that the ranks compare


def other_weights(pair: Pair) -> None:
    """Two models with the same headers, and a manifest on neither side."""
    for rank in range(2):
        (pair.model(rank) / "sealring.json").unlink()
    spoil(pair.folder / "model1", 0)


def adapter_of_the_rank(pair: Pair) -> None:
    """The rank alone uses an adapter."""
    folder = pair.folder / "adapter"
    folder.mkdir()
    asked = {"rank": 4, "scale": 1.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    told = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": asked}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    (folder / "adapters.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    pair.edit(1, "adapter", str(folder))


def spoil(folder: Path, at: int) -> None:
    """Change one byte, the one at *at*, of the largest tensor of layer 7 in *folder*."""
    entries = read_entries(folder).values()
    entry = max((e for e in entries if owner(e.name, 8) == 7), key=lambda e: e.size)
    with entry.file.open("r+b") as file:
        file.seek(entry.offset + at)
        byte = file.read(1)
        file.seek(entry.offset + at)
        file.write(bytes([byte[0] ^ 1]))


ROWS: dict[str, tuple[Callable[[Pair], None], str, str, str, str]] = {
    "a wrong address": (wrong_address, "unreachable", "Connection refused", "silent", ""),
    "an expired roster": (expired, "roster_expired", "expired", "roster_expired", "expired"),
    "another model": (other_model, "other_model", "rank1 holds", "other_model", "rank1 holds"),
    "other weights": (
        other_weights,
        "other_model",
        "rank1 has other weights than rank0 in layer 7",
        "other_model",
        "rank1 has other weights than rank0 in layer 7",
    ),
    "an adapter on the rank alone": (
        adapter_of_the_rank,
        "other_model",
        "rank1 holds another model",
        "other_model",
        "rank1 holds another model",
    ),
    "a manifest of the head's": (
        manifest,
        "manifest_on_one_side",
        "rank0 has one, rank1 has none",
        "manifest_on_one_side",
        "rank0 has one, rank1 has none",
    ),
    "a manifest of the rank's": (
        manifest_of_the_rank,
        "other_model",
        "or rank1 alone has a manifest",
        "manifest_on_one_side",
        "rank1 has one, rank0 has none",
    ),
    "too little room": (
        little_room,
        "too_little_room",
        "the model's weights take",
        "too_little_room",
        "the head says: the model's weights take",
    ),
    "another key": (other_key, "silent", "without a word", "silent", "without a word"),
    "weights that cannot be loaded": (
        broken_weights,
        "model_unservable",
        "does not match the manifest",
        "model_unservable",
        "does not match the manifest",
    ),
}


def in_ci(row: str) -> pytest.MarkDecorator:
    """Where *row* is tried: a roster that expires is waited for, a quarter of a minute; an adapter
    or other weights make another model as well."""
    return pytest.mark.long if row in ("an expired roster", "another model") else pytest.mark.slow


@pytest.mark.parametrize("row", [pytest.param(row, marks=in_ci(row)) for row in ROWS])
def test_status_of_either_health_and_the_503_say_why(row: str, tmp_path: Path) -> None:
    break_it, at_head, head, at_rank, rank = ROWS[row]
    pair = Pair(tmp_path)
    break_it(pair)
    with pair.running():
        assert head in pair.told(0, at_head)
        assert rank in pair.told(1, at_rank)
        assert head in pair.health(at_head)
        assert head in pair.refusal()

"""The examples, as they are: each in a process of its own, over TCP, with each other and with the
peer that the second implementation is tested with."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import Member, Roster, sign_roster

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SCALARS = (0xE1, 0xE2)


@functools.cache
def both() -> dict[str, str]:
    signers = [SoftwareSigner.from_scalar(scalar) for scalar in SCALARS]
    coordinator = SoftwareSigner.from_scalar(0xE3)
    now = time.time_ns() // 1_000_000
    members = tuple(Member(signer.public_key, f"node{i}") for i, signer in enumerate(signers))
    roster = Roster(b"e" * 32, "examples", 1, now - 60_000, now + 3_600_000, True, members)
    return {
        "roster": sign_roster(roster, coordinator).encoded.hex(),
        "coordinator": coordinator.public_key.hex(),
    }


def told(rank: int, **more: Any) -> dict[str, Any]:
    return {**both(), "scalar": f"{SCALARS[rank]:064x}", **more}


@contextmanager
def started(command: list[str], given: dict[str, Any] | None) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *command], stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT
    ) as process:
        try:
            if given is not None:
                assert process.stdin is not None
                process.stdin.write(json.dumps(given) + "\n")
                process.stdin.flush()
            yield process
        finally:
            process.kill()


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline())["port"])


def finished(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    return json.loads(out)


def test_the_blocking_peer_has_its_steps_done_by_the_asyncio_peer() -> None:
    with started(["examples/asyncio_peer.py"], told(1)) as serving:
        port = port_of(serving)
        for _ in range(2):  # it goes on serving
            with started(["examples/socket_peer.py"], told(0, port=port)) as driving:
                done = finished(driving)
            assert done == {"suite": "AES256GCM", "steps": 2, "back": [2.0 * i for i in range(16)]}


def test_the_blocking_peer_with_another_rank(tmp_path: Path) -> None:
    config = tmp_path / "rank1.json"
    config.write_text(json.dumps(told(1, suites=[2])))
    with started(["spec/node/peer.py", str(config)], None) as serving:
        with started(["examples/socket_peer.py"], told(0, port=port_of(serving))) as driving:
            assert finished(driving)["suite"] == "CHACHA20POLY1305"
        assert finished(serving)["steps"] == 2


def test_the_asyncio_peer_with_another_head(tmp_path: Path) -> None:
    config = tmp_path / "rank0.json"
    with started(["examples/asyncio_peer.py"], told(1)) as serving:
        config.write_text(json.dumps(told(0, suites=[1], steps=70, port=port_of(serving))))
        with started(["spec/node/peer.py", str(config)], None) as driving:
            assert finished(driving)["answered"] == 68


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_an_example_is_short_and_needs_the_protocol_alone(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 80
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            assert top in {"sealring_protocol", "attrs", *sys.stdlib_module_names}, name

"""The examples, as they are: each in a process of its own, over TCP, with each other and with real
nodes, which run on trio and compute."""

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

import mlx.core as mx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from sealring.files.config import load_config
from sealring.local.reference import one_process
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import describe, pins_of
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
    model = {"model": "ab" * 32, "layers": 12, "hidden": 16, "pins": [], "port": 0}
    with started(["examples/asyncio_peer.py"], told(1, **model)) as serving:
        port = port_of(serving)
        for _ in range(2):  # it goes on serving
            with started(["examples/socket_peer.py"], told(0, port=port)) as driving:
                done = finished(driving)
            assert (done["suite"], done["bounds"]) == ("AES256GCM", [0, 6, 12])
            assert done["back"] == pytest.approx([0.02 * i for i in range(16)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The configs of two nodes with the tiny model."""
    return write_cluster(tmp_path_factory.mktemp("cluster"), 2, tiny.path())


def of_node(config: Path) -> dict[str, Any]:
    """What an example is given to stand in for the node of *config*."""
    settings = load_config(config)
    key = load_pem_private_key(settings.key.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return {
        "roster": settings.roster.read_bytes().hex(),
        "coordinator": Path(settings.coordinator).read_text().strip(),
        "scalar": f"{key.private_numbers().private_value:064x}",
    }


@pytest.mark.slow
def test_the_blocking_peer_has_a_trio_node_compute(cluster: list[Path]) -> None:
    head, rank1 = cluster
    port = load_config(rank1).listen[1]
    with running_node(rank1) as node:
        wait_until_up(node)
        with started(["examples/socket_peer.py"], {**of_node(head), "port": port}) as driving:
            done = finished(driving)
    info = describe(tiny.path())
    _, first, last = done["bounds"]
    assert last == len(info.layers)
    stage = load_stage(info, first, last).stage
    slots = stage.new_caches()
    for tokens in (5, 1):
        given = [i / 100 for i in range(tokens * info.hidden)]
        (out,) = stage.run([mx.array(given).reshape(1, tokens, info.hidden)], slots)
    assert done["back"] == pytest.approx(out.flatten().tolist(), abs=1e-4)


@pytest.mark.slow
def test_a_trio_head_generates_with_the_asyncio_peer(cluster: list[Path]) -> None:
    head, rank1 = cluster
    info = describe(tiny.path())
    model = {"model": info.digest.hex(), "layers": len(info.layers), "hidden": info.hidden}
    model |= {"pins": pins_of(info)}
    given = {**of_node(rank1), **model, "port": load_config(rank1).listen[1]}
    with started(["examples/asyncio_peer.py"], given) as serving:
        port_of(serving)
        with running_node(head) as node:
            wait_until_up(node)
            *_, done = node.ask("generate", {"prompt": "Hello.", "max_tokens": 5})
            assert 0 < len(done["token_ids"]) <= 5


WITHOUT_DAEMON = """
import runpy, sys
sys.modules["sealring"] = None  # importing it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_program_embeds_a_node_and_needs_no_daemon(tmp_path: Path) -> None:
    head, rank1 = write_cluster(tmp_path, 2, tiny.path())
    prompt = [3, 14, 15, 92, 65]
    with one_process(tiny.path()) as reference, running_node(rank1):
        expected = reference.generate(prompt, 16, raw=True).tokens
        # What only the daemon knows is no key of a node's file.
        own = [line for line in head.read_text().splitlines() if not line.startswith("api =")]
        head.write_text("\n".join(own))
        given = ["examples/trio_node.py", str(head), *map(str, prompt)]
        command = [sys.executable, "-W", "error", "-c", WITHOUT_DAEMON, *given]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert [*map(int, done.stdout.split())] == [*expected]


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_an_example_is_short_and_needs_little(path: Path) -> None:
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
            trio = {"sealring_trio", "trio"} if path.name == "trio_node.py" else set()
            allowed = {"sealring_protocol", "attrs", *trio, *sys.stdlib_module_names}
            assert top in allowed, name

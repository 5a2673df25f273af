"""The implementation in JavaScript: it passes the vectors, and talks with this one over TCP.

It was written from the specification alone, so what it and the code agree on is in the
specification.
"""

from __future__ import annotations

import json
import re
import shutil
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

FOLDER = Path(__file__).parent.parent.parent / "spec" / "node"
PACKAGES = FOLDER / "node_modules" / "@noble"
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.skipif(NODE is None, reason="node is not installed"),
    pytest.mark.skipif(
        not PACKAGES.exists(), reason="its packages are missing: run npm install in spec/node"
    ),
]

COMMANDS = {
    "javascript": [NODE or "", str(FOLDER / "live.js")],
    "python": [sys.executable, str(FOLDER / "peer.py")],
}
STEPS = 70
"""More than 64 frames each way: every key is updated, those of the inner seal too."""


def test_it_passes_every_vector() -> None:
    done = subprocess.run(
        [NODE or "", "check.js"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    families = (FOLDER.parent / "vectors").glob("*.json")
    told = {line.split(":")[0]: line for line in done.stdout.splitlines()}
    for family in families:
        if family.stem != "schema":
            count = len(json.loads(family.read_text())["vectors"])
            assert re.fullmatch(rf"{family.stem}: {count} of {count} passed", told[family.stem])


def test_its_checker_knows_its_families() -> None:
    done = subprocess.run(
        [NODE or "", "check.js", "nothing"], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "there are addresses, announcements, draws, elections, evidence" in done.stderr


@contextmanager
def started(language: str, config: Path) -> Iterator[subprocess.Popen[str]]:
    command = [*COMMANDS[language], str(config)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said_first(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.mark.parametrize(
    ("head", "last", "suite"), [("javascript", "python", 1), ("python", "javascript", 2)]
)
def test_a_pipeline_of_two_languages(tmp_path: Path, head: str, last: str, suite: int) -> None:
    scalars = [0x5EA1, 0x5EA2]
    signers = [SoftwareSigner.from_scalar(scalar) for scalar in scalars]
    coordinator = SoftwareSigner.from_scalar(0x5EA3)
    now = time.time_ns() // 1_000_000
    members = tuple(Member(signer.public_key, f"node{i}") for i, signer in enumerate(signers))
    roster = Roster(b"c" * 32, "live", 1, now - 60_000, now + 3_600_000, True, members)
    both = {
        "roster": sign_roster(roster, coordinator).encoded.hex(),
        "coordinator": coordinator.public_key.hex(),
        "steps": STEPS,
    }

    def config(rank: int, **told: Any) -> Path:
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps({**both, "scalar": f"{scalars[rank]:064x}", **told}))
        return path

    with started(last, config(1, suites=[suite])) as serving:
        port = said_first(serving)["port"]
        with started(head, config(0, suites=[1, 2], port=port)) as leading:
            led, errors = leading.communicate(timeout=30)
            assert leading.returncode == 0, errors
        served, errors = serving.communicate(timeout=30)
        assert serving.returncode == 0, errors
    told = {"suite": suite, "steps": STEPS}
    decodes = STEPS - 2  # two rows are read in first, each by a step that has no answer
    assert json.loads(led) == {"rank": 0, "peer": members[1].id.hex(), "answered": decodes, **told}
    assert json.loads(served) == {"rank": 1, "peer": members[0].id.hex(), **told}

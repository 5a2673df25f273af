"""Each faulty vector has one fault: with the check for it left out, nothing else refuses it.

A second fault of another class would make the vector depend on an order of checks; one of the same
class would let an implementation pass that has no such check. `two_faults.txt` has those that
cannot be otherwise, each with its reason. What is left out is a check of the implementation in
JavaScript, where every check is a call of one function.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest
from sealring_protocol.codec.encoding import decode_local

from tests.spec.files import VECTORS, every

FOLDER = Path(__file__).parent.parent.parent / "spec" / "node"
NODE = shutil.which("node")
PACKAGES = FOLDER / "node_modules" / "@noble"
KNOWN = [
    line.partition("  # ")[::2]
    for line in (VECTORS / "two_faults.txt").read_text(encoding="ascii").splitlines()
]


@cache
def found() -> dict[str, str]:
    """The vectors that a second check refuses, and as what."""
    if NODE is None or not PACKAGES.exists():
        pytest.skip("node is not installed, or its packages are missing: npm install in spec/node")
    done = subprocess.run(
        [NODE, "faults.js"], cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["id"]: each["second"][0] for each in told}


@pytest.mark.slow
def test_a_second_fault_has_a_reason() -> None:
    known = [line.split(": ") for line, _ in KNOWN]
    loose = {
        name: second
        for name, second in found().items()
        if not any(fnmatchcase(name, pattern) and second == result for pattern, result in known)
    }
    assert loose == {}


@pytest.mark.parametrize(("line", "why"), KNOWN)
def test_a_reason_is_of_a_vector_that_has_two_faults(line: str, why: str) -> None:
    pattern, second = line.split(": ")
    assert why
    assert second in {found()[name] for name in found() if fnmatchcase(name, pattern)}


@pytest.mark.parametrize("name", [name for name in every() if name.startswith("message/local-")])
def test_a_local_message_is_refused_for_its_code_alone(name: str) -> None:
    decode_local(bytes.fromhex(every()[name]["input"]["plaintext"]))

"""Every vector against the code, whole."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from sealring_protocol.errors import wire_code

from tests.spec.files import every
from tests.spec.kinds import Result, run


def check(vector: dict[str, Any], result: Result) -> None:
    """What came of *vector* is what it says."""
    if vector["result"] == "valid":
        assert result.error is None
    else:
        assert result.error is not None, "it was taken"
        assert wire_code(result.error).name == vector["result"], result.error
        assert hashlib.sha256(result.released).hexdigest() == vector["released"]
    if "output" in vector:
        assert result.output == vector["output"]


@pytest.mark.parametrize("name", every())
def test_vector(name: str) -> None:
    check(every()[name], run(every()[name]))

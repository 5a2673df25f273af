"""What several tests of the adapter share."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import attrs
from sealring.cli import run


@attrs.frozen
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its standard output, as JSON."""
        return json.loads(self.out)


def sealring(*arguments: str | Path) -> Outcome:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    assert "Traceback" not in err.getvalue()
    return Outcome(code, out.getvalue(), err.getvalue())

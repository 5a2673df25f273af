"""What several tests of the adapter share."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
from sealring.cli import run
from sealring.local.ring import LocalNode

from tests.serving import PATIENCE

T = TypeVar("T")


@attrs.frozen
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its standard output, as JSON."""
        return json.loads(self.out)


def as_process(*arguments: str | Path, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run a command in this process, whose streams are those of a process in a pipe: *given* comes
    in. Its exit code, and the bytes that went out."""
    came, out, err = io.BytesIO(given), io.BytesIO(), io.BytesIO()
    # With the errors handler that `main` gives the first two, and Python the third.
    streams = {
        "stdin": io.TextIOWrapper(came, "utf-8", "replace"),
        "stdout": io.TextIOWrapper(out, "utf-8", "replace"),
        "stderr": io.TextIOWrapper(err, "utf-8", "backslashreplace"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        code = run([str(argument) for argument in arguments])
    for stream in streams.values():
        stream.flush()
    return code, out.getvalue(), err.getvalue()


def sealring(*arguments: str | Path) -> Outcome:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    assert "Traceback" not in err.getvalue()
    return Outcome(code, out.getvalue(), err.getvalue())


def until(look: Callable[[], T], why_not: Callable[[], object] = lambda: None) -> T:
    """What *look* finds once it finds something true, looking twenty times a second: whoever asks
    without a pause takes the processor from what is waited for. It fails with what *why_not*
    gives."""
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, why_not()
        time.sleep(0.05)
    return found


def wait_for(node: LocalNode, key: str, value: object) -> None:
    """Ask *node* for its status until that says so."""
    until(lambda: node.status()[key] == value, node.log.read_text)

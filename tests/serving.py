"""`sealring serve` as a process."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import attrs
import httpx2

PATIENCE = 60.0
"""Seconds after which what should have happened has not."""


@attrs.frozen
class Served:
    """The process, where it serves, and what it said of itself."""

    process: subprocess.Popen[str]
    url: str
    about: dict[str, Any]

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def ask(self, text: str, **options: Any) -> httpx2.Response:
        """A chat completion."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], **options}
        with httpx2.Client(base_url=self.url, timeout=PATIENCE) as http:
            return http.post("/v1/chat/completions", json=body)


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Served]:
    """`sealring serve` with *options*, until the block ends."""
    command = [sys.executable, "-m", "sealring", "serve", "--port", "0", "--json", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    with process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.endswith("\n}\n"):
                line = process.stdout.readline()
                assert line, process.communicate()[1]
                text += line
            about = json.loads(text)
            yield Served(process, about["url"], about)
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)

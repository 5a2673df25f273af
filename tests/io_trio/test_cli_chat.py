"""`sealring chat`, with and without a terminal, against a ring that is served."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Self

import httpx2
import pytest

from tests.io_trio.helpers import sealring
from tests.serving import PATIENCE, Served

CONTROLLED = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that makes its terminal the one that Ctrl-C comes from, and becomes another."""

CHAT = [sys.executable, "-m", "sealring_trio", "chat"]


def chat(url: str, lines: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Chat without a terminal."""
    command = [*CHAT, "--url", url, "--temperature", "0", *options]
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def latest(served: Served) -> list[dict[str, int]]:
    """The traces of the requests, the latest first."""
    traces: list[dict[str, int]] = httpx2.get(f"{served.url}/v1/requests").json()["data"]
    return traces


def test_a_conversation_goes_on(served: Served) -> None:
    alone = served.ask("Count to twenty.", temperature=0).json()["choices"][0]["message"]["content"]
    done = chat(
        f"{served.url}/v1/", ["Count to twenty.", "And again.", "/reset", "Count to twenty."]
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == alone
    assert lines[2] == "(forgotten)"
    assert lines[3] == alone
    third, second, first = latest(served)[:3]
    assert first["prompt_tokens"] == third["prompt_tokens"]
    assert second["prompt_tokens"] > first["prompt_tokens"] + first["tokens"]


def test_commands(served: Served) -> None:
    lines = ["/system Be brief.", "", "/system", "/what", "/help", "/quit", "Hello."]
    done = chat(served.url, lines, "--max-tokens", "2")
    assert done.returncode == 0
    assert (
        "(begun again, with a system prompt)\n(begun again)\nThere is no command /what."
        in done.stdout
    )
    assert done.stdout.count("/reset") == 2
    assert "Hello" not in done.stdout


AGAIN = 5.0
"""Seconds after which a person presses Ctrl-C again: the interpreter's line editor misses a signal
that comes after it has shown its prompt and before it waits."""


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, url: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED, *CHAT, "--url", url, "--temperature", "0"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def until(self, pattern: str) -> str:
        """Read until *pattern*; what came up to its end."""
        while not (match := re.search(pattern, self.seen, re.DOTALL)):
            assert self._read(PATIENCE), self.seen
        before, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return before

    def interrupt(self, pattern: str) -> None:
        """Press Ctrl-C, and read until *pattern*."""
        self.type("\x03")
        while not self._read(AGAIN):
            self.type("\x03")
        self.until(pattern)

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self.ours], [], [], patience)
        if ready:
            self.seen += os.read(self.ours, 4096).decode(errors="replace")
        return bool(ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.ours)


def test_ctrl_c_stops_the_answer_and_not_the_chat(served: Served) -> None:
    with Terminal(served.url) as terminal:
        assert f"tiny at {served.url}" in terminal.until(r"\r\n> ")
        terminal.type("Tell me a story about a fox.\n")
        terminal.until(r"fox\.\r\n.*?\w+ \w+")  # the echo, and then the first words
        terminal.interrupt(r"\[stopped\]\r\n\r\n> ")
        terminal.interrupt(r"leaves\)\r\n\r\n> ")
        terminal.type("What is two plus two?\n")
        terminal.until(r"two\?\r\n\w.*?\r\n\r\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(PATIENCE) == 0
    asked, stopped = latest(served)[:2]
    assert (stopped["state"], asked["state"]) == ("client_gone", "stop")
    assert asked["prompt_tokens"] > stopped["prompt_tokens"]  # what came of the first answer stays


@pytest.mark.parametrize(
    ("options", "code", "what", "advice"),
    [
        (
            ["--url", "http://127.0.0.1:1"],
            1,
            "no head answers at http://127.0.0.1:1",
            "sealring serve",
        ),
        (["--url", "gopher://x"], 2, "'gopher://x' is no URL", "http://127.0.0.1:7480"),
        (["--url", "http://"], 2, "is no URL", ""),
        (["--temperature", "3"], 2, "--temperature", "sealring chat --help"),
    ],
)
def test_mistakes(options: list[str], code: int, what: str, advice: str) -> None:
    done = sealring("chat", *options)
    assert done.code == code
    assert what in done.err
    assert advice in done.err


def test_a_question_that_is_refused(served: Served) -> None:
    done = chat(served.url, ["word " * 4000, "Hello."])
    assert done.returncode == 1
    assert "This model's maximum context length is 2048 tokens" in done.stderr
    assert "/reset" in done.stderr
    assert "Traceback" not in done.stderr
    done = chat(served.url, ["Hello."], "--model", "gpt-9")
    assert "The model 'gpt-9' does not exist here" in done.stderr

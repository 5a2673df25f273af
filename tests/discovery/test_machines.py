"""Two machines of a private network, each a network namespace with a real `sealring` process."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import attrs
import pytest

PATIENCE: Final = 90.0
COMMAND: Final = str(Path(sys.executable).with_name("sealring"))


@attrs.define(eq=False)
class Machine:
    """A machine with *address*, in the network namespace *name*."""

    name: str
    address: str
    folder: Path
    stack: contextlib.ExitStack

    @property
    def config(self) -> Path:
        return self.folder / "node.toml"

    def move(self, address: str) -> None:
        """Have another address."""
        _ip("-n", self.name, "address", "flush", "dev", "eth0")
        _ip("-n", self.name, "address", "add", f"{address}/24", "dev", "eth0")
        self.address = address

    def start(self, *arguments: str, typed: int | None = None) -> Path:
        """Start a `sealring` here, whose output goes to a file, until the test is over. With
        *typed*, that is its terminal."""
        output = self.folder.with_name(f"{self.folder.name}.{arguments[0]}.out")
        file: IO[bytes] = self.stack.enter_context(output.open("wb"))
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, COMMAND, *arguments],
            stdin=subprocess.DEVNULL if typed is None else typed,
            stdout=file if typed is None else typed,
            stderr=file if typed is None else typed,
        )
        self.stack.callback(_stop, process)
        return output

    def ask(self, *arguments: str) -> str:
        """What `sealring` with *arguments* prints about the node here."""
        command = [*arguments, "--config", str(self.config)]
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, COMMAND, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self) -> set[str]:
        """The members of the cluster that are up, as the node here says."""
        machines = json.loads(self.ask("machines", "--json"))["machines"]
        return {each["name"] for each in machines if each["state"] == "up"}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(output: Path, pattern: str) -> str:
    """Wait until *output* matches *pattern*; what did."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := re.search(pattern, output.read_text()):
            return found[0]
        select.select([], [], [], 0.1)
    raise AssertionError(f"no {pattern} in:\n{output.read_text()}")


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    """The machines desk and den, linked by a cable."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("machines are network namespaces, which root makes with 'ip' on Linux")
    with contextlib.ExitStack() as stack:
        made = []
        # A socket's path is short, and that of a test's own folder is not.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        names = [f"sealring-{os.getpid()}-{name}" for name in ("desk", "den")]
        ends = [f"sr{os.getpid() % 10**8}{end}" for end in "ab"]
        try:
            for name in names:
                _ip("netns", "add", name)
                stack.callback(_ip, "netns", "delete", name)
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        for number, (name, end) in enumerate(zip(names, ends, strict=True)):
            _ip("link", "set", end, "netns", name, "name", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
            machine = Machine(name, "", folder / name.rpartition("-")[2], stack)
            machine.move(f"10.79.0.{number + 1}")
            made.append(machine)
        yield made[0], made[1]


@pytest.mark.slow
def test_an_invitation_with_addresses_of_yesterday_is_good(
    machines: tuple[Machine, Machine],
) -> None:
    """The inviter's address changes after it invited. The newcomer finds it all the same, and
    later its node does, though the roster has the old address."""
    desk, den = machines
    started = desk.start("start", str(desk.folder), "--name", "desk", "--yes", "--json")
    until(started, r'"expires_s": \d+')
    invitation = json.loads(until(started, r"(?s)\{.*\}"))["invitation"]
    desk.move("10.79.0.7")
    joined = den.start("join", invitation, str(den.folder), "--name", "den")
    until(joined, "joined home as den")
    until(joined, "ready: epoch")
    assert desk.up() == {"desk", "den"}
    roster = json.loads(desk.ask("machines", "--json"))["machines"]
    assert roster[0]["addresses"] == ["10.79.0.1:7470"]


@pytest.mark.slow
def test_a_machine_without_an_invitation_is_seen_and_takes_one(
    machines: tuple[Machine, Machine],
) -> None:
    desk, den = machines
    started = desk.start("start", str(desk.folder), "--name", "desk", "--json")
    until(started, r'"expires_s": \d+')
    ours, theirs = pty.openpty()
    den.start("join", "--folder", str(den.folder), "--name", "den", typed=theirs)
    screen = _Screen(ours)
    (words,) = screen.until(r"Its fingerprint is ([a-z-]+)")
    screen.until(r"sealring runs at 10\.79\.0\.1: ")
    listed = json.loads(desk.ask("machines", "--json"))
    assert listed["uninvited"] == [{"fingerprint": words, "hosts": ["10.79.0.2"]}]
    assert f"fingerprint {words} announces at 10.79.0.2" in desk.ask("machines")
    os.write(ours, b"yes please\n")
    screen.until("this is no invitation")
    invited = json.loads(desk.ask("machines", "invite", "--json"))
    os.write(ours, f"uv run {invited['command']}\n".encode())
    screen.until(f"fingerprint is {words}")
    screen.until("waiting for a yes")
    listed = json.loads(desk.ask("machines", "--json"))
    assert [each["fingerprint"] for each in listed["waiting"]] == [words]
    assert listed["uninvited"] == []
    desk.ask("machines", "accept", words)
    screen.until("joined home as den")


class _Screen:
    """The person's end of a terminal."""

    def __init__(self, ours: int) -> None:
        self._ours = ours
        self._seen = ""

    def until(self, pattern: str) -> tuple[str, ...]:
        """Read until *pattern*; its groups."""
        end = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self._seen)) is None:
            assert time.monotonic() < end, self._seen
            if select.select([self._ours], [], [], 0.1)[0]:
                self._seen += os.read(self._ours, 4096).decode()
        self._seen = self._seen[found.end() :]
        return found.groups()

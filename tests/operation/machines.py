"""Machines of one ring on this Linux host, as an operator has them.

Each has a network namespace, an address, a folder with its own key, roster and config, a small file
system for its state, and a real `sealring up` process:

    with machines(2) as (desk, shelf):
        desk.start()
        shelf.start()
        desk.wait_for_log("the ring is ready")
        assert desk.ask("Say something.").status_code == 200
        desk.way_to(shelf).opens = False        # a firewall: no connections from desk to shelf
        shelf.way_to(desk).delay = 0.015        # also: loss, rate, passes
        shelf.stall()                           # or kill, resume, stop, fill_disk

Rank 0 is the first. Nothing is left at the end of the block, however that ends. It needs root, and
skips the test with a reason elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import httpx2
import pytest
from sealring.local.ring import LocalNode, running_node

from tests.io_trio.helpers import Outcome, sealring
from tests.networks import network_at
from tests.operation.cable import ADDRESSES, MTU, Cable, Way

NAMES: Final = ("desk", "shelf", "den", "attic")
PORT: Final = 7470
API_PORT: Final = 7480
PATIENCE: Final = 60.0
"""Seconds after which what should have happened has not."""
DISK: Final = "4m"
"""Size of a machine's state folder, a file system of its own."""

_numbers = itertools.count()

T = TypeVar("T")


@attrs.define(eq=False)
class Machine:
    """One machine; see the module."""

    name: str
    index: int
    folder: Path
    namespace: str
    _cable: Cable = attrs.field(repr=False)
    _running: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, repr=False)
    _node: LocalNode | None = None
    _moves: int = 0

    # ------------------------------------------------------------- its parts

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return f"10.77.0.{self.index + 1 + self._moves * ADDRESSES}"

    @property
    def config(self) -> Path:
        """Its config file. Edit it before `start`."""
        return self.folder / f"{self.name}.toml"

    @property
    def state(self) -> Path:
        """Its state folder."""
        return self.folder / f"{self.name}.state"

    @property
    def node(self) -> LocalNode:
        """Its node: the process, its log file, its control socket."""
        assert self._node is not None, f"{self.name} has not been started"
        return self._node

    @property
    def log(self) -> str:
        """All that its node has logged."""
        path = self.config.with_suffix(".log")
        return path.read_text(errors="replace") if path.exists() else ""

    def configure(self, **keys: str | int | float) -> None:
        """Set *keys* of its config."""
        lines = [
            line
            for line in self.config.read_text().splitlines()
            if line.split(" = ")[0] not in keys
        ]
        lines += [f"{key} = {_toml(value)}" for key, value in keys.items()]
        self.config.write_text("\n".join(lines) + "\n")

    def way_to(self, other: Machine) -> Way:
        """The network from here to *other*; change it at any time."""
        return self._cable.ways[self.index, other.index]

    def move(self) -> None:
        """Have another address from now on, as a router gives it, and the one before no more. To be
        reached there, it listens at 0.0.0.0."""
        before, device = self.address, _ip("-n", self.namespace, "-o", "-4", "address")
        (name,) = re.findall(rf"^\d+: (\S+) +inet {before}/", device, re.MULTILINE)
        self._moves += 1
        _ip("-n", self.namespace, "address", "delete", f"{before}/24", "dev", name)
        _ip("-n", self.namespace, "address", "add", f"{self.address}/24", "dev", name)

    def lose_route_to(self, other: Machine) -> None:
        """Have no route to *other*, until `find_route_to`."""
        _ip("-n", self.namespace, "route", "add", "unreachable", other.address)

    def find_route_to(self, other: Machine) -> None:
        """Undo `lose_route_to`."""
        _ip("-n", self.namespace, "route", "delete", "unreachable", other.address)

    # ------------------------------------------------------------- its node

    def start(self, *flags: str, place: Mapping[str, str] = {}) -> None:
        """Start its node with *flags* of `sealring up`, and *place* in its environment besides. It
        may not be up yet."""
        self.stop()
        with self.inside():
            self._node = self._running.enter_context(running_node(self.config, flags, place))

    def stop(self) -> None:
        """End its node in good order, if it runs."""
        if self._node is not None and self._node.process.poll() is None:
            self.resume()
        self._running.close()

    def kill(self) -> None:
        """Kill its node; its engine ends with it. The kernel closes the connections."""
        self.node.process.kill()
        self.node.process.wait(PATIENCE)

    def kill_engine(self) -> None:
        """Kill its engine; its node goes on."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if b"sealring_model.engine" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def stall(self) -> None:
        """Stop the processes of its node where they are; connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pids(self) -> list[int]:
        """The processes in its namespace: its node, its engine."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    # ------------------------------------------------------------- its disk

    def fill_disk(self) -> None:
        """Leave no byte free for its state."""
        ballast = (self.state / "ballast").open("wb", buffering=0)
        with ballast as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free_disk(self) -> None:
        """Undo `fill_disk`."""
        (self.state / "ballast").unlink()

    # -------------------------------------------------------------- asking

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread makes in the block, and processes that it starts, are this
        machine's."""
        with network_at(Path("/run/netns", self.namespace)):
            yield

    def run(self, *arguments: str | Path) -> Outcome:
        """A `sealring` command, as a person at this machine gives it, in its folder."""
        command = [sys.executable, "-m", "sealring", *map(str, arguments)]
        with self.inside():
            done = subprocess.run(
                command,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def http(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Ask the HTTP API of this machine's node, from this machine."""
        with self.inside(), httpx2.Client(timeout=PATIENCE, trust_env=False) as client:
            return client.request(method, f"http://127.0.0.1:{API_PORT}{path}", **options)

    def ask(self, text: str, **options: Any) -> httpx2.Response:
        """A chat completion of it."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], **options}
        return self.http("POST", "/v1/chat/completions", json=body)

    def status(self) -> dict[str, Any]:
        """What `sealring status --json` says there."""
        return self.node.status()

    def told(self) -> dict[str, str]:
        """What its node answers to the question why it does not serve, by where it is asked."""
        found = {
            "status": self.run("status", "--config", self.config).out,
            "status --json": _texts(self.status()["why"]),
        }
        if self.index == 0:
            health, cluster = (self.http("GET", path).json() for path in ("/health", "/v1/cluster"))
            found |= {
                "the faults of /health": "\n".join(health["faults"]),
                "/health": _texts(health["why"]),
                "/v1/cluster": _texts(cluster["why"]),
                "the answer to a request": self.ask("Hello.", max_tokens=4).text,
            }
        return found

    def wait_until_told(self, pattern: str) -> None:
        """Wait until its log, and then each answer that `told` gives, has a match of *pattern*."""
        self.wait_for(lambda: re.search(pattern, self.log), f"'{pattern}' in the log")
        self.wait_until_answered(pattern)

    def wait_until_answered(self, pattern: str) -> None:
        """Wait until each answer that `told` gives has a match of *pattern*."""
        until = time.monotonic() + PATIENCE
        while silent := {w: t for w, t in self.told().items() if not re.search(pattern, t)}:
            assert time.monotonic() < until, f"{self.name}: no '{pattern}' in {silent}"
            time.sleep(0.05)

    def wait_until_nothing_is_told(self) -> None:
        """Wait until its node serves, and says of nothing that it is in the way."""

        def clear() -> bool:
            facts = self.status()
            return not facts["why"] and not any(peer["trouble"] for peer in facts["peers"])

        self.wait_for(clear, "end of what is in the way")
        assert "not serving" not in self.run("status", "--config", self.config).out
        if self.index == 0:
            self.wait_for_health()
            health, cluster = (self.http("GET", path).json() for path in ("/health", "/v1/cluster"))
            assert (health["faults"], health["why"], cluster["why"]) == ([], [], [])
            assert not any(rank["trouble"] for rank in cluster["ranks"])
            assert self.ask("Hello.", max_tokens=4).status_code == 200

    def wait_for_health(self) -> None:
        """Wait until the ring serves requests at this machine, the head."""
        self.wait_for_log("the API is at")
        self.wait_for(lambda: self.http("GET", "/health").status_code == 200, "good health")

    def wait_for_log(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until its node has logged *text*."""
        self.wait_for(lambda: text in self.log, f"'{text}' in the log", seconds)

    def wait_for(self, found: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
        """Wait until *found* gives something true; that. It fails with the end of the log."""
        until = time.monotonic() + seconds
        while not (value := found()):
            assert time.monotonic() < until, f"{self.name}: no {what}; {self.log[-3000:]}"
            time.sleep(0.05)
        return value


@contextlib.contextmanager
def machines(
    count: int, guests: int = 0, witnesses: int = 0, **keys: str | int | float
) -> Iterator[tuple[Machine, ...]]:
    """*count* machines of one roster, none of which has been started, and *guests* that belong to
    nobody's ring and have a network alone: 2 to 4 in all. The last *witnesses* of the roster are in
    no ring either. *keys* go into all configs. The coordinator's folder, with the draft, is
    ``coordinator`` beside theirs."""
    if reason := _why_not():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sr-")))
        cable = Cable()
        stack.callback(cable.close)
        made = [_make(index, base, cable, stack) for index in range(count + guests)]
        _write_roster(base, made[:count], witnesses, keys)
        cable.start()
        stack.callback(cable.stop)
        stack.callback(lambda: [machine.stop() for machine in made])
        yield tuple(made)


def _why_not() -> str:
    """Why there can be no machines here; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the 'ip' command"
    return "" if os.path.exists("/dev/net/tun") else "there is no /dev/net/tun"


def _make(index: int, base: Path, cable: Cable, stack: contextlib.ExitStack) -> Machine:
    number = f"{os.getpid()}-{next(_numbers)}"
    namespace, device = f"sealring-{number}", f"sr{number}"
    machine = Machine(NAMES[index], index, base / NAMES[index], namespace, cable)
    machine.state.mkdir(parents=True, mode=0o700)
    options = ("-t", "tmpfs", "-o", f"size={DISK},mode=0700")
    _do("mount", *options, "sealring", str(machine.state))
    stack.callback(_do, "umount", "--lazy", str(machine.state))
    _ip("netns", "add", namespace)
    stack.callback(_ip, "netns", "delete", namespace)
    cable.plug(device)
    _ip("link", "set", device, "netns", namespace)
    _ip("-n", namespace, "address", "add", f"{machine.address}/24", "dev", device)
    _ip("-n", namespace, "link", "set", device, "up", "mtu", str(MTU))
    _ip("-n", namespace, "link", "set", "lo", "up")
    return machine


def _write_roster(
    base: Path, made: list[Machine], witnesses: int, keys: dict[str, str | int | float]
) -> None:
    """Keys, a signed roster and the configs, by the commands that people use."""
    office = base / "coordinator"
    office.mkdir()
    _cli("keygen", office / "coordinator.key", "--coordinator")
    _cli("roster", "new", "home", "--out", office / "home.toml")
    for machine in made:
        key = machine.folder / f"{machine.name}.key"
        _cli("keygen", key)
        address = f"{machine.address}:{PORT}"
        arguments: tuple[str | Path, ...] = ("--key", key.with_suffix(".pub"), "--address", address)
        if machine.index >= len(made) - witnesses:
            arguments = (*arguments, "--witness")
        _cli("roster", "add", office / "home.toml", machine.name, *arguments)
    _cli("roster", "sign", office / "home.toml", "--key", office / "coordinator.key")
    for machine in made:
        for name in ("home.roster", "coordinator.pub"):
            shutil.copy(office / name, machine.folder)
        machine.config.touch()
        machine.configure(
            key=f"{machine.name}.key",
            roster="home.roster",
            coordinator="coordinator.pub",
            listen=f"{machine.address}:{PORT}",
            api=f"127.0.0.1:{API_PORT}",
            **{"model": "tiny", "strategy": "pp", "min_ranks": 0, **keys},
        )


def _texts(why: list[dict[str, Any]]) -> str:
    return "\n".join(obstacle["text"] for obstacle in why)


def _cli(*arguments: str | Path) -> None:
    outcome = sealring(*arguments)
    assert outcome.code == 0, outcome.err


def _toml(value: str | int | float) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _ip(*arguments: str) -> str:
    return _do("ip", *arguments)


def _do(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout

"""One node after the other is upgraded from the release before, under a stream, on loopback.

There is no release yet. The release before is made of the present code: wheels with another
version, installed without their dependencies, which are those of this environment.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sealring.local.node_socket import ask
from sealring.local.ring import write_cluster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.files.models import TINY, find_model
from sealring_trio.node.service import this_build

from tests.serving import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("protocol", "model", "io_trio", "daemon")
MODEL = "model"  # a copy, whose name is the same to both releases
TOKENS = 200
"""Of an answer: each costs 10 ms of a processor, and 100 ms suffice to stop a node meanwhile."""


def install(folder: Path, version: str, steps: int = 1) -> Path:
    """A Python in *folder* with sealring of *version*, which knows the step version *steps*."""
    sources, wheels, place = folder / "sources", folder / "wheels", folder / "place"
    leave = shutil.ignore_patterns("__pycache__", "node_modules", "formal")
    for package in (*PACKAGES, "spec/vectors"):
        shutil.copytree(ROOT / package, sources / package, ignore=leave)
    for package in PACKAGES:
        project = sources / package / "pyproject.toml"
        text = re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', project.read_text())
        project.write_text(text)
    messages = sources / "protocol/sealring_protocol/codec/messages.py"
    text, count = re.subn(
        r"(?m)^((OLDEST|NEWEST)_STEPS: Final) = \d+$", rf"\1 = {steps}", messages.read_text()
    )
    assert count == 2
    messages.write_text(text)
    for package in PACKAGES:
        _do("uv", "build", "-q", "--wheel", "--out-dir", str(wheels), str(sources / package))
    _do("uv", "venv", "-q", "--python", sys.executable, str(place))
    python = place / "bin" / "python"
    made = map(str, sorted(wheels.glob("*.whl")))
    _do("uv", "pip", "install", "-q", "--offline", "--no-deps", "--python", str(python), *made)
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    ours = sysconfig.get_path("purelib")  # after its own, and without what is editable
    (Path(where.stdout.strip()) / "dependencies.pth").write_text(f"{ours}\n")
    return python


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Place:
    """A machine: its *config*, and the node that runs there, of one release or another."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.log = config.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, python: Path) -> None:
        with self.log.open("ab") as sink:
            command = [str(python), "-P", "-m", "sealring", "up", str(self.config)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=self.config.parent
            )

    def stop(self) -> None:
        """As a service manager stops it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            assert self._process.wait(PATIENCE) == 0, self.log.read_text()
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def status(self) -> dict[str, Any]:
        control = self.config.parent / f"{self.config.stem}.state" / "control.sock"
        return next(ask(control, "status"))


@contextlib.contextmanager
def places(folder: Path) -> Iterator[tuple[Place, Place, str]]:
    """Two machines that do not run yet, and where the head's API will be."""
    model = Path(shutil.copytree(find_model(TINY), folder / MODEL))
    (port,) = free_ports(1)
    configs = write_cluster(folder, 2, model, api=f"127.0.0.1:{port}")
    made = [Place(config) for config in configs]
    try:
        yield made[0], made[1], f"http://127.0.0.1:{port}"
    finally:
        for place in made:
            place.kill()


def wait_for(what: Callable[[], bool], *involved: Place) -> None:
    end = time.monotonic() + 2 * PATIENCE
    while not _is(what):
        assert time.monotonic() < end, "\n".join(place.log.read_text() for place in involved)
        time.sleep(0.1)


def _is(what: Callable[[], bool]) -> bool:
    with contextlib.suppress(Exception):  # nobody listens yet
        return what()
    return False


def is_answering(url: str) -> bool:
    body = {"model": MODEL, "prompt": "One", "max_tokens": 1}
    return httpx2.post(f"{url}/v1/completions", json=body, timeout=5).status_code == 200


class Stream:
    """A long answer, read by a thread: its text, or how it failed."""

    def __init__(self, url: str) -> None:
        self.text = ""
        self.failed = ""
        self.begun = threading.Event()
        self._url = url
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Count to a thousand."}],
            "max_tokens": TOKENS,
            "min_tokens": TOKENS,
            "temperature": 0,
            "stream": True,
        }
        url = f"{self._url}/v1/chat/completions"
        try:
            with httpx2.stream("POST", url, json=body, timeout=2 * PATIENCE) as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    self._take(line)
        except httpx2.HTTPError as error:
            self.failed = repr(error)
        self.begun.set()

    def _take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            self.failed = line
            return
        self.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        if len(self.text) > 20:
            self.begun.set()

    def wait(self) -> None:
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive()

    def whole(self) -> str:
        self.wait()
        assert not self.failed
        return self.text


def test_one_node_after_the_other_is_upgraded_under_a_stream(tmp_path: Path) -> None:
    before, now = install(tmp_path / "before", "0.0.9"), Path(sys.executable)
    with places(tmp_path) as (head, rank, url):
        for place in (head, rank):
            place.start(before)
        wait_for(lambda: is_answering(url), head, rank)
        assert head.status()["version"] == "0.0.9"
        expected = Stream(url).whole()
        assert len(expected) > TOKENS

        stream = Stream(url)
        assert stream.begun.wait(PATIENCE)
        rank.stop()
        assert len(stream.text) < len(expected)
        rank.start(now)
        wait_for(
            lambda: bool(head.status()["peers"][0]["version"].startswith(this_build().version)),
            head,
        )
        assert stream.whole() == expected  # it waited, and went on
        assert head.status()["version"] == "0.0.9"

        stream = Stream(url)
        assert stream.begun.wait(PATIENCE)
        head.stop()  # it lets the stream finish, for as long as `drain` says
        stream.wait()
        assert stream.text == expected or "the head is shutting down" in stream.failed
        assert expected.startswith(stream.text)
        head.start(now)
        wait_for(lambda: is_answering(url), head, rank)
        assert head.status()["version"] == this_build().version
        assert Stream(url).whole() == expected
        for place in (head, rank):
            assert "upgrade" not in place.log.read_text()


def test_a_release_that_cannot_take_part_is_named_on_both_sides(tmp_path: Path) -> None:
    after = install(tmp_path / "after", "9.0.0", steps=2)
    with places(tmp_path) as (head, rank, url):
        head.start(Path(sys.executable))
        rank.start(after)
        own = re.escape(this_build().version)
        told = rf"rank1 runs sealring 9\.0\.0 \(steps 2\), rank0 {own} \(steps 1\): upgrade rank0"
        for place in (head, rank):
            wait_for(lambda place=place: is_told(place, told), head, rank)
        head.stop()
        head.start(after)
        wait_for(lambda: is_answering(url), head, rank)


def is_told(place: Place, pattern: str) -> bool:
    """True if *place*'s node says *pattern*, with the cause that a program can tell by."""
    return any(
        why["cause"] == "other_version" and re.search(pattern, why["text"])
        for why in place.status()["why"]
    )

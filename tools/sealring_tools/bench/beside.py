"""Rings behind their HTTP API beside `mlx_lm.server`, in alternation.

Both serve the same model on the same machine and get the same requests: so many at once, each on a
connection of its own, greedy and streamed. A pace is the tokens of all answers over the time from
the first byte sent to the last one received, so it includes reading the prompts. No prompt is sent
twice to one server, because both keep what they have read.

With busy neighbours, processes of usual priority that compute and want nothing else, all sides have
them: that tells who gives way on a machine that is not the ring's alone.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import httpx2
from sealring.local.ring import LocalApi, local_api
from sealring_tools.bench.http_load import burst
from sealring_tools.bench.load import prompt
from sealring_tools.bench.measure import Result
from sealring_tools.bench.random_model import write_random_model
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError
from sealring_trio.files.models import TINY, find_whole_model
from sealring_trio.processes.interpreter import run_module

SizeName = Literal["tiny", "25m", "450m"]

SERVER: Final = "mlx_lm.server"
START_SECONDS: Final = 120.0
"""Seconds that `mlx_lm.server` may take to serve."""

FLOORS: Final[Mapping[tuple[str, int], float]] = {
    ("tiny", 1): 1.4,
    ("tiny", 2): 1.3,
    ("25m", 1): 1.1,
    ("25m", 2): 1.5,
}
"""The least ratio that is aimed at with eight requests at once, by model and ranks."""

BUSY_FLOORS: Final[Mapping[int, float]] = {1: 0.9, 2: 0.8}
"""The same with busy neighbours, by ranks."""

_AT_ONCE: Final = 8  # what the floors are for
_POLL_SECONDS: Final = 0.2
_CHARS: Final = 200  # of a prompt
_NUMBERS: Final = 1000  # prompts of one turn


@attrs.frozen
class Setup:
    """What to measure: each of *at_once* on a ring of each of *ranks*, in so many *turns*, with at
    most *tokens* of each answer, beside so many *busy* neighbours."""

    at_once: tuple[int, ...] = (8, 32)
    ranks: tuple[int, ...] = (1, 2)
    turns: int = 5
    tokens: int = 48
    busy: int = 0


def measure(
    setup: Setup, sizes: Sequence[SizeName], tell: Callable[[str], None]
) -> Iterator[Result]:
    """Tokens a second over HTTP, medians of alternating turns. Raises `OperationError`."""
    for size in sizes:
        with contextlib.ExitStack() as stack:
            model = _model(size, stack)
            tell(f"{size}: bringing everybody up")
            yardstick = stack.enter_context(server(model))
            rows = {"rows": max(setup.at_once)}
            rings = {
                ranks: stack.enter_context(local_api(ranks, model, options=rows, report=tell))
                for ranks in setup.ranks
            }
            stack.enter_context(neighbours(setup.busy))
            yield from _turns(setup, size, rings, yardstick, tell)


def _model(size: SizeName, stack: contextlib.ExitStack) -> Path:
    if size == "tiny":
        return find_whole_model(TINY)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
    model = folder / f"random-{size}"
    model.mkdir()
    return write_random_model(model, size)


def _turns(
    setup: Setup,
    size: SizeName,
    rings: Mapping[int, LocalApi],
    yardstick: tuple[str, str],
    tell: Callable[[str], None],
) -> Iterator[Result]:
    beside = f", {setup.busy} busy neighbours" if setup.busy else ""
    sides = {0: yardstick, **{ranks: (api.url, api.model) for ranks, api in rings.items()}}
    fresh = itertools.count()
    for at_once in setup.at_once:
        paces: dict[int, list[float]] = {ranks: [] for ranks in sides}
        for turn in range(setup.turns + 1):
            first = next(fresh) * _NUMBERS
            order = list(sides)
            for ranks in order if turn % 2 else reversed(order):
                url, model = sides[ranks]
                asked = [_body(model, first + each, setup.tokens) for each in range(at_once)]
                done = burst(url, asked)
                who = f"{ranks} rank{'s' if ranks > 1 else ''}" if ranks else SERVER
                told = f"turn {turn} of {setup.turns}" if turn else "to warm up"
                tell(f"{told}: {size}, {at_once} at once{beside}: {who}: {done.pace:.1f} tokens/s")
                if turn:
                    paces[ranks].append(done.pace)
        medians = {ranks: statistics.median(each) for ranks, each in paces.items()}
        for ranks in rings:
            yield Result(
                f"{size}, {at_once} at once, {ranks} rank{'s' if ranks > 1 else ''}{beside}",
                "tokens/s",
                medians[ranks],
                medians[0],
                SERVER,
                floor_of(size, at_once, ranks, setup.busy),
            )


def floor_of(size: str, at_once: int, ranks: int, busy: int) -> float | None:
    """The least ratio that is aimed at, where one is."""
    if at_once != _AT_ONCE:
        return None
    return BUSY_FLOORS.get(ranks) if busy else FLOORS.get((size, ranks))


def _body(model: str, number: int, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt(number, _CHARS)}],
        "max_completion_tokens": tokens,
        "temperature": 0,
    }


@contextlib.contextmanager
def server(model: Path) -> Iterator[tuple[str, str]]:
    """`mlx_lm.server` with *model*, with its defaults, ended with the block: its address, and what
    it calls the model. Raises `OperationError` if it does not serve."""
    (port,) = free_ports(1)
    options = ["--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command = run_module("sealring_trio.processes.launcher", SERVER, *options)
    with (
        tempfile.TemporaryFile() as said,
        _child([*command, "--log-level", "WARNING"], said.fileno()) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        _wait_until_serving(url, process, said)
        yield url, str(model)


def _wait_until_serving(url: str, process: subprocess.Popen[bytes], said: Any) -> None:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(f"{url}/health", trust_env=False).status_code == httpx2.codes.OK:
                return
        time.sleep(_POLL_SECONDS)
    said.seek(0)
    text = said.read().decode(errors="replace")[-500:]
    raise OperationError(f"{SERVER} does not serve: {text}", "Is mlx-lm whole?")


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[list[int]]:
    """*count* processes that compute all the time, ended with the block; their ids. Each has a
    session of its own, as the processes of a stranger have."""
    with contextlib.ExitStack() as stack:
        module = "sealring_tools.bench.neighbour"
        command = run_module("sealring_trio.processes.launcher", module)
        yield [stack.enter_context(_child(command)).pid for _ in range(count)]


@contextlib.contextmanager
def _child(command: Sequence[str], output: int = subprocess.DEVNULL) -> Iterator[Any]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()

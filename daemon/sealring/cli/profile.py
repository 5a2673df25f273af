"""`sealring profile`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import cyclopts
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.models import TINY, find_whole_model

from sealring.cli.options import AsJson, Positive
from sealring.files.config import has_own_config, own_config
from sealring.local.node_socket import ask
from sealring.local.ring import local_ring
from sealring.output import print_json, reporter
from sealring.profiling import Recording, describe, gather, show, write_trace

Seconds = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gt=0))]

WARM_UP: Final = 8
"""Tokens that a ring that was just started draws before its profile."""

PROMPT: Final = "Tell me a long story."


def profile(
    *,
    config: tuple[Path, ...] = (),
    seconds: Seconds | None = None,
    tokens: Positive = 128,
    rows: Positive = 1,
    prompt: str = PROMPT,
    ranks: Positive | None = None,
    model: str | None = None,
    trace: Path | None = None,
    json: AsJson = False,
) -> None:
    """Show where the time of a token goes, rank by rank.

    Records the steps of a running ring, or of one that it starts on this
    machine, and shows how long each rank waited, computed and sealed, and how
    long its node and the wire took. It sends the ring requests itself, or with
    --seconds watches those that run. A trace file opens in ui.perfetto.dev.

        sealring profile
        sealring profile --config desk.toml --trace ring.json
        sealring profile --config desk.toml --seconds 10

    Of ranks on other machines only the times that steps carry are known; the
    rest of their nodes' time is in the wire of the rank before. To see it, run
    this there, with --seconds.

    Next: 'Where a token's time goes' in docs/operations.md says what helps.

    Parameters
    ----------
    config
        The config of a node that runs on this machine; repeat the option for
        several. That of the default folder if left out, if there is one and
        no --ranks or --model is given; or else a ring is started.
    seconds
        Watch what runs for so long, in place of asking.
    tokens
        Tokens of each answer.
    rows
        Requests at once.
    prompt
        What to ask.
    ranks
        Ranks of the ring that is started; 2 if left out.
    model
        Its model; the one that ships with sealring if left out.
    trace
        Write a trace file there, in the Trace Event Format.
    """
    took = 0.0

    def work(recordings: list[Recording]) -> None:
        nonlocal took
        began = time.perf_counter()
        if seconds is not None:
            time.sleep(seconds)
        else:
            _ask(_head(sockets, recordings), prompt, rows, tokens)
        took = time.perf_counter() - began

    configs: tuple[Path | None, ...] = config
    if not config and ranks is None and model is None and has_own_config():
        configs = (None,)
    if seconds is not None and not configs:
        raise UserError("nothing runs in a ring that is just started", "Give --config or --tokens.")
    with _nodes(configs, ranks or 2, model or TINY) as sockets:
        recordings = gather(sockets, work)
    if not any(each.stays for each in recordings):
        what = "no step passed meanwhile"
        raise OperationError(what, "Ask the ring something, or leave out --seconds.")
    if trace is not None:
        write_trace(recordings, trace)
    profiled = describe(recordings, took)
    if json:
        print_json(profiled)
    else:
        show(profiled)


@contextlib.contextmanager
def _nodes(configs: Sequence[Path | None], ranks: int, model: str) -> Iterator[list[Path]]:
    """The sockets of the nodes to profile."""
    if configs:
        yield [own_config(each).control_socket for each in configs]
        return
    reporter()(f"starting {ranks} nodes")
    with local_ring(ranks, find_whole_model(model)) as nodes:
        _ask(nodes[0].control, PROMPT, 1, WARM_UP)
        yield [node.control for node in nodes]


def _head(sockets: Sequence[Path], recordings: Sequence[Recording]) -> Path:
    """The socket of the head. Raises `UserError` if it is not among them."""
    for socket, recording in zip(sockets, recordings, strict=True):
        if recording.rank == 0:
            return socket
    head = recordings[0].place["names"][0]
    raise UserError(
        f"none of these nodes is the head, {head}, which alone takes requests",
        "Watch what runs: --seconds 10",
    )


def _ask(head: Path, prompt: str, rows: int, tokens: int) -> None:
    """Have *head* answer *rows* requests at once. Raises `OperationError`."""
    with ThreadPoolExecutor(rows) as threads:
        prompts = [prompt, *(f"{row}. {prompt}" for row in range(1, rows))]
        for _ in threads.map(partial(_answer, head, tokens), prompts):
            pass


def _answer(head: Path, tokens: int, prompt: str) -> None:
    for _ in ask(head, "generate", {"prompt": prompt, "max_tokens": tokens}, notice=reporter()):
        pass

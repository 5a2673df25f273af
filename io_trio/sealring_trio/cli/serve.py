"""`sealring serve`."""

from __future__ import annotations

import contextlib
import json as jsons
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import cyclopts
from sealring_model.text.tokens import has_chat_template

from sealring_trio.cli.output import print_facts, print_json, progress
from sealring_trio.files.config import CollectivesName, StrategyName
from sealring_trio.files.models import NO_TEMPLATE, TINY, find_draft, find_whole_model

if TYPE_CHECKING:
    from sealring_trio.local.api import LocalApi

Positive = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=1))]
Port = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0, lte=65_535))]

LOOK_SECONDS: Final = 0.25
"""Seconds between looks at the head's log, which is passed on."""

QUESTION: Final = "Tell me a story about a fox."


def serve(
    *,
    ranks: Positive = 2,
    model: str = TINY,
    draft: str | None = None,
    strategy: StrategyName = "pp",
    collectives: CollectivesName = "sealed",
    port: Port = 7480,
    log: Literal["debug", "info", "warning", "error"] = "info",
    trace: bool = False,
    json: bool = False,
) -> int:
    """Serve a model on this machine: a local ring, its HTTP API and its dashboard.

    Starts one node process per rank on loopback, with throwaway keys, and
    tells where the API and the dashboard are once every rank has loaded its
    layers. The log of the head follows on standard error, with one line for
    each request. Ctrl-C finishes the requests that run, and stops; a second
    one stops at once.

        sealring serve
        sealring serve --ranks 3 --model models/llama-8b --port 8000

    Only this machine can reach it. For machines of your own: sealring up.

    Next, in a second terminal: sealring chat

    Parameters
    ----------
    ranks
        Node processes; each holds a part of the layers.
    model
        Folder of a model, or its hub id; the one that ships with sealring if
        left out.
    draft
        Folder or hub id of a small model with the same vocabulary, which
        guesses tokens. They come sooner, and are the same.
    strategy
        'pp': each rank has some of the layers. 'tp': each has its share of
        every layer. 'auto' chooses.
    collectives
        'shared-loopback' has the sums of 'tp' within reach of every user of
        this machine, where engines can have no network of their own.
        'trusted-link' has them go beside the sealed links.
    port
        Port of the API and the dashboard; 0 for any that is free.
    log
        How much the log says.
    trace
        Log each step too: what every rank did, and the hops.
    json
        Print one JSON object once it serves.
    """
    from sealring_trio.local.api import local_api  # noqa: PLC0415 - see `up`

    folder = find_whole_model(model)
    if not has_chat_template(folder):
        print(f"sealring: {NO_TEMPLATE}", file=sys.stderr)
    beside = {} if draft is None else {"draft": str(find_draft(draft, folder))}
    flags = ["--log", log, *(["--trace"] if trace else [])]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with contextlib.ExitStack() as stack:
        with progress() as tell:
            options = {"strategy": strategy, "collectives": collectives, **beside}
            api = stack.enter_context(
                local_api(ranks, folder, port=port, options=options, flags=flags, tell=tell)
            )
        _announce(api, json)
        head = api.nodes[0]
        follow = stack.enter_context(_following(head.log))
        try:
            while api.dead(LOOK_SECONDS) is None:
                follow()
        except KeyboardInterrupt:
            _drain(head.process, follow)
            return 0
        follow()
        api.check()
    return 1


def _announce(api: LocalApi, json: bool) -> None:
    """Print where everything is."""
    ranks = [node.status() for node in api.nodes]
    spans = [f"{first} to {end - 1}" for first, end in (rank["layers"] for rank in ranks)]
    if json:
        print_json(
            {
                "url": api.url,
                "api": f"{api.url}/v1",
                "dashboard": f"{api.url}/",
                "model": api.model,
                "strategy": ranks[0]["strategy"],
                "ranks": [
                    {"pid": n.process.pid, "layers": r["layers"]}
                    for n, r in zip(api.nodes, ranks, strict=True)
                ],
            }
        )
        sys.stdout.flush()
        return
    body = {"model": api.model, "messages": [{"role": "user", "content": QUESTION}]}
    print_facts(
        [
            ("model", f"{api.model}, on {len(ranks)} ranks with layers {', '.join(spans)}"),
            ("dashboard", f"{api.url}/"),
            ("API", f"{api.url}/v1"),
        ]
    )
    print(
        f"\nTry it from another terminal:\n\n    sealring chat --url {api.url}\n\n"
        f"    curl {api.url}/v1/chat/completions \\\n"
        f"        -H 'Content-Type: application/json' \\\n"
        f"        -d {shlex.quote(jsons.dumps(body))}\n\n"
        "Ctrl-C finishes what runs, and stops. The head's log follows.\n",
        flush=True,
    )


@contextlib.contextmanager
def _following(log: Path) -> Iterator[Callable[[], None]]:
    """A function that prints what has been added to *log* since its last call."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)

        def follow() -> None:
            sys.stderr.write(file.read().decode(errors="replace"))
            sys.stderr.flush()

        yield follow


def _drain(head: subprocess.Popen[bytes], follow: Callable[[], None]) -> None:
    """Have *head* finish its requests and stop; a second interrupt stops it at once."""
    head.terminate()
    while head.poll() is None:
        try:
            follow()
            head.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            head.terminate()
    follow()

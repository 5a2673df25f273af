"""What one steady token costs in a ring of two: files and calls of ours, and crossings.

``python -m tools.ring``              this checkout
``python -m tools.ring CHECKOUT``     another one, older or newer
``python -m tools.ring --files``      and which files a token passes
``python -m tools.ring --http``       asked over HTTP, where else the owner's socket is

It runs the checkout's `sealring demo` twice, for few tokens and for many, with a probe in its nodes
and engines (`tools/probe`); or, over HTTP, its `sealring serve` and `sealring run`. What the longer
run has more, divided by the tokens that it has more, is what a steady token costs: starting,
prefill and the end are in both. A function that runs less
than once in two tokens, for a ping or a timer, is left out.

    calls     of Python functions of the checkout's own; a generator counts each time it goes on
    files     that these functions are in
    process   messages sent on a socket, to another process or to wake the own event loop
    thread    another thread is handed something, or woken
    lock      a lock of the checkout's own is taken

``node 1`` is the rank after the head: in a pipeline each token is one STEP to it and one from it,
so its files are those that a received STEP passes.

The probe makes the ring several times slower, so nothing here is a time. What is done once for each
read of a socket, and not once for each token, makes the calls differ by a few from run to run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sealring_model.tiny import DEFAULT_PROMPT

from tools.arguments import about_a_checkout

PACKAGES: Final = ("protocol", "model", "io_trio", "daemon")
PROBE: Final = Path(__file__).resolve().parent / "probe"
FEW, MANY = 40, 240
STEADY: Final = 0.5
"""How often a function runs for each token, at least, to count."""
CROSSINGS: Final = ("process", "thread", "lock")
TIME_LIMIT: Final = 300  # seconds for one demo

Counts = dict[str, Counter[str]]
"""How often what happened, by process."""


def ran(checkout: Path, tokens: int, *, http: bool) -> Counts:
    """What the nodes and engines of a demo did that was asked for *tokens* tokens, or of a ring
    that was asked over *http*."""
    command = "sealring" if (checkout / "daemon").is_dir() else "sealring_trio"  # an older one
    with tempfile.TemporaryDirectory() as folder:
        packages = [str(checkout / name) for name in PACKAGES]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PROBE), *packages]),
            "SEALRING_COUNT_ROOT": str(checkout),
            "SEALRING_COUNT_FOLDER": folder,
        }

        def run(*words: str) -> None:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", command, *words, "--max-tokens", str(tokens)],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=TIME_LIMIT,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise SystemExit(
                    f"'{words[0]}' took longer than {TIME_LIMIT} s: is the machine busy?"
                ) from None
            if done.returncode:
                raise SystemExit(f"'{words[0]}' ended with {done.returncode}:\n{done.stderr}")

        if http:
            with serving([sys.executable, "-m", command], folder, environment) as url:
                run("run", "tiny", DEFAULT_PROMPT, "--temperature", "0", "--url", url)
        else:
            run("demo", "--json")
        whole = [path for path in Path(folder).glob("[0-9]*") if not path.suffix]
        said = {path.name: json.loads(path.read_text()) for path in whole}
        return {_name(each, said): Counter(each["counts"]) for each in said.values()}


@contextmanager
def serving(command: list[str], folder: str, environment: dict[str, str]) -> Iterator[str]:
    """The URL of a ring that `serve` of *command* runs until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = Path(folder, "log")
    with log.open("wb") as file:
        ring = subprocess.Popen(
            [*command, "serve", "--port", str(port)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=file,
        )
    with ring:
        try:
            if ring.stdout is None or not ring.stdout.readline():
                raise SystemExit(f"'serve' ended:\n{log.read_text()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            ring.send_signal(signal.SIGINT)


def _name(process: dict[str, Any], others: dict[str, Any]) -> str:
    """The node of a rank, or the engine that a node started."""
    if found := re.search(r"rank(\d+)\.toml", " ".join(process["command"])):
        return f"node {found[1]}"
    return _name(others[str(process["parent"])], others).replace("node", "engine")


def steady(few: Counts, many: Counts) -> dict[str, dict[str, float]]:
    """What each process did more in *many*, for each token more, by function or crossing."""
    more = MANY - FEW
    return {
        process: {
            name: (count - few[process][name]) / more
            for name, count in counts.items()
            if name in CROSSINGS or (count - few[process][name]) / more >= STEADY
        }
        for process, counts in sorted(many.items())
    }


def summary(each: dict[str, float]) -> dict[str, float]:
    """Files, calls and crossings for each token."""
    calls = {name: count for name, count in each.items() if name not in CROSSINGS}
    return {
        "files": len(files_of(each)),
        "calls": round(sum(calls.values())),
        **{name: round(each.get(name, 0.0), 1) for name in CROSSINGS},
    }


def files_of(each: dict[str, float]) -> set[str]:
    """The files whose functions ran."""
    return {name.split()[1] for name in each if name not in CROSSINGS}


def by_file(by_process: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The calls in each file, by process."""
    found: dict[str, dict[str, float]] = {}
    for process, each in by_process.items():
        for name, count in each.items():
            if name not in CROSSINGS:
                calls = found.setdefault(name.split()[1], {})
                calls[process] = calls.get(process, 0.0) + count
    return dict(sorted(found.items()))


def main() -> int:
    """Count, and print a table or JSON."""
    parser = about_a_checkout("tools.ring", __doc__)
    parser.add_argument("--files", action="store_true", help="print every file, too")
    parser.add_argument("--functions", action="store_true", help="print every function, too")
    parser.add_argument("--http", action="store_true", help="ask over HTTP")
    asked = parser.parse_args()
    checkout = asked.checkout.resolve()
    if not (checkout / "io_trio" / "sealring_trio").is_dir():
        parser.error(f"{asked.checkout} is no checkout of sealring")
    few, many = (ran(checkout, tokens, http=asked.http) for tokens in (FEW, MANY))
    by_process = steady(few, many)
    whole: Counter[str] = Counter()
    for each in by_process.values():
        whole.update(each)
    told = {process: summary(each) for process, each in {**by_process, "ring": whole}.items()}
    if asked.json:
        files = {"by file": by_file(by_process)} if asked.files else {}
        functions = {"functions": by_process} if asked.functions else {}
        print(json.dumps(told | files | functions))
        return 0
    print(f"{'for each token':16}", *(f"{name:>9}" for name in told["ring"]), sep="")
    for process, counts in told.items():
        print(f"{process:16}", *(f"{count:>9,}" for count in counts.values()), sep="")
    if asked.files:
        print()
        for file, calls in by_file(by_process).items():
            parts = ", ".join(f"{process} {count:.1f}" for process, count in calls.items())
            print(f"{file}: {parts}")
    if asked.functions:
        for process, each in by_process.items():
            print(f"\n{process}")
            for name, count in sorted(each.items(), key=lambda item: -item[1]):
                print(f"{count:8.2f}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

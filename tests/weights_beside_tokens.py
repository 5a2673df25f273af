"""How much a member that fetches weights from the head holds up a stream of tokens.

    uv run python -m tests.weights_beside_tokens

A ring of two processes over loopback answers one request after the other; in turn nothing else
happens, and its second member reads the weights from the head as fast as it can. Prints the time
between two tokens, that of /health, and the rate of the transfer.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from sealring.local.ring import LocalNode, running_node, wait_until_up, write_cluster
from sealring_protocol.security.roster import SignedRoster
from sealring_tools.bench.random_model import write_random_model
from sealring_trio.fetching.members import Members, parts
from sealring_trio.files.key_files import read_key, read_public_key

ROUNDS = 6
TOKENS = 150
ASKER = "--asker"
URL = "http://127.0.0.1:17487"
FILE = "model.safetensors"


def ask(folder: Path) -> None:
    """Read the weights from the head again and again; a line for each second with its MB."""
    roster = SignedRoster.decode((folder / "demo.roster").read_bytes())
    members = Members(
        lambda: roster,
        read_public_key(str(folder / "coordinator.pub")),
        read_key(folder / "rank1.key"),
        99,
        lambda _: None,
    )
    (head,) = members.others()
    with head.connect(lambda: None) as link:
        size = next(link.ask(parts(FILE, 0, 1)))[1].size
        came, begun = 0, time.monotonic()
        while True:
            for _, piece in link.ask(parts(FILE, 0, size)):
                came += len(piece.data)
                if time.monotonic() - begun >= 1:
                    print(came / 1e6, flush=True)
                    came, begun = 0, time.monotonic()


def gaps(head: LocalNode) -> Iterator[float]:
    """Milliseconds between the tokens of one answer."""
    last = None
    for event in head.ask("generate", {"prompt": "Once", "max_tokens": TOKENS}):
        if event["event"] == "text":
            now = time.perf_counter()
            if last is not None:
                yield 1000 * (now - last)
            last = now


def health(url: str, until: threading.Event, found: list[float]) -> None:
    while not until.wait(0.05):
        begun = time.perf_counter()
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            answer.read()
        found.append(1000 * (time.perf_counter() - begun))


def told(what: str, found: list[float]) -> str:
    found.sort()
    p99 = found[int(0.99 * len(found))]
    return f"{what}: median {statistics.median(found):.2f}, p99 {p99:.2f}, max {found[-1]:.2f} ms"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        model = write_random_model(folder / "model", "25m")
        configs = write_cluster(folder, 2, model, api=URL.removeprefix("http://"))
        with running_node(configs[0]) as head, running_node(configs[1]) as other:
            for node in (head, other):
                wait_until_up(node)
            list(gaps(head))
            measured: dict[str, tuple[list[float], list[float]]] = {}
            rates: list[float] = []
            for turn in range(2 * ROUNDS):
                what = "with a transfer" if turn % 2 else "alone"
                tokens, answers = measured.setdefault(what, ([], []))
                command = [sys.executable, "-m", __spec__.name, ASKER, name]
                asker = subprocess.Popen(command, stdout=subprocess.PIPE) if turn % 2 else None
                if asker is not None and asker.stdout is not None:
                    asker.stdout.readline()
                over = threading.Event()
                watch = threading.Thread(
                    target=health, args=("http://127.0.0.1:17487", over, answers)
                )
                watch.start()
                tokens += gaps(head)
                over.set()
                watch.join()
                if asker is not None and asker.stdout is not None:
                    asker.kill()
                    rates += map(float, asker.stdout.read().split())
                    asker.wait()
            for what, (tokens, answers) in measured.items():
                print(told(f"{what}, token to token", tokens))
                print(told(f"{what}, /health", answers))
            print(f"the transfer: median {statistics.median(rates):.0f} MB/s")


if __name__ == "__main__":
    if ASKER in sys.argv:
        ask(Path(sys.argv[-1]))
    else:
        main()

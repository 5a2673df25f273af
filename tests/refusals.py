"""How long it takes until a person is told that a model cannot be served: ``python -m
tests.refusals``.

Each way in which a model cannot be served is made for real and tried four times: by `sealring
demo`, by `sealring serve`, and by two `sealring up` whose head is asked by `sealring generate` and
at ``/health``. Told are the seconds from the start of the command (of the two nodes) until the
reason is there, exit codes, and the bytes of weights that the two nodes read. ``--write`` puts the
table into docs/models.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import httpx2
from sealring.local.ring import running_node, write_cluster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.files.models import TINY, find_model

from tests.families.checkpoints import write

LIMIT: Final = 60.0
"""Seconds after which nobody has been told."""

PAGE: Final = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- generated:refusals -->", "<!-- end -->"


@attrs.frozen
class Way:
    """A way in which a model cannot be served, and some of the *words* that must be told. *spoil*
    makes it of a copy of the tiny model. *ranks* are asked for, *options* are of demo and serve,
    and *keys* of the nodes' configs. *one_side* spoils the model of rank 1 alone, which demo and
    serve cannot have."""

    words: str
    spoil: Callable[[Path], object] = lambda _: None
    ranks: int = 2
    options: tuple[str, ...] = ()
    keys: dict[str, Any] = attrs.field(factory=dict)
    one_side: bool = False


def _configured(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
        (folder / "sealring.json").unlink()

    return change


def _without(*names: str) -> Callable[[Path], object]:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def _other_files(*names: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        for name in names:
            (folder / name).write_bytes(b"x")

    return change


def _missing_shard(folder: Path) -> None:
    named = {"a": "model-00002-of-00002.safetensors", "b": "model.safetensors"}
    index = {"weight_map": named}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def _family(name: str) -> Callable[[Path], object]:
    """The weights of a small random model of another family, with the tiny one's tokenizer."""

    def replace(folder: Path) -> None:
        (folder / "sealring.json").unlink()
        write(folder, name)

    return replace


def _own_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    told = {**json.loads(file.read_text()), "auto_map": {"AutoTokenizer": ["a.B", None]}}
    told["tokenizer_class"] = "B"
    file.write_text(json.dumps(told))
    (folder / "tokenizer.json").unlink()


def _other_weights(folder: Path) -> None:
    (folder / "sealring.json").unlink()
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-4096:] = bytes(4096)
    file.write_bytes(data)


WAYS: Final[dict[str, Way]] = {
    "a class that mlx-lm does not have": Way(
        "Model type none_such not supported", _configured(model_type="none_such")
    ),
    "a shape that is another": Way("shape", _configured(intermediate_size=384)),
    "a missing shard": Way("model-00002-of-00002.safetensors is missing", _missing_shard),
    "a file that is cut short": Way("cut short", _cut_short),
    "more ranks than layers": Way("too many for a model of 8 layers", ranks=9),
    "layers that cannot be parted": Way(
        "cannot be cut before layer", _family("gemma3n"), keys={"layers": [6, 2]}
    ),
    "`tp` without `shard()`": Way(
        "no sharding for", _family("gemma2"), options=("--strategy", "tp"), keys={"strategy": "tp"}
    ),
    "GGUF": Way("GGUF", _other_files("model.gguf")),
    "PyTorch's `.bin`": Way("mlx_lm.convert", _other_files("pytorch_model.bin")),
    "an adapter without its base": Way("mlx_lm.fuse", _other_files("adapters.safetensors")),
    "no tokenizer": Way("tokenizer", _without("tokenizer.json")),
    "a tokenizer that is code": Way("tokenizer", _own_tokenizer),
    "another model on rank 1": Way(
        "holds another model", _configured(sealring_test=1), one_side=True
    ),
    "other weights on rank 1": Way("has other weights than", _other_weights, one_side=True),
}


@attrs.frozen
class Told:
    """After how many *seconds* the reason was there; the exit *code*, if a command ended."""

    seconds: float
    code: int | None = None

    def __str__(self) -> str:
        code = "" if self.code is None else f", exit {self.code}"
        return f"{self.seconds:.1f} s{code}"


def command(way: Way, model: Path, name: str) -> Told:
    """`sealring demo` or `serve` (*name*) of *model*."""
    port = ("--port", "0") if name == "serve" else ()
    words = [sys.executable, "-m", "sealring", name, "--model", str(model)]
    start = time.perf_counter()
    done = subprocess.run(
        [*words, "--ranks", str(way.ranks), *way.options, *port],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    took = time.perf_counter() - start
    assert done.returncode, f"{name} served {model}"
    assert way.words in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return Told(took, done.returncode)


def nodes(way: Way, model: Path, folder: Path) -> tuple[Told, Told, int]:
    """Two `sealring up`: what `generate` says, what ``/health`` says, and the bytes read."""
    port = free_ports(1)[0]
    plain = find_model(TINY)
    if way.one_side and not (model / "sealring.json").exists():
        plain = shutil.copytree(plain, folder / "plain")
        (plain / "sealring.json").unlink()
    configs = write_cluster(
        folder, way.ranks, model, api=f"127.0.0.1:{port}", options={"strategy": "auto", **way.keys}
    )
    if way.one_side:
        text = configs[0].read_text()
        configs[0].write_text(text.replace(f'"{model}"', f'"{plain}"'))
    start = time.perf_counter()
    with ExitStack() as stack:
        running = [stack.enter_context(running_node(config)) for config in configs[:2]]
        asking = [sys.executable, "-m", "sealring", "generate", "--config", str(configs[0])]
        said = Told(LIMIT)
        end = start + LIMIT
        while time.perf_counter() < end:
            if (code := running[0].process.poll()) is not None:  # it says so on its terminal
                took = Told(time.perf_counter() - start, code)
                log = " ".join(running[0].log.read_text().split())
                assert way.words in log, log
                return took, took, 0
            done = subprocess.run(
                [*asking, "--prompt", "Hello."], capture_output=True, text=True, check=False
            )
            if way.words in " ".join(done.stderr.split()):
                said = Told(time.perf_counter() - start, done.returncode)
                break
        health = Told(LIMIT)
        with httpx2.Client() as http:
            answer = http.get(f"http://127.0.0.1:{port}/health")
            assert answer.status_code == 503
            if way.words in json.dumps(answer.json(), ensure_ascii=False):
                health = Told(time.perf_counter() - start)
        read = sum(node.status()["weights_read"] for node in running)
        return said, health, read


def measured(name: str) -> list[str]:
    """The row of one way."""
    way = WAYS[name]
    with tempfile.TemporaryDirectory(prefix="sealring-") as temporary:
        folder = Path(temporary)
        model = shutil.copytree(find_model(TINY), folder / "model")
        way.spoil(model)
        alone = way.one_side or "layers" in way.keys
        told = ["" if alone else str(command(way, model, each)) for each in ("demo", "serve")]
        said, health, read = nodes(way, model, folder)
        return [name, *told, str(said), str(health), str(read)]


def table(rows: list[list[str]]) -> str:
    """*rows* as Markdown."""
    head = ["what is wrong", "`demo`", "`serve`", "`generate`", "`/health`", "weights read"]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.refusals", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/models.md")
    parser.add_argument("ways", nargs="*", help="those to try; all if left out")
    options = parser.parse_args()
    rows = []
    for name in options.ways or WAYS:
        rows.append(measured(name))
        print(" | ".join(rows[-1]), flush=True)
    if options.write:
        before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        PAGE.write_text(f"{before}{begin}\n{table(rows)}\n{end}{after}", "utf-8")


if __name__ == "__main__":
    main()

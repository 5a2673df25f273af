"""`sealring models`, `pull`, `digest` and `model`: the models of this machine, and of its nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import attrs
import cyclopts
from sealring_model import tiny
from sealring_model.errors import LoadError
from sealring_model.loading import model_store
from sealring_model.loading.model_folder import ModelInfo, describe
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import ENDS, MANIFEST, owner, tensors_of, write_manifest
from sealring_protocol.limits import MAX_LAYERS
from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.hub import REACH_IT, Hub
from sealring_trio.fetching.source import FetchFault
from sealring_trio.files.models import (
    describe_model,
    fetch_now,
    find_whole_model,
    refuse_absent_folder,
)
from sealring_trio.units import format_size

from sealring.cli.options import AsJson, OwnConfig
from sealring.files.config import own_config
from sealring.files.models import find_for_command, newest_hub_model, structure
from sealring.local.node_socket import answer_of
from sealring.output import print_facts, print_json, print_table, reporter, visible

Place = Literal["store", "hub cache", "shipped"]


@attrs.frozen
class FoundModel:
    """One model. Sizes are bytes: *disk* is what it takes, *size* what all its weights are.

    *layers* are the ranges (last excluded) whose weights are here, and *ends* says whether
    embedding, norm and output head are. *trouble* says why it cannot be used, or
    not be fetched; else it is "".
    """

    name: str
    revision: str
    commit: str
    place: Place
    folder: Path
    disk: int
    size: int
    count: int
    layers: tuple[tuple[int, int], ...]
    ends: bool
    trouble: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether a rank could have any layers of it."""
        return not self.trouble and self.ends and self.layers == ((0, self.count),)


def found_models() -> Iterator[FoundModel]:
    """Every model of this machine that has a name."""
    yield _found("tiny", "", "", "shipped", tiny.path())
    for name, folder in model_store.stored_models():
        refs = ", ".join(model_store.refs_of(folder))
        yield _found(name, refs, folder.name, "store", folder)
    yield from _cached()


def _cached() -> Iterator[FoundModel]:
    """Those in the hub's cache."""
    from huggingface_hub import scan_cache_dir  # noqa: PLC0415 - 0.2 s
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415

    try:
        cache = scan_cache_dir()
    except (CacheNotFound, ValueError, OSError):  # it is not there, no folder, or another's
        return
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        for found in repo.revisions if repo.repo_type == "model" else ():
            refs = ", ".join(sorted(found.refs))
            folder = Path(found.snapshot_path)
            if any(folder.glob("model*.safetensors")):
                yield _found(repo.repo_id, refs, found.commit_hash, "hub cache", folder)


def _found(name: str, revision: str, commit: str, place: Place, folder: Path) -> FoundModel:
    disk = _disk(folder)
    try:
        info = describe(folder)
        partial = PartialModel.open(folder)
        layers, ends = _here(info, partial)
    except LoadError as error:
        return FoundModel(
            name, revision, commit, place, folder, disk, 0, 0, (), ends=False, trouble=str(error)
        )
    fault = partial.fault if partial is not None else None
    size = sum(entry.size for entry in info.entries.values())
    trouble = f"fetching stopped: {fault.text}" if fault is not None and fault.permanent else ""
    count = len(info.layers)
    return FoundModel(
        name, revision, commit, place, folder, disk, size, count, layers, ends, trouble
    )


def _here(
    info: ModelInfo, partial: PartialModel | None
) -> tuple[tuple[tuple[int, int], ...], bool]:
    """The layers whose weights are here, as ranges, and whether the ends are."""
    count = len(info.layers)
    missing = partial.missing(info.entries) if partial is not None else []
    lacking = {owner(name, count) for name in missing}
    bounds = [-1, *sorted(layer for layer in lacking if layer >= 0), count]
    ranges = tuple((one + 1, other) for one, other in pairwise(bounds) if one + 1 < other)
    return ranges, ENDS not in lacking


def _disk(folder: Path) -> int:
    """Bytes of disk that *folder* takes; holes take none, and links what they lead to."""
    return sum(512 * f.stat().st_blocks for f in model_store.inside(folder) if f.is_file())


def models(*, json: AsJson = False) -> None:
    """List the models of this machine: how much of each is here, and where.

    Those that 'pull' or a node has fetched, whole or in part, those in the
    cache of the hub's own client, and the one that ships with sealring. Each
    can be named where a command or a config asks for a model. A folder of
    your own is named by its path, and is not listed.

        sealring models

    To make room, delete the folder of one.

    Next: sealring pull --help
    """
    found = list(found_models())
    if json:
        print_json({"models": [_described(model) for model in found]})
        return
    print_table(
        "models",
        ["model", "revision", "on disk", "weights", "here"],
        [
            (
                model.name,
                f"{model.revision} {model.commit[:8]}".strip(),
                format_size(model.disk),
                format_size(model.size) if model.size else "?",
                _model_here(model),
            )
            for model in found
        ],
        numbers_from=9,
    )
    for model in found:
        named = f"{model.name} {model.commit[:8]}".strip()
        print(f"{visible(named)}, {model.place}: {visible(str(model.folder))}")
        if model.trouble:
            print(f"    {visible(model.trouble)}")


def _model_here(model: FoundModel) -> str:
    if model.is_whole:
        return f"whole, {model.count} layers"
    spans = [f"{a}" if a + 1 == b else f"{a} to {b - 1}" for a, b in model.layers]
    parts = ["the ends"] if model.ends else []
    parts += [f"layers {', '.join(spans)}"] if spans else []
    return f"{' and '.join(parts) or 'no weights'}, of {model.count}" if model.count else "nothing"


def _described(model: FoundModel) -> dict[str, object]:
    return {
        "model": model.name,
        "revision": model.revision,
        "commit": model.commit,
        "place": model.place,
        "path": str(model.folder),
        "disk": model.disk,
        "weights": model.size,
        "layer_count": model.count,
        "whole": model.is_whole,
        "layers": [list(span) for span in model.layers],
        "ends": model.ends,
        "trouble": model.trouble,
    }


def pull(model: str, *, layers: str = "", json: AsJson = False) -> None:
    """Fetch MODEL from the hub, all of it or some layers, for nodes to use later.

    Nodes do not need it: each fetches its own layers once it knows them. It is
    for a machine that will be offline, and to update what "main" is. If it is
    stopped, what has come is kept, and the same command goes on from there.

        sealring pull mlx-community/Qwen3-0.6B-bf16
        sealring pull mlx-community/Qwen3-0.6B-bf16@main --layers 0:14

    A model that is complete in the cache of the hub's own client is not
    fetched again. HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE work as there.

    Next: sealring models, to see what is here; sealring up --help

    Parameters
    ----------
    model
        Hub id of the model, owner/name or owner/name@REVISION.
    layers
        FIRST:LAST, the layers FIRST to LAST - 1. From 0 on they come with
        embedding, final norm and output head, as the head of a ring has them.
    """
    if layers:
        _span(layers, MAX_LAYERS)  # before the hub is asked
    hub = Hub()
    try:
        refuse_absent_folder(model)
        folder = newest_hub_model(model, hub)
    except LoadError as error:
        raise OperationError(f"cannot fetch it: {error}", "Give a hub id, owner/name.") from None
    except FetchFault as fault:
        advice = "Give owner/name of a model on the hub, which must be allowed and reachable."
        if not fault.permanent:
            advice = f"{REACH_IT}, or try again later; what has come is kept."
        raise OperationError(f"cannot fetch {model}: {fault.text}", advice) from None
    info = describe_model(folder)
    count = len(info.layers)
    first, last = _span(layers, count) if layers else (0, count)
    partial = PartialModel.open(folder)
    names, come = list(info.entries), 0
    if partial is not None:
        if layers:
            owned = tensors_of(info.entries, count, first, last).values()
            names = [name for layer in owned for name in layer]
        before = partial.bytes_here(names)
        fetch_now(partial, names, hub)
        come = partial.bytes_here(names) - before
    size = sum(info.entries[name].size for name in names)
    if json:
        print_json(
            {
                "model": model.partition("@")[0],
                "commit": folder.name,
                "path": str(folder),
                "digest": info.digest.hex(),
                "layers": [first, last],
                "layer_count": count,
                "bytes": size,
                "fetched": come,
            }
        )
        return
    whole = first == 0 and last == count
    print_facts(
        [
            ("model", f"{model.partition('@')[0]} {folder.name[:8]}"),
            ("here", "whole" if whole else f"layers {first} to {last - 1} of {count}"),
            ("weights", f"{format_size(size)}, of which {format_size(come)} came now"),
            ("path", str(folder)),
        ]
    )


def _span(text: str, count: int) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if colon and first.isdecimal() and last.isdecimal() and int(first) < int(last) <= count:
        return int(first), int(last)
    raise UserError(
        f"--layers: '{text}' is no range of at most {count} layers",
        "FIRST:LAST, for instance 0:12.",
    )


def digest(model: str, *, json: AsJson = False) -> None:
    """Hash every tensor of MODEL into a manifest, and print the model's digest.

    With the manifest, sealring.json in the model's folder, each rank checks
    the weights that it reads, and ranks whose manifests differ refuse to work
    together. Without it they compare names, types and shapes, and a sample
    of each layer's weights.

        sealring digest models/llama-8b

    Next: copy the model, manifest included, to every machine.

    Parameters
    ----------
    model
        Folder of the model, or a hub id.
    """
    folder = find_whole_model(model)
    describe_model(folder)
    try:
        manifest = write_manifest(folder)
    except OSError as error:
        raise OperationError(
            f"cannot write {folder / MANIFEST}: {error.strerror}",
            "Make the folder writable, or copy the model to one that is.",
        ) from None
    info = describe_model(folder)
    facts = {
        "model": str(folder),
        "digest": info.digest.hex(),
        "manifest": str(manifest),
        "tensors": len(info.entries),
        "bytes": info.size,
    }
    if json:
        print_json(facts)
        return
    print_facts((name, str(value)) for name, value in facts.items())


app = cyclopts.App(
    name="model",
    help="""Give a running node another model.

    The old one serves until the new one has been described and built, and
    comes back if the new one cannot be served.

        sealring model use models/qwen3-8b --config desk.toml

    Next: sealring models, for what is here; sealring pull, to fetch another.
    """,
)

Seconds = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gt=0))]


@app.command
def use(
    model: str, *, config: OwnConfig = None, wait: Seconds = 600.0, json: AsJson = False
) -> int:
    """Have a running node serve MODEL in place of the one it has.

    The model is described first; one that cannot be served is refused, and
    the old one goes on serving. Then running requests finish (within the
    config's 'drain'), the model is loaded, and it answers a first request.
    If that fails, the node returns to the old one, and this command ends once
    that serves again.

        sealring pull mlx-community/Qwen3-8B-4bit
        sealring model use mlx-community/Qwen3-8B-4bit --config desk.toml

    In a ring of several ranks, run this on each machine, on the head first:
    it lets requests finish. The ring serves once all have the model; until
    then each says whom it waits for.

    Next: write the model into the config too, for a node that is started
    again reads it there.

    Parameters
    ----------
    model
        Folder of the model, its hub id, or 'tiny'.
    wait
        Seconds that it may take until it serves. After that a ring of one
        returns to the old model.
    """
    settings = own_config(config)
    named = str(Path(model).resolve()) if Path(model).is_dir() else model
    if settings.fetch == "hub":
        structure(describe_model(find_for_command(settings, named)))
    fields = {"model": named, "seconds": wait}
    done = answer_of(settings.control_socket, "use", fields, seconds=None, report=reporter())
    if json:
        print_json(done)
    elif done["serving"]:
        print(f"{visible(done['model'])} is served; write it into {settings.path} too")
    else:
        print(f"this node has {visible(done['model'])} now; the ring does not serve yet:")
        for text in done["why"]:
            print(f"    {visible(text)}")
        sys.stdout.flush()
    return 0 if done["serving"] else 1

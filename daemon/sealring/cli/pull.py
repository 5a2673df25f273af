"""`sealring pull`."""

from __future__ import annotations

from sealring_model.loading.partial_model import PartialModel
from sealring_model.loading.weights import tensors_of
from sealring_protocol.limits import MAX_LAYERS
from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.finding import fetch_now, newest_hub_model
from sealring_trio.fetching.hub import REACH_IT, FetchFault, Hub
from sealring_trio.files.models import describe_model
from sealring_trio.units import format_size

from sealring.output import print_facts, print_json


def pull(model: str, *, layers: str = "", json: bool = False) -> None:
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
    json
        Print one JSON object.
    """
    if layers:
        _span(layers, MAX_LAYERS)  # before the hub is asked
    hub = Hub()
    try:
        folder = newest_hub_model(model, hub)
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

"""`sealring models`."""

from __future__ import annotations

from sealring_trio.units import format_size

from sealring.cli.inventory import FoundModel, found_models
from sealring.output import print_json, print_table, visible


def models(*, json: bool = False) -> None:
    """List the models of this machine: how much of each is here, and where.

    Those that 'pull' or a node has fetched, whole or in part, those in the
    cache of the hub's own client, and the one that ships with sealring. Each
    can be named where a command or a config asks for a model. A folder of
    your own is named by its path, and is not listed.

        sealring models

    To make room, delete the folder of one.

    Next: sealring pull --help

    Parameters
    ----------
    json
        Print one JSON object.
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
                _here(model),
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


def _here(model: FoundModel) -> str:
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

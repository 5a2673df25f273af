"""`sealring model`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import cyclopts

from sealring_trio.cli.output import print_json, teller, visible
from sealring_trio.files.config import load_config
from sealring_trio.files.models import describe_model, find_model, structure
from sealring_trio.local.control_client import ask

app = cyclopts.App(
    name="model",
    help="""Give a running node another model.

    The old one serves until the new one is known to be right, and comes
    back if that cannot be served.

        sealring model use models/qwen3-8b --config desk.toml

    Next: sealring models, for what is here; sealring pull, to fetch another.
    """,
)

Seconds = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gt=0))]


@app.command
def use(model: str, *, config: Path, wait: Seconds = 600.0, json: bool = False) -> int:
    """Have a running node serve MODEL in place of the one it has.

    The model is described first, and what cannot be served is refused while
    the old one serves on. Then the requests that run are finished (for as
    long as the config's 'drain' says), the model is loaded, and it answers a
    first request. If that fails, the node takes the old one again.

        sealring pull mlx-community/Qwen3-8B-4bit
        sealring model use mlx-community/Qwen3-8B-4bit --config desk.toml

    In a ring of several, ask so on each machine, in any order. The ring
    serves once all have the model; until then each says whom it waits for.

    Next: write the model into the config too. A node that is started again
    has the one that its config names.

    Parameters
    ----------
    model
        Folder of the model, its hub id, or 'tiny'.
    config
        The config of the node, as given to 'sealring up'.
    wait
        Seconds that it may take until it serves. A ring of one goes back to
        the old model after them.
    json
        Print one JSON object.
    """
    settings = load_config(config)
    named = str(Path(model).resolve()) if Path(model).is_dir() else model
    if settings.fetch == "hub":
        structure(describe_model(find_model(named)))
    done = {}
    tell = teller()
    for event in ask(settings.control_socket, {"do": "use", "model": named, "seconds": wait}):
        if event["event"] == "waiting":
            tell(event["text"])
        else:
            done = {key: value for key, value in event.items() if key != "event"}
    if json:
        print_json(done)
    elif done["serving"]:
        print(f"{visible(done['model'])} is served; write it into {config} too")
    else:
        print(f"this node has {visible(done['model'])} now; the ring does not serve yet:")
        for text in done["why"]:
            print(f"    {visible(text)}")
        sys.stdout.flush()
    return 0 if done["serving"] else 1

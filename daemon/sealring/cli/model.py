"""`sealring model`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from sealring_trio.files.models import describe_model

from sealring.files.config import load_config
from sealring.files.models import find_for_command, structure
from sealring.local.control_client import ask
from sealring.output import print_json, teller, visible

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
def use(model: str, *, config: Path, wait: Seconds = 600.0, json: bool = False) -> int:
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
    config
        The config of the node, as given to 'sealring up'.
    wait
        Seconds that it may take until it serves. After that a ring of one
        returns to the old model.
    json
        Print one JSON object.
    """
    settings = load_config(config)
    named = str(Path(model).resolve()) if Path(model).is_dir() else model
    if settings.fetch == "hub":
        structure(describe_model(find_for_command(settings, named)))
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

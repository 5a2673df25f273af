"""`sealring apikey`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cyclopts

from sealring.files.config import load_config
from sealring.http.keys import KEY_FILE, new_key, read_keys, revoke_key
from sealring.output import print_json, print_table

app = cyclopts.App(
    name="apikey",
    help="""Say who may use the head's HTTP API.

    Once there is a key, every request needs one; beyond loopback (the
    config's key 'api') the API does not start without. A running head
    notices changes at once.

        sealring apikey new alice --config desk.toml
        sealring apikey list --config desk.toml

    Next: any client of OpenAI's, with the key as its own. See: sealring chat
    """,
)


@app.command(name="new")
def new(name: str, *, config: Path, json: bool = False) -> None:
    """Make a key, and show it this once.

    Only a hash of it is kept, so a key that is lost is replaced: revoke it
    and make another.

        sealring apikey new alice --config desk.toml

    Next, on alice's machine: export OPENAI_API_KEY=sk-sealring-...

    Parameters
    ----------
    name
        Whose key it is; requests take turns by it, and the log names it.
    config
        The config of the head.
    json
        Print one JSON object.
    """
    key = new_key(_file(config), name)
    if json:
        print_json({"name": name, "key": key})
    else:
        print(key)
        print("sealring: keep it safe; it is not shown again", file=sys.stderr)


@app.command(name="list")
def list_(*, config: Path, json: bool = False) -> None:
    """Show who has a key.

    Parameters
    ----------
    config
        The config of the head.
    json
        Print one JSON list.
    """
    records = read_keys(_file(config)).keys
    if json:
        print_json([{"name": r.name, "created_ms": r.created_ms} for r in records])
        return
    rows = [(r.name, time.strftime("%Y-%m-%d", time.gmtime(r.created_ms / 1000))) for r in records]
    print_table("API keys", ["name", "made"], rows)


@app.command(name="revoke")
def revoke(name: str, *, config: Path) -> None:
    """Take a key back; requests with it are refused from now on.

    Without the last one the API is closed to all, until there is a new one.

    Parameters
    ----------
    name
        Whose key it is, as 'sealring apikey list' shows.
    config
        The config of the head.
    """
    file = _file(config)
    revoke_key(file, name)
    if not read_keys(file).keys:
        print(
            "sealring: no key is left, and the API refuses everybody; make a new one, or remove "
            f"{file} to ask for none on loopback",
            file=sys.stderr,
        )


def _file(config: Path) -> Path:
    return load_config(config).state / KEY_FILE

"""`sealring keygen` and `sealring apikey`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import cyclopts
from sealring_protocol.security.identity import node_id
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import public_path

from sealring.cli.options import AsJson
from sealring.files.cluster import create_key
from sealring.files.config import own_config
from sealring.http.keys import KEY_FILE, new_key, read_keys, revoke_key
from sealring.output import print_facts, print_json, print_note, print_table

HeadConfig = Annotated[
    Path | None,
    cyclopts.Parameter(help="The config of the head; that of the default folder if left out."),
]

# ---------------------------------------------------------------------- keygen
# `sealring keygen`.


def keygen(path: Path, *, coordinator: bool = False, json: AsJson = False) -> None:
    """Make a key pair: the private key at PATH, the public one beside it.

    The private key (P-256, mode 0600) never leaves its file: it is not
    printed, and an existing file is never overwritten. Every node needs one,
    made on the node itself. The cluster needs one more, the coordinator's,
    which signs rosters and is best kept off the nodes.

        sealring keygen node.key
        sealring keygen coordinator.key --coordinator

    Next: copy each node's .pub file to where the coordinator's key is, and
    list them with: sealring roster new, sealring roster add

    Parameters
    ----------
    path
        Where the private key goes. The public key goes to the same name with .pub.
    coordinator
        This key will sign rosters, and belongs to no node.
    """
    public_key = create_key(path).public_key
    facts = {
        "role": "coordinator" if coordinator else "node",
        "private_key_file": str(path),
        "public_key_file": str(public_path(path)),
        "public_key": public_key.hex(),
    }
    if not coordinator:
        facts["node_id"] = node_id(public_key).hex()
    if json:
        print_json(facts)
        return
    print_facts((name.replace("_", " "), value) for name, value in facts.items())
    if coordinator:
        print("\nNext: sealring roster new NAME, and name the .pub file in every node's config.")
    else:
        print(
            f"\nNext: sealring roster add DRAFT NAME --key {public_path(path)} --address HOST:PORT"
        )


# ---------------------------------------------------------------------- apikey
# `sealring apikey`.


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
def new(name: str, *, config: HeadConfig = None, admit: bool = False, json: AsJson = False) -> None:
    """Make a key, and show it this once.

    Only a hash of it is kept, so a key that is lost is replaced: revoke it
    and make another.

        sealring apikey new alice --config desk.toml

    Whoever has a key may ask. Only whoever has one with --admit may also say,
    on the page or by the API, which machines become members of the cluster:

        sealring apikey new owner --admit --config desk.toml

    Next, on alice's machine: export OPENAI_API_KEY=sk-sealring-...

    Parameters
    ----------
    name
        Whose key it is; requests take turns by it, and the log names it.
    admit
        Its holder may let in machines that wait to join, and refuse them.
    """
    own = own_config(config)
    file = own.state / KEY_FILE
    first = not file.exists()
    key = new_key(file, name, admit=admit)
    if json:
        print_json({"name": name, "key": key, "admit": admit})
    else:
        print(key)
        print("sealring: keep it safe; it is not shown again", file=sys.stderr)
    if head := _other_head(config):
        print_note(
            f"this machine is not the head, which alone asks for its own keys: make one there, on "
            f"{head}. This one counts once a roster makes this machine the head."
        )
    elif first and own.api_keys == "everywhere":
        print_note("from now on the API asks for a key, on this machine too")


@app.command(name="list")
def list_(*, config: HeadConfig = None, json: bool = False) -> None:
    """Show who has a key.

    Parameters
    ----------
    json
        Print one JSON list.
    """
    records = read_keys(_file(config)).keys
    if json:
        print_json(
            [{"name": r.name, "created_ms": r.created_ms, "admit": r.admit} for r in records]
        )
        return
    rows = [
        (
            r.name,
            time.strftime("%Y-%m-%d", time.gmtime(r.created_ms / 1000)),
            "ask, admit" if r.admit else "ask",
        )
        for r in records
    ]
    print_table("API keys", ["name", "made", "may"], rows)


@app.command(name="revoke")
def revoke(name: str, *, config: HeadConfig = None) -> None:
    """Take a key back; requests with it are refused from now on.

    Without the last one the API is closed to all, until there is a new one.

    Parameters
    ----------
    name
        Whose key it is, as 'sealring apikey list' shows.
    """
    file = _file(config)
    revoke_key(file, name)
    if not read_keys(file).keys:
        print(
            "sealring: no key is left, and the API refuses everybody; make a new one, or remove "
            f"{file} to ask for none on loopback",
            file=sys.stderr,
        )


def _other_head(config: Path | None) -> str:
    """The head's name where this machine is another; empty where that is not known."""
    from sealring.cli.members import read_cluster  # noqa: PLC0415 - slow to import

    try:
        cluster = read_cluster(config, settled=False)
    except UserError:  # a key may be made before there is a roster
        return ""
    head = cluster.members[0]
    return "" if head.id == cluster.own else head.name


def _file(config: Path | None) -> Path:
    return own_config(config).state / KEY_FILE

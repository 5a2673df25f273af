"""`sealring keygen`."""

from __future__ import annotations

from pathlib import Path

from sealring_protocol.security.identity import node_id
from sealring_trio.files.key_files import create_key, public_path

from sealring.output import print_facts, print_json


def keygen(path: Path, *, coordinator: bool = False, json: bool = False) -> None:
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
    json
        Print one JSON object.
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

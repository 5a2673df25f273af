"""A roster as the commands show it: tables for people, one object for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sealring_protocol.security.roster import Roster, SignedRoster
from sealring_trio.files.rosters import format_time

from sealring.output import print_facts, print_json, print_table


def print_roster(path: Path, signed: SignedRoster, *, json: bool, signature: str) -> None:
    """Show the roster in *path*, and what is known of its *signature*."""
    roster = signed.roster
    if json:
        print_json({"file": str(path), "signature": signature, **roster_facts(roster)})
        return
    print_facts(
        [
            ("cluster", f"{roster.name} ({roster.cluster.hex()})"),
            ("serial", str(roster.serial)),
            ("issued", format_time(roster.issued_ms)),
            ("expires", format_time(roster.expires_ms)),
            ("inner seal", "yes" if roster.inner_seal else "no"),
            ("tensor parallelism", "allowed" if roster.tensor_parallelism else "forbidden"),
            ("trust", roster.trust.name.lower()),
            ("signature", signature),
        ]
    )
    print_table(
        "members",
        ["rank", "name", "trust", "addresses", "node id"],
        [
            (str(rank), m.name, m.trust.name.lower(), " ".join(m.addresses), m.id.hex())
            for rank, m in enumerate(roster.members)
        ],
        numbers_from=9,
    )


def roster_facts(roster: Roster) -> dict[str, Any]:
    """The roster as `--json` prints it. Times are milliseconds since 1970."""
    return {
        "cluster": roster.cluster.hex(),
        "name": roster.name,
        "serial": roster.serial,
        "issued_ms": roster.issued_ms,
        "expires_ms": roster.expires_ms,
        "inner_seal": roster.inner_seal,
        "tensor_parallelism": roster.tensor_parallelism,
        "digest": roster.digest.hex(),
        "members": [
            {
                "rank": rank,
                "name": m.name,
                "node_id": m.id.hex(),
                "public_key": m.public_key.hex(),
                "addresses": list(m.addresses),
                "trust": m.trust.name.lower(),
            }
            for rank, m in enumerate(roster.members)
        ],
    }

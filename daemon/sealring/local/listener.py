"""Who listens at a port of loopback, as the kernel has it.

Any user of a machine may listen at a port that a ring is expected at, and would be sent prompts.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Final

import httpx2

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"


def stranger(url: str) -> str:
    """Why not to ask what listens at *url*, which nobody has named, in words; empty if there is no
    reason: another user could have put it there, to be told keys and prompts."""
    uid = strangers_uid(url)
    if uid is None:
        return ""
    return f"what listens at {url} belongs to another user (uid {uid}), and is not asked"


def strangers_uid(url: str) -> int | None:
    """The user who listens at *url*, if that is on loopback and neither this user nor root; None
    also where the system does not say."""
    where = httpx2.URL(url)
    if not _is_loopback(where.host):
        return None
    port = where.port or (443 if where.scheme == "https" else 80)
    uids = {uid for table in _TABLES for uid in _listeners(table, port)}
    return min(uids - {0, os.geteuid()}, default=None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listeners(table: Path, port: int) -> list[int]:
    """The users that listen at *port*; the fourth column is the state, the eighth the user."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [
        int(row[7])
        for row in rows
        if len(row) > 7 and row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port
    ]

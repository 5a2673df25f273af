"""Guesses at what others asked: who shares the snapshots of prompts with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sealring.http import gate
from sealring.http.connections import OWNER
from sealring.http.keys import KEY_FILE, ApiKeys, new_key, revoke_key
from sealring_protocol.control.requests import Request

SHARING = ["connection", "off", "everyone"]


class Door:
    """The gate of an API whose key file is in *folder*."""

    def __init__(self, folder: Path, sharing: str = "connection", *, needed: bool = False) -> None:
        self.head = Mock(keys_needed=needed, keys=ApiKeys(folder / KEY_FILE))
        self.head.generator.draining = False
        self.head.config.prefix_sharing = sharing

    async def sharer(self, key: str = "", connection: str | None = "one") -> tuple[str, str]:
        """With whom a request with *key* shares what is known of prompts."""
        seen: list[gate.Caller] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["state"]["visitor"])

        headers = [(b"host", b"127.0.0.1")]
        if key:
            headers.append((b"authorization", f"Bearer {key}".encode()))
        state = {} if connection is None else {"connection": connection}
        about = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/v1/models"}
        scope = {**about, "headers": headers, "state": state}
        await gate.Gate(app, self.head)(scope, Mock(), Mock())
        (caller,) = seen
        return Request((1,), owner=caller.owner, scope=caller.scope).sharer


async def test_only_the_same_key_continues_what_a_key_asked(tmp_path: Path) -> None:
    door = Door(tmp_path)
    alice, bob = (new_key(tmp_path / KEY_FILE, name) for name in ("alice", "bob"))
    own = await door.sharer(alice, "one")
    assert own == await door.sharer(alice, "another")
    for guess in (bob, "", "wrong", alice[:-1], "alice"):
        assert await door.sharer(guess, "one") != own
    # A new key of the same name may be another person's.
    revoke_key(tmp_path / KEY_FILE, "alice")
    assert await door.sharer(new_key(tmp_path / KEY_FILE, "alice")) != own
    assert await door.sharer(alice) != own


@pytest.mark.parametrize("sharing", SHARING)
async def test_without_a_known_key_the_config_says_who_shares(tmp_path: Path, sharing: str) -> None:
    door = Door(tmp_path, sharing)
    for key in ("", "unused"):  # as clients present that must present one
        own = await door.sharer(key, "one")
        same, other = await door.sharer(key, "one"), await door.sharer(key, "two")
        assert (same == own, other == own) == {
            "connection": (True, False),
            "off": (False, False),
            "everyone": (True, True),
        }[sharing]
        unnamed = [await door.sharer(key, None) for _ in range(2)]
        assert (unnamed[0] == unnamed[1]) == (sharing == "everyone")


async def test_keys_that_share_half_of_a_hash_do_not_share_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {"victim": "0" * 63 + "1", "mallory": "0" * 63 + "2"}
    monkeypatch.setattr(gate, "digest", lambda key: digests[key])
    door = Door(tmp_path, "everyone")
    assert await door.sharer("victim") != await door.sharer("mallory")


@pytest.mark.parametrize("sharing", SHARING)
async def test_the_control_socket_shares_with_no_caller_of_the_api(
    tmp_path: Path, sharing: str
) -> None:
    door = Door(tmp_path, sharing)
    key = new_key(tmp_path / KEY_FILE, "alice")
    own = Request((1,), scope=OWNER).sharer
    for guess in (key, "", OWNER):
        assert await door.sharer(guess, OWNER) != own

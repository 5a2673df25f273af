"""What a head tells the members that may come after it, and what these make of it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from sealring.files.config import Config
from sealring.http.keys import KEY_FILE, ApiKeys, new_key, read_keys, revoke_key
from sealring.http.settings import MAX_SETTINGS, SETTINGS_FILE, keep, kept, used
from sealring.http.settings import told as told_of
from sealring_trio.errors import UserError


def config_of(state: Path, **keys: Any) -> Config:
    state.mkdir(mode=0o700, exist_ok=True)
    return Config.model_construct(state=state, api=("127.0.0.1", 7480), **keys)


def told(config: Config) -> bytes:
    return told_of(config, ApiKeys(config.state / KEY_FILE))


@pytest.fixture
def desk(tmp_path: Path) -> Config:
    return config_of(
        tmp_path / "desk",
        aliases=("gpt-4o",),
        api_keys="beyond-loopback",
        prefix_sharing="off",
        resume_seconds=5.0,
        sampling="api",
        timeout=9.0,
    )


@pytest.fixture
def shelf(tmp_path: Path) -> Config:
    return config_of(tmp_path / "shelf", aliases=("own",))


def test_a_successor_goes_on_with_the_keys_and_settings_of_the_head(
    desk: Config, shelf: Config
) -> None:
    new_key(desk.state / KEY_FILE, "alice")
    keep(shelf.state, told(desk))
    assert read_keys(shelf.state / KEY_FILE) == read_keys(desk.state / KEY_FILE)
    now = used(shelf, first=False)
    for name in ("aliases", "api_keys", "prefix_sharing", "resume_seconds", "sampling", "timeout"):
        assert getattr(now, name) == getattr(desk, name)
    assert (now.state, now.api) == (shelf.state, shelf.api)
    assert told(now) == told(desk)  # and so does the one after it
    for name in (KEY_FILE, SETTINGS_FILE):
        assert stat.S_IMODE((shelf.state / name).stat().st_mode) == 0o600


def test_a_key_that_is_revoked_at_the_head_is_revoked_at_the_next(
    desk: Config, shelf: Config
) -> None:
    for name in ("alice", "bob"):
        new_key(desk.state / KEY_FILE, name)
    keep(shelf.state, told(desk))
    revoke_key(desk.state / KEY_FILE, "alice")
    keep(shelf.state, told(desk))
    assert [each.name for each in read_keys(shelf.state / KEY_FILE).keys] == ["bob"]
    revoke_key(desk.state / KEY_FILE, "bob")
    keep(shelf.state, told(desk))
    assert read_keys(shelf.state / KEY_FILE).keys == []
    assert (shelf.state / KEY_FILE).exists()  # which closes the API to all, as at the head


def test_no_head_gives_a_key_the_right_to_admit(desk: Config, shelf: Config) -> None:
    """Nor takes it from one that has it here."""
    for name in ("alice", "bob"):
        new_key(desk.state / KEY_FILE, name, admit=name == "alice")
    keep(shelf.state, told(desk))
    keys = read_keys(shelf.state / KEY_FILE).keys
    assert [(each.name, each.admit) for each in keys] == [("alice", False), ("bob", False)]
    forged = told(desk).replace(b'"admit":false', b'"admit":true')
    keep(desk.state, forged)
    assert [each.admit for each in read_keys(desk.state / KEY_FILE).keys] == [True, False]


@pytest.mark.parametrize("wrong", [b'"timeout":0.0', b'"timeout":-1.0', b'"timeout":NaN'])
def test_no_head_tells_what_no_config_may_say(desk: Config, shelf: Config, wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r"timeout|JSON"):
        keep(shelf.state, told(desk).replace(b'"timeout":9.0', wrong))
    assert not list(shelf.state.iterdir())


def test_a_head_without_keys_takes_none_away(desk: Config, shelf: Config) -> None:
    new_key(shelf.state / KEY_FILE, "alice")
    keep(shelf.state, told(desk))
    assert [each.name for each in read_keys(shelf.state / KEY_FILE).keys] == ["alice"]


def test_the_first_member_has_its_own_settings(desk: Config, shelf: Config) -> None:
    assert used(shelf, first=False) is shelf  # nobody has told it
    keep(shelf.state, told(desk))
    assert used(shelf, first=True) is shelf


def test_what_is_kept_already_is_not_written_again(desk: Config, shelf: Config) -> None:
    new_key(desk.state / KEY_FILE, "alice")
    keep(shelf.state, told(desk))
    before = [(shelf.state / name).stat().st_ino for name in (KEY_FILE, SETTINGS_FILE)]
    keep(shelf.state, told(desk))
    assert before == [(shelf.state / name).stat().st_ino for name in (KEY_FILE, SETTINGS_FILE)]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"api": {}, "keys": null}', b" " * (MAX_SETTINGS + 1)]
)
def test_what_is_no_settings_is_not_kept(shelf: Config, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"[sS]ettings"):
        keep(shelf.state, data)
    assert kept(shelf.state) is None
    assert not list(shelf.state.iterdir())


def test_more_keys_than_travel_are_an_error(desk: Config) -> None:
    record = '{"name":"k%d","created_ms":1700000000000,"sha256":"' + "0" * 64 + '"}'
    text = '{"keys":[' + ",".join(record % number for number in range(3000)) + "]}"
    (desk.state / KEY_FILE).write_text(text)
    (desk.state / KEY_FILE).chmod(0o600)
    with pytest.raises(UserError, match="too many API keys"):
        told(desk)


def test_settings_that_are_damaged_are_an_error_until_the_head_tells_again(
    desk: Config, shelf: Config
) -> None:
    (shelf.state / SETTINGS_FILE).write_text("{")
    with pytest.raises(UserError, match="damaged"):
        kept(shelf.state)
    keep(shelf.state, told(desk))
    assert used(shelf, first=False).aliases == desk.aliases
    (shelf.state / SETTINGS_FILE).unlink()
    (shelf.state / SETTINGS_FILE).mkdir()
    with pytest.raises(UserError):
        used(shelf, first=False)

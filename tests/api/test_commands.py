"""What a person types, and what is wrong with it: keys, addresses, and the config."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from sealring.files.config import load_config
from sealring.http.keys import KEY_FILE, KEY_PREFIX, ApiKeys, digest, new_key, revoke_key
from sealring.local.ring import write_cluster
from sealring_model import tiny
from sealring_trio.errors import UserError
from sealring_trio.files.models import model_name

from tests.io_trio.helpers import sealring


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_cluster(tmp_path, 1, tiny.path())[0]


def with_api(config: Path, address: str) -> Path:
    text = config.read_text().replace('api = "off"', f'api = "{address}"')
    config.write_text(text)
    return config


def test_a_key_is_shown_once_and_kept_as_a_hash(config: Path) -> None:
    made = sealring("apikey", "new", "alice", "--config", config)
    key = made.out.strip()
    assert key.startswith(KEY_PREFIX)
    assert "not shown again" in made.err
    file = load_config(config).state / KEY_FILE
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert "alice" in sealring("apikey", "list", "--config", config).out
    keys = ApiKeys(file)
    assert keys.owner(key) == "alice"
    assert keys.owner(key[:-1]) is None
    other = new_key(file, "bob")
    assert keys.owner(other) == "bob"
    revoke_key(file, "alice")
    assert keys.owner(key) is None
    assert keys.owner(other) == "bob"


def test_a_key_may_admit_only_if_it_was_made_so(config: Path) -> None:
    file = load_config(config).state / KEY_FILE
    made = [
        sealring("apikey", "new", *words, "--config", config).out.strip()
        for words in (("alice",), ("owner", "--admit"))
    ]
    keys = ApiKeys(file)
    assert [keys.may_admit(digest(key)) for key in made] == [False, True]
    listed = sealring("apikey", "list", "--config", config, "--json").json()
    assert [(each["name"], each["admit"]) for each in listed] == [("alice", False), ("owner", True)]
    assert file.read_text().count("admit") == 1  # a release from before knows the other key
    revoke_key(file, "owner")
    assert not keys.may_admit(digest(made[1]))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("new", "alice"), "there is a key called 'alice' already"),
        (("new", "a b"), "'a b' cannot be a key's name"),
        (("revoke", "bob"), "there is no key called 'bob'\nThe keys are: alice."),
    ],
)
def test_mistakes_with_keys(config: Path, words: tuple[str, str], what: str) -> None:
    new_key(load_config(config).state / KEY_FILE, "alice")
    done = sealring("apikey", *words, "--config", config)
    assert done.code == 2
    assert what in done.err


def test_a_key_file_that_is_none(config: Path) -> None:
    file = load_config(config).state / KEY_FILE
    new_key(file, "alice")
    file.write_text("{}}")
    done = sealring("apikey", "list", "--config", config)
    assert done.code == 2
    assert "cannot read the API keys" in done.err
    with pytest.raises(UserError):
        ApiKeys(file).owner("x")


def test_beyond_loopback_a_head_needs_keys(config: Path) -> None:
    for address in ("0.0.0.0:7480", "[::]:7480", "desk.example:7480"):
        done = sealring("up", with_api(config, address))
        assert done.code == 2
        assert "there are no API keys" in done.err
        assert "The head needs one of its own: sealring apikey new" in done.err
        config.write_text(config.read_text().replace(address, "off"))


def test_an_address_that_is_taken(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = sealring("up", with_api(config, address))
    assert done.code == 1
    assert f"cannot listen at {address} for the API" in done.err
    assert "Change 'api'" in done.err


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('api = "7480"', "'api': '7480' is no address"),
        ("timeout = 0", "'timeout': "),
        ("timeout = inf", "'timeout': "),
    ],
)
def test_a_config_that_cannot_be(config: Path, line: str, what: str) -> None:
    text = config.read_text().replace('api = "off"', line)
    config.write_text(text)
    done = sealring("up", config)
    assert done.code == 2
    assert what in done.err


def test_the_api_is_on_loopback_unless_said_otherwise(config: Path) -> None:
    assert load_config(config).api is None
    config.write_text(config.read_text().replace('api = "off"\n', ""))
    loaded = load_config(config)
    assert (loaded.api, loaded.timeout) == (("127.0.0.1", 7480), 600.0)


def test_what_a_model_is_called() -> None:
    assert model_name(tiny.path()) == "tiny"
    assert model_name(Path("/models/llama-8b")) == "llama-8b"
    hub = "/c/hub/models--org--name/snapshots/0123"
    assert model_name(Path(hub)) == "org/name"

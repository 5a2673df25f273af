"""The config of a node: what it means, and how each mistake is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sealring.files.cluster import create_key
from sealring.files.config import load_config
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import read_key, read_public_key

GOOD = """\
# a node
key = "node.key"
roster = "home.roster"
coordinator = "coordinator.pub"
listen = "0.0.0.0:7470"
model = "tiny"
"""

MISTAKES = {
    "not TOML": (GOOD + "memory = 24G\n", ["not valid TOML", "line 7"], "need quotes"),
    "typographic quotes": (
        GOOD.replace('"tiny"', "\u201ctiny\u201d"),
        ["not valid TOML"],
        "Line 6 has typographic quotes (\u201c)",
    ),
    "a path of Windows": (
        GOOD.replace('"tiny"', r'"C:\models\tiny"'),
        ["line 6: a path of Windows"],
        "in WSL, C:\\models is /mnt/c/models",
    ),
    "a path of Windows that is valid TOML": (
        GOOD.replace('"tiny"', r'"C:\temp\next"'),
        ["line 6: a path of Windows"],
        "Write it with /",
    ),
    "a misspelt key": (
        GOOD + "rowss = 3\n",
        ["'rowss'; did you mean 'rows'?"],
        "The keys are: key,",
    ),
    "unknown key": (GOOD + "colour = 3\n", ["line 7: unknown key 'colour'"], "The keys are: key,"),
    "missing key": (
        GOOD.replace('listen = "0.0.0.0:7470"\n', ""),
        ["the key 'listen' is missing"],
        'Add it: listen = "0.0.0.0:7470"',
    ),
    "wrong type": (GOOD.replace('"tiny"', "3"), ["line 6: 'model': Input should be a"], ""),
    "bad address": (
        GOOD.replace("0.0.0.0:7470", "0.0.0.0"),
        ["line 5: 'listen': '0.0.0.0' is no address; write host:port"],
        "",
    ),
    "a size that is a number": (
        GOOD + "memory = 0\n",
        ["line 7: 'memory': Input should be a text, in quotes"],
        "",
    ),
    "a path that is a number": (
        GOOD + "state = 4\n",
        ["line 7: 'state': Input should be a text, in quotes"],
        "",
    ),
    "an address that is a port": (
        GOOD + "api = 7480\n",
        ["line 7: 'api'", "Input should be a text, in quotes"],
        "",
    ),
    "one name in the place of several": (
        GOOD + 'aliases = "gpt-4o"\n',
        ["line 7: 'aliases': Input should be a list, in brackets"],
        "",
    ),
    "bad size": (GOOD + 'memory = "much"\n', ["line 7: 'memory': 'much' is no size"], ""),
    "bad strategy": (GOOD + 'strategy = "dp"\n', ["line 7: 'strategy': Input should be"], ""),
    "bad api_keys": (GOOD + 'api_keys = "never"\n', ["line 7: 'api_keys': Input should be"], ""),
    "bad collectives": (GOOD + 'collectives = "open"\n', ["line 7: 'collectives': Input"], ""),
    "bad backend": (GOOD + 'backend = "mpi"\n', ["line 7: 'backend': Input should be"], ""),
    "no draft model": (GOOD + 'draft = ""\n', ["line 7: 'draft': it names no draft model"], ""),
    "no members": (GOOD + "tp = 0\n", ["line 7: 'tp': Input should be greater"], ""),
    "no time": (GOOD + "group_timeout = 0\n", ["line 7: 'group_timeout': Input should"], ""),
    "what cannot be sealed": (
        GOOD + 'backend = "nccl"\n',
        ["backend = 'nccl' cannot be sealed, and collectives = 'sealed'"],
        "Use backend = 'ring', or say collectives = 'trusted-link'",
    ),
    "several machines on one": (
        GOOD + 'backend = "jaccl"\ntp = 2\n',
        ["backend = 'jaccl' is for several machines, and tp = 2 for one"],
        "Use backend = 'auto', 'ring' or 'nccl'.",
    ),
    "layers of all ranks": (
        GOOD + 'strategy = "tp"\nlayers = [4, 4]\n',
        ["layers = [4, 4] deals layers out, and strategy = 'tp' shares out all of them"],
        "Leave 'layers' out",
    ),
    "a draft model that must not guess": (
        GOOD + 'draft = "tiny"\nguesses = false\n',
        ["draft = 'tiny' names a model that guesses tokens, and guesses = false has none guessed"],
        "Leave out one of the two.",
    ),
    "bad layers": (GOOD + "layers = [4, 0]\n", ["line 7: 'layers.2': Input should be gre"], ""),
    "layers as text": (GOOD + 'layers = "4,4"\n', ["line 7: 'layers': Input should be a"], ""),
    "no suites": (GOOD + "suites = []\n", ["line 7: 'suites'"], ""),
    "two mistakes": (GOOD + "a = 1\nb = 2\n", ["line 7: unknown key 'a'", "line 8"], ""),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "desk.toml"
    path.write_text(text)
    return path


def test_defaults_and_paths(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.key == tmp_path / "node.key"
    assert config.roster == tmp_path / "home.roster"
    assert config.coordinator == "coordinator.pub"  # no such file: left as it is
    assert config.listen == ("0.0.0.0", 7470)
    assert config.model == "tiny"
    assert (config.layers, config.memory, config.strategy) == ((), None, "auto")
    assert (config.collectives, config.backend, config.tp) == ("sealed", "auto", 1)
    assert config.group_timeout == 20
    assert config.drain == 30
    assert config.state == tmp_path / "desk.state"
    assert config.control_socket == tmp_path / "desk.state" / "control.sock"


def test_every_key(tmp_path: Path) -> None:
    (tmp_path / "coordinator.pub").write_text("04")
    extra = (
        'layers = [24, 16]\nmemory = "24G"\nstrategy = "pp"\nsuites = ["chacha20-poly1305"]\n'
        'state = "/var/lib/desk"\ncollectives = "trusted-link"\nbackend = "nccl"\ntp = 4\n'
        "group_timeout = 2.5\n"
        "drain = 0\n"
    )
    config = load_config(write(tmp_path, GOOD + extra))
    assert config.coordinator == str(tmp_path / "coordinator.pub")
    assert config.layers == (24, 16)
    assert config.memory == 24 << 30
    assert config.strategy == "pp"
    assert config.suites == ("chacha20-poly1305",)
    assert config.state == Path("/var/lib/desk")
    assert (config.collectives, config.backend, config.tp) == ("trusted-link", "nccl", 4)
    assert config.group_timeout == 2.5
    assert config.drain == 0


def test_a_strategy_from_the_command_line_is_checked_with_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + 'strategy = "pp"\n')
    assert load_config(path, "tp").strategy == "tp"
    with pytest.raises(UserError, match="shares out all of them"):
        load_config(write(tmp_path, GOOD + "layers = [4, 4]\n"), "tp")


@pytest.mark.parametrize(("text", "what", "advice"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(tmp_path: Path, text: str, what: list[str], advice: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(write(tmp_path, text))
    for part in what:
        assert part in caught.value.what
    assert advice in caught.value.advice


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_marks_of_an_encoding_are_skipped(tmp_path: Path, encoding: str) -> None:
    """Editors of Windows write them, and its shells in files that `>` makes."""
    path = tmp_path / "desk.toml"
    path.write_text(GOOD.replace("\n", "\r\n"), encoding=encoding, newline="")
    assert load_config(path).model == "tiny"
    signer = create_key(tmp_path / "node.key")
    for name in ("node.key", "node.pub"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("\n", "\r\n"), encoding=encoding, newline="")
    assert read_public_key(str(tmp_path / "node.pub")) == signer.public_key
    assert read_key(tmp_path / "node.key").public_key == signer.public_key


@pytest.mark.parametrize(
    ("mode", "allowed", "accepted"),
    [
        (0o440, "1", True),
        (0o640, "1", True),
        (0o440, "", False),
        (0o440, "0", False),
        (0o444, "1", False),
        (0o460, "1", False),
        (0o404, "1", False),
    ],
)
def test_a_group_may_read_keys_where_it_is_meant_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, allowed: str, accepted: bool
) -> None:
    monkeypatch.setenv("SEALRING_GROUP_MAY_READ_KEYS", allowed)
    path = tmp_path / "node.key"
    create_key(path)
    path.chmod(mode)
    if accepted:
        assert read_key(path)
        return
    with pytest.raises(UserError, match=f"mode {mode:04o}") as caught:
        read_key(path)
    told = "SEALRING_GROUP_MAY_READ_KEYS=1" in caught.value.advice
    assert told is (mode == 0o440)


def test_a_groups_key_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEALRING_GROUP_MAY_READ_KEYS", "1")
    path = tmp_path / "node.key"
    create_key(path)
    path.chmod(0o440)
    try:
        os.chown(path, 65534, -1)
    except PermissionError:
        pytest.skip("only root gives files away")
    with pytest.raises(UserError, match="others can read"):
        read_key(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no config file at"):
        load_config(tmp_path / "none.toml")


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "desk.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="it is not text"):
        load_config(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        load_config(tmp_path)

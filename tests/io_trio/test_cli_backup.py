"""`sealring backup` and `restore`: what comes back, what is refused, and what a hostile file can
do."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring.files.backups import (
    MAX_BACKUP,
    SavedFile,
    SavedFiles,
    check_head,
    read_saved,
    seal,
    unpack,
)
from sealring.files.config import load_config
from sealring_trio.errors import UserError

from tests.io_trio.helpers import Outcome, sealring
from tests.io_trio.terminal import Terminal
from tests.io_trio.test_cli_files import make_home

PASSPHRASE = "five words that chance chose"
CONFIG = """\
# My own machine.
key = "desk.key"  # its own
roster = "home.roster"
coordinator = "coordinator.pub"
coordinator_key = "{outside}/coordinator.key"
listen = "127.0.0.1:1"
model = "tiny"
tls_certificate = "{outside}/api.crt"
tls_key = "{outside}/api.key"
state = "{outside}/state"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine with files in two places, and its backup."""
    folder = make_home(tmp_path_factory.mktemp("made"))
    outside = tmp_path_factory.mktemp("outside")
    (folder / "coordinator.key").rename(outside / "coordinator.key")
    (outside / "api.crt").write_text("a certificate")
    (outside / "api.key").write_text("its key")
    (outside / "api.key").chmod(0o640)
    (folder / "desk.toml").write_text(CONFIG.format(outside=outside))
    (folder / "desk.toml").chmod(0o600)
    assert sealring("apikey", "new", "alice", "--config", folder / "desk.toml").code == 0
    (outside / "state" / "adopted.roster").write_bytes((folder / "home.roster").read_bytes())
    done = backup(folder / "desk.toml", folder / "desk.backup")
    assert done.code == 0, done.err
    return folder


def backup(config: Path, file: Path, passphrase: str = PASSPHRASE) -> Outcome:
    secret = file.with_suffix(".secret")
    secret.write_text(passphrase + "\n")
    secret.chmod(0o600)
    return sealring("backup", file, "--config", config, "--passphrase-file", secret)


def restore(file: Path, folder: Path) -> Outcome:
    return sealring("restore", file, folder)


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEALRING_PASSPHRASE", PASSPHRASE)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, for the sockets' sake."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        yield Path(folder)


def test_a_machine_comes_back_in_one_folder(made: Path, short: Path) -> None:
    place = short / "deep" / "again"
    done = restore(made / "desk.backup", place)
    assert done.code == 0, done.err
    assert "must not run any more" in done.out
    before, after = load_config(made / "desk.toml"), load_config(place / "desk.toml")
    for name in ("key", "roster", "coordinator_key", "tls_certificate", "tls_key"):
        one, two = getattr(before, name), getattr(after, name)
        assert one.read_bytes() == two.read_bytes()
        assert stat.S_IMODE(one.stat().st_mode) == stat.S_IMODE(two.stat().st_mode)
        assert two.parent == place
    assert after.state == place / "desk.state"
    kept = "api_keys.json"
    assert (after.state / kept).read_bytes() == (before.state / kept).read_bytes()
    assert (after.state / "adopted.roster").exists()
    assert (place / "desk.pub").read_text() == (made / "desk.pub").read_text()
    text = (place / "desk.toml").read_text()
    assert "# My own machine." in text
    assert 'key = "desk.key"  # its own' in text
    assert stat.S_IMODE((place / "desk.toml").stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    renewed = sealring("machines", "rename", "laptop", "den", "--config", place / "desk.toml")
    assert renewed.code == 0, renewed.err


def test_nothing_in_a_backup_can_be_read_without_the_passphrase(made: Path) -> None:
    data = (made / "desk.backup").read_bytes()
    assert stat.S_IMODE((made / "desk.backup").stat().st_mode) == 0o600
    for word in (b"alice", b"desk", b"PRIVATE", b"home"):
        assert word not in data


def test_nothing_is_overwritten(made: Path, tmp_path: Path) -> None:
    again = backup(made / "desk.toml", made / "desk.backup")
    assert (again.code, "already exists" in again.err) == (2, True)
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    (place / "desk.toml").write_text("mine")
    refused = restore(made / "desk.backup", place)
    assert (refused.code, "already exists" in refused.err) == (2, True)
    assert [each.read_text() for each in place.iterdir()] == ["mine"]


def test_nothing_comes_beside_other_files(made: Path, tmp_path: Path) -> None:
    """A backup of a stranger could have a file there that something runs, .bash_profile say."""
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    (place / "letter").write_text("mine")
    refused = restore(made / "desk.backup", place)
    assert (refused.code, "new or empty" in refused.err) == (2, True)
    assert [each.name for each in place.iterdir()] == ["letter"]


def test_a_link_in_the_folder_leads_nowhere(made: Path, tmp_path: Path) -> None:
    place, beyond = tmp_path / "place", tmp_path / "beyond"
    place.mkdir(mode=0o700)
    beyond.mkdir()
    (place / "desk.state").symlink_to(beyond)
    assert restore(made / "desk.backup", place).code == 2
    assert not list(beyond.iterdir())


SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit of what is sealed": (lambda d: d[:-40] + bytes([d[-40] ^ 1]) + d[-39:], "is damaged"),
    "its end": (lambda d: d[:-5], "is damaged"),
    "all but its beginning": (lambda d: d[:60], "cut off"),
    "the version": (lambda d: d.replace(b"\x00\x01", b"\x00\x02", 1), "has version 2"),
    "another file": (lambda d: b"\x7fELF" + d, "no backup of sealring"),
    "nothing": (lambda d: b"", "no backup of sealring"),
    "too much": (lambda d: d + bytes(MAX_BACKUP), "more than 8 MiB"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_damaged_is_told_as_that(made: Path, tmp_path: Path, name: str) -> None:
    spoil, why = SPOILT[name]
    (tmp_path / "bad").write_bytes(spoil((made / "desk.backup").read_bytes()))
    done = restore(tmp_path / "bad", tmp_path / "place")
    assert done.code == 2
    assert why in done.err
    assert not (tmp_path / "place").exists()


def test_a_wrong_passphrase_is_told_as_that(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEALRING_PASSPHRASE", PASSPHRASE.upper())
    done = restore(made / "desk.backup", tmp_path / "place")
    assert (done.code, "the passphrase is wrong" in done.err) == (2, True)
    monkeypatch.delenv("SEALRING_PASSPHRASE")
    asked = restore(made / "desk.backup", tmp_path / "place")
    assert "there is no terminal to ask for it" in asked.err
    shared = tmp_path / "shared"
    shared.write_text(PASSPHRASE)
    shared.chmod(0o644)
    refused = sealring("restore", made / "desk.backup", "--passphrase-file", shared)
    assert "others can read the passphrase" in refused.err


def test_a_short_passphrase_is_refused(made: Path, tmp_path: Path) -> None:
    done = backup(made / "desk.toml", tmp_path / "short.backup", "secret")
    assert (done.code, "is soon guessed" in done.err) == (2, True)
    assert not (tmp_path / "short.backup").exists()


def test_a_file_that_is_missing_makes_no_backup(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    (folder / "desk.key").unlink()
    done = backup(folder / "desk.toml", tmp_path / "no.backup")
    assert (done.code, "desk.key" in done.err) == (2, True)


def test_a_terminal_asks_twice(made: Path, tmp_path: Path) -> None:
    command = ("backup", str(tmp_path / "a.backup"), "--config", str(made / "desk.toml"))
    unset = "SEALRING_PASSPHRASE"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(unset)
        with Terminal(*command) as terminal:
            terminal.until("Passphrase: ")
            terminal.type(PASSPHRASE + "\n")
            terminal.until("Once more: ")
            terminal.type("another one\n")
            terminal.until("the two are not the same")
            assert terminal.ended() == 2
        with Terminal(*command) as terminal:
            terminal.until("Passphrase: ")
            terminal.type(PASSPHRASE + "\n")
            terminal.until("Once more: ")
            terminal.type(PASSPHRASE + "\n")
            terminal.until("wrote ")
            assert terminal.ended() == 0
            assert PASSPHRASE not in terminal.raw
    assert restore(tmp_path / "a.backup", tmp_path / "place").code == 0


def inside(**changes: object) -> bytes:
    """What a backup of one file seals, with *changes* of that file."""
    file = {"name": "node.toml", "mode": 0o600, "data": "aGk=", **changes}
    return json.dumps({"config": "node.toml", "files": [file]}).encode()


HOSTILE = {
    "a parent": inside(name="../node.toml"),
    "a parent inside": inside(name="state/../../node.toml"),
    "an absolute path": inside(name="/etc/passwd"),
    "a folder": inside(name="state/"),
    "a backslash": inside(name="..\\node.toml"),
    "a zero": inside(name="node.toml\0"),
    "a long name": inside(name="a" * 300),
    "deep": inside(name="a/b/c/d/e"),
    "setuid": inside(mode=0o4644),
    "writable by all": inside(mode=0o622),
    "executable": inside(mode=0o111),
    "no base64": inside(data="!"),
    "an unknown field": inside(owner="root"),
    "no config": json.dumps({"config": "a", "files": []}).encode(),
    "not JSON": b"\xff",
    "nested": b"[" * 100_000,
    "many": json.dumps(
        {"config": "0", "files": [{"name": f"{n}", "mode": 0, "data": ""} for n in range(65)]}
    ).encode(),
    "twins": json.dumps(
        {"config": "a", "files": [{"name": n, "mode": 384, "data": ""} for n in ("a", "A")]}
    ).encode(),
    "a file that is a folder too": json.dumps(
        {"config": "a", "files": [{"name": n, "mode": 384, "data": ""} for n in ("a", "a/b")]}
    ).encode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_backup_makes_no_file(name: str) -> None:
    with pytest.raises(UserError) as caught:
        read_saved(HOSTILE[name])
    assert "none that sealring makes" in caught.value.what


def test_a_hostile_backup_is_refused_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = SavedFile.model_construct(name="../escaped", mode=0o600, data="aGk=")
    saved = SavedFiles.model_construct(config="../escaped", files=(bad,))
    (tmp_path / "bad").write_bytes(seal(saved, PASSPHRASE.encode()))
    done = restore(tmp_path / "bad", tmp_path / "place")
    assert (done.code, "no path below a folder" in done.err) == (2, True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad"]


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    for read in (check_head, read_saved):
        with pytest.raises(UserError):
            read(data)


PARTS = st.sampled_from(["a", "b", "..", "", "A", "node.toml", "é", "x" * 201])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
MODES = st.sampled_from([0, 0o400, 0o600, 0o644, 0o640, 0o666, 0o755, 0o4600, -1])
FILES = st.lists(st.tuples(NAMES, MODES, st.sampled_from(["", "aGk=", "?"])), min_size=1)


@given(FILES)
def test_files_that_are_taken_lie_below_the_folder(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[str, int, str]]
) -> None:
    listed = [{"name": name, "mode": mode, "data": data} for name, mode, data in files]
    try:
        saved = read_saved(json.dumps({"config": files[0][0], "files": listed}).encode())
    except UserError:
        return
    folder = tmp_path_factory.mktemp("place") / "here"
    made = unpack(saved, folder)
    found = {path for path in folder.parent.rglob("*") if path.is_file()}
    assert found == set(made)
    assert {path.relative_to(folder).as_posix() for path in made} == {name for name, *_ in files}
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o133 for path in made)


def test_many_wrong_files_cost_no_more_than_one() -> None:
    """Each fault was kept: of 30,000 in 90 kB, 56 MB."""
    text = b'{"config":"a","files":[' + b"{}," * 30_000 + b"{}]}"
    tracemalloc.start()
    with pytest.raises(UserError, match="Field required"):
        read_saved(text)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20

"""The files of a machine that begins a cluster: whose they are when that fails."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sealring.files.cluster import write_new
from sealring.joining.founding import MemberFiles, Settings, check_start, found, read_listen
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import read_key

from tests.io_trio.helpers import sealring

SETTINGS = Settings("desk", ("127.0.0.1", 7470), "off", "tiny")


def test_two_that_begin_in_one_folder_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, check = threading.Barrier(2), MemberFiles.check_free
    place, faults = MemberFiles.at(tmp_path / "desk"), list[str]()

    def check_free(place: MemberFiles) -> None:
        check(place)
        both.wait()

    def begin() -> None:
        try:
            found(place, SETTINGS)
        except UserError as error:
            faults.append(error.what)

    monkeypatch.setattr(MemberFiles, "check_free", check_free)
    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(faults) == 1
    assert "already exists" in faults[0]
    assert read_key(place.coordinator_key).public_key
    assert place.config.exists()
    assert place.roster.exists()


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    place = MemberFiles.at(tmp_path)
    public, keys = tmp_path / "node.pub", tmp_path / "node.state" / "keys.json"
    keys.parent.mkdir(mode=0o700)
    keys.write_text("{}")
    public.write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        found(place, SETTINGS)
    assert public.read_text() == "mine"
    public.unlink()
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    done = sealring("start", tmp_path, "--listen", listen, "--api", "0.0.0.0:7480")
    assert done.code == 2
    assert not place.config.exists()
    assert not place.key.exists()
    assert not public.exists()
    assert keys.read_text() == "{}"


def test_a_key_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = MemberFiles.at(tmp_path)
    left = [1]

    def write(path: Path, data: bytes, mode: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise UserError(f"cannot write {path}: No space left on device", "Free some.")
        write_new(path, data, mode)

    # As on a disk that is full after the private half.
    monkeypatch.setattr("sealring.files.cluster.write_new", write)
    with pytest.raises(UserError, match="No space"):
        found(place, SETTINGS)
    assert not place.key.exists()


def test_the_last_port_has_none_after_it() -> None:
    with pytest.raises(OperationError, match=r"cannot listen at 127\.0\.0\.1:65536"):
        check_start(("127.0.0.1", 65535), "off")


def test_the_port_of_listen_may_be_left_out() -> None:
    for text, read in {
        "0.0.0.0": ("0.0.0.0", 7470),
        "desk:7480": ("desk", 7480),
        "::": ("::", 7470),
        "[::1]:7480": ("::1", 7480),
    }.items():
        assert read_listen(text, 7470) == read, text


@pytest.mark.parametrize("text", ["0.0.0.0:99999", "0.0.0.0:0", ":x", ":7470"])
def test_a_listen_that_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match="is no address"):
        read_listen(text, 7470)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file is in the way, which stops root as well."""
    (tmp_path / "file").touch()
    MemberFiles.at(tmp_path / "new" / "den").check_room()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OperationError, match="cannot keep this machine's files in") as told:
        MemberFiles.at(tmp_path / "file" / "den").check_room()
    assert "sealring join INVITATION FOLDER" in told.value.advice

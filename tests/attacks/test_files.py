"""Attacks on a node's files: an older roster at a restart, and files and folders that others may
read or write."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sealring.http.keys import KEY_FILE, new_key, read_keys
from sealring_protocol.control.election import Ballot
from sealring_protocol.security.handshake import TrafficSecrets
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.mandate import Certificate, Mandate, vote_payload
from sealring_protocol.security.roster import Member, Roster, SignedRoster, sign_roster
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import KeyLog, replace_file, reserve
from sealring_trio.files.rosters import KEPT, MARK, VOTE, RosterStore

from tests.io_trio.helpers import sealring
from tests.io_trio.test_cli_files import flip, make_home

NOW = 1_800_000_000_000
DAY = 24 * 3600 * 1000
COORDINATOR = SoftwareSigner.from_scalar(99991)
MEMBERS = [SoftwareSigner.from_scalar(1000 + rank) for rank in range(2)]


def signed(
    serial: int,
    *,
    days: float = 90,
    cluster: bytes = b"c" * 32,
    coordinator: SoftwareSigner = COORDINATOR,
    name: str = "home",
) -> SignedRoster:
    """Roster *serial*, which was issued ten days ago and has *days* left."""
    members = tuple(
        Member(member.public_key, f"node{rank}", ("h:1",)) for rank, member in enumerate(MEMBERS)
    )
    roster = Roster(cluster, name, serial, NOW - 10 * DAY, NOW + int(days * DAY), True, members)
    return sign_roster(roster, coordinator)


class Disk:
    """A node's config folder: what a restart finds there."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "home.roster"
        self.state = folder / "desk.state"
        self.kept = self.state / KEPT
        self.mark = self.state / MARK

    def store(self, coordinator: SoftwareSigner = COORDINATOR) -> RosterStore:
        return RosterStore(self.state, coordinator.public_key)

    def start(
        self, roster: SignedRoster, coordinator: SoftwareSigner = COORDINATOR, now: int = NOW
    ) -> int:
        """Start the node with *roster* named by its config; the serial that it begins with."""
        self.config.write_bytes(roster.encode())
        store = self.store(coordinator)
        chosen = store.newest(self.config, now)
        store.begin(chosen)
        return chosen.roster.serial

    def adopt(self, roster: SignedRoster) -> None:
        """A peer brings *roster* to the running node."""
        self.store().keep(roster)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A node that began with roster 1 and was brought roster 3."""
    made = Disk(tmp_path)
    assert made.start(signed(1)) == 1
    made.adopt(signed(3))
    return made


# ------------------------------------------------------------------ rollback at a restart

SPOILED: dict[str, tuple[Callable[[Disk], object], str]] = {
    "damaged": (lambda d: flip(d.kept), "roster"),
    "cut": (lambda d: d.kept.write_bytes(d.kept.read_bytes()[:100]), "is not a signed roster"),
    "empty": (lambda d: d.kept.write_bytes(b""), "is not a signed roster"),
    "missing": (lambda d: d.kept.unlink(), "is not there"),
    "older": (lambda d: d.kept.write_bytes(signed(2).encode()), "holds roster 2"),
    "of another coordinator": (
        lambda d: d.kept.write_bytes(signed(9, coordinator=SoftwareSigner.from_scalar(5)).encode()),
        "does not verify",
    ),
}


@pytest.mark.parametrize(("spoil", "said"), SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("serial", [1, 2])
def test_a_node_never_goes_back_to_an_older_roster(
    disk: Disk, spoil: Callable[[Disk], object], said: str, serial: int
) -> None:
    spoil(disk)
    with pytest.raises(UserError, match="this node has used roster 3, and only older") as caught:
        disk.start(signed(serial))
    assert f"{disk.config} holds roster {serial}" in caught.value.what
    assert said in caught.value.what
    assert f"Copy roster 3 or a newer one to {disk.config}" in caught.value.advice
    # What to do helps.
    assert disk.start(signed(3)) == 3
    assert disk.start(signed(1)) == 3


def test_a_roster_that_cannot_be_kept_is_not_used(disk: Disk) -> None:
    disk.kept.unlink()
    disk.kept.mkdir()
    with pytest.raises(UserError, match="cannot read the roster"):
        disk.start(signed(1))
    with pytest.raises(OperationError, match=r"cannot keep roster 3 in .*: Is a directory"):
        disk.start(signed(3))


def test_the_clock_brings_no_older_roster_back(disk: Disk) -> None:
    disk.adopt(signed(4, days=1))
    for now in (NOW - 400 * DAY, NOW, NOW + 2 * DAY, NOW + 400 * DAY):
        assert disk.start(signed(1, days=1000), now=now) == 4


def test_an_expired_roster_that_was_in_use_waits_for_a_newer_one(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.adopt(signed(4, days=1))
    assert disk.start(signed(1), now=NOW + 2 * DAY) == 4
    assert "roster 4 expired on" in caplog.text
    assert "sealring roster renew" in caplog.text


def test_the_configs_roster_may_have_expired_where_a_newer_one_was_adopted(disk: Disk) -> None:
    assert disk.start(signed(1, days=-1)) == 3


@pytest.mark.parametrize("serial", [1, 5])
def test_an_expired_roster_that_is_new_here_is_refused(tmp_path: Path, serial: int) -> None:
    disk = Disk(tmp_path)
    if serial > 1:
        disk.start(signed(1))
    with pytest.raises(UserError, match="expired on") as caught:
        disk.start(signed(serial, days=-1))
    assert "clock: it says 2027" in caught.value.advice


@pytest.mark.parametrize("where", ["config", "kept"])
def test_two_rosters_with_one_serial_are_refused(disk: Disk, where: str) -> None:
    twin = signed(3, name="other")
    if where == "kept":
        disk.kept.write_bytes(twin.encode())
    with pytest.raises(UserError, match=r"two rosters with the serial 3|another roster 3"):
        disk.start(twin if where == "config" else signed(1))
    disk.kept.unlink()
    with pytest.raises(UserError, match="holds another roster 3 than the one"):
        disk.start(twin)
    assert disk.start(signed(4)) == 4


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes().replace(b" 3 ", b" 1 ")),
        lambda path: (path.unlink(), path.mkdir()),
        flip,
    ],
)
def test_a_mark_that_cannot_be_read_is_told_with_the_way_out(
    disk: Disk, spoil: Callable[[Path], object]
) -> None:
    spoil(disk.mark)
    with pytest.raises(UserError, match="cannot tell which roster this node has used") as caught:
        disk.start(signed(1))
    assert f"rm {disk.mark}" in caught.value.advice
    shutil.rmtree(disk.mark) if disk.mark.is_dir() else disk.mark.unlink()
    assert disk.start(signed(1)) == 3  # what was adopted is there still


def test_whoever_may_not_read_the_mark_is_not_told_to_remove_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may, so the system's answer is given here."""
    read = Path.read_bytes

    def denied(path: Path) -> bytes:
        if path == disk.mark:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(UserError, match="Permission denied") as caught:
        disk.start(signed(1))
    assert "rm " not in caught.value.advice
    assert "Be that user" in caught.value.advice


def test_without_a_mark_a_roster_that_cannot_be_read_is_no_reason_to_go_back(disk: Disk) -> None:
    disk.mark.unlink()
    disk.kept.write_bytes(b"")
    with pytest.raises(UserError, match="cannot tell whether roster 1") as caught:
        disk.start(signed(1))
    assert f"rm {disk.kept}" in caught.value.advice


def test_every_cluster_and_coordinator_has_a_mark_of_its_own(disk: Disk) -> None:
    other = SoftwareSigner.from_scalar(77)
    assert disk.start(signed(1, cluster=b"d" * 32)) == 1
    assert disk.start(signed(1, coordinator=other), other) == 1
    with pytest.raises(UserError, match="has used roster 3"):
        disk.start(signed(2))
    with pytest.raises(UserError, match="another roster 1"):
        disk.start(signed(1, cluster=b"d" * 32, name="twin"))
    assert disk.start(signed(3)) == 3


def test_a_crash_between_the_two_files_leaves_the_newer_roster(disk: Disk) -> None:
    before = disk.mark.read_bytes()
    disk.adopt(signed(4))
    disk.mark.write_bytes(before)
    assert disk.start(signed(1)) == 4
    disk.kept.unlink()
    with pytest.raises(UserError, match="has used roster 4"):
        disk.start(signed(3))


def test_the_mark_is_there_before_the_configs_roster_is_used(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.start(signed(2))
    with pytest.raises(UserError, match="two rosters with the serial 2"):
        disk.start(signed(2, name="twin"))
    assert disk.start(signed(1)) == 2
    assert stat.S_IMODE(disk.mark.stat().st_mode) == 0o600


# ------------------------------------------------------------------ elections


def elected(roster: SignedRoster, term: int, head: int = 1) -> SignedRoster:
    """*roster*, whose two members have elected *head*."""
    payload = vote_payload(roster.roster.digest, term, head)
    votes = tuple((voter, MEMBERS[voter].sign(payload)) for voter in range(2))
    return roster.elected(Certificate(term, head, votes))


def test_a_node_begins_with_the_latest_election_of_the_newest_roster(disk: Disk) -> None:
    disk.adopt(elected(signed(3), 4))
    begun = disk.store().newest(disk.config, NOW)
    assert (begun.roster.serial, begun.roster.mandate) == (3, Mandate(4, 1))
    assert begun.roster.members[0].name == "node1"
    # One that the config names counts as any other.
    for term, latest in ((2, 4), (5, 5)):
        assert disk.start(elected(signed(3), term)) == 3
        assert disk.store().newest(disk.config, NOW).roster.mandate.term == latest
    disk.adopt(signed(4))
    assert disk.store().newest(disk.config, NOW).roster.mandate == Mandate()


def test_an_election_that_nobody_won_does_not_count(disk: Disk) -> None:
    whole = elected(signed(3), 4)
    assert whole.certificate is not None
    (zero, sign), (one, _) = whole.certificate.votes
    forged = signed(3).elected(Certificate(4, 1, ((zero, sign), (one, sign))))
    disk.kept.write_bytes(forged.encode())
    with pytest.raises(UserError, match="does not verify"):
        disk.start(signed(1))


def keep_vote(disk: Disk, roster: Roster, ballot: Ballot) -> None:
    disk.store().keep_ballot(roster.cluster, roster.digest, ballot)


def test_a_vote_counts_for_its_roster_alone(disk: Disk) -> None:
    store, keep = disk.store(), partial(keep_vote, disk)
    three, four = signed(3).roster, signed(4).roster
    assert store.ballot(three) == Ballot()
    keep(three, Ballot(7, 1))
    assert disk.store().ballot(three) == Ballot(7, 1)
    assert disk.store().ballot(elected(signed(3), 7).roster) == Ballot(7, 1)
    assert store.ballot(four) == Ballot()
    other = signed(1, cluster=b"d" * 32).roster
    keep(other, Ballot(2, 0))
    keep(four, Ballot(1, 0))
    assert disk.store().ballot(four) == Ballot(1, 0)
    assert disk.store().ballot(three) == Ballot()
    assert disk.store().ballot(other) == Ballot(2, 0)
    assert stat.S_IMODE((disk.state / VOTE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes().replace(b" 7 1", b" 6 1")),
        lambda path: (path.unlink(), path.mkdir()),
        flip,
    ],
)
def test_a_vote_that_cannot_be_read_is_told_with_the_way_out(
    disk: Disk, spoil: Callable[[Path], object]
) -> None:
    roster, vote = signed(3).roster, disk.state / VOTE
    keep_vote(disk, roster, Ballot(7, 1))
    spoil(vote)
    for ask in (
        lambda: disk.store().ballot(roster),
        partial(keep_vote, disk, roster, Ballot(8, 1)),
    ):
        with pytest.raises(UserError, match="cannot tell for whom this node has voted") as caught:
            ask()
        assert f"rm {vote}" in caught.value.advice
        assert "sealring head" in caught.value.advice
    shutil.rmtree(vote) if vote.is_dir() else vote.unlink()
    assert disk.store().ballot(roster) == Ballot()


def test_a_full_disk_takes_a_vote_all_the_same(small_disk: Path) -> None:
    disk = Disk(small_disk)
    disk.start(signed(1))
    fill(small_disk)
    roster = signed(1).roster
    keep_vote(disk, roster, Ballot(1, 1))
    assert disk.store().ballot(roster) == Ballot(1, 1)
    with pytest.raises(OSError, match="No space"):  # the room was that of one
        keep_vote(disk, roster, Ballot(2, 1))
    assert disk.store().ballot(roster) == Ballot(1, 1)


def test_up_refuses_a_vote_that_it_cannot_read(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    (home / "desk.toml").write_text(
        'key = "desk.key"\nroster = "home.roster"\ncoordinator = "coordinator.pub"\n'
        'listen = "192.0.2.1:7470"\nmodel = "tiny"\napi = "off"\n'
    )
    (home / "desk.state").mkdir(mode=0o700)
    (home / "desk.state" / VOTE).touch()
    done = sealring("up", home / "desk.toml")
    assert done.code == 2
    assert "cannot tell for whom this node has voted last" in done.err


def test_up_refuses_an_older_roster(tmp_path: Path) -> None:
    """The whole command, as it is typed: roster 2 was in use, and its copy is damaged."""
    home = make_home(tmp_path)
    (home / "desk.toml").write_text(
        'key = "desk.key"\nroster = "home.roster"\ncoordinator = "coordinator.pub"\n'
        'listen = "192.0.2.1:7470"\nmodel = "tiny"\napi = "off"\n'
    )
    older = (home / "home.roster").read_bytes()
    sealring("roster", "sign", home / "home.toml", "--key", home / "coordinator.key")
    assert "cannot listen" in sealring("up", home / "desk.toml").err  # it has come so far
    (home / "home.roster").write_bytes(older)
    flip(home / "desk.state" / KEPT)
    done = sealring("up", home / "desk.toml")
    assert done.code == 2
    assert "this node has used roster 2, and only older ones are here" in done.err
    assert "Copy roster 2 or a newer one" in done.err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("file systems can be mounted by root alone")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


def test_a_full_disk_takes_a_newer_roster_all_the_same(small_disk: Path) -> None:
    disk = Disk(small_disk)
    disk.start(signed(1))
    fill(small_disk)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "x").write_bytes(bytes(4096))
    disk.adopt(signed(2))
    assert disk.store().newest(disk.config, NOW).roster.serial == 2
    disk.kept.unlink()
    with pytest.raises(UserError, match="has used roster 2"):
        disk.store().newest(disk.config, NOW)


def test_a_full_disk_without_a_spare_is_told(small_disk: Path) -> None:
    fill(small_disk)
    reserve(small_disk / "a", 4096)
    with pytest.raises(OSError, match="No space"):
        replace_file(small_disk / "a", bytes(4096))
    assert not list(small_disk.glob(".a*new"))


# ----------------------------------------------------------- what others may read or write


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o1777])
def test_a_state_folder_that_others_may_write_is_refused(disk: Disk, mode: int) -> None:
    disk.state.chmod(mode)
    with pytest.raises(UserError, match="is not yours alone: others may write it") as caught:
        disk.start(signed(4))
    assert "chmod 700" in caught.value.advice
    with pytest.raises(UserError, match="is not yours alone"):
        new_key(disk.state / KEY_FILE, "alice")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_folder_of_another_user_is_refused(disk: Disk) -> None:
    os.chown(disk.state, 12345, -1)
    with pytest.raises(UserError, match=r"belongs to another user \(uid 12345\)"):
        disk.start(signed(4))


def test_a_state_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Disk(tmp_path).start(signed(1))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "desk.state").stat().st_mode) == 0o700
    for path in (tmp_path / "desk.state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


SECRETS = TrafficSecrets(next(iter(Suite)), b"t" * 32, b"r" * 32, b"i" * 32)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_key_log_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.touch()
    path.chmod(mode)
    with pytest.raises(UserError, match="is not yours alone") as caught:
        KeyLog(path)
    assert "Delete it" in caught.value.advice
    assert path.read_bytes() == b""


def test_a_key_log_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for _ in range(2):  # and taken again
            KeyLog(tmp_path / "keys").write(SECRETS)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600
    assert len((tmp_path / "keys").read_text().splitlines()) == 2


def test_a_key_log_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch(0o600)
    (tmp_path / "keys").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OperationError, match="cannot write keys"):
        KeyLog(tmp_path / "keys")


def test_api_keys_that_others_may_write_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    new_key(path, "alice")
    assert read_keys(path).keys
    path.chmod(0o622)
    with pytest.raises(UserError, match="are not yours alone: others may write"):
        read_keys(path)

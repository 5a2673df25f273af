"""`sealring coordinator spare` and `change`: a key that was lost or stolen is not the end of a
cluster, at nodes that run and where none does."""

from __future__ import annotations

import contextlib
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from sealring.cli.coordinator import KEY_NAME
from sealring.cli.doctor import examine
from sealring.files.backups import read_spare
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_protocol.security.roster import SERIALS, Roster, SignedRoster, sign_roster
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import read_key, read_public_key
from sealring_trio.files.rosters import RosterStore
from sealring_trio.units import wall_ms

from tests.io_trio.helpers import Outcome, sealring, wait_for
from tests.io_trio.test_cli_files import make_home
from tests.io_trio.test_cli_machines import CONFIG, answering

PASSPHRASE = "five words that chance chose"


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEALRING_PASSPHRASE", PASSPHRASE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose cluster has a spare coordinator."""
    folder = make_home(tmp_path_factory.mktemp("home"))
    (folder / "desk.toml").write_text(CONFIG)
    shutil.copy(folder / "home.roster", folder / "before.roster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEALRING_PASSPHRASE", PASSPHRASE)
        done = coordinator(folder, "spare", folder / "home.spare")
    assert done.code == 0, done.err
    assert "home.spare has the spare coordinator's key of home" in done.out
    return folder


def coordinator(home: Path, *arguments: str | Path) -> Outcome:
    return sealring("coordinator", *arguments, "--config", home / "desk.toml")


def change(home: Path) -> Outcome:
    return coordinator(home, "change", "--key", home / "home.spare")


def signed_in(home: Path) -> SignedRoster:
    signed = SignedRoster.decode((home / "home.roster").read_bytes())
    signed.verify(read_public_key(str(home / "coordinator.pub")))
    return signed


def roster_in(home: Path) -> Roster:
    return signed_in(home).roster


def rename(home: Path, *arguments: str | Path) -> Outcome:
    command = ("machines", "rename", "laptop", "den", "--config", home / "desk.toml")
    return sealring(*command, *arguments)


def test_a_lost_key_is_replaced_and_no_other_file_changes(home: Path) -> None:
    before = roster_in(home)
    assert (before.serial, before.appointment.number) == (2, 0)
    pinned = (home / "coordinator.pub").read_bytes()
    (home / KEY_NAME).unlink()
    done = change(home)
    assert done.code == 0, done.err
    assert "The machines of home are as before: desk, laptop." in done.out
    after = roster_in(home)
    assert (after.serial, after.members) == (SERIALS + 1, before.members)
    assert (home / "coordinator.pub").read_bytes() == pinned
    assert 'coordinator_key = "coordinator-1.key"' in (home / "desk.toml").read_text()
    path = home / "coordinator-1.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path).public_key == after.coordinator(b"")

    assert rename(home).code == 0
    assert roster_in(home).serial == SERIALS + 2
    shown = sealring("roster", "show", home / "home.roster")
    assert ", number 1; spare " in shown.out
    renew = ("roster", "renew", home / "home.roster", "--key", path)
    assert sealring(*renew).code == 0
    again = change(home)
    assert again.code == 0, again.err
    assert roster_in(home).serial == 2 * SERIALS + 1
    verify = ("roster", "verify", home / "home.roster", "--coordinator", home / "coordinator.pub")
    facts = sealring(*verify, "--json").json()
    assert (facts["coordinator_number"], facts["signature"]) == (2, "good")


def test_doctor_knows_whether_there_is_a_spare(home: Path) -> None:
    for roster, state in (("home.roster", "ok"), ("before.roster", "note")):
        text = CONFIG.replace("home.roster", roster)
        (home / "desk.toml").write_text(text)
        (found,) = (each for each in examine(home / "desk.toml") if each.check == "spare")
        assert found.state == state


def test_the_former_key_signs_nothing(home: Path) -> None:
    assert change(home).code == 0
    former = home / KEY_NAME
    done = rename(home, "--key", former)
    assert "is not the key that signs this cluster's rosters" in done.err
    done = sealring("roster", "renew", home / "home.roster", "--key", former)
    assert "is not signed by this key" in done.err
    assert roster_in(home).serial == SERIALS + 1


def test_a_draft_is_signed_for_the_same_spare(home: Path) -> None:
    sign = ("roster", "sign", home / "home.toml", "--key", home / KEY_NAME)
    assert sealring(*sign).code == 0
    assert roster_in(home).serial == 3
    assert roster_in(home).appointment is not None


def test_a_draft_that_is_signed_with_a_serial_keeps_the_spare(home: Path) -> None:
    sign = ("roster", "sign", home / "home.toml", "--serial", "9", "--key")
    made = roster_in(home).appointment
    for where in ((), ("--out", home / "other.roster")):
        done = sealring(*sign, home / KEY_NAME, *where)
        assert (done.code, done.err) == (0, "")
        path = home / "other.roster" if where else home / "home.roster"
        signed = SignedRoster.decode(path.read_bytes()).roster
        assert (signed.serial, signed.appointment) == (9, made)

    assert change(home).code == 0
    before = (home / "home.roster").read_bytes()
    done = sealring(*sign, home / KEY_NAME)  # which signs no more
    assert (done.code, "names a spare coordinator, and is not signed by" in done.err) == (2, True)
    assert (home / "home.roster").read_bytes() == before

    shutil.copy(home / "before.roster", home / "home.roster")
    (home / "other.roster").unlink()
    done = sealring(*sign, home / KEY_NAME)
    assert (done.code, "names no spare coordinator. If" in done.err) == (0, True)


REFUSED: dict[str, tuple[Callable[[Path], Outcome], str]] = {
    "a second spare": (
        lambda home: coordinator(home, "spare", home / "other.spare"),
        "home has a spare coordinator already",
    ),
    "no spare named": (
        lambda home: (shutil.copy(home / "before.roster", home / "home.roster"), change(home))[1],
        "roster 1 of home names no spare coordinator",
    ),
    "no spare's file": (
        lambda home: coordinator(home, "change", "--key", home / KEY_NAME),
        "has no spare coordinator's key",
    ),
    "a backup": (
        lambda home: (
            coordinator_backup(home),
            coordinator(home, "change", "--key", home / "b"),
        )[1],
        "has no spare coordinator's key",
    ),
    "cut off": (
        lambda home: (cut(home / "home.spare"), change(home))[1],
        "the spare coordinator's key is damaged",
    ),
}


def coordinator_backup(home: Path) -> None:
    assert sealring("backup", home / "b", "--config", home / "desk.toml").code == 0


def cut(path: Path) -> None:
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_spare_is_refused_in_words(home: Path, name: str) -> None:
    make, what = REFUSED[name]
    before = (home / "home.roster").read_bytes(), (home / "desk.toml").read_bytes()
    done = make(home)
    assert (done.code, what in done.err) == (2, True), done.err
    if name != "no spare named":
        assert before[0] == (home / "home.roster").read_bytes()
    assert before[1] == (home / "desk.toml").read_bytes()
    assert not (home / "coordinator-1.key").exists()
    assert not (home / "other.spare").exists()


def test_the_wrong_passphrase(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEALRING_PASSPHRASE", "other words that chance chose")
    assert "the passphrase is wrong" in change(home).err


def test_the_file_is_text_for_paper(home: Path) -> None:
    text = (home / "home.spare").read_text()
    assert max(map(len, text.splitlines())) < 80
    assert "#     sealring coordinator change --key FILE" in text
    assert stat.S_IMODE((home / "home.spare").stat().st_mode) == 0o600
    typed = "\n\n".join(f"  {line} " for line in text.splitlines() if line[:1] != "#")
    (home / "typed").write_text(typed)
    spare = roster_in(home).appointment.spare
    assert read_spare(home / "typed", PASSPHRASE.encode()).public_key == spare


# ---------------------------------------------------------------------- after a restart


def store(home: Path) -> RosterStore:
    return RosterStore(home / "desk.state", read_public_key(str(home / "coordinator.pub")))


def test_after_a_restart_a_thief_of_the_former_key_gives_no_roster(home: Path) -> None:
    thief = read_key(home / KEY_NAME)
    store(home).begin(signed_in(home))
    plain = attrs.evolve(roster_in(home), serial=2**64 - 1, appointment=None)
    (home / "home.roster").write_bytes(sign_roster(plain, thief).encode())
    with pytest.raises(UserError, match="does not name the spare coordinator"):
        store(home).newest(home / "home.roster", wall_ms())


def test_after_a_restart_two_changes_with_one_number_are_seen(home: Path) -> None:
    (home / "twin").mkdir()
    for name in ("home.roster", "home.spare", "coordinator.pub", "desk.toml", "desk.key"):
        shutil.copy(home / name, home / "twin" / name)
    assert change(home).code == 0
    assert change(home / "twin").code == 0
    store(home).begin(signed_in(home))
    twin = home / "twin" / "home.roster"
    with pytest.raises(UserError, match="two rosters with the serial"):
        store(home).newest(twin, wall_ms())
    later = ("roster", "renew", twin, "--key", home / "twin" / "coordinator-1.key")
    assert sealring(*later).code == 0
    with pytest.raises(UserError, match="two coordinators with the number 1"):
        store(home).newest(twin, wall_ms())


def test_a_backup_from_before_the_spare_takes_the_roster_of_after_the_change(home: Path) -> None:
    shutil.copy(home / "home.roster", home / "named.roster")
    shutil.copy(home / "before.roster", home / "home.roster")
    coordinator_backup(home)
    shutil.copy(home / "named.roster", home / "home.roster")
    assert change(home).code == 0
    back = home / "back"
    assert sealring("restore", home / "b", back).code == 0
    found = store(back).newest(back / "home.roster", wall_ms())
    assert found.roster.serial == 1
    store(back).begin(found)
    shutil.copy(home / "home.roster", back / "home.roster")
    assert store(back).newest(back / "home.roster", wall_ms()).roster.serial == SERIALS + 1


# ---------------------------------------------------------------------- at nodes that run


@pytest.mark.slow
def test_a_cluster_changes_its_coordinator_while_a_stream_goes_on() -> None:
    """And a machine that was away during the naming and the change learns it when it comes back,
    with the files that it had."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        configs = write_cluster(folder, 2, tiny.path())
        with configs[0].open("a") as file:
            file.write(f'coordinator_key = "{KEY_NAME}"\n')
        head = stack.enter_context(running_node(configs[0]))
        with running_node(configs[1]) as other:
            for node in (head, other):
                wait_until_up(node)
            wait_for(head, "state", "serving")
            with answering(head) as alone:
                pass
            spare = folder / "home.spare"
            with answering(head) as answers:
                done = sealring("coordinator", "spare", spare, "--config", head.config)
                assert done.code == 0, done.err
                wait_for(other, "serial", 2)
            for each in answers.whole:
                assert each["token_ids"] == alone.whole[0]["token_ids"]
        (folder / KEY_NAME).unlink()  # lost
        done = sealring("coordinator", "change", "--key", spare, "--config", head.config)
        assert done.code == 0, done.err
        assert "It is in force here" in done.out
        new = folder / "coordinator-1.key"
        with running_node(configs[1]) as other:
            wait_until_up(other)
            wait_for(other, "serial", SERIALS + 1)
            wait_for(head, "state", "serving")
            rename = ("machines", "rename", "rank1", "den", "--config", other.config, "--key", new)
            done = sealring(*rename)
            assert done.code == 0, done.err
            wait_for(head, "serial", SERIALS + 2)

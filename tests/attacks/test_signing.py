"""What is signed is what was verified, and what a person types or writes cannot end a command."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from sealring.cli import roster as roster_commands
from sealring.files.config import load_config
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import Roster, SignedRoster, sign_roster
from sealring_trio.errors import UserError
from sealring_trio.files.rosters import read_roster
from sealring_trio.node.service import prepare

from tests.io_trio.helpers import sealring
from tests.io_trio.test_cli_files import make_home

NOW = 1_800_000_000_000
DAY = 24 * 3600 * 1000


def test_the_serial_of_a_forged_roster_is_not_taken(tmp_path: Path) -> None:
    """Whoever can write the signed file would else use up the serials of the coordinator."""
    home = make_home(tmp_path)
    path = home / "home.roster"
    real = SignedRoster.decode(path.read_bytes())
    sign = ("roster", "sign", home / "home.toml", "--key", home / "coordinator.key")
    members = real.roster.members
    forged = Roster(
        real.roster.cluster, "home", (1 << 64) - 2, NOW, NOW + DAY, inner_seal=True, members=members
    )
    path.write_bytes(sign_roster(forged, SoftwareSigner.from_scalar(5)).encode())
    before = path.read_bytes()
    done = sealring(*sign)
    assert done.code == 2
    assert "is not signed by this key, or it was changed" in done.err
    assert "--serial" in done.err
    assert path.read_bytes() == before
    path.write_bytes(real.encode())
    assert sealring(*sign, "--json").json()["serial"] == 2


def test_what_is_renewed_is_what_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write the signed file may change it at any moment: a forged roster must not be
    read, and the coordinator's own verified in its place."""
    home = make_home(tmp_path)
    path = home / "home.roster"
    real = path.read_bytes()
    roster = SignedRoster.decode(real).roster
    forged = attrs.evolve(roster, members=roster.members[:1])
    path.write_bytes(sign_roster(forged, SoftwareSigner.from_scalar(5)).encode())

    def read_and_change(file: Path) -> SignedRoster:
        signed = read_roster(file)
        file.write_bytes(real)
        return signed

    monkeypatch.setattr(roster_commands, "read_roster", read_and_change)
    done = sealring("roster", "renew", path, "--key", home / "coordinator.key")
    assert done.code == 2
    assert "is not signed by this key" in done.err
    assert path.read_bytes() == real


def test_a_time_beyond_the_calendar_is_told(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    path = home / "home.roster"
    roster = SignedRoster.decode(path.read_bytes()).roster
    for expires_ms, shown in [
        (253_402_300_799_999, "9999-12-31 23:59 UTC"),
        (253_402_300_800_000, "after the year 9999"),
        ((1 << 64) - 1, "after the year 9999"),
    ]:
        far = attrs.evolve(roster, expires_ms=expires_ms)
        path.write_bytes(sign_roster(far, SoftwareSigner.from_scalar(5)).encode())
        done = sealring("roster", "show", path)
        assert done.code == 0
        assert shown in done.out


def test_the_greatest_serial_has_no_next(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    sign = ("roster", "sign", home / "home.toml", "--key", home / "coordinator.key")
    assert sealring(*sign, "--serial", str((1 << 64) - 1)).code == 0
    done = sealring(*sign)
    assert done.code == 2
    assert "the greatest there is" in done.err


@pytest.mark.parametrize("text", ["a = " + "[" * 20000, "a = " + "1" * 6000])
def test_a_config_nested_or_long_beyond_reason_is_a_mistake(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    done = sealring("status", "--config", tmp_path / "a.toml")
    assert done.code == 2
    assert "is not valid TOML" in done.err


@pytest.mark.parametrize("key", ["key", "roster", "coordinator", "model", "state"])
def test_a_path_that_cannot_be_is_a_mistake(tmp_path: Path, key: str) -> None:
    home = make_home(tmp_path)
    values = {
        "key": "desk.key",
        "roster": "home.roster",
        "coordinator": "coordinator.pub",
        "listen": "127.0.0.1:1",
        "model": "tiny",
        key: "x" * 5000,
    }
    (home / "desk.toml").write_text("".join(f'{k} = "{v}"\n' for k, v in values.items()))
    with pytest.raises(UserError):
        prepare(load_config(home / "desk.toml"))


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300 + "/y"])
def test_a_name_that_cannot_be_is_a_mistake(tmp_path: Path, name: str) -> None:
    home = make_home(tmp_path)
    for arguments in [
        ("roster", "new", tmp_path / name),
        ("roster", "sign", home / "home.toml", "--key", home / "coordinator.key", "--out", name),
        ("keygen", tmp_path / name),
        ("plan", "--model", name),
        ("digest", tmp_path / name),
    ]:
        done = sealring(*arguments)
        assert done.code in (1, 2)
        assert "Traceback" not in done.err

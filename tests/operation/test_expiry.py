"""A roster that runs out while a ring runs, and a machine whose clock is wrong."""

from __future__ import annotations

import glob
import re
import time
from pathlib import Path

import attrs
import pytest
from sealring_protocol.security.roster import open_roster, sign_roster
from sealring_trio.files.key_files import read_key

from tests.io_trio.helpers import sealring
from tests.operation.machines import Machine, machines

pytestmark = pytest.mark.long

LIFETIME_MS = 4000
WARNING = r"WARNING.*roster 2 has \d s left: all links end on .*sealring roster renew"
LIBFAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"


def sign_for_seconds(machine: Machine) -> Path:
    """The next roster, with the same members and `LIFETIME_MS` to live from now on."""
    office = machine.folder.parent / "coordinator"
    coordinator = read_key(office / "coordinator.key")
    path = office / "home.roster"
    roster = open_roster(coordinator.public_key, path.read_bytes()).roster
    expires = time.time_ns() // 1_000_000 + LIFETIME_MS
    changes = {"serial": roster.serial + 1, "expires_ms": expires}
    path.write_bytes(sign_roster(attrs.evolve(roster, **changes), coordinator).encode())
    return path


def install(machine: Machine, roster: Path) -> None:
    done = machine.run("roster", "install", roster, "--config", machine.config)
    assert done.code == 0, done.err


def expires_seconds(machine: Machine) -> float:
    """What the metric says."""
    text = machine.http("GET", "/metrics").text
    found = re.search(r"^sealring_roster_expires_seconds (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


def test_a_roster_that_expires_is_told_before_and_after_and_renewed_without_a_restart() -> None:
    with machines(2) as made:
        desk, shelf = made
        for machine in made:
            machine.start()
        desk.wait_for_health()
        pids = [machine.status()["engine_pid"] for machine in made]
        assert expires_seconds(desk) > 80 * 86_400
        assert "left" in desk.http("GET", "/health").json()["roster"]

        roster = sign_for_seconds(desk)
        install(desk, roster)
        for machine in made:
            machine.wait_for(lambda at=machine: re.search(WARNING, at.log), "warning")

        for machine in made:
            machine.wait_until_told("roster 2, which this node has, has expired")
            machine.wait_for_log("roster 2 expired on")
            assert machine.log.index("roster 2 has") < machine.log.index("roster 2 expired on")
            assert "sealring roster renew" in machine.told()["status"]
            assert "expired" in machine.status()["roster_left"]
        assert expires_seconds(desk) < 0

        key = desk.folder.parent / "coordinator" / "coordinator.key"
        done = sealring("roster", "renew", roster, "--key", key)
        assert done.code == 0, done.err
        install(shelf, roster)  # any one node: the head takes it from there
        desk.wait_for_health()
        for machine in made:
            machine.wait_until_nothing_is_told()
            assert machine.status()["serial"] == 3
        assert [machine.status()["engine_pid"] for machine in made] == pids
        assert expires_seconds(desk) > 80 * 86_400


@pytest.mark.parametrize(("day", "side"), [("+1d", "ahead of"), ("-1d", "behind")])
def test_a_clock_that_is_a_day_off_is_named_by_both_sides(day: str, side: str) -> None:
    library = next(iter(glob.glob(LIBFAKETIME)), "")
    if not library:
        pytest.skip("a wrong clock for some processes alone takes libfaketime (apt: faketime)")
    place = {"LD_PRELOAD": library, "FAKETIME": day, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with machines(2) as (desk, shelf):
        desk.start()
        shelf.start(place=place)
        # Each dials the other, so each refuses, and each is refused.
        other = "behind" if side == "ahead of" else "ahead of"
        for machine, wrong in ((desk, side), (shelf, other)):
            size = f"the peer's clock is (1 day|23 hours) {wrong} this one's"
            machine.wait_until_told(f"ended the handshake without a word.*{size}")
            why_not = r"not serving: .*(Its clock, its key|Compare 'date')"
            assert re.search(why_not, machine.log), machine.log
        if day == "-1d":
            shelf.wait_for_log("one of the two clocks is wrong")
        shelf.start()
        desk.wait_for_health()
        for machine in (desk, shelf):
            machine.wait_until_nothing_is_told()

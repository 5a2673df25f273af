"""Machines get other addresses while their ring runs."""

from __future__ import annotations

import pytest

from tests.operation.machines import PORT, machines


@pytest.mark.long
def test_two_machines_that_get_other_addresses_at_once_find_each_other() -> None:
    with machines(3) as (desk, shelf, den):
        for machine in (desk, shelf, den):
            machine.configure(listen=f"0.0.0.0:{PORT}")
            machine.start()
        desk.wait_for_health()
        before = den.address
        shelf.move()
        den.move()
        dead = f"den is reached at {den.address}:{PORT}; it does not answer at {before}:{PORT}"
        desk.wait_for_log(dead)
        desk.wait_for(lambda: desk.log.count("the ring is ready") > 1, "ring of all")
        desk.wait_for_health()
        assert desk.ask("Hello.", max_tokens=4).status_code == 200
        shelf.wait_until_nothing_is_told()
        (_, peer) = shelf.status()["peers"]
        routes = {route["address"]: route for route in peer["routes"]}
        assert routes[f"{den.address}:{PORT}"]["known_from"] == "told"
        assert routes[f"{before}:{PORT}"]["trouble"]
        shown = shelf.run("status", "--config", shelf.config).out
        assert f"den answers at {den.address}:{PORT} in" in shown
        found = desk.run("doctor", "--config", desk.config).out
        assert f"sealring machines address den {den.address}:{PORT}" in found

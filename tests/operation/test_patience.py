"""How long a peer may be silent is in the config."""

from __future__ import annotations

import threading

import pytest

from tests.operation.machines import machines


@pytest.mark.long
def test_a_pause_within_the_patience_of_the_config_costs_no_link() -> None:
    with machines(2, patience=20) as (desk, shelf):
        for machine in (desk, shelf):
            machine.start()
        desk.wait_for_log("the ring is ready")
        desk.wait_for(lambda: desk.http("GET", "/health").status_code == 200, "health")
        shelf.stall()
        end = threading.Timer(4.0, shelf.resume)  # more than a config that says nothing allows
        end.start()
        assert desk.ask("Hello.", max_tokens=4).status_code == 200
        end.join()
        assert "rank 1 (shelf) is gone" not in desk.log
        assert desk.status()["epoch"] == 1

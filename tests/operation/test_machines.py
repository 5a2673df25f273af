"""A ring over the network of two machines."""

from __future__ import annotations

import socket
import time

import pytest

from tests.operation.machines import PORT, machines


@pytest.mark.long
def test_a_ring_of_two_machines_answers() -> None:
    with machines(2) as (desk, shelf):
        for way in (desk.way_to(shelf), shelf.way_to(desk)):
            way.delay, way.loss, way.rate = 0.01, 0.01, 10e6
        desk.start()
        shelf.start()
        desk.wait_for_log("the ring is ready")
        answer = desk.ask("Count to twenty.", max_tokens=20, temperature=0)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] > 0
        assert desk.http("GET", "/health").json()["status"] == "ok"
        shown = shelf.run("status", "--config", shelf.config)
        assert shown.code == 0
        assert "rank 1" in shown.out, shown.out
        begun = time.monotonic()
        with desk.inside(), socket.create_connection((shelf.address, PORT), 5):
            assert time.monotonic() - begun > 0.02  # there and back


@pytest.mark.long
def test_a_killed_machine_comes_back_and_a_full_disk_stays_its_own() -> None:
    with machines(2) as (desk, shelf):
        desk.start()
        shelf.start()
        desk.wait_for_log("the ring is ready")
        shelf.fill_disk()
        shelf.kill()
        desk.wait_for(lambda: desk.http("GET", "/health").status_code == 503, "503")
        shelf.free_disk()
        shelf.start()
        desk.wait_for(lambda: desk.http("GET", "/health").status_code == 200, "200")
        assert desk.ask("Hello.", max_tokens=4).status_code == 200


@pytest.mark.long
def test_a_firewall_lets_one_side_open_connections() -> None:
    with machines(2) as (desk, shelf):
        desk.way_to(shelf).opens = False
        with shelf.inside():
            server = socket.create_server((shelf.address, PORT))
        with server, desk.inside(), pytest.raises(TimeoutError):
            socket.create_connection((shelf.address, PORT), 0.5)
        with desk.inside():
            server = socket.create_server((desk.address, PORT))
        with server, shelf.inside(), socket.create_connection((desk.address, PORT), 5) as client:
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"back")
            assert client.recv(4) == b"back"

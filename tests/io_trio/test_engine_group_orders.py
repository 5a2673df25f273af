"""Members of a group that get a further order for the layers that they hold, at any time."""

from __future__ import annotations

import attrs
from sealring_protocol.codec.local_messages import EngineInfo, Grouped, Loaded
from sealring_protocol.codec.messages import Backend, Epoch, Ready

from tests.io_trio.test_engine_group import ORDER, running

AGAIN = attrs.evolve(ORDER, epoch=Epoch(1, 2))


async def test_an_order_that_comes_while_members_load_is_that_of_the_group() -> None:
    async with running() as (group, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        pids = group.pids
        group.send(ORDER)
        group.send(AGAIN)
        assert isinstance(await owner.told.receive(), Loaded)
        assert isinstance(await owner.told.receive(), Loaded)
        ready = await owner.told.receive()
        assert isinstance(ready, Ready)
        assert ready.epoch == AGAIN.epoch
        assert group.grouped == (Backend.RING, Grouped(2, 20, 20))
        assert (group.pids, group.restarts) == (pids, 0)


async def test_an_order_that_comes_while_members_join_is_served_once_they_have() -> None:
    async with running("slow") as (group, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        pids = group.pids
        group.send(ORDER)
        assert isinstance(await owner.told.receive(), Loaded)
        group.send(AGAIN)
        first, loaded, second = [await owner.told.receive() for _ in range(3)]
        assert isinstance(loaded, Loaded)
        assert isinstance(first, Ready)
        assert isinstance(second, Ready)
        assert (first.epoch, second.epoch) == (ORDER.epoch, AGAIN.epoch)
        assert group.grouped == (Backend.RING, Grouped(2, 20, 20))
        assert (group.pids, group.restarts) == (pids, 0)

"""Engines: what they are sent has a bound, what cannot start is tried again, none can be read."""

from __future__ import annotations

import psutil
import trio
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Ping, Progress, Row
from sealring_trio.engine_process import MAX_UNTAKEN

from tests.io_trio.test_engine_supervisor import running


async def test_an_engine_that_takes_nothing_is_ended_before_it_fills_its_node() -> None:
    async with running("hang") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        first = engine.pid
        engine.send(Ping(0, Progress()))
        large = Row(1, history=(7,) * (1 << 20))  # 4 MiB
        before = psutil.Process().memory_info().rss
        for _ in range(3 * (MAX_UNTAKEN >> 22)):
            engine.send(large)
            await trio.lowlevel.checkpoint()
        grown = psutil.Process().memory_info().rss - before
        assert grown < 2 * MAX_UNTAKEN
        assert "of what it was sent untaken" in str(await owner.told.receive())
        assert isinstance(await owner.told.receive(), EngineInfo)
        assert engine.pid != first

"""A runtime whose node stops being the head while requests are under way."""

from __future__ import annotations

import attrs
import trio
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.scheduler.requests import FinishReason, Request, RequestDone
from sealring_protocol.security.roster import sign_roster

from tests.attacks.test_floods import at_work
from tests.sim.rosters import COORDINATOR


async def test_an_answer_that_reaches_its_end_on_a_former_head_is_no_error() -> None:
    """A stop string is found in tokens that wait to be read; the roster has ended the request."""
    async with at_work() as head:
        uid, stream = head.runtime.submit(
            Request((4, 5, 6), 5, frozenset(), Row(0)), lambda _: None
        )
        roster = head.roster.roster
        turned = attrs.evolve(roster, serial=2, members=roster.members[::-1])
        await head.runtime.install(sign_roster(turned, COORDINATOR).encode())
        assert head.runtime.node.rank == 1
        with trio.fail_after(10):
            (done,) = await stream.take()
        assert isinstance(done, RequestDone)
        assert done.reason is not FinishReason.STOP
        head.runtime.finish(uid)
        head.runtime.forget(uid)

"""A member that passes requests on over a real socket: what it gets, and what it can cost."""

from __future__ import annotations

import trio
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Drop, Question, Reply
from sealring_protocol.errors import CloseCode
from sealring_protocol.events import RelayDown, RelayEventCame, RelayNews, RelayUp
from sealring_protocol.limits import MAX_BODY, MAX_STREAMS
from sealring_protocol.link import LinkClosed
from sealring_protocol.relay import AskCame, BodyCame, DropCame
from sealring_protocol.security.roles import Purpose
from sealring_trio.node.runtime import Runtime

from tests.attacks.test_floods import AtWork, at_work

QUESTION = Question("POST", b"/v1/completions", False, "10.0.0.9")


class Heard:
    """What *runtime* tells of its API links."""

    def __init__(self, runtime: Runtime) -> None:
        self.news: list[RelayNews] = []
        self._more = trio.Event()
        runtime.relayed = self._tell

    def _tell(self, news: RelayNews) -> None:
        self.news.append(news)
        self._more.set()

    async def come(self, count: int) -> list[RelayNews]:
        """Wait until there are *count* news in all."""
        while len(self.news) < count:
            self._more = trio.Event()
            await self._more.wait()
        return self.news


async def test_a_request_comes_to_the_head_and_its_answer_leaves() -> None:
    async with at_work() as head:
        heard = Heard(head.runtime)
        async with head.linked(Purpose.API) as member:
            body = bytes(MAX_BODY)
            asked = (Ask(1, QUESTION), BodyPart(1, body), BodyPart(1, b"", last=True))
            await trio.to_thread.run_sync(member.send, *asked)
            assert await heard.come(4) == [
                RelayUp(1),
                RelayEventCame(1, AskCame(1, QUESTION)),
                RelayEventCame(1, BodyCame(1, body, False)),
                RelayEventCame(1, BodyCame(1, b"", True)),
            ]
            relay = head.runtime.node.relay(1)
            assert relay is not None
            relay.reply(1, 200, ((b"content-type", b"text/plain"),))
            relay.send(1, body, last=True)
            head.runtime.send_relayed(1)
            assert await trio.to_thread.run_sync(member.receive, 2) == [
                Reply(1, 200, ((b"content-type", b"text/plain"),)),
                BodyPart(1, body, last=True),
            ]
            await trio.to_thread.run_sync(member.send, Ask(2, QUESTION))
            await heard.come(5)
        *_, dropped, down = await heard.come(7)
        assert isinstance(down, RelayDown)
        assert dropped == RelayEventCame(1, DropCame(2, down.reason))
        assert head.runtime.node.relay(1) is None


async def flooded(head: AtWork, rounds: int) -> tuple[int, object]:
    """A member asks and leaves at once, so many times; what the head was asked, and how the
    link ended. The work for the requests never ends."""
    heard = Heard(head.runtime)
    async with head.linked(Purpose.API) as hostile:
        flood = [m for n in range(1, rounds + 1) for m in (Ask(n, QUESTION), Drop(n, "gone"))]
        await trio.to_thread.run_sync(hostile.send, *flood)
        (end,) = await trio.to_thread.run_sync(hostile.receive)
    asked = sum(
        isinstance(news, RelayEventCame) and isinstance(news.event, AskCame) for news in heard.news
    )
    return asked, end


async def test_who_asks_and_leaves_over_and_over_has_no_more_work_done_than_who_waits() -> None:
    async with at_work() as head:
        asked, end = await flooded(head, 2 * MAX_STREAMS)
        assert asked == MAX_STREAMS
        assert isinstance(end, LinkClosed)
        assert end.code == CloseCode.LIMIT_EXCEEDED
        async with head.linked(Purpose.API) as member:
            heard = Heard(head.runtime)
            await trio.to_thread.run_sync(member.send, Ask(1, QUESTION))
            assert RelayEventCame(1, AskCame(1, QUESTION)) in await heard.come(1)

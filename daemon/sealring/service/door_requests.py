"""What a node's owner may ask its door: `invite`, which then reports what happens until the
invitation is over; `waiting`, `accept` and `refuse`; and `members`: the roster that the next one
follows, and the serial that this has to exceed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import pydantic
import trio
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.limits import INVITATION_SECONDS

from sealring.joining.door import Door, DoorNews
from sealring.service.requests import read_fields
from sealring.service.verification import Reply

DOOR_REQUESTS: Final = ("accept", "invite", "members", "refuse", "waiting")

_MAX_SECONDS: Final = 7 * 86_400
_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at whether an invitation is over."""


class _Fields(pydantic.BaseModel, extra="forbid"):
    """The fields of a request."""


class InviteFields(_Fields):
    """For how many *seconds* an invitation is good, and whether to *watch* what comes of it."""

    seconds: Annotated[float, pydantic.Field(ge=1, le=_MAX_SECONDS)] = INVITATION_SECONDS
    watch: bool = True


class WhoFields(_Fields):
    """*who* is meant of those that wait, as in `Door.waiting`; empty for all."""

    who: str = ""


class AcceptFields(WhoFields):
    """The same, and a signed *roster* that holds it, in hex; null if the node is to sign."""

    roster: Annotated[str, pydantic.Field(pattern=r"^([0-9a-f]{2})+$")] | None = None


async def answer_at_door(door: Door, name: str, body: bytes, reply: Reply) -> None:
    """Answer the request *name*, one of `DOOR_REQUESTS`. Raises `UserError`."""
    match name:
        case "invite":
            await _invite(door, read_fields(InviteFields, body, "machines invite"), reply)
        case "accept":
            asked = read_fields(AcceptFields, body, "machines accept")
            roster = None if asked.roster is None else bytes.fromhex(asked.roster)
            knock = door.find(asked.who)
            await door.accept(knock, roster)
            done = {"serial": door.roster.roster.serial, "installed": knock.installed}
            await reply({"event": "done", **knock.facts(), **done})
        case "refuse":
            knock = door.find(read_fields(WhoFields, body, "machines refuse").who)
            door.refuse(knock)
            await reply({"event": "done", **knock.facts()})
        case "members":  # of which a roster is signed
            await door.settled()
            await reply({"roster": door.roster.encode().hex(), "spent": door.spent})
        case _:
            who = read_fields(WhoFields, body, "machines list").who
            await reply({"waiting": [knock.facts() for knock in door.waiting(who)]})


async def _invite(door: Door, asked: InviteFields, reply: Reply) -> None:
    with door.news() as news:
        invitation = await door.invite(asked.seconds)
        await reply(
            {
                "event": "invitation",
                "invitation": invitation.encode(),
                "addresses": list(invitation.addresses),
                "expires_s": invitation.expires_s,
                "cluster": door.roster.roster.name,
            }
        )
        if not asked.watch:
            return
        while not (why := door.fault(invitation)):
            each = await _next_of(news, trio.current_time() + _LOOK_SECONDS)
            if each is not None:
                await _report(each, invitation, reply)
        # What has just happened is why it is over.
        end = trio.current_time() + _LOOK_SECONDS
        while (each := await _next_of(news, end)) is not None:
            await _report(each, invitation, reply)
        await reply({"event": "over", "why": why})


async def _next_of(news: AsyncIterator[DoorNews], deadline: float) -> DoorNews | None:
    """The next of *news*; None if there is none before *deadline*. A slow reader, to whom it is
    reported then, has no such limit: what was taken would be lost."""
    with trio.move_on_at(deadline):
        return await anext(news)
    return None


async def _report(news: DoorNews, invitation: Invitation, reply: Reply) -> None:
    """Report *news* of whoever brings *invitation*, or of a stranger."""
    knock = news.knock
    if knock is None or knock.invitation is invitation:
        line: dict[str, Any] = {"event": news.kind, "text": news.text}
        await reply(line if knock is None else {**line, **knock.facts()})

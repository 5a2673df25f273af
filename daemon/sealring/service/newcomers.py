"""The API of machines that wait to join: who they are, and what a person says about them.

``GET /v1/newcomers`` shows them to whoever may ask at all. To let one in or to refuse it takes a
key with the right to admit: whoever had any other key could else decide who is a member. Where no
key is asked for, nobody decides here, since every page and program on the machine may ask. The
node's owner may, at its Unix socket.

A decision names a newcomer by the id of its visit, which nobody can foresee and which ends with
the visit. So a click that comes late lets in neither a machine with a name like it, nor the same
machine when it knocks again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import trio
from sealring_trio.errors import UserError
from sealring_trio.units import wall_ms
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from sealring.dialects.errors import ApiError
from sealring.files.config import Config, config_path
from sealring.http.gate import Caller, unreadable_keys
from sealring.http.head import ApiHead, Newcomers
from sealring.joining.door import Door, Knock

log = logging.getLogger("sealring")

Decision = Literal["accept", "refuse"]

_VERBS: Final[dict[Decision, tuple[str, str]]] = {
    "accept": ("let in", "lets in"),
    "refuse": ("refuse", "refuses"),
}


def newcomers_at(door: Door) -> Newcomers:
    """Those that knock at *door*."""
    return Newcomers(lambda: [describe(knock) for knock in door.shown()], lambda: door.changed)


def describe(knock: Knock) -> dict[str, Any]:
    """A newcomer as the API shows it. Sizes are bytes; times are seconds."""
    left = knock.invitation.expires_s - wall_ms() / 1000
    return {
        **knock.describe(),
        "id": knock.id,
        "state": knock.state,
        "waited_s": round(min(trio.current_time(), knock.ended) - knock.since),
        "invitation_s": max(0, round(left)),
        "why": knock.why,
    }


class NewcomersApi:
    """The endpoints, for the *door* of the node of *config*."""

    def __init__(self, door: Door, config: Config) -> None:
        self._door = door
        self._config = config

    def routes(self) -> list[BaseRoute]:
        """To be mounted in the head's app."""
        return [
            Route("/v1/newcomers", self._list, methods=["GET"]),
            Route("/v1/newcomers/{id}/accept", self._decides("accept"), methods=["POST"]),
            Route("/v1/newcomers/{id}/refuse", self._decides("refuse"), methods=["POST"]),
        ]

    async def _list(self, request: Request) -> JSONResponse:
        why = self._why_not(request)
        return JSONResponse(
            {
                "object": "list",
                "data": [describe(knock) for knock in self._door.shown()],
                "may_admit": not why,
                "why_not": why,
                "command": self._command,
            }
        )

    def _decides(self, decision: Decision) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def decide(request: Request) -> JSONResponse:
            return await self._decided(request, decision)

        return decide

    async def _decided(self, request: Request, decision: Decision) -> JSONResponse:
        caller: Caller = request.scope["state"]["visitor"]
        id_, (verb, does) = request.path_params["id"], _VERBS[decision]
        by = f"the API key '{caller.name}'" if caller.keyed else "the owner"
        knock = next((each for each in self._door.shown() if each.id == id_), None)
        about = "a machine that is not here" if knock is None else _named(knock)
        if why := self._why_not(request):
            if caller.keyed:
                log.warning("%s: %s would %s %s, and may not", caller.id, by, verb, about)
            raise ApiError(403, why, "may_not_admit")
        if knock is None:
            raise ApiError(
                404, "This machine waits no longer, or never did.", "newcomer_not_found", param="id"
            )
        log.info("%s: %s %s %s", caller.id, by, does, about)
        try:
            if decision == "accept":
                await self._door.accept(knock, by=by)
            else:
                self._door.refuse(knock, by)
        except UserError as error:
            log.warning("%s: nothing came of it: %s", caller.id, error.what)
            text = f"{error.what[:1].upper()}{error.what[1:]}. {error.advice}"
            raise ApiError(409, text, "newcomer_not_decided", param="id") from None
        return JSONResponse(describe(knock))

    def _why_not(self, request: Request) -> str:
        """Why the caller of *request* may not decide; empty if he may."""
        head: ApiHead = request.app.state.head
        caller: Caller = request.scope["state"]["visitor"]
        with unreadable_keys():
            if not caller.may_admit(head):
                return _NOT_ADMIT if caller.keyed else _NO_KEY
        if self._config.coordinator_key is None:
            return _NO_COORDINATOR
        return ""

    @property
    def _command(self) -> str:
        """What to type on this machine to let a newcomer in; its fingerprint goes after that."""
        path = self._config.path
        at = "" if path == config_path(None) else f" --config {path.name}"
        key = "" if self._config.coordinator_key is not None else " --key FILE"
        return f"sealring machines accept{at}{key}"


_NO_KEY: Final = (
    "Who presents no API key decides nothing here. Decide in a terminal of the head's machine, or "
    "make a key that may admit: sealring apikey new NAME --admit"
)
_NOT_ADMIT: Final = (
    "This API key may ask, and may not say which machines become members. Decide in a terminal of "
    "the head's machine, or use a key that may admit: sealring apikey new NAME --admit"
)
_NO_COORDINATOR: Final = (
    "The coordinator's key, which signs who is a member, is not on the head's machine. Whoever has "
    "it decides in a terminal there."
)


def _named(knock: Knock) -> str:
    """*knock* in the log."""
    return f"{knock.name} (fingerprint {knock.fingerprint}, from {knock.source})"

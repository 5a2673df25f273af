"""What a terminal that has invited a machine shows and asks, until one has joined.

The node reports who knocks, and what becomes of that, also where another terminal decides. Each
newcomer is a question of its own, by its node id: when it leaves, its question ends, and the next
newcomer gets another.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
import trio
from sealring_trio.errors import OperationError, UserError

from sealring.cli.doorway import QUESTION, decided_where, describe_newcomer, say
from sealring.cli.question import ask_person, late_answer


@attrs.define(eq=False)
class _Newcomer:
    """A newcomer that waits; *facts* is what `Knock.facts` gives."""

    facts: dict[str, Any]
    decided: bool = False  # here
    settled: trio.Event = attrs.field(factory=trio.Event)

    @property
    def name(self) -> str:
        return str(self.facts["name"])


class Inviting:
    """Shows an invitation by *show*, and has *decide* called, in a thread, with the id of a
    newcomer's visit and whether it may join. With *yes* each may. *hints* are the options by
    which commands find the node, and by which `machines accept` finds the key."""

    def __init__(
        self,
        decide: Callable[[str, bool], None],
        show: Callable[[dict[str, Any]], None],
        *,
        hints: tuple[str, str],
        yes: bool,
        json: bool,
    ) -> None:
        self._decide = decide
        self._show = show
        at, signs = hints
        self._accept = f"{at}{signs}"
        self._invite = f"sealring machines invite{at}"
        self._yes = yes
        self._json = json
        self._waiting: dict[str, _Newcomer] = {}  # by node id
        self._terminal = trio.Lock()
        self.fault: UserError | None = None
        self.interrupted = False
        self._shown = False

    async def run(self, events: Iterator[dict[str, Any]]) -> None:
        """Follow *events*, those of the node, until a machine has joined, none can, or Ctrl-C."""
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:

                async def follow() -> None:
                    await self._follow(events, nursery)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(follow)
                await anext(signals)
                self.interrupted = True
                nursery.cancel_scope.cancel()
        if self.interrupted:
            for newcomer in self._waiting.values():
                if not newcomer.decided:
                    print(file=sys.stderr)
                    self._say(self._waits(newcomer))

    # ----------------------------------------------------------------- inside

    async def _follow(self, events: Iterator[dict[str, Any]], nursery: trio.Nursery) -> None:
        """Act on each of *events*. Returns when there is nothing to wait for any more."""
        step = partial(next, events, None)
        try:
            while (
                event := await trio.to_thread.run_sync(step, abandon_on_cancel=True)
            ) is not None:
                if await self._act(event, nursery):
                    return
        except OperationError as error:
            what = "this machine's node does not run any more, and its invitation is over"
            advice = f"Start it: sealring up. Then: {self._invite}"
            self.fault = OperationError(what, advice) if self._shown else error
        except UserError as error:
            self.fault = error

    async def _act(self, event: dict[str, Any], nursery: trio.Nursery) -> bool:
        """Act on *event*; whether nothing can follow."""
        match event["event"]:
            case "invitation":
                self._shown = True
                self._show(event)
            case "knock":
                newcomer = self._waiting[event["id"]] = _Newcomer(event)
                nursery.start_soon(self._ask, newcomer)
            case "joined":
                by = "" if self._decided(event) else f", let in {decided_where(event['by'])}"
                await self._settle(event, f"{event['name']} is a member now{by}")
                return True
            case "refused":
                at = "" if self._decided(event) else f" {decided_where(event['by'])}"
                text = f"{event['name']} was refused{at}. For another invitation: {self._invite}"
                await self._settle(event, text)
                return True
            case "left":
                await self._settle(event, event["text"])
                if not self._yes:
                    await late_answer()
            case "over":
                self._say(
                    f"nobody can join by this invitation any more: {event['why']}. For another: "
                    f"{self._invite}"
                )
            case _:
                self._say(event["text"])
        return False

    def _decided(self, event: dict[str, Any]) -> bool:
        newcomer = self._waiting.get(event["id"])
        return newcomer is not None and newcomer.decided

    async def _settle(self, event: dict[str, Any], text: str) -> None:
        """End the question about the newcomer of *event*, and say what became of it."""
        newcomer = self._waiting.pop(event["id"], None)
        if newcomer is not None:
            newcomer.settled.set()
        async with self._terminal:
            self._say(text)

    async def _ask(self, newcomer: _Newcomer) -> None:
        """Let *newcomer* in or not, as the person says."""
        text = describe_newcomer(newcomer.facts)
        if self._yes:
            self._say(f"{text}: it may (--yes)")
            answer = "yes"
        else:
            async with self._terminal:
                answer = await ask_person(f"sealring: {text}{QUESTION}", newcomer.settled)
        if answer == "absent":
            self._say(self._waits(newcomer))
        if answer not in ("yes", "no"):
            return
        newcomer.decided = True
        decide = partial(self._decide, newcomer.facts["visit"], answer == "yes")
        try:
            await trio.to_thread.run_sync(decide, abandon_on_cancel=True)
        except UserError as error:
            newcomer.decided = False
            self._say(f"{error.what}. {error.advice}")
            if not newcomer.settled.is_set():
                self._say(self._waits(newcomer))

    def _waits(self, newcomer: _Newcomer) -> str:
        words = newcomer.facts["fingerprint"]
        return f"{newcomer.name} still waits: sealring machines accept {words}{self._accept}"

    def _say(self, text: str) -> None:
        say(text, json=self._json)

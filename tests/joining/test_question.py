"""Whether a machine may join: an answer is what was typed after the question, and is yes or no."""

from __future__ import annotations

import logging
import sys

import pytest
import trio
from sealring.cli.doorway import Answer, ask_person

from tests.joining.terminals import own_terminal

QUESTION = "den wants to join. Let it in?"
ASKED = r"Let it in\? \[y/n\] "


class Asking:
    """A question that is being asked, and what came of it."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.answer: Answer | None = None
        self.over = trio.Event()

    async def run(self) -> None:
        self.answer = await ask_person(QUESTION, self.settled)
        self.over.set()


@pytest.mark.parametrize("early", ["yes\n", "\n", "no\n", "ye"])
async def test_what_was_typed_before_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, early: str
) -> None:
    with own_terminal(monkeypatch) as terminal:
        asking = Asking()
        await terminal.typed(early) if early.strip() and early.endswith("\n") else terminal.type(
            early
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.run)
            await terminal.until(ASKED)
            assert not asking.over.is_set()
            terminal.type("no\n" if "y" in early else "yes\n")
            with trio.fail_after(10):
                await asking.over.wait()
        assert asking.answer == ("no" if "y" in early else "yes")


@pytest.mark.parametrize(("line", "answer"), [("Y", "yes"), ("yes", "yes"), ("n", "no")])
async def test_what_is_neither_yes_nor_no_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, line: str, answer: str
) -> None:
    with own_terminal(monkeypatch) as terminal:
        asking = Asking()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.run)
            await terminal.until(ASKED)
            for other in ("\n", "yess\n", "ls\n"):
                terminal.type(other)
                await terminal.until("Type yes or no.*" + ASKED)
            terminal.type(f"{line}\n")
        assert asking.answer == answer


async def test_a_question_that_is_settled_elsewhere_takes_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with own_terminal(monkeypatch) as terminal:
        asking = Asking()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.run)
            await terminal.until(ASKED)
            await terminal.typed("yes\n")
            asking.settled.set()
        assert asking.answer == "settled"


async def test_a_terminal_that_ends_leaves_the_question_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with own_terminal(monkeypatch) as terminal:
        asking = Asking()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.run)
            await terminal.until(ASKED)
            terminal.type("\x04")
        assert asking.answer == "absent"


async def test_the_question_stands_below_what_is_logged_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = logging.getLogger()
    with own_terminal(monkeypatch) as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", sys.stdout)
        log = logging.StreamHandler(sys.stderr)
        patch.setattr(root, "handlers", [log])
        asking = Asking()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.run)
            await terminal.until(ASKED)
            for line in ("the ring is ready", "request 7 is over"):
                root.warning(line)
                shown = await terminal.until(ASKED)
                assert shown.split("\r\n") == ["", line, f"{QUESTION} [y/n] "]
            terminal.type("yes\n")
        assert asking.answer == "yes"
        assert root.handlers == [log]

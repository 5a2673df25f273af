"""`sealring head | head take | head move`: which machine is the head, and how another one comes to
be it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import cyclopts
from sealring_trio.errors import OperationError, UserError

from sealring.cli.options import AsJson, OwnConfig
from sealring.files.cluster import head_text
from sealring.files.config import own_config
from sealring.local.node_socket import answer_of
from sealring.output import print_facts, print_json, visible

HELP: Final = """\
Show which machine is the head, and make another one it.

The head serves the API and schedules all work. It is the roster's first
machine, until it dies or is cut off: then the others elect another one. That
takes more than half of all machines. A head answers only while at least half
of them, itself included, are there, so no two answer at once.

    sealring head
    sealring head move den
    sealring head take

To have one head alone, and no elections: sealring machines heads fixed

Next: sealring status
"""

app = cyclopts.App(name="head", help=HELP)

NO_HEAD: Final = 3
"""The exit code where no head answers, as far as this machine knows."""

_STATES: Final[Mapping[str, str]] = {
    "following": "{here} follows {name}",
    "lost": "{here} does not see {name}",
    "asking": "{here} does not see {name}, and asks the others for their votes",
    "leading": "{here} is the head, and {answers}",
    "proposing": "{here} is the head, and asks the others to elect it again, or another",
}
"""What a machine does, by the state of its elections."""


@app.default
@app.command(name="show")
def show(*, config: OwnConfig = None, json: AsJson = False) -> int:
    """Show which machine is the head, since which election, and which ones may be.

    The node of this machine answers. Only the head knows who is away: ask
    there. Exit code 3 if no head answers, as far as this machine knows.

        sealring head
    """
    head = answer_of(own_config(config).control_socket, "status")["head"]
    if json:
        print_json(head)
    else:
        _print(head)
    return 0 if head["leads"] or head["state"] == "following" else NO_HEAD


def _print(head: Mapping[str, Any]) -> None:
    names = {key: head[key] for key in ("here", "name")}
    answers = "answers" if head["leads"] else "does not answer: too few machines are there"
    facts = [
        ("head", head_text(head["name"], head)),
        ("here", _STATES[head["state"]].format(**names, answers=answers)),
        ("may be head", ", ".join(head["may_be"])),
    ]
    if len(head["may_be"]) > 1:
        facts.append(("votes needed", f"{head['majority']} of {head['members']}"))
    if head["absent"]:
        facts.append(("away", ", ".join(head["absent"])))
    elif head["state"] == "following":
        facts.append(("away", f"only {head['name']} knows: sealring head, there"))
    print_facts(facts)
    if head["may_take"]:
        print(
            "\nToo few machines are there to elect a head: start those that are away. If they stay "
            "away, and no other machine is the head: sealring head take"
        )


@app.command
def take(
    *,
    yes: Annotated[bool, cyclopts.Parameter(negative="")] = False,
    config: OwnConfig = None,
    json: AsJson = False,
) -> None:
    """Make this machine the head by your word alone, where too few are left to elect one.

    First see that no other machine is the head: this one cannot know. If
    there is another, both answer until they meet again; then the one that
    most machines follow stays, or the later one.

        sealring head take

    Next: sealring head

    Parameters
    ----------
    yes
        Do not ask whether the machines that are away are off.
    """
    settings = own_config(config)
    head = answer_of(settings.control_socket, "status")["head"]
    unseen = head["here"] in head["may_be"] and not head["leads"] and head["absent"]
    if unseen and not yes:  # else the node refuses, or nobody else can be the head
        _ask(head["absent"], json=json)
    _done(answer_of(settings.control_socket, "take"), json=json)


def _ask(absent: Sequence[str], *, json: bool) -> None:
    """Ask whether the machines *absent*, one of which may be the head, are off. Raises `UserError`
    unless they are."""
    names = ", ".join(map(visible, absent))
    if json or sys.stdin is None or not sys.stdin.isatty():
        raise UserError(
            "this makes a second head if one of these still answers somebody, and there is no "
            f"terminal to ask at: {names}",
            "See that none does. Then: sealring head take --yes",
        )
    print(f"sealring: off, or out of everybody's reach: {names}? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise OperationError("nothing has changed", "Switch them off, or wait for them.")


@app.command
def move(name: str = "", *, config: OwnConfig = None, json: AsJson = False) -> None:
    """Have the machine NAME elected in place of this one, which is the head.

    Type it on the head's machine, before you switch that off, say. Without a
    name, the next machine that is there and may be the head is elected. A
    head that is stopped (Ctrl-C, or by its service) does the same by itself.

        sealring head move den

    To make it the first machine of the roster for good: sealring machines
    move den --rank 0

    Parameters
    ----------
    name
        What the machine is called; see 'sealring head'.
    """
    _done(answer_of(own_config(config).control_socket, "move", {"to": name}), json=json)


def _done(head: Mapping[str, Any], *, json: bool) -> None:
    """Print who is *head* now."""
    if json:
        print_json(head)
        return
    print(f"{visible(head_text(head['name'], head))}, is the head now")

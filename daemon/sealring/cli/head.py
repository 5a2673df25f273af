"""`sealring head | head take | head move`: which machine is the head, and how another one comes to
be it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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

The head serves the API and schedules all work. The roster's first machine is
the head, until the machines elect another: they do by themselves when the
head dies or is cut off. It takes more than half of all machines, and a head
answers only while at least half of them are there, itself included: so there
are never two that answer.

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

    The node of this machine says so. Who is away is for the head alone to
    know: ask there. Exit code 3 if no head answers, as far as this machine
    knows.

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
    majority = f"{head['majority']} of {head['members']} machines"
    facts = [
        ("head", head_text(head["name"], head)),
        ("here", _STATES[head["state"]].format(**names, answers=answers)),
        ("may be head", ", ".join(head["may_be"])),
    ]
    if len(head["may_be"]) > 1:
        facts.append(("elected by", majority))
    if head["absent"]:
        facts.append(("away", ", ".join(head["absent"])))
    print_facts(facts)
    if head["may_take"]:
        print(
            f"\n{majority} would elect a head, and fewer are there: start those that are away. If "
            "they stay away, and no other machine is the head: sealring head take"
        )


@app.command
def take(
    *,
    yes: Annotated[bool, cyclopts.Parameter(negative="")] = False,
    config: OwnConfig = None,
    json: AsJson = False,
) -> None:
    """Make this machine the head by your word alone, where too few are left to elect one.

    First see that the former head is off, or that nobody can reach it: this
    machine cannot know, and if both answer, there are two heads until they
    meet again. Then the one that most machines follow stays, or the later
    one. Where the machines can elect a head, they do, and this is not needed.

        sealring head take

    Next: sealring head

    Parameters
    ----------
    yes
        Do not ask whether the former head is off.
    """
    settings = own_config(config)
    head = answer_of(settings.control_socket, "status")["head"]
    if not yes and head["name"] != head["here"]:
        _ask(str(head["name"]), json=json)
    _done(answer_of(settings.control_socket, "take"), json=json)


def _ask(name: str, *, json: bool) -> None:
    """Ask whether the head, called *name*, is off. Raises `UserError` unless it is."""
    if json or sys.stdin is None or not sys.stdin.isatty():
        raise UserError(
            f"this makes a second head if {name} still answers somebody, and there is no terminal "
            "to ask at",
            f"See that {name} is off. Then: sealring head take --yes",
        )
    print(
        f"sealring: is {visible(name)} off, or out of everybody's reach? [y/N] ", end="", flush=True
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise OperationError("nothing has changed", f"Switch {name} off, or wait for it.")


@app.command
def move(name: str = "", *, config: OwnConfig = None, json: AsJson = False) -> None:
    """Have the machine NAME elected in place of this one, which is the head.

    Type it on the head's machine, before you switch that off, say. Without
    a name the next machine that may be the head, and is there, is meant. The
    others vote at once; a head that is stopped (Ctrl-C, or by its service)
    does the same by itself.

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

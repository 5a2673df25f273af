"""The `sealring` command: what a person types, and how it ends.

Commands live in modules of their own that are imported when they run, so that ``--help`` is quick
and a command that needs no model loads none. Exit codes: 0 it worked; 1 it was tried and failed; 2
the command line or a file is wrong; 3 it was checked, and is not right; 130 interrupted. A user's
mistake gets a few lines on standard error (what happened, what to do), never a traceback. With
``--json`` it is an object on standard output too, in place of the result.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import takewhile
from typing import Final

import cyclopts
from cyclopts.config import Env
from sealring_trio.errors import OperationError, UserError

from sealring.cli.help_pages import HelpPages
from sealring.output import JsonOutput, print_json, tell_error

ENVIRONMENT: Final = "SEALRING_"
"""How the environment variables begin that stand for options: its command and its name follow, as
in SEALRING_SERVE_PORT. The command line goes before them."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

HELP: Final = """\
Run one language model across several machines you own, with every hop
mutually authenticated and sealed.

Try it on this machine alone:

    sealring demo
    sealring run tiny "Tell me a story."

Then on two machines: make a key on each (keygen), list both in a roster
and sign it (roster), write a config for each and start them (up), and
ask (generate). Every command explains itself: sealring COMMAND --help

Exit codes: 0 it worked; 1 it could not be done; 2 the command line or a file
is wrong; 3 it was checked, and is not right; 130 interrupted. With --json,
an error is {"error": {"what", "advice", "exit_code"}} on standard output.
"""

EPILOGUE: Final = "Options may be environment variables: {}SERVE_PORT for 'serve --port'."

GROUPS: Final = {
    "To begin": {
        "demo": (
            "demo:demo",
            "Run a whole ring on this machine and prove that its tokens are right.",
        ),
        "run": ("run:run", "Ask a model one thing; where no ring serves it, start one for that."),
        "serve": ("serve:serve", "Serve a model on this machine: a ring, an API and a page."),
        "chat": ("chat:chat", "Talk to a model that is served, in the terminal."),
        "models": ("models:models", "List the models of this machine."),
        "pull": ("models:pull", "Fetch a model from the hub, or some of its layers."),
    },
    "A ring of your own": {
        "keygen": ("keys:keygen", "Make a key pair for a node, or for the coordinator."),
        "roster": ("roster:app", "Say who belongs to the cluster, and sign it."),
        "up": ("up:up", "Run one node of a ring."),
        "generate": ("generate:generate", "Ask a running ring, and stream the answer."),
        "status": ("status:status", "Show how a ring is, or what one of its nodes knows."),
        "apikey": ("keys:app", "Say who may use the head's HTTP API."),
        "plan": ("plan:plan", "Work out which machine would hold what, and whether it fits."),
        "model": ("model:app", "Give a running node another model."),
        "digest": (
            "models:digest",
            "Hash a model's files, so that every rank can prove it has them.",
        ),
    },
    "Measure and check": {
        "verify": ("verify:verify", "Check that a ring's answers are right, or find what is not."),
        "profile": ("profile:profile", "Show where the time of a token goes, rank by rank."),
        "bench": ("sealring_tools.cli.bench:app", "Measure the protocol beside its yardsticks."),
    },
    "For implementers": {
        "vectors": ("vectors:app", "Hold this implementation to the conformance vectors."),
        "peer": (
            "sealring_tools.cli.peer:peer",
            "Talk sealring/1 with another implementation, without a model.",
        ),
        "decode": (
            "sealring_tools.cli.decode:decode",
            "Show what the links in a packet capture said.",
        ),
    },
}
"""The commands in the order of the help: of each its module and function, and a summary. A module
without a package is one of this room."""

COMMANDS: Final = {name: entry for group in GROUPS.values() for name, entry in group.items()}

_TOOLS: Final = "sealring_tools"
"""The package of commands that a checkout has and an installation does not."""


def build_app(asked: str = "") -> cyclopts.App:
    """The command line, with every command still unimported. A summary given here would replace a
    command's own help, so the *asked* command gets none."""
    app = cyclopts.App(
        name="sealring",
        help=HELP,
        help_format="plaintext",
        help_formatter=HelpPages(),
        version=_version,
        help_epilogue=EPILOGUE.format(ENVIRONMENT),
        default_parameter=cyclopts.Parameter(negative=(), show_env_var=False),
        config=Env(ENVIRONMENT),
    )
    order = list(COMMANDS)
    checkout = find_spec(_TOOLS) is not None
    for rank, (title, commands) in enumerate(GROUPS.items()):
        group = cyclopts.Group(title, sort_key=rank)
        for name, (place, summary) in commands.items():
            if place.startswith(_TOOLS) and not checkout:
                continue
            app.command(
                place if place.startswith(_TOOLS) else f"sealring.cli.{place}",
                name=name,
                help=None if name == asked else summary,
                group=group,
                sort_key=order.index(name),
            )
    flags = cyclopts.Group("Options", sort_key=len(GROUPS))
    app["--help"].group = app["--version"].group = flags
    return app


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return version("sealring")


def main() -> None:
    """Run what is on the command line, and exit."""
    # Where the caller has closed a stream, nothing comes in, and nobody hears.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115  they last as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    # Bytes that are no text, and characters that this terminal lacks, are replaced.
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run *arguments*, and return the exit code."""
    JsonOutput.done = False
    try:
        _check_installed(next(iter(arguments), ""))
        code = build_app(next(iter(arguments), ""))(
            list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except cyclopts.CycloptsError as error:
        from sealring.cli.help_pages import told  # noqa: PLC0415 - for mistakes alone

        return _tell(told(error), arguments)
    except UserError as error:
        return _tell(error, arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _give_up_output()
        return 1
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _give_up_output()
        return _tell(OperationError(f"cannot write the output: {error.strerror}", "Make room."))
    return code if isinstance(code, int) else 0


def _check_installed(name: str) -> None:
    """Refuse a command that only a checkout has, where there is none."""
    place, _ = COMMANDS.get(name, ("", ""))
    if place.startswith(_TOOLS) and find_spec(_TOOLS) is None:
        raise UserError(
            f"'sealring {name}' is a command of a checkout, and is not installed here",
            f"In a checkout of sealring: uv run sealring {name}",
        )


def _give_up_output() -> None:
    """Whoever read our output has gone, or its disk is full. Nothing more can be said there, not at
    exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: UserError, arguments: Sequence[str] = ()) -> int:
    """Say what *error* is; as JSON too, if *arguments* ask for that. Its exit code."""
    tell_error(error)
    asked = "--json" in takewhile(lambda argument: argument != "--", arguments)
    if asked and not JsonOutput.done:
        told = {"what": error.what, "advice": error.advice, "exit_code": error.exit_code}
        with contextlib.suppress(OSError):  # nobody reads it
            print_json({"error": told})
            sys.stdout.flush()
    return error.exit_code

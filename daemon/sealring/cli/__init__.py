"""The `sealring` command: what a person types, how its help looks, and how it ends.

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
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import groupby, takewhile
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal

import cyclopts
from attrs import evolve
from cyclopts.config import Env
from cyclopts.help import HelpPanel
from cyclopts.help.formatters import DefaultFormatter
from sealring_trio.errors import OperationError, UserError

from sealring.logs import log_error
from sealring.output import JsonOutput, print_error, print_json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions


ENVIRONMENT: Final = "SEALRING_"
"""How the environment variables begin that stand for options: its command and its name follow, as
in SEALRING_SERVE_PORT. The command line goes before them."""

MOST_COLUMNS: Final = 100
"""Columns of a page in a wider terminal. Longer lines are hard to read."""

_UNSAID: Final = ("False", "()", '""')
"""Defaults that say no more than that an option is left out."""

_COMMAND: Final = "    sealring "
_WORDS: Final = re.compile(r'(?:"[^"]*"|\S)+')

_SENTENCE: Final = re.compile(r"[.;](?:\s|$)")

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

HELP: Final = """\
Run one language model across several machines you own, with every hop
mutually authenticated and sealed.

Try it on this machine alone:

    sealring demo
    sealring run tiny "Tell me a story."

Then on two machines: start on the first, and on the second the join that it
prints. Every command explains itself: sealring COMMAND --help

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
        "start": ("start:start", "Make a cluster of this machine, and invite others."),
        "join": ("join:join", "Join a cluster by an invitation, and serve."),
        "machines": ("machines:app", "Show and change which machines belong to the cluster."),
        "head": ("head:app", "Show which machine is the head, and make another one it."),
        "keygen": ("keys:keygen", "Make a key pair for a node, or for the coordinator."),
        "roster": ("roster:app", "Say who belongs to the cluster, and sign it."),
        "coordinator": ("coordinator:app", "Take the key that signs off this machine, or back."),
        "backup": ("backup:backup", "Keep this machine's keys, roster and config in one file."),
        "restore": ("backup:restore", "Make a machine's folder again from its backup."),
        "up": ("up:up", "Run one node of a ring."),
        "generate": ("run:generate", "Ask a running ring, and stream the answer."),
        "status": ("status:status", "Show how a ring is, or what one of its nodes knows."),
        "service": ("service:app", "Have this machine start a node, and keep it running."),
        "apikey": ("keys:app", "Say who may use the head's HTTP API."),
        "plan": ("plan:plan", "Work out which machine would hold what, and whether it fits."),
        "model": ("models:app", "Give a running node another model."),
        "digest": (
            "models:digest",
            "Hash a model's files, so that every rank can prove it has them.",
        ),
    },
    "Measure and check": {
        "verify": ("verify:verify", "Check that a ring's answers are right, or find what is not."),
        "doctor": ("doctor:doctor", "Look at this machine of a ring, and say what mends it."),
        "profile": ("profile:profile", "Show where the time of a token goes, rank by rank."),
        "bench": ("sealring_tools.cli.bench:app", "Measure the protocol beside its yardsticks."),
    },
    "Around it": {
        "completion": (
            "sealring.cli:completion",
            "Have bash, zsh or fish complete commands and options.",
        ),
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
                place if place.startswith("sealring") else f"sealring.cli.{place}",
                name=name,
                help=None if name == asked else summary,
                group=group,
                sort_key=order.index(name),
            )
    flags = cyclopts.Group("Options", sort_key=len(GROUPS))
    app["--help"].group = app["--version"].group = flags
    return app


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print what has a shell complete commands and their options.

        sealring completion bash > ~/.local/share/bash-completion/completions/sealring
        sealring completion zsh > ~/.zfunc/_sealring
        sealring completion fish > ~/.config/fish/completions/sealring.fish

    The folder must be there; for zsh, ~/.zshrc must have 'fpath+=~/.zfunc'
    before 'compinit'. Print it again once you have another version of
    sealring.

    Next: a new shell, which then has it.

    Parameters
    ----------
    shell
        Which one.
    """
    print(build_app().generate_completion(prog_name="sealring", shell=shell), end="")


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
        return _end_with(_mistake(error), arguments)
    except UserError as error:
        return _end_with(error, arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _give_up_output()
        return 1
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _give_up_output()
        return _end_with(OperationError(f"cannot write the output: {error.strerror}", "Make room."))
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


def _end_with(error: UserError, arguments: Sequence[str] = ()) -> int:
    """Say what *error* is; as JSON too, if *arguments* ask for that. Its exit code."""
    if not log_error(error):
        print_error(error)
    asked = "--json" in takewhile(lambda argument: argument != "--", arguments)
    if asked and not JsonOutput.done:
        known = {"what": error.what, "advice": error.advice, "exit_code": error.exit_code}
        with contextlib.suppress(OSError):  # nobody reads it
            print_json({"error": known})
            sys.stdout.flush()
    return error.exit_code


def _filled(text: str, width: int) -> Iterator[str]:
    """The lines of *text* for *width* columns. An example that cannot be folded keeps its own."""
    for block in text.strip("\n").split("\n\n"):
        for example, lines in groupby(block.splitlines(), lambda line: line.startswith(" ")):
            if example:
                yield from (_folded(line, width) for line in lines)
            else:
                yield fill(" ".join(lines), width, break_long_words=False, break_on_hyphens=False)
        yield ""


def _folded(line: str, width: int) -> str:
    """The example *line*, which goes on after a backslash if it is a command and too long."""
    if len(line) <= width or not line.startswith(_COMMAND):
        return line
    folded = [" " * 3]
    for word in _WORDS.findall(line):
        if len(f"{folded[-1]} {word} \\") > width:
            folded.append(" " * 7)
        folded[-1] += f" {word}"
    return " \\\n".join(folded)


class HelpPages(DefaultFormatter):
    """Prints a page of help: paragraphs fill the width, whatever it is, and examples stay as they
    are.

    Help is written in docstrings: paragraphs with line ends for the editor, and indented examples.
    The line ends of a paragraph mean nothing. An example that is too long for the terminal goes on
    in the next line as a shell takes it, so that it can be copied.
    """

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """How the command is called, which comes first."""
        console.width = min(console.width, MOST_COLUMNS)
        super().render_usage(console, options, usage)

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """What it does, and examples."""
        from rich.text import Text  # noqa: PLC0415 - a tenth of a second, for pages of help alone

        text = "\n".join(_filled(description.primary_renderable.plain, console.width))
        console.print(Text(text), no_wrap=True, overflow="ignore", crop=False)

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Its options, or the commands below it."""
        for entry in panel.entries:
            text = entry.description.primary_renderable
            text.plain = " ".join(text.plain.split())
        panel.entries = [
            evolve(entry, default=None) if entry.default in _UNSAID else entry
            for entry in panel.entries
        ]
        super().__call__(console, options, panel)


def _mistake(error: cyclopts.CycloptsError) -> UserError:
    """What *error* says, and what to do."""
    see = f"See: {' '.join(['sealring', *(error.command_chain or ()), '--help'])}"
    match error:
        case cyclopts.MissingArgumentError(argument=cyclopts.Argument() as argument) if (
            not error.tokens_so_far
        ):
            return _missing(error, argument, see)
        case cyclopts.UnusedCliTokensError():
            return _unused(error, see)
        case cyclopts.ValidationError(argument=cyclopts.Argument() as argument):
            # A prompt may begin with a hyphen, so what is meant as an option comes as one.
            meant = str(argument.value).partition("=")[0]
            if meant[:2] == "--" and (near := _nearest(meant, error)):
                return UserError(f"Unknown option: {meant}. Did you mean {near}?", see)
        case cyclopts.UnknownOptionError(token=token) if token.source == "cli":
            meant = (token.keyword or token.value).partition("=")[0]
            if near := _nearest(meant, error):
                return UserError(f"Unknown option: {meant}. Did you mean {near}?", see)
    return UserError(str(error), see)


def _nearest(meant: str, error: cyclopts.CycloptsError) -> str:
    """The option that *meant* is the beginning of, or else like; empty for none."""
    options = _options(error)
    begun = [name for name in options if meant[:2] == "--" and name.startswith(meant)]
    return next(iter(sorted(begun, key=len) or get_close_matches(meant, options, n=1)), "")


def _options(error: cyclopts.CycloptsError) -> Mapping[str, cyclopts.Argument]:
    """What the command takes that *error* is about, by name."""
    if error.app is None or error.target is None:
        return {}
    taken = error.app.assemble_argument_collection(parse_docstring=True)
    return {name: argument for argument in taken for name in argument.names}


def _commands(error: cyclopts.CycloptsError) -> list[str]:
    """The names of the commands below the one that *error* is about."""
    return [name for name in error.app or () if not name.startswith("-")]


def _missing(
    error: cyclopts.MissingArgumentError, argument: cyclopts.Argument, see: str
) -> UserError:
    """For an argument, an option or the value of an option that is not there."""
    name, unused = argument.name, error.unused_tokens or []
    shown = name if argument.index is None else name.lstrip("-").upper()
    meaning = _meaning(error, name)
    if error.keyword is not None:
        return UserError(f"{shown} is given without a value{meaning}", see)
    if wrong := get_close_matches(name, unused, n=1):
        see = f"Did you mean {name} instead of {wrong[0]}? {see}"
    elif name == "--model" and len(unused) == 1:
        see = f"Did you mean {name} {unused[0]}? {see}"
    return UserError(f"{shown} is needed{meaning}", see)


def _meaning(error: cyclopts.CycloptsError, name: str) -> str:
    """What the option *name* is, as the first sentence of its help says after a colon."""
    said = _options(error)[name].parameter.help or ""
    first = _SENTENCE.split(" ".join(said.split()))[0]
    return first and f": {first[0].lower()}{first[1:]}"


def _unused(error: cyclopts.UnusedCliTokensError, see: str) -> UserError:
    """For words that are no value of an option, and no argument."""
    options, words = _options(error), error.unused_tokens or []
    if any(argument.index is not None for argument in options.values()):
        why = "no option comes before it, and no argument is left"
    else:
        why = f"{' '.join(error.command_chain or ())} takes no argument"
    option = "--config" if words[-1].endswith(".toml") else "--model"
    meant = option in options and option not in (error.root_input_tokens or ()) and len(words) == 1
    guess = f"Did you mean {option} {words[0]}? " if meant else ""
    if near := get_close_matches(words[0], _commands(error), n=1):
        guess = f"Did you mean '{near[0]}'? "
    return UserError(f"'{' '.join(words)}' is too much: {why}", f"{guess}{see}")

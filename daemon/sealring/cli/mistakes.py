"""What is wrong with a command line, in words for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

import cyclopts
from sealring_trio.errors import UserError

_WITHOUT: Final = {"generate --config": ". Without one: sealring run tiny PROMPT"}
"""What else a person may want who has not what an option of a command needs."""

_SENTENCE: Final = re.compile(r"[.;](?:\s|$)")


def told(error: cyclopts.CycloptsError) -> UserError:
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


def _missing(
    error: cyclopts.MissingArgumentError, argument: cyclopts.Argument, see: str
) -> UserError:
    """For an argument, an option or the value of an option that is not there."""
    name, unused = argument.name, error.unused_tokens or []
    shown = name if argument.index is None else name.lstrip("-").upper()
    meaning = _meaning(error, name)
    if error.keyword is not None:
        return UserError(f"{shown} is given without a value{meaning}", see)
    see += _WITHOUT.get(" ".join([*(error.command_chain or ()), name]), "")
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
    return UserError(f"'{' '.join(words)}' is too much: {why}", f"{guess}{see}")

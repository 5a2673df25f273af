"""Why a form cannot be held, in words for who sent it.

llguidance speaks to who programs with it: of options that no client can set, and of grammars that
this server wrote. `_FAULTS` has what it says, and what is said here in its place. What is not in
the table is told as llguidance has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

_LONGEST_PART: Final = 200  # characters of what a fault quotes

_PLAIN: Final = "{what} cannot be held: {why}."
_SCHEMA: Final = "{what} cannot be held. Correct the schema: {why}."
_REGEX: Final = "{what} cannot be held. Correct the regular expression: {why}."
_SIMPLER: Final = (
    "{what} cannot be held: {why}. Make it simpler (fewer alternatives and optional names, lower "
    "bounds of repetitions), or ask for the form in the prompt."
)
_OTHER: Final = (
    "{what} cannot be held: {why}. Use what llguidance supports, or ask for the form in the prompt."
)


@attrs.frozen
class _Said:
    """What is said of a fault: *why*, with the parts that its pattern found, within *form*."""

    why: str
    form: str = _PLAIN


_IN_REGEX: Final = r"(?:at 1\(\d+\): invalid regex .* \(in regex\): )?"
_IN_START: Final = r"(?:\n +1 \| start: .*)?"  # the line that this server wrote around it

_FAULTS: Final[Mapping[str, _Said]] = {
    r"Resource '(.*)' is not present in a registry.*": _Said(
        "it names '{0}', and nothing is fetched here; put what a $ref means into the schema's $defs"
    ),
    r"Pointer '(.*)' does not exist": _Said("'#{0}', which a $ref names, is not in it", _SCHEMA),
    r"Invalid type: (.*)": _Said("there is no type '{0}'", _SCHEMA),
    r"Unsatisfiable schema: (.*)": _Said("nothing fits it ({0})", _SCHEMA),
    r"Expected .* for ('.*'), got (.*)": _Said("{0} cannot be {1}", _SCHEMA),
    r"(\w+ must be (?:a|an|a string or) .*)": _Said("{0}", _SCHEMA),
    r"invalid multiple of": _Said("multipleOf has to be above 0", _SCHEMA),
    rf"{_IN_REGEX}regex parse error:\n.*\nerror: (look-around|backreferences)\b.*": _Said(
        "a regular expression with {0} is not served; say it without"
    ),
    rf"{_IN_REGEX}lookarounds not supported yet; .*": _Said(
        r"an anchor or a word boundary (as \b) within a regular expression is not served; say it "
        "without"
    ),
    rf"{_IN_REGEX}regex parse error:\n    ([^\n]*)\n.*\nerror: ([^\n]*){_IN_START}": _Said(
        "{1} in '{0}'", _REGEX
    ),
    r".*\bToo many items \(limit (\d+)\b.*": _Said(
        "one token takes more than {0} items of the parser", _SIMPLER
    ),
    r"(?:initial lexer configuration|grammar size)\b.* too big .*": _Said(
        "it is too large", _SIMPLER
    ),
    r"(it(?:s grammar)? (?:took|takes|is) .*)": _Said("{0}", _SIMPLER),
}
"""By what llguidance, or the tests of `holding`, say."""


def cannot_be_held(what: str, why: str) -> str:
    """The message for the form *what*, of which *why* was found."""
    said, words = _said(why)
    return said.form.format(what=what, why=words)


def is_wrong(why: str) -> bool:
    """Whether *why* says that the form itself is wrong, so that nothing could hold it."""
    return _said(why)[0].form in (_SCHEMA, _REGEX)


def left_out(warnings: Iterable[str]) -> list[str]:
    """The keywords that *warnings* of llguidance's say are left out of a schema."""
    found: list[str] = []
    for warning in warnings:
        if keys := re.fullmatch(r"Unimplemented keys: \[(.*)\]", warning):
            found += re.findall(r'"([^"]*)"', keys[1])
        elif warning.startswith("Unknown format: "):
            found.append("format")
        elif warning.startswith("oneOf "):
            found.append("oneOf")
    return found


def in_words(why: str) -> str:
    """*why*, as it is told."""
    return _said(why)[1]


def _said(why: str) -> tuple[_Said, str]:
    """What is said of *why*, and its words."""
    for pattern, said in _FAULTS.items():
        if found := re.fullmatch(pattern, why, re.DOTALL):
            parts = [part[:_LONGEST_PART] for part in found.groups()]
            return said, said.why.format(*parts)
    return _Said(why, _OTHER), why

"""Names of machines: what may be one, and which a person would take for each other.

A cluster's owner may give any printable name. A newcomer gives its own, and a person decides by
what is on a screen. So the name of a newcomer is ASCII: beyond it, letters of one script look like
those of another (Unicode Technical Standard 39, https://www.unicode.org/reports/tr39/), and which
do changes with each version of Unicode. Of ASCII letters and digits few are confusable;
`look_alike` knows them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from sealring_protocol.codec.wire import is_plain
from sealring_protocol.limits import MAX_NAME

_BETWEEN: Final = re.compile(r"[\s._-]+")
_CONFUSABLE: Final = (("I", "l"), ("|", "l"), ("1", "l"), ("0", "o"), ("O", "o"))
_CONFUSABLE_PAIRS: Final = (("rn", "m"), ("vv", "w"))


def plain_name(text: str) -> str:
    """*text* as a machine's name: printable, and of `MAX_NAME` bytes at most; empty if nothing of
    it can be."""
    kept = "".join(char for char in text if is_plain(char)).strip()
    return kept.encode()[:MAX_NAME].decode(errors="ignore").strip()


def ascii_name(text: str) -> str:
    """*text* as a newcomer's name: letters lose their accents, and what is not ASCII then is left
    out."""
    return plain_name(unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode())


def ascii_text(text: str, limit: int) -> str:
    """What a stranger wrote, for a screen: up to *limit* characters of ASCII. What is not ASCII is
    written as its code, since letters of some scripts have those around them read the other way."""
    return text.encode("ascii", "backslashreplace").decode()[:limit]


def look_alike(name: str, other: str) -> bool:
    """Whether a person may take *name* for *other*: they differ in case, in accents, in what is
    between words, or in characters such as 1 and l."""
    return _folded(name) == _folded(other) or _skeleton(name) == _skeleton(other)


def alike(name: str, names: Iterable[str]) -> str:
    """The first of *names* that *name* is, or looks like; empty if there is none."""
    return next((each for each in names if look_alike(name, each)), "")


def free_name(name: str, taken: Iterable[str]) -> str:
    """*name*, or with a number after it if it is, or looks like, one that is *taken*."""
    others = list(taken)
    number, free = 1, name
    while alike(free, others):
        number += 1
        end = f"-{number}"
        free = name.encode()[: MAX_NAME - len(end)].decode(errors="ignore") + end
    return free


def _folded(name: str) -> str:
    """*name* without case, accents, compatibility forms, and differences of what is between
    words."""
    letters = unicodedata.normalize("NFKD", name.strip())
    bare = "".join(char for char in letters if not unicodedata.combining(char))
    return _BETWEEN.sub("-", unicodedata.normalize("NFKC", bare.casefold()))


def _skeleton(name: str) -> str:
    """*name* with one character for each of those that look the same."""
    for character, same in _CONFUSABLE:
        name = name.replace(character, same)
    folded = _folded(name)
    for pair, same in _CONFUSABLE_PAIRS:
        folded = folded.replace(pair, same)
    return folded

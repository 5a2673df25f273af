"""Writes what the specification tells of the code's own tables.

That is the generated sections of ``sealring-1.md``, each between ``<!-- generated:NAME -->`` and
``<!-- end -->`` (`SECTIONS` says what belongs there), and the files of `FILES`.
``python -m spec.generate`` rewrites them, ``python -m spec.generate --check`` exits with 1 and
names what has drifted.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from sealring_protocol import limits
from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.election_messages import NoVoteReason
from sealring_protocol.codec.encoding import DECODERS, LOCAL_DECODERS
from sealring_protocol.codec.frame import FrameKind
from sealring_protocol.codec.messages import Backend, FailureKind, Hindrance
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import fields
from sealring_protocol.control.election import ELECTION_TABLE
from sealring_protocol.control.epoch.engine import JOINING_TABLE
from sealring_protocol.control.epoch.pipeline import PIPELINE_TABLE
from sealring_protocol.control.epoch.tensor import LEADER_TABLE
from sealring_protocol.control.membership import MEMBERSHIP_TABLE
from sealring_protocol.control.scheduler.rows import ROW_TABLE
from sealring_protocol.errors import WIRE_CODES, CloseCode, SealringError
from sealring_protocol.joining import exchange
from sealring_protocol.relay import STREAM_TABLE
from sealring_protocol.security import initiator, responder
from sealring_protocol.security.keys import Label, SignContext, Suite
from sealring_protocol.security.roles import ALLOWED, Purpose
from sealring_protocol.security.roster import EvidenceKind, Rights, TrustLevel

from spec import tables, words
from spec.trace import make

SPEC: Final = Path(__file__).with_name("sealring-1.md")
DISSECTOR: Final = Path(__file__).parent / "wireshark" / "sealring.lua"
_SECTION: Final = re.compile(r"<!-- generated:([a-z-]+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def table(*rows: Iterable[object]) -> str:
    """A Markdown table whose first row is its head."""
    head, *body = [[str(cell) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _codes(kind: type[Enum], meaning: Mapping[Any, str], head: str = "code") -> str:
    return table(
        (head, "name", "meaning"), *((int(each.value), each.name, meaning[each]) for each in kind)
    )


def _close_codes() -> str:
    errors: dict[CloseCode, list[type[SealringError]]] = {}
    for error, code in WIRE_CODES.items():
        errors.setdefault(code, []).append(error)
    rows = []
    for code in CloseCode:
        raised = ", ".join(f"`{error.__name__}`" for error in errors.get(code, []))
        rows.append((int(code), code.name, words.CLOSE[code], raised or "–"))
    return table(("code", "class", "meaning", "in the code"), *rows)


def _limits() -> str:
    found = words.docs_of_assignments(limits)
    rows = [(f"`{name}`", f"{getattr(limits, name):,}", text) for name, text in found.items()]
    return table(("limit", "value", "of what"), *rows)


def _frame_limits() -> str:
    rows: list[tuple[str, str, str]] = []
    for role, states in tables.ENDS.items():
        for state, taken in states.items():
            longest = ", ".join(f"{FrameKind(k).name.lower()} {n:,}" for k, n in taken.items())
            rows.append((role, state.name, longest or "nothing"))
    return table(("end", "state", "takes"), *rows)


def _travels(code: MessageCode) -> str:
    if code in tables.HANDSHAKE:
        return "handshake frame"
    if code in DECODERS:
        return "sealed frame" + (", local frame" if code in LOCAL_DECODERS else "")
    return "local frame" if code in LOCAL_DECODERS else "reserved"


def _messages(*, local: bool) -> str:
    chosen = [code for code in MessageCode if (code >= 0x80) is local]
    return table(
        ("code", "message", "travels in"),
        *((f"0x{code:02X}", code.name, _travels(code)) for code in chosen),
    )


def _suites() -> str:
    return table(
        ("code", "protocol string", "AEAD (key 32, nonce 12, tag 16 bytes)"),
        *((int(s), f'`"{s.protocol.decode()}"`', words.SUITES[s]) for s in Suite),
    )


def _labels() -> str:
    return table(
        ("label", "in", "gives"),
        *((f'`"{label.value.decode()}"`', *words.LABELS[label]) for label in Label),
    )


def _contexts() -> str:
    return table(
        ("context", "payload"),
        *((f'`"{c.value.decode()}"`', words.CONTEXTS[c]) for c in SignContext),
    )


def _evidence() -> str:
    return table(
        ("kind", "name", "supports trust up to"),
        *((int(kind), kind.name, kind.trust.name) for kind in EvidenceKind),
    )


def _dtypes() -> str:
    return table(
        ("code", "name", "width", "elements"),
        *((int(dtype), dtype.name, dtype.width, words.DTYPES[dtype]) for dtype in DType),
    )


def _roles() -> str:
    rows = []
    for (purpose, role), allowed in ALLOWED.items():
        names = [kind.CODE.name for kind in sorted(allowed, key=lambda kind: int(kind.CODE))]
        rows.append((purpose.name, role.name, ", ".join(names)))
    return table(("purpose", "sender", "may send"), *rows)


def _machine(moves: Mapping[Any, Any]) -> str:
    states: dict[str, list[str]] = {}
    for (state, event), after in moves.items():
        states.setdefault(state.name, []).append(f"{event.name} → {after.name}")
    return table(("state", "on"), *((state, "; ".join(on)) for state, on in states.items()))


SECTIONS: Final[dict[str, Callable[[], str]]] = {
    "contexts": _contexts,
    "trust": lambda: _codes(TrustLevel, words.docs_of_members(TrustLevel), "level"),
    "rights": lambda: _codes(Rights, words.docs_of_members(Rights), "value"),
    "evidence": _evidence,
    "frame-limits": _frame_limits,
    "suites": _suites,
    "purposes": lambda: _codes(Purpose, words.docs_of_members(Purpose)),
    "labels": _labels,
    "codes": lambda: _messages(local=False),
    "backends": lambda: _codes(Backend, words.BACKENDS),
    "failures": lambda: _codes(FailureKind, words.FAILURES, "kind"),
    "hindrances": lambda: _codes(Hindrance, words.HINDRANCES),
    "no-votes": lambda: _codes(NoVoteReason, words.NO_VOTES),
    "dtypes": _dtypes,
    "roles": _roles,
    "close-codes": _close_codes,
    "limits": _limits,
    "local-codes": lambda: _messages(local=True),
    "initiator": lambda: _machine(initiator.TABLE),
    "responder": lambda: _machine(responder.TABLE),
    "joiner": lambda: _machine(exchange.JOINER_TABLE),
    "inviter": lambda: _machine(exchange.INVITER_TABLE),
    "election": lambda: _machine(ELECTION_TABLE),
    "membership": lambda: _machine(MEMBERSHIP_TABLE),
    "pipeline": lambda: _machine(PIPELINE_TABLE),
    "joining": lambda: _machine(JOINING_TABLE),
    "leader": lambda: _machine(LEADER_TABLE),
    "row": lambda: _machine(ROW_TABLE),
    "stream": lambda: _machine(STREAM_TABLE),
}


def generated(text: str) -> str:
    """*text* with every section as the code has it."""

    def fresh(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- generated:{name} -->\n{SECTIONS[name]()}<!-- end -->\n"

    return _SECTION.sub(fresh, text)


def drifted(text: str) -> list[str]:
    """The sections of *text* that are not as the code has them, and those that are missing."""
    found = {match.group(1): match.group(2) for match in _SECTION.finditer(text)}
    return [name for name, make in SECTIONS.items() if found.get(name) != make()]


def _dissector() -> bytes:
    """The dissector, with the layouts of handshake messages, after their codes."""
    told = ["local layouts = {"]
    for code in sorted(tables.HANDSHAKE):
        told.append(f'   [{int(code)}] = {{ name = "{code.name}",')
        for name, kind in fields(tables.FIELDS[code.name])[1:]:
            told.append(f'      {{ name = "{name}", size = {tables.size_of(kind)} }},')
        told.append("   },")
    head, _, rest = DISSECTOR.read_text(encoding="ascii").partition("-- generated\n")
    tail = rest.partition("-- end\n")[2]
    return "\n".join([f"{head}-- generated", *told, "}", f"-- end\n{tail}"]).encode()


FILES: Final[Mapping[Path, Callable[[], bytes]]] = {
    tables.FILE: lambda: tables.text().encode(),
    DISSECTOR: _dissector,
    **make.FILES,
}
"""Files that are generated, whole but for the dissector's code."""


def stale_files() -> list[Path]:
    """Those of `FILES` that are not as the code has them."""
    return [
        path
        for path, content in FILES.items()
        if not path.exists() or path.read_bytes() != content()
    ]


def main() -> int:
    """Rewrite what is generated, or check it."""
    parser = argparse.ArgumentParser(description="what the specification tells of the code")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on drift")
    if not parser.parse_args().check:
        SPEC.write_text(generated(SPEC.read_text(encoding="utf-8")), encoding="utf-8")
        for path, content in FILES.items():
            path.write_bytes(content())
    stale = [f"{SPEC.name}: section {name}" for name in drifted(SPEC.read_text(encoding="utf-8"))]
    stale += [path.name for path in stale_files()]
    for name in stale:
        sys.stderr.write(f"{name} is not what the code says\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

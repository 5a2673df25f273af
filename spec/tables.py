"""``sealring-1.json``: the code's own tables for implementations in other languages.

It holds what the specification's tables hold: layouts, message codes, what follows a message's
fixed part, limits, the state machines of both ends and of the control plane, and who may send
what. `spec.generate` writes it, and its ``--check`` fails on drift.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from sealring_protocol import limits
from sealring_protocol.codec import wire
from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.election_messages import NoVoteReason
from sealring_protocol.codec.encoding import CODECS, DECODERS, LAYOUTS, LOCAL_DECODERS
from sealring_protocol.codec.fields import Varying
from sealring_protocol.codec.frame import FrameKind
from sealring_protocol.codec.messages import (
    Backend,
    FailureKind,
    Hindrance,
    TunnelEvent,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.election import ELECTION_TABLE
from sealring_protocol.control.epoch.engine import JOINING_TABLE
from sealring_protocol.control.epoch.pipeline import PIPELINE_TABLE
from sealring_protocol.control.epoch.tensor import LEADER_TABLE
from sealring_protocol.control.membership import MEMBERSHIP_TABLE
from sealring_protocol.control.scheduler.rows import ROW_TABLE
from sealring_protocol.errors import CloseCode
from sealring_protocol.joining import exchange
from sealring_protocol.relay import STREAM_TABLE
from sealring_protocol.security import initiator, responder
from sealring_protocol.security.keys import Label, SignContext, Suite
from sealring_protocol.security.roles import ALLOWED, Purpose
from sealring_protocol.security.roster import EvidenceKind, Rights, TrustLevel

from spec import words

Json = Any

FILE: Final = Path(__file__).with_name("sealring-1.json")

ABOUT: Final = (
    "The tables of sealring/1 for programs, written by python -m spec.generate from the code "
    "that uses them. spec/sealring-1.md gives them their meaning. Numbers are big-endian; "
    "elements of a tensor are little-endian. A layout is the fixed part of what its name says, "
    "'at' counted from its first byte; a message's first field is its code. A message's 'then' "
    "says what follows its layout, in order: as many entries as the layout's field of that name "
    "holds, each of one type or with the fields named. 'byte' entries make a byte string, "
    "'text' is a u16 length and UTF-8, 'string' a u16 length and bytes, 'blob' a u32 length and "
    "bytes, 'tensor' the layout TENSOR with its shape and elements, 'rest' everything to the end "
    "of the plaintext, and 'sealed' an AEAD's ciphertext and tag around the fields named. ROSTER "
    "begins after a roster's version, cluster and name, ROSTER.appointment is before the name "
    "where the version is 2, and ROSTER.member ends before a member's name and addresses; where "
    "the policy has bit 2, ROSTER.member_with_rights takes its place. CERTIFICATE.vote is each of "
    "a certificate's votes, and VOTE what a vote is for."
)

FIELDS: Final[Mapping[str, str]] = {**wire.FIELDS, **LAYOUTS}
"""The fixed part of everything."""

HANDSHAKE: Final = frozenset(
    {
        *(MessageCode.INIT, MessageCode.RESP, MessageCode.FIN),
        *(MessageCode.JOIN_INIT, MessageCode.JOIN_RESP, MessageCode.JOIN_FIN),
    }
)
"""What travels in handshake frames."""

ENDS: Final[Mapping[str, Mapping[Any, Mapping[int, int]]]] = {
    "initiator": initiator.Initiator.LIMITS,
    "responder": responder.Responder.LIMITS,
    "joiner": exchange.Joiner.LIMITS,
    "inviter": exchange.Inviter.LIMITS,
}
"""What each end takes in each state."""

_PROVEN: Final = "signature bytes 64, mac bytes 32"

THEN: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "RESP": (("sealed", f"{FIELDS['RESP.claims']}, {_PROVEN}"),),
    "FIN": (("sealed", f"{FIELDS['FIN.claims'].replace('roster u32', 'roster blob')}, {_PROVEN}"),),
    "JOIN_RESP": (
        ("sealed", f"{FIELDS['JOIN_RESP.claims'].replace('roster u32', 'roster blob')}, {_PROVEN}"),
    ),
    "JOIN_FIN": (
        (
            "sealed",
            f"{FIELDS['JOIN_FIN.claims']}, name text, system text, addresses texts, {_PROVEN}",
        ),
    ),
    **{
        codec.code.name: tuple(
            (name, field.entry) for name, field in codec.fields if isinstance(field, Varying)
        )
        for codec in CODECS.values()
    },
}
"""What follows the fixed part of a message, in order: the field, and one entry's type or fields. Of
``failed`` there is one entry when the field is 1; what is sealed is there once."""


def _layout(name: str) -> Json:
    at, told = 0, []
    for field, kind in wire.fields(FIELDS[name]):
        told.append({"name": field, "at": at, "size": size_of(kind), "type": kind})
        at += size_of(kind)
    return told


def size_of(kind: str) -> int:
    """Bytes of a field of the type *kind*."""
    sizes = {"u8": 1, "bool": 1, "u16": 2, "u32": 4, "u64": 8, "f64": 8}
    return int(kind.removeprefix("bytes ")) if kind.startswith("bytes ") else sizes[kind]


def _message(code: MessageCode) -> Json:
    kinds = ["handshake"] if code in HANDSHAKE else []
    kinds += ["sealed"] if code in DECODERS else []
    kinds += ["local"] if code in LOCAL_DECODERS else []
    return {
        "code": int(code),
        "frames": kinds,
        "layout": "PING" if code is MessageCode.PONG else code.name,
        "then": [_entry(field, each) for field, each in THEN.get(code.name, ())],
    }


def _entry(field: str, each: str) -> Json:
    if " " not in each:
        return {"field": field, "type": each}
    named = (part.partition(" ") for part in each.split(", "))
    return {"field": field, "fields": [{"name": name, "type": kind} for name, _, kind in named]}


def _codes(kind: type[Enum], meaning: Mapping[Any, str]) -> Json:
    return [{"code": int(e.value), "name": e.name, "meaning": meaning[e]} for e in kind]


def _takes(states: Mapping[Any, Mapping[int, int]]) -> Json:
    return {
        state.name: {FrameKind(kind).name.lower(): longest for kind, longest in taken.items()}
        for state, taken in states.items()
    }


def _machine(moves: Mapping[Any, Any]) -> Json:
    (first, event), *_ = moves
    return {
        "states": [state.name for state in type(first)],
        "events": [each.name for each in type(event)],
        "moves": [[state.name, on.name, after.name] for (state, on), after in moves.items()],
    }


def _roles() -> Json:
    return [
        {
            "purpose": purpose.name,
            "sender": role.name,
            "may_send": [k.CODE.name for k in sorted(allowed, key=lambda kind: int(kind.CODE))],
        }
        for (purpose, role), allowed in ALLOWED.items()
    ]


def tables() -> Json:
    """Everything, as JSON has it."""
    return {
        "protocol": "sealring/1",
        "about": ABOUT,
        "frame": {"version": 1, "kinds": {kind.name.lower(): int(kind) for kind in FrameKind}},
        "layouts": {name: _layout(name) for name in FIELDS},
        "messages": {code.name: _message(code) for code in MessageCode},
        "takes": {end: _takes(states) for end, states in ENDS.items()},
        "suites": [{"code": int(suite), "protocol": suite.protocol.decode()} for suite in Suite],
        "labels": [label.value.decode() for label in Label],
        "contexts": [context.value.decode() for context in SignContext],
        "purposes": _codes(Purpose, words.docs_of_members(Purpose)),
        "backends": _codes(Backend, words.BACKENDS),
        "failures": _codes(FailureKind, words.FAILURES),
        "hindrances": _codes(Hindrance, words.HINDRANCES),
        "no_votes": _codes(NoVoteReason, words.NO_VOTES),
        "dtypes": [{"code": int(t), "name": t.name, "width": t.width} for t in DType],
        "tunnel_events": {event.name: int(event) for event in TunnelEvent},
        "trust": _codes(TrustLevel, words.docs_of_members(TrustLevel)),
        "rights": _codes(Rights, words.docs_of_members(Rights)),
        "evidence": [
            {"kind": int(kind), "name": kind.name, "trust": int(kind.trust)}
            for kind in EvidenceKind
        ],
        "close_codes": _codes(CloseCode, words.CLOSE),
        "limits": {
            name: {"value": getattr(limits, name), "of": text}
            for name, text in words.docs_of_assignments(limits).items()
        },
        "roles": _roles(),
        "machines": {
            "initiator": _machine(initiator.TABLE),
            "responder": _machine(responder.TABLE),
            "joiner": _machine(exchange.JOINER_TABLE),
            "inviter": _machine(exchange.INVITER_TABLE),
            "election": _machine(ELECTION_TABLE),
            "membership": _machine(MEMBERSHIP_TABLE),
            "pipeline": _machine(PIPELINE_TABLE),
            "joining": _machine(JOINING_TABLE),
            "leader": _machine(LEADER_TABLE),
            "row": _machine(ROW_TABLE),
            "stream": _machine(STREAM_TABLE),
        },
    }


def text() -> str:
    """The file."""
    return json.dumps(tables(), indent=1, ensure_ascii=True) + "\n"

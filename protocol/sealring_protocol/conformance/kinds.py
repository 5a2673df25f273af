"""Runs each kind of vector against the code, uncut.

If the input can also be made from the output (sealing a frame, encoding a message), that is done as
well, and must give the same bytes; otherwise it is a `Mismatch`. `streams` cuts inputs.
`security_kinds` has the kinds for `sealring_protocol.security` alone.

Two kinds test the tokens that an engine draws, so an engine has to run them (`ENGINE_KINDS`). A
caller with an engine adds them to `KINDS`.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from sealring_protocol.codec.encoding import decode, decode_local, encode, from_fields, to_fields
from sealring_protocol.codec.frame import FrameDecoder
from sealring_protocol.codec.messages import FailureKind, Message, Step
from sealring_protocol.conformance.brains import run_lockstep, run_rank
from sealring_protocol.conformance.ends import Given, Mismatch, must, run_end
from sealring_protocol.conformance.result import Kinds, Result, plaintext, raw
from sealring_protocol.conformance.security_kinds import SECURITY_KINDS
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.head.partition import Joints, partition
from sealring_protocol.errors import (
    RemoteProtocolError,
    RoleViolation,
    SealringError,
)
from sealring_protocol.security.roles import Purpose, allowed


def run(vector: Given, kinds: Kinds) -> Result:
    """The result of running *vector* by its kind in *kinds*. Raises `Mismatch` for an unknown
    kind."""
    result = Result()
    kind = kinds.get(vector["kind"])
    if kind is None:
        raise Mismatch(f"kind {vector['kind']!r} is unknown here")
    try:
        kind(vector["input"], result)
    except SealringError as error:
        result.error = error
    return result


# ----------------------------------------------------------------------- codec


def _frames(given: Given, result: Result) -> None:
    run_frames(given, [raw(given["stream"])], result)


def run_frames(given: Given, pieces: list[bytes], result: Result) -> None:
    """Feed *pieces* to a frame decoder, and drain it after each."""
    decoder = FrameDecoder({int(kind): size for kind, size in given["limits"].items()})
    found: list[Given] = []
    result.output = {"frames": found}
    for piece in pieces:
        decoder.receive_data(piece)
        while (got := decoder.next_frame()) is not None:
            found.append({"kind": got.kind, "body": bytes(got.body).hex()})
            result.released += bytes(got.body)


def _message(given: Given, result: Result) -> None:
    data = plaintext(given)
    result.output = {"fields": _both_ways(decode(data), data)}


def _local_message(given: Given, result: Result) -> None:
    data = plaintext(given)
    result.output = {"fields": _both_ways(decode_local(data), data)}


def _both_ways(message: Any, data: bytes) -> Given:
    fields = to_fields(message)
    must(b"".join(encode(message)) == data, "encoding it gives other bytes")
    must(b"".join(encode(from_fields(fields))) == data, "encoding its fields gives other bytes")
    return fields


# ------------------------------------------------------------------------ links


def _end(given: Given, result: Result) -> None:
    end = run_end(given)
    result.output, result.released, result.error = end.output(), end.released, end.error


_MESSAGES: Final[dict[str, type[Any]]] = {kind.CODE.name: kind for kind in get_args(Message)}


def _role(given: Given, result: Result) -> None:
    place = Purpose(given["purpose"]), given["sender"], given["receiver"], given["world"]
    may = allowed(*place)
    taken = {name for name in given["messages"] if _MESSAGES[name] in may}
    must(len(taken) in (0, len(given["messages"])), "some may be sent, and some may not")
    if not taken:
        result.error = RoleViolation("none of them may be sent")


# ---------------------------------------------------------------------- control


def _ledger(given: Given, result: Result) -> None:
    ledger = Ledger()
    digests: list[str] = []
    for data in given["steps"]:
        step = decode(raw(data))
        if not isinstance(step, Step):
            raise RemoteProtocolError("it is no STEP")
        result.output = _ledger_output(ledger, digests)
        result.answered = FailureKind.LEDGER
        ledger.apply(step)
        if ledger.digest(step.n) != step.digest:
            raise RemoteProtocolError("the ledger after the step is not the head's")
        result.answered = None
        digests.append(step.digest.hex())
    result.output = _ledger_output(ledger, digests)


def _ledger_output(ledger: Ledger, digests: list[str]) -> Given:
    return {
        "digests": list(digests),
        "private": {str(uid): length for uid, length in ledger.private.items()},
        "snapshots": {str(handle): length for handle, length in ledger.snaps.items()},
        "groups": {
            str(group): [_row_of(ledger, uid) for uid in rows]
            for group, rows in ledger.groups.items()
        },
    }


def _row_of(ledger: Ledger, uid: int) -> Given:
    return {"uid": str(uid), "length": ledger.length(uid), "guessed": ledger.guessed(uid)}


def _rank(given: Given, result: Result) -> None:
    result.output = {}
    run_rank(given, result.output)


def _lockstep(given: Given, result: Result) -> None:
    result.output = {}
    run_lockstep(given, result.output)


def _split(given: Given, result: Result) -> None:
    layers = [int(size) for size in given["layers"]]
    memory = [int(room) for room in given["memory"]]
    joints = Joints(tuple(given["joined"]))
    split = partition(layers, int(given["ends"]), memory, joints, given["head"])
    result.output = {"bounds": list(split.bounds)}


KINDS: Final[Kinds] = {
    **SECURITY_KINDS,
    "frames": _frames,
    "message": _message,
    "local-message": _local_message,
    "initiator": _end,
    "responder": _end,
    "role": _role,
    "ledger": _ledger,
    "rank": _rank,
    "lockstep": _lockstep,
    "split": _split,
}

ENGINE_KINDS: Final = ("sampling-key", "draw")
"""The kinds of section 11.4, which only an engine can run."""

"""How each kind of vector is run against the code, all of it in whole.

Where an input can also be made from its output (a frame sealed, a message encoded), it is, and
must come out as it was: `Mismatch` says that it did not. How a stream may be cut is in `streams`.

Two kinds are about the tokens that an engine draws, and the engine has to run them:
`ENGINE_KINDS`. Whoever has one adds them to `KINDS`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

import attrs

from sealring_protocol.codec.encoding import decode, decode_local, encode
from sealring_protocol.codec.frame import Frame, FrameDecoder
from sealring_protocol.codec.messages import Epoch, FailureKind, Message, Step
from sealring_protocol.conformance.answers import VALID, Answer, compare
from sealring_protocol.conformance.brains import run_lockstep, run_rank
from sealring_protocol.conformance.ends import Given, Mismatch, must, run_end
from sealring_protocol.conformance.fields import from_fields, read_tensor, to_fields
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.head.partition import partition
from sealring_protocol.errors import (
    RemoteProtocolError,
    RoleViolation,
    SealringError,
    wire_code,
)
from sealring_protocol.security import schedule
from sealring_protocol.security.attestation import Evidence, verify_evidence
from sealring_protocol.security.identity import SoftwareSigner, node_id, verify
from sealring_protocol.security.keys import Suite, traffic_keys
from sealring_protocol.security.roles import Purpose, allowed
from sealring_protocol.security.roster import Roster, newer, open_roster
from sealring_protocol.security.seal import (
    InnerContext,
    InnerOpener,
    InnerSealer,
    OpeningChannel,
    SealingChannel,
)


@attrs.define
class Result:
    """What came of a vector."""

    output: Any = None
    released: bytes = b""
    error: SealringError | None = None
    answered: FailureKind | None = None
    """What a rank answers instead of failing the link."""

    def compare(self, vector: Given) -> None:
        """Raise `Mismatch` unless this is what *vector* says."""
        compare(self.answer(), vector)

    def answer(self) -> Answer:
        """It as an answer to the vector."""
        result, why = VALID, ""
        if self.error is not None:
            result, why = (self.answered or wire_code(self.error)).name, str(self.error)
        return Answer(result, self.output, hashlib.sha256(self.released).hexdigest(), why)


Kinds = Mapping[str, Callable[[Given, Result], None]]
"""How each kind of vector is run: from its input to what came of it."""


def run(vector: Given, kinds: Kinds) -> Result:
    """Run *vector* by its kind in *kinds* and say what came of it."""
    result = Result()
    kind = kinds.get(vector["kind"])
    if kind is None:
        raise Mismatch(f"kind {vector['kind']!r} is unknown here")
    try:
        kind(vector["input"], result)
    except SealringError as error:
        result.error = error
    return result


def raw(value: str) -> bytes:
    """The bytes of a hex string."""
    return bytes.fromhex(value)


def plaintext(given: Given) -> bytes:
    """The plaintext of a message, with the zeros that follow it, if any."""
    return raw(given["plaintext"]) + bytes(given.get("zeros", 0))


def frame(data: bytes) -> Frame:
    """*data* as one frame."""
    return Frame(data[1], data[:8], data[8:])


# ----------------------------------------------------------------------- codec


def _frames(given: Given, result: Result) -> None:
    run_frames(given, [raw(given["stream"])], result)


def run_frames(given: Given, pieces: list[bytes], result: Result) -> None:
    """Feed a frame decoder; each piece drained before the next."""
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


# ---------------------------------------------------------------------- people


def _sign(given: Given, result: Result) -> None:
    signer = SoftwareSigner.from_scalar(int(given["scalar"], 16))
    result.output = {
        "public_key": signer.public_key.hex(),
        "node_id": node_id(signer.public_key).hex(),
        "signature": signer.sign(raw(given["message"])).hex(),
    }


def _verify(given: Given, result: Result) -> None:
    verify(raw(given["public_key"]), raw(given["signature"]), raw(given["message"]))


def _roster(given: Given, result: Result) -> None:
    data = raw(given["roster"])
    signed = open_roster(raw(given["coordinator"]), data)
    must(signed.encode() == data, "encoding it gives other bytes")
    result.output = _roster_fields(signed.roster)


def _roster_fields(roster: Roster) -> Given:
    return {
        "digest": roster.digest.hex(),
        "cluster": roster.cluster.hex(),
        "name": roster.name,
        "serial": str(roster.serial),
        "issued_ms": str(roster.issued_ms),
        "expires_ms": str(roster.expires_ms),
        "inner_seal": roster.inner_seal,
        "tensor_parallelism": roster.tensor_parallelism,
        "trust": int(roster.trust),
        "members": [
            {
                "public_key": member.public_key.hex(),
                "node_id": member.id.hex(),
                "trust": int(member.trust),
                "attestation": member.attestation.hex(),
                "name": member.name,
                "addresses": list(member.addresses),
            }
            for member in roster.members
        ],
    }


def _newer(given: Given, result: Result) -> None:
    coordinator = raw(given["coordinator"])
    current = open_roster(coordinator, raw(given["current"])).roster
    ends = [raw(end) for end in given["ends"]]
    wall_ms = int(given["wall_ms"])
    taken = newer(coordinator, current, raw(given["candidate"]), wall_ms, *ends).roster
    result.output = {"serial": str(taken.serial), "digest": taken.digest.hex()}


def _evidence(given: Given, result: Result) -> None:
    data = raw(given["evidence"])
    evidence = Evidence.decode(data)
    must(evidence.encode() == data, "encoding it gives other bytes")
    attesters = [raw(key) for key in given["attesters"]]
    subject, digest = raw(given["subject"]), raw(given["digest"])
    trust = verify_evidence(evidence, subject, digest, attesters, int(given["wall_ms"]))
    result.output = {"digest": evidence.statement.digest.hex(), "trust": int(trust)}


# ------------------------------------------------------------------------ keys


def _admission_key(given: Given, result: Result) -> None:
    key = schedule.admission_key(raw(given["cluster"]), raw(given["responder"]))
    result.output = {"key": key.hex()}


def _exchange(given: Given, result: Result) -> None:
    secrets = raw(given["ss_kem"]), raw(given["ss_x"])
    keys = schedule.key_exchange(Suite(given["suite"]), *secrets, raw(given["t2"]))
    result.output = {
        "prk": keys.prk.hex(),
        "kR": keys.responder_key.hex(),
        "mR": keys.responder_mac.hex(),
        "kI": keys.initiator_key.hex(),
        "mI": keys.initiator_mac.hex(),
    }


def _transcripts(given: Given, result: Result) -> None:
    init, resp, fin = (raw(given[name]) for name in ("init", "resp", "fin"))
    parties = raw(given["cluster"]), raw(given["responder"])
    t1 = schedule.first_transcript(Suite(given["suite"]), *parties, init)
    t3 = schedule.chain(t1, resp)
    result.output = {
        "t1": t1.hex(),
        "t2": schedule.chain(t1, resp[:1130]).hex(),
        "t3": t3.hex(),
        "t4": schedule.chain(t3, fin).hex(),
    }


def _link_secrets(given: Given, result: Result) -> None:
    keys = schedule.Exchange(Suite(given["suite"]), raw(given["prk"]), b"", b"", b"", b"")
    direction = schedule.Direction(bytes([given["direction"]]))
    parties = raw(given["sender"]), raw(given["receiver"])
    traffic, activation = schedule.link_secrets(keys, direction, *parties, raw(given["t4"]))
    result.output = {"traffic": traffic.hex(), "activation": activation.hex()}


def _traffic(given: Given, result: Result) -> None:
    secret, told = raw(given["secret"]), []
    for _ in range(3):
        keys = traffic_keys(secret)
        iv = keys.iv.to_bytes(12, "big")
        told.append({"key": keys.key.hex(), "iv": iv.hex(), "next": keys.next.hex()})
        secret = keys.next
    result.output = {"keys": told}


# ------------------------------------------------------------------------ links


def _end(given: Given, result: Result) -> None:
    end = run_end(given)
    result.output, result.released, result.error = end.output(), end.released, end.error


def _sealed(given: Given, result: Result) -> None:
    suite, secret = Suite(given["suite"]), raw(given["secret"])
    opener, sealer = OpeningChannel(suite, secret), SealingChannel(suite, secret)
    plain: list[str] = []
    result.output = {"plaintexts": plain}
    for data in given["frames"]:
        try:
            opened = opener.open(frame(raw(data)))
        except SealringError as error:
            result.error = error  # and nothing may open after it
            continue
        must(sealer.seal([opened]).hex() == data, "sealing it again gives other bytes")
        plain.append(opened.hex())
        result.released += opened


def _sealed_many(given: Given, result: Result) -> None:
    suite, secret = Suite(given["suite"]), raw(given["secret"])
    opener, sealer = OpeningChannel(suite, secret), SealingChannel(suite, secret)
    digest = hashlib.sha256()
    for _ in range(given["count"]):
        sealed = sealer.seal([b""])
        digest.update(sealed)
        must(opener.open(frame(bytes(sealed))) == b"", "what was sealed does not open")
    result.output = {"frames_sha256": digest.hexdigest()}


def _inner(given: Given, result: Result) -> None:
    suite, secret = Suite(given["suite"]), raw(given["secret"])
    opener = InnerOpener(suite, secret, raw(given["cluster"]))
    sealer = InnerSealer(suite, secret, raw(given["cluster"]))
    opened: list[str] = []
    result.output = {"elements": opened}
    for number, arrival in enumerate(given["tensors"]):
        context = InnerContext(
            Epoch(int(arrival["instance"]), int(arrival["counter"])),
            int(arrival["n"]),
            arrival["group"],
            arrival["boundary"],
            tuple(int(uid) for uid in arrival["uids"]),
        )
        tensor = read_tensor(arrival["tensor"])
        try:
            elements = opener.open(context, tensor)
        except SealringError as error:
            result.error = error  # and nothing may open after it
            continue
        if tensor.counter == number:
            again = sealer.seal(context, tensor.dtype, tensor.shape, elements)
            must(again == tensor, "sealing it again gives another tensor")
        opened.append(elements.hex())
        result.released += elements


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
            str(group): [{"uid": str(uid), "length": ledger.length(uid)} for uid in rows]
            for group, rows in ledger.groups.items()
        },
    }


def _rank(given: Given, result: Result) -> None:
    result.output = {}
    run_rank(given, result.output)


def _lockstep(given: Given, result: Result) -> None:
    result.output = {}
    run_lockstep(given, result.output)


def _split(given: Given, result: Result) -> None:
    layers = [int(size) for size in given["layers"]]
    memory = [int(room) for room in given["memory"]]
    result.output = {"bounds": list(partition(layers, int(given["ends"]), memory).bounds)}


KINDS: Final[Kinds] = {
    "frames": _frames,
    "message": _message,
    "local-message": _local_message,
    "sign": _sign,
    "verify": _verify,
    "roster": _roster,
    "newer": _newer,
    "evidence": _evidence,
    "admission-key": _admission_key,
    "exchange": _exchange,
    "transcripts": _transcripts,
    "link-secrets": _link_secrets,
    "traffic": _traffic,
    "initiator": _end,
    "responder": _end,
    "sealed": _sealed,
    "sealed-many": _sealed_many,
    "inner": _inner,
    "role": _role,
    "ledger": _ledger,
    "rank": _rank,
    "lockstep": _lockstep,
    "split": _split,
}

ENGINE_KINDS: Final = ("sampling-key", "draw")
"""Kinds of section 11.4, which only an engine can run."""

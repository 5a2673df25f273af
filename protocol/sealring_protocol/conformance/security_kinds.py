"""Runs the vectors of identities, rosters, keys and seals, for `sealring_protocol.security` alone.

If the input can also be made from the output (encoding a roster, sealing a frame), that is done as
well, and must give the same bytes.
"""

from __future__ import annotations

import hashlib
from typing import Final

from sealring_protocol.codec.fields import tensor_from_json
from sealring_protocol.codec.messages import Epoch
from sealring_protocol.conformance.ends import Given, must
from sealring_protocol.conformance.result import Kinds, Result, frame, raw
from sealring_protocol.errors import SealringError
from sealring_protocol.security import schedule
from sealring_protocol.security.attestation import Evidence, verify_evidence
from sealring_protocol.security.identity import SoftwareSigner, node_id, verify
from sealring_protocol.security.keys import Suite, traffic_keys
from sealring_protocol.security.roster import Roster, newer, open_roster
from sealring_protocol.security.seal import (
    InnerContext,
    InnerOpener,
    InnerSealer,
    OpeningChannel,
    SealingChannel,
)

# ---------------------------------------------------------------------- identities and rosters


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


# ----------------------------------------------------------------------- seals


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
        tensor = tensor_from_json(arrival["tensor"])
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


SECURITY_KINDS: Final[Kinds] = {
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
    "sealed": _sealed,
    "sealed-many": _sealed_many,
    "inner": _inner,
}

"""Runs each kind of vector against the code, uncut.

If the input can also be made from the output (sealing a frame, encoding a message), that is done as
well, and must give the same bytes; otherwise it is a `Mismatch`. `report` cuts inputs.

Two kinds test the tokens that an engine draws, so an engine has to run them (`ENGINE_KINDS`). A
caller with an engine adds them to `KINDS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from ipaddress import IPv6Address
from typing import Any, Final, get_args

from sealring_protocol.codec.encoding import decode, decode_local, encode, from_fields, to_fields
from sealring_protocol.codec.fields import tensor_from_json
from sealring_protocol.codec.frame import FrameDecoder
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Addresses,
    Bootstrap,
    CannotServe,
    Epoch,
    FailureKind,
    Hello,
    KeptCache,
    Message,
    Step,
    StepDone,
    Waiting,
)
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Drop, Reply
from sealring_protocol.codec.tensor import DType
from sealring_protocol.conformance.result import (
    Given,
    Kinds,
    Mismatch,
    Result,
    frame,
    must,
    plaintext,
    raw,
    run_end,
)
from sealring_protocol.control.effects import (
    Effect,
    PrepareCollective,
    RestartEngine,
    Send,
    Shut,
    ToEngine,
)
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.epoch.pipeline import Action, Answered
from sealring_protocol.control.epoch.tensor import TensorLeader
from sealring_protocol.control.membership import Membership
from sealring_protocol.control.plan import Joints, partition
from sealring_protocol.errors import WIRE_CODES, RemoteProtocolError, RoleViolation, SealringError
from sealring_protocol.joining import announcement
from sealring_protocol.joining.exchange import join_exchange, join_transcript
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.links.addresses import AddressBook, packed
from sealring_protocol.relay import Relay
from sealring_protocol.security import handshake as schedule
from sealring_protocol.security.identity import SoftwareSigner, node_id, verify
from sealring_protocol.security.keys import Suite, traffic_keys
from sealring_protocol.security.mandate import Certificate, Mandate
from sealring_protocol.security.roles import Purpose, allowed
from sealring_protocol.security.roster import (
    Evidence,
    Member,
    Rights,
    Roster,
    newer,
    open_roster,
    verify_evidence,
)
from sealring_protocol.security.seal import (
    InnerContext,
    InnerOpener,
    InnerSealer,
    OpeningChannel,
    SealingChannel,
)

# ---------------------------------------------------------------------- brains
# Drives the control machines through the events of a vector.
#
# `_rank` drives a follower with messages of the head and of its own engine, and with the ports
# that its node opens for a collective. `_lockstep` drives the head in one epoch of tensor
# parallelism. Both write into the output at once, so that it has what came before a refused event.


_PRESENT: Final = Hello(bytes(32), 1, DType.F32, 1, 0)


def _rank(given: Given, result: Result) -> None:
    """Run a follower whose control link is up. The output has what it sends to the head and its
    engine."""
    result.output = {"head": [], "engine": [], "restarts": 0, "told": []}
    rank = _Rank(given, result.output)
    for happens in given["course"]:
        rank.take(happens)


class _Rank:
    def __init__(self, given: Given, output: Given) -> None:
        names = tuple(f"rank {rank}" for rank in range(given["world"]))
        policy = given["inner_seal"], given["trusted"], given["tensor_parallelism"]
        rights = tuple(map(Rights, given.get("rights", ())))
        config = FollowerConfig(given["rank"], names, *policy, rights=rights)
        self._machine = Follower(config)
        self._next = (given["rank"] + 1) % given["world"]
        self._before = given["rank"] - 1
        self._prepared = NO_EPOCH
        self._output = output
        self._machine.link_up(0, Purpose.CONTROL, 0.0)

    def take(self, happens: Given) -> None:
        """Apply one event."""
        self._note(self._effects(happens))
        reasons = self._machine.standing().head_reasons
        self._output["told"] = to_fields(Waiting(tuple(reasons)))["reasons"]

    def _effects(self, happens: Given) -> list[Effect]:
        machine = self._machine
        match happens:
            case {"purpose": code, "plaintext": data}:
                purpose = Purpose(code)
                sender = 0 if purpose is Purpose.CONTROL else self._before
                message = decode(bytes.fromhex(data))
                if isinstance(message, Bootstrap):
                    ring, at = message.ring, message.rank
                    self._before, self._next = ring[at - 1], ring[(at + 1) % message.world]
                return machine.message(sender, purpose, message, 0.0)
            case {"engine": data}:
                return machine.engine_message(decode_local(bytes.fromhex(data)), 0.0)
            case {"port": port, "relay": relay}:
                return machine.collective_prepared(self._prepared, port, relay, 0.0)
            case {"tunnel": True}:
                return machine.link_up(self._next, Purpose.TUNNEL, 0.0)
            case {"lost": reason}:
                return machine.engine_lost(reason, 0.0)
        raise KeyError(f"{happens} is nothing that happens to a rank")

    def _note(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(_, Purpose.CONTROL, message):
                    self._output["head"].append(b"".join(encode(message)).hex())
                case ToEngine(message):
                    self._output["engine"].append(b"".join(encode(message)).hex())
                case RestartEngine():
                    self._output["restarts"] += 1
                case PrepareCollective(epoch):
                    self._prepared = epoch
                case Shut(_, _, code, reason):
                    raise _error(code, reason)


def _error(code: int, reason: str) -> SealringError:
    """The error whose class has the close code *code*."""
    return next(error for error, wire in WIRE_CODES.items() if wire == code)(reason)


def _lockstep(given: Given, result: Result) -> None:
    """Run the head's leader. The output has the finished steps, and what ended the epoch."""
    result.output = {"over": [], "failed": None}
    epoch = Epoch(int(given["instance"]), int(given["counter"]))
    membership = _in_epoch(epoch, given["world"])
    leader = TensorLeader(epoch, given["world"])
    for happens in given["course"]:
        _tell(_happens(leader, membership, happens), result.output)


def _in_epoch(epoch: Epoch, world: int) -> Membership:
    """A membership that is in *epoch*."""
    membership = Membership(epoch.instance, world)
    for _ in range(epoch.counter):
        membership.interrupt()
        for rank in range(world):
            membership.presented(rank, _PRESENT)
        membership.start(prepare=True)
    return membership


def _happens(leader: TensorLeader, membership: Membership, happens: Given) -> list[Action]:
    match happens:
        case {"step": data}:
            return leader.begin(_read(data, Step))
        case {"rank": rank, "answer": data}:
            message = _read(data, StepDone, CannotServe)
            if not membership.is_current(message.epoch):
                return []
            if isinstance(message, CannotServe):
                return leader.lost(message.of(rank))
            return leader.done(rank, message) if rank else leader.output(message)
        case {"wait": True}:
            return leader.drained()
    raise KeyError(f"{happens} is nothing that happens to the head")


def _tell(actions: Iterable[Action], output: Given) -> None:
    ended = [action for action in actions if isinstance(action, Answered)]
    for each in ended:
        if each.failed is None:
            output["over"].append({"n": str(each.n), "ids": list(each.ids)})
        elif output["failed"] is None:
            others = re.findall(r"; rank (\d+): ", each.failed.message)
            output["failed"] = {
                "rank": each.failed.rank,
                "kind": int(each.failed.kind),
                "others": [int(rank) for rank in others],
                "steps": [str(n) for n in sorted(e.n for e in ended if e.failed is not None)],
            }


def _read(data: str, *kinds: type[Any]) -> Any:
    message = decode(bytes.fromhex(data))
    if not isinstance(message, kinds):
        raise RemoteProtocolError(f"it is no {kinds[0].__name__}")
    return message


# ---------------------------------------------------------------------- security kinds
# Runs the vectors of identities, rosters, keys and seals, for `sealring_protocol.security` alone.
#
# If the input can also be made from the output (encoding a roster, sealing a frame), that is done
# as well, and must give the same bytes.


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
    made = roster.appointment
    appointment = made and {
        "spare": made.spare.hex(),
        "number": str(made.number),
        "coordinator": made.coordinator.hex(),
    }
    return {
        **({"appointment": appointment} if appointment else {}),
        "digest": roster.digest.hex(),
        "cluster": roster.cluster.hex(),
        "name": roster.name,
        "serial": str(roster.serial),
        "issued_ms": str(roster.issued_ms),
        "expires_ms": str(roster.expires_ms),
        "inner_seal": roster.inner_seal,
        "tensor_parallelism": roster.tensor_parallelism,
        "fixed_head": roster.fixed_head,
        "mandate": _mandate_fields(roster.mandate),
        "trust": int(roster.trust),
        "members": [
            {
                "public_key": member.public_key.hex(),
                "node_id": member.id.hex(),
                "trust": int(member.trust),
                "rights": int(member.rights),
                "attestation": member.attestation.hex(),
                "name": member.name,
                "addresses": list(member.addresses),
            }
            for member in roster.members
        ],
    }


def _mandate_fields(mandate: Mandate) -> Given:
    return {"term": str(mandate.term), "head": mandate.head, "taken": mandate.taken}


def _newer(given: Given, result: Result) -> None:
    coordinator = raw(given["coordinator"])
    current = open_roster(coordinator, raw(given["current"])).roster
    ends = [raw(end) for end in given["ends"]]
    wall_ms = int(given["wall_ms"])
    taken = newer(coordinator, current, raw(given["candidate"]), wall_ms, *ends).roster
    result.output = {
        "serial": str(taken.serial),
        "digest": taken.digest.hex(),
        "mandate": _mandate_fields(taken.mandate),
    }


def _evidence(given: Given, result: Result) -> None:
    data = raw(given["evidence"])
    evidence = Evidence.decode(data)
    must(evidence.encode() == data, "encoding it gives other bytes")
    attesters = [raw(key) for key in given["attesters"]]
    subject, digest = raw(given["subject"]), raw(given["digest"])
    trust = verify_evidence(evidence, subject, digest, attesters, int(given["wall_ms"]))
    result.output = {"digest": evidence.statement.digest.hex(), "trust": int(trust)}


def _certificate(given: Given, result: Result) -> None:
    roster = open_roster(raw(given["coordinator"]), raw(given["roster"])).roster
    data = raw(given["certificate"])
    certificate = Certificate.decode(data)
    must(certificate.encode() == data, "encoding it gives other bytes")
    keys = [member.public_key for member in roster.members]
    mandate = certificate.verify(roster.digest, keys, roster.head_indices)
    result.output = _mandate_fields(mandate)


# ------------------------------------------------------------------------ keys


def _admission_key(given: Given, result: Result) -> None:
    key = schedule.admission_key(raw(given["cluster"]), raw(given["responder"]))
    result.output = {"key": key.hex()}


def _exchange(given: Given, result: Result) -> None:
    secrets = raw(given["ss_kem"]), raw(given["ss_x"])
    keys = schedule.key_exchange(Suite(given["suite"]), *secrets, raw(given["t2"]))
    result.output = _keys_of(keys)


def _keys_of(keys: schedule.Exchange) -> Given:
    return {
        "prk": keys.prk.hex(),
        "kR": keys.responder_key.hex(),
        "mR": keys.responder_mac.hex(),
        "kI": keys.initiator_key.hex(),
        "mI": keys.initiator_mac.hex(),
    }


def _invitation(given: Given, result: Result) -> None:
    invitation = Invitation.decode(given["text"])
    result.output = {
        "addresses": list(invitation.addresses),
        "coordinator": invitation.coordinator.hex(),
        "secret": invitation.secret.hex(),
        "expires_s": invitation.expires_s,
        "text": invitation.encode(),
    }


def _join_key(given: Given, result: Result) -> None:
    invitation = Invitation(("any",), raw(given["coordinator"]), raw(given["secret"]), 0)
    result.output = {"key": invitation.admission.hex()}


def _join_exchange(given: Given, result: Result) -> None:
    suite = Suite(given["suite"])
    t1 = join_transcript(suite, raw(given["coordinator"]), raw(given["init"]))
    t2 = schedule.chain(t1, raw(given["shares"]))
    secrets = raw(given["ss_kem"]), raw(given["ss_x"]), raw(given["secret"])
    keys = join_exchange(suite, *secrets, t2)
    result.output = {"t1": t1.hex(), "t2": t2.hex(), **_keys_of(keys)}


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
    secret, updates = raw(given["secret"]), []
    for _ in range(3):
        keys = traffic_keys(secret)
        iv = keys.iv.to_bytes(12, "big")
        updates.append({"key": keys.key.hex(), "iv": iv.hex(), "next": keys.next.hex()})
        secret = keys.next
    result.output = {"keys": updates}


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
    result.take(run_frames(given, [raw(given["stream"])]))


def run_frames(given: Given, pieces: Iterable[bytes]) -> Result:
    """Feed *pieces* to a frame decoder, and drain it after each."""
    decoder = FrameDecoder({int(kind): size for kind, size in given["limits"].items()})
    found: list[Given] = []
    result = Result({"frames": found})
    try:
        for piece in pieces:
            decoder.receive_data(piece)
            while (got := decoder.next_frame()) is not None:
                found.append({"kind": got.kind, "body": bytes(got.body).hex()})
                result.released += bytes(got.body)
    except SealringError as error:
        result.error = error
    return result


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
    result.take(run_end(given))


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
    ledger = Ledger(KeptCache(int(each["number"]), each["length"]) for each in given["kept"])
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
            str(group): [
                {"uid": str(uid), "length": ledger.length(uid), "guessed": ledger.guessed(uid)}
                for uid in rows
            ]
            for group, rows in ledger.groups.items()
        },
    }


def _relay(given: Given, result: Result) -> None:
    """Run one end of an API link. The output has what it sends, and what its owner hears."""
    result.output = {"sent": [], "heard": [], "streams": 0}
    relay = Relay(asks=given["asks"])
    for move in given["course"]:
        match move:
            case {"got": data}:
                if any(event.stream for event in relay.receive(decode(raw(data)))):
                    result.output["heard"].append(data)
            case {"takes": stream, "size": size}:
                relay.took(int(stream), size)
            case {"sends": data}:
                _sends(relay, decode(raw(data)))
        result.output["sent"] += [b"".join(encode(message)).hex() for message in relay.messages()]
        result.output["streams"] = relay.streams


def _sends(relay: Relay, message: Message) -> None:
    match message:
        case Ask(question=question):
            relay.ask(question)
        case Reply(stream, status, headers):
            relay.reply(stream, status, headers)
        case BodyPart(stream, data, last):
            relay.send(stream, data, last=last)
        case Drop(stream, reason):
            relay.drop(stream, reason)
        case _:
            raise Mismatch(f"{message.CODE.name} is nothing that the owner of a stream sends")


def _addresses(given: Given, result: Result) -> None:
    world, sender, receiver = given["world"], given["sender"], given["receiver"]
    keys = (SoftwareSigner.from_scalar(1 + rank).public_key for rank in range(world))
    members = tuple(Member(key, f"rank {rank}") for rank, key in enumerate(keys))
    roster = Roster(bytes(32), "ring", 1, 0, 1, False, members)
    book = AddressBook(roster, members[receiver].id, None)
    seen = str(IPv6Address(raw(given["seen"])))
    for message in [decode(raw(each)) for each in given["plaintexts"]]:
        if not isinstance(message, Addresses):
            raise Mismatch("another message than ADDRESSES")
        book.told(members[sender].id, seen, message, 0.0)
    told = {str(rank): _pairs(book, member.id) for rank, member in enumerate(members)}
    result.output = {"told": {rank: pairs for rank, pairs in told.items() if pairs}}


def _pairs(book: AddressBook, member: bytes) -> list[Given]:
    pairs = sorted(filter(None, (packed(route.address) for route in book.routes(member))))
    return [{"ip": ip.hex(), "port": port} for ip, port in pairs]


def _announced(given: Given, result: Result) -> None:
    if "words" in given:
        text = announcement.waiting_text(given["words"])
    else:
        sealed = raw(given["coordinator"]), raw(given["nonce"])
        text = announcement.door_text(*sealed)
        if "node_id" in given:
            text = announcement.node_text(sealed[0], raw(given["node_id"]), sealed[1])
    result.output = {"text": text.hex()}


def _announcement(given: Given, result: Result) -> None:
    who: Given = {}
    match announcement.read_text(raw(given["text"])):
        case announcement.WaitingMachine(words):
            who = {"words": words}
        case announcement.Sealed() as sealed:
            members = [raw(each) for each in given["members"]]
            found = announcement.recognise(sealed, raw(given["coordinator"]), members)
            who = {"other": True} if found is None else {"member": found.hex()}
            if found == announcement.DOOR:
                who = {"door": True}
    result.output = {"who": who}


def _split(given: Given, result: Result) -> None:
    layers = [int(size) for size in given["layers"]]
    memory = [int(room) for room in given["memory"]]
    joints = Joints(tuple(given["joined"]))
    split = partition(layers, int(given["ends"]), memory, joints, given["head"])
    result.output = {"bounds": list(split.bounds)}


KINDS: Final[Kinds] = {
    "sign": _sign,
    "verify": _verify,
    "roster": _roster,
    "newer": _newer,
    "evidence": _evidence,
    "certificate": _certificate,
    "admission-key": _admission_key,
    "exchange": _exchange,
    "transcripts": _transcripts,
    "link-secrets": _link_secrets,
    "traffic": _traffic,
    "invitation": _invitation,
    "join-key": _join_key,
    "join-exchange": _join_exchange,
    "sealed": _sealed,
    "sealed-many": _sealed_many,
    "inner": _inner,
    "frames": _frames,
    "message": _message,
    "local-message": _local_message,
    "initiator": _end,
    "responder": _end,
    "joiner": _end,
    "inviter": _end,
    "role": _role,
    "ledger": _ledger,
    "rank": _rank,
    "lockstep": _lockstep,
    "relay": _relay,
    "addresses": _addresses,
    "announced": _announced,
    "announcement": _announcement,
    "split": _split,
}

ENGINE_KINDS: Final = ("sampling-key", "draw")
"""The kinds of section 11.4, which only an engine can run."""

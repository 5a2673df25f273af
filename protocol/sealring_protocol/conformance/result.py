"""The result of running a vector, and helpers that read its input."""

from __future__ import annotations

import abc
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame, FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Admit, Close, FailureKind
from sealring_protocol.conformance.files import Json, NoVectors
from sealring_protocol.errors import SealringError, wire_code
from sealring_protocol.joining.exchange import (
    Admitted,
    Host,
    Introduced,
    InviterProved,
    JoinSecrets,
    Newcomer,
)
from sealring_protocol.joining.invitation import Invitation, Invitations
from sealring_protocol.joining.session import JoinSession
from sealring_protocol.limits import MAX_SEALED_BODY
from sealring_protocol.link import Link, LinkClosed, LinkOpened, PeerProved, RosterReceived
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import (
    EncapsulationRequested,
    HandshakeConfig,
    HandshakeEvent,
    PeerVerified,
    Secrets,
    SignatureRequested,
)
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import OpeningChannel

# ---------------------------------------------------------------------- ends
# Drives one end of a link through a vector's deliveries, which may be cut into pieces.
#
# The vector answers what the link asks for: it has the scalar for signatures, and the recorded
# encapsulation. So the end sends the same bytes each time.


class Mismatch(Exception):
    """The code differs from what a vector says."""


def must(holds: bool, what: str) -> None:
    """Raise `Mismatch` unless it *holds*."""
    if not holds:
        raise Mismatch(what)


Given = dict[str, Any]
Cut = Callable[[bytes], Iterable[bytes]]


def whole(data: bytes) -> list[bytes]:
    """The delivery uncut. An empty delivery only lets time pass."""
    return [data] if data else []


class _Link(Link):
    """A link that records its secrets."""

    seen: Secrets | None = None

    def _on(self, event: HandshakeEvent) -> None:
        if isinstance(event, PeerVerified):
            self.seen = event.secrets
        super()._on(event)


class _Join(JoinSession):
    """A session that records its secrets."""

    seen: JoinSecrets | None = None

    def _seal(self, secrets: JoinSecrets) -> None:
        self.seen = secrets
        super()._seal(secrets)


class _End(abc.ABC):
    """One end of a connection, as a vector describes it. After `run` it has what was sent and
    released, and the error."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._signer = SoftwareSigner.from_scalar(int(given["scalar"], 16))
        self._asked: deque[Callable[[float], None]] = deque()
        self._sent = bytearray()
        self.messages: list[bytes] = []
        self.closed: int | None = None
        self.error: SealringError | None = None
        self._link: Link | JoinSession

    def run(self, cut: Cut = whole) -> None:
        """Deliver all of the vector's deliveries, each cut by *cut*.

        What the link asks for is answered after the whole delivery, because real answers take time.
        """
        try:
            self._flush()
            for delivery in self._given["deliveries"]:
                now = delivery["at"]
                self._link.handle_timeout(now)
                self._flush()
                for piece in cut(raw(delivery["data"])):
                    self._link.receive_data(piece, now)
                    self._take_events()
                self._answer(now)
            if self._given["end"]:
                self._link.receive_eof()
        except SealringError as error:
            self.error = error
            self._flush()

    def _suites(self) -> tuple[Suite, ...]:
        return tuple(Suite(suite) for suite in self._given["suites"])

    def _flush(self) -> None:
        self._sent += self._link.data_to_send()

    def _take_events(self) -> None:
        while (event := self._link.next_event()) is not None:
            self._on(event)
        self._flush()

    def _answer(self, now: float) -> None:
        while self._asked:
            self._asked.popleft()(now)
            self._take_events()

    def _on(self, event: Any) -> None:
        link, ask = self._link, self._asked.append
        match event:
            case SignatureRequested(payload):
                ask(lambda now: link.provide_signature(self._signer.sign(payload), now))
            case EncapsulationRequested():
                given = {k: raw(v) for k, v in self._given["encapsulation"].items()}
                ask(
                    lambda now: link.provide_encapsulation(
                        given["ciphertext"], given["secret"], now
                    )
                )
            case LinkClosed(code):
                self.closed = code
                self._asked.clear()
            case message:
                self.messages.append(b"".join(encode(message)))

    # ------------------------------------------------------------------- after

    @property
    def released(self) -> bytes:
        """All plaintext that the link released."""
        return b"".join(self.messages)

    @abc.abstractmethod
    def output(self) -> Given:
        """The vector's output: what the end sent, received and derived."""

    @abc.abstractmethod
    def _sends_under(self) -> tuple[Suite, bytes] | None:
        """The suite and the first traffic secret of what it sends, once it has them."""

    def _heard(self) -> Given:
        """What the outputs of all ends have."""
        frames, code = self._frames()
        return {
            "sent": frames,
            "told": code,
            "messages": [message.hex() for message in self.messages],
            "closed": self.closed,
        }

    def _frames(self) -> tuple[list[str], int | None]:
        """Every frame sent except a last CLOSE, and that CLOSE's code."""
        kinds = (FrameKind.HANDSHAKE, FrameKind.SEALED)
        decoder = FrameDecoder({int(kind): MAX_SEALED_BODY for kind in kinds})
        decoder.receive_data(bytes(self._sent))
        frames, code = [], None
        under = self._sends_under()
        opener = OpeningChannel(*under) if under is not None else None
        while (frame := decoder.next_frame()) is not None:
            if frame.kind == FrameKind.SEALED:
                if opener is None:
                    raise Mismatch("it sealed a frame before it had keys")
                message = decode(opener.open(frame))
                if isinstance(message, Close):
                    code = message.code
                    continue
            frames.append((frame.header + bytes(frame.body)).hex())
        must(decoder.buffered == 0, "it sent a part of a frame")
        return frames, code


class End(_End):
    """One end of a link."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._up: LinkOpened | None = None
        self._link: _Link = self._make()

    def _make(self) -> _Link:
        given = self._given
        config = HandshakeConfig(
            self._signer.public_key,
            SignedRoster.decode(raw(given["roster"])),
            raw(given["coordinator"]),
            int(given["instance"]),
            self._suites(),
        )
        wall_ms, entropy = int(given["wall_ms"]), raw(given["entropy"])
        if "peer" in given:
            peer, purpose = raw(given["peer"]), Purpose(given["purpose"])
            return _Link.dial(config, peer, purpose, 0.0, wall_ms, entropy)
        admission = Admission(0.0)
        for tag in given["seen"]:
            admission.replay.add(raw(tag))
        return _Link.accept(config, admission, "peer", 0.0, wall_ms, entropy)

    def _on(self, event: Any) -> None:
        link = self._link
        match event:
            case RosterReceived():
                self._asked.append(link.roster_stored)
            case PeerProved():
                self._asked.append(link.admit)
            case LinkOpened():
                self._up = event
            case _:
                super()._on(event)

    # ------------------------------------------------------------------- after

    def output(self) -> Given:
        """The vector's output."""
        return {**self._heard(), "link": None if self._up is None else self._secrets_of(self._up)}

    def _sends_under(self) -> tuple[Suite, bytes] | None:
        secrets = self._link.seen
        return None if secrets is None else (secrets.suite, secrets.send_traffic)

    def _secrets_of(self, up: LinkOpened) -> Given:
        secrets = self._link.seen
        if secrets is None:
            raise Mismatch("the link came up without secrets")
        hop = (secrets.send_activation, secrets.receive_activation)
        must((up.hop.send, up.hop.receive) == hop, "the hop has other secrets than the link")
        must(up.purpose is secrets.purpose, "the link came up for another purpose")
        found: Given = {
            "suite": int(up.suite),
            "peer": up.peer.hex(),
            "instance": str(up.instance),
            "purpose": int(up.purpose),
            "transcript": secrets.transcript.hex(),
        }
        for name in ("send", "receive"):
            for label in ("traffic", "activation"):
                found[f"{name}_{label}"] = getattr(secrets, f"{name}_{label}").hex()
        return found


class JoinEnd(_End):
    """One end of a join. A joiner stores what it was given at once; an inviter admits at once with
    what the vector has for that, or never."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._met: InviterProved | Introduced | None = None
        self._link: _Join = self._ask() if "invitation" in given else self._answerer()

    def _ask(self) -> _Join:
        given = self._given
        newcomer = Newcomer(
            self._signer.public_key,
            given["name"],
            given["system"],
            int(given["memory"]),
            int(given["build"]),
            tuple(given["addresses"]),
        )
        invitation = Invitation.decode(given["invitation"])
        wall_ms, entropy = int(given["wall_ms"]), raw(given["entropy"])
        return _Join.ask(invitation, newcomer, 0.0, wall_ms, entropy, self._suites())

    def _answerer(self) -> _Join:
        given = self._given
        host = Host(
            self._signer.public_key,
            SignedRoster.decode(raw(given["roster"])),
            raw(given["coordinator"]),
            self._suites(),
        )
        invitations = Invitations(0.0)
        for each in given["invitations"]:
            _keep(invitations, each)
        for tag in given["seen"]:
            invitations.answered(raw(tag))
        wall_ms, entropy = int(given["wall_ms"]), raw(given["entropy"])
        return _Join.answer(host, invitations, 0.0, wall_ms, entropy)

    def _on(self, event: Any) -> None:
        link, admit = self._link, self._given.get("admit")
        match event:
            case InviterProved():
                self._met = event
            case Introduced():
                self._met = event
                if admit is not None:
                    given = Admit(raw(admit["roster"]), admit["settings"])
                    self._asked.append(lambda now: link.admit(given, now))
            case Admitted(roster, settings):
                super()._on(Admit(roster.encoded, settings))
                self._asked.append(link.stored)
            case _:
                super()._on(event)

    # ------------------------------------------------------------------- after

    def output(self) -> Given:
        """The vector's output."""
        return {**self._heard(), "met": None if self._met is None else _told_of(self._met)}

    def _sends_under(self) -> tuple[Suite, bytes] | None:
        secrets = self._link.seen
        return None if secrets is None else (secrets.suite, secrets.send)


def _keep(invitations: Invitations, given: Given) -> None:
    """Add an invitation to which has happened what *given* says."""
    invitation = Invitation.decode(given["text"])
    invitations.add(invitation)
    for _ in range(given["tries"]):
        invitations.take(invitation)
        invitations.give_back(invitation)
    if given["busy"]:
        invitations.take(invitation)
    if given["admitted"] is not None:
        invitations.admitted(invitation, raw(given["admitted"]))
    if given["used"]:
        invitations.end(invitation, "this invitation was used")


def _told_of(met: InviterProved | Introduced) -> Given:
    """What an end knows of the other, and its secrets."""
    secrets = met.secrets
    found: Given = {
        "suite": int(secrets.suite),
        "send": secrets.send.hex(),
        "receive": secrets.receive.hex(),
    }
    if isinstance(met, InviterProved):
        digest = met.roster.roster.digest.hex()
        return {**found, "inviter": met.inviter.hex(), "roster": digest}
    newcomer = met.newcomer
    return {
        **found,
        "public_key": newcomer.public_key.hex(),
        "name": newcomer.name,
        "system": newcomer.system,
        "memory": str(newcomer.memory),
        "build": str(newcomer.build),
        "addresses": list(newcomer.addresses),
        "skew_ms": met.skew_ms,
    }


def run_end(given: Given, cut: Cut = whole) -> Result:
    """Run the end of *given* through all its deliveries, each cut by *cut*."""
    joins = "invitation" in given or "invitations" in given
    end = JoinEnd(given) if joins else End(given)
    end.run(cut)
    return Result(end.output(), end.released, end.error)


# ---------------------------------------------------------------------- answers
# The answers of an implementation to the vectors, and their comparison with the expected results.
#
# An implementation in any language can be asked. A question is a line of JSON with a vector's
# ``id``, ``kind`` and ``input``. Its answer is a line of JSON with
#
# ``id``        the vector's
# ``result``    ``valid``, or the name of the failure's class
# ``output``    the output, if the vector's kind has one
# ``released``  the SHA-256 of all plaintext released before a failure; absent if there was none
# ``why``       the failure in words, for the report
# ``skip``      instead of all but the id: why the implementation does not support this
#
# spec/vectors/README.md defines the input and the expected output of each kind.


VALID: Final = "valid"
SKIPPED: Final = ""
_NOTHING: Final = hashlib.sha256().hexdigest()


@attrs.frozen
class VectorAnswer:
    """The result of one vector."""

    result: str
    output: Json = None
    released: str = _NOTHING
    why: str = ""
    skip: str = ""


def compare(answer: VectorAnswer, vector: Mapping[str, Any]) -> None:
    """Raise `Mismatch` unless *answer* is the expected result of *vector*."""
    if vector["result"] == VALID:
        must(answer.result == VALID, f"it was refused: {answer.why or answer.result}")
    elif answer.result == VALID:
        raise Mismatch("it was taken")
    else:
        must(answer.result == vector["result"], f"it was refused as {answer.result}: {answer.why}")
        must(answer.released == vector["released"], "other plaintext was given out before")
    if "output" in vector:
        must(answer.output == vector["output"], "something else came of it")


def questions(families: Mapping[str, Iterable[Json]]) -> Iterator[str]:
    """One line of JSON for each vector of *families*, without a line end."""
    for vectors in families.values():
        for vector in vectors:
            yield json.dumps({name: vector[name] for name in ("id", "kind", "input")})


def read_answers(lines: Iterable[str]) -> dict[str, VectorAnswer]:
    """The answers in *lines*, by the vector's id. Raises `NoVectors` for a malformed or repeated
    answer."""
    answers: dict[str, VectorAnswer] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                name, answer = _read(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise NoVectors(
                    f"line {number} of the answers is none: {error}",
                    'An answer is like {"id": "frame/one", "result": "valid", "output": {...}}.',
                ) from None
            if name in answers:
                raise NoVectors(f"line {number} answers {name} again", "Answer each vector once.")
            answers[name] = answer
    return answers


def _read(line: str) -> tuple[str, VectorAnswer]:
    said = json.loads(line)
    name = str(said.pop("id"))
    return name, VectorAnswer(**({"result": SKIPPED, **said} if said.keys() == {"skip"} else said))


@attrs.define
class Result:
    """The result of running a vector."""

    output: Any = None
    released: bytes = b""
    error: SealringError | None = None
    answered: FailureKind | None = None
    """The failure that a rank answers with instead of closing the link."""

    def take(self, other: Result) -> None:
        """Take the output of *other*, what it released, and its error."""
        self.output, self.released, self.error = other.output, other.released, other.error

    def compare(self, vector: Given) -> None:
        """Raise `Mismatch` unless this is the expected result of *vector*."""
        compare(self.answer(), vector)

    def answer(self) -> VectorAnswer:
        """The result as an answer to the vector."""
        result, why = VALID, ""
        if self.error is not None:
            result, why = (self.answered or wire_code(self.error)).name, str(self.error)
        return VectorAnswer(result, self.output, hashlib.sha256(self.released).hexdigest(), why)


Kinds = Mapping[str, Callable[[Given, Result], None]]
"""By kind: runs a vector's input, and records the result."""


def raw(value: str) -> bytes:
    """The bytes of a hex string."""
    return bytes.fromhex(value)


def plaintext(given: Given) -> bytes:
    """The plaintext of a message, with its trailing zeros, if any."""
    return raw(given["plaintext"]) + bytes(given.get("zeros", 0))


def frame(data: bytes) -> Frame:
    """*data* as one frame."""
    return Frame(data[1], data[:8], data[8:])

"""One link on which this node asks another member for files, on a blocking socket of its own.

It does not pass the node: gigabytes come, and neither the event loop nor the links that steps go on
are to wait for them. It is for one thread, which may also be that of a command without an event
loop. The member's files are read in pieces, several of which are under way at a time.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final

import attrs
from sealring_model.loading.foreign_json import MEMBER_LISTING, parse_foreign
from sealring_model.loading.model_store import MAX_SIZE
from sealring_protocol.codec.messages import LISTING, Get, Message, Piece
from sealring_protocol.errors import CloseCode, RemoteProtocolError, RoleViolation, SealringError
from sealring_protocol.limits import MAX_GETS, MAX_LAYERS
from sealring_protocol.link import Link, LinkClosed, LinkOpened, RosterReceived, SignatureRequested
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, SignedRoster

from sealring_trio.clock import wall_ms
from sealring_trio.fetching.shared_files import MAX_LISTING, is_shared
from sealring_trio.units import parse_address

PIECE: Final = 256 * 1024
"""Bytes that are asked for at once. To seal so many holds the other node's event loop up."""

DIAL_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 20.0
"""Seconds that a member may take for one answer."""

_LOOK: Final = 0.25
"""Seconds after which the caller's `check` is called again."""

_ROOM: Final = 1 << 18
_ENTROPY: Final = 96


class AskFault(Exception):
    """A member gives nothing, or nothing more; the text says which and why, for people."""


@attrs.frozen
class Asker:
    """Who asks: the node with *config* (for its handshakes), which signs with *signer*. *keep*
    stores a newer roster that a member brings, or raises `AskFault`. *check* is called several
    times a second, and may raise whatever ends the asking."""

    config: HandshakeConfig
    signer: Signer
    keep: Callable[[SignedRoster], None]
    check: Callable[[], None]


class AskingLink:
    """A link of *asker* to *member*, which is dialed by `__enter__`. An error of the link or of the
    network is an `AskFault`."""

    def __init__(self, asker: Asker, member: Member) -> None:
        self.name: Final = member.name
        self._asker: Final = asker
        self._member: Final = member
        self._sock: socket.socket | None = None
        self._link: Link | None = None
        self._up = False
        self._came: deque[Piece] = deque()
        self._owed = 0  # answers

    # ------------------------------------------------------------------- life

    def __enter__(self) -> AskingLink:
        """Dial the member at its addresses in turn."""
        if not self._member.addresses:
            raise AskFault(f"{self.name} has no address in the roster")
        fault = AskFault("")
        for address in self._member.addresses:
            try:
                self._dial(address)
            except AskFault as error:
                fault = error
            else:
                return self
            finally:
                if not self._up:
                    self._drop()
        raise fault

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the link in good order."""
        with contextlib.suppress(SealringError, OSError):
            if self._link is not None and self._up:
                self._link.close(CloseCode.SHUTDOWN, "no more is asked")
                self._flush()
        self._drop()

    def _dial(self, address: str) -> None:
        now = time.monotonic()
        config, instance = self._asker.config, secrets.token_bytes(_ENTROPY)
        try:
            self._sock = socket.create_connection(parse_address(address), DIAL_SECONDS)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._link = Link.dial(
                config, self._member.id, Purpose.WEIGHTS, now, wall_ms(), instance
            )
            self._flush()
            while not self._up:
                self._turn()
        except (OSError, ValueError, SealringError) as error:
            raise AskFault(f"{self.name} at {address}: {_words(error)}") from None

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = self._link = None
        self._up = False

    # ----------------------------------------------------------------- asking

    def read(self, gets: Iterable[Get]) -> Iterator[tuple[Get, Piece]]:
        """Ask *gets*, several at a time, and give each with its answer, in order.

        Raises `AskFault` if the member refuses one, or gives less than it should. Use the link no
        more after that, or after leaving the iterator early.
        """
        rest, waiting = iter(gets), deque[Get]()
        while True:
            while len(waiting) < MAX_GETS and (get := next(rest, None)) is not None:
                self._say(get)
                waiting.append(get)
            if not waiting:
                return
            get, piece = waiting[0], self._answer()
            if piece.reason:
                raise AskFault(f"{self.name}: {piece.reason}")
            if len(piece.data) != max(0, min(get.length, piece.size - get.offset)):
                raise AskFault(f"{self.name} gives another length of {get.name} than was asked for")
            waiting.popleft()
            yield get, piece

    def content(self, name: str, limit: int, size: int | None = None) -> bytes:
        """All of the file *name*, which must have *size* bytes, if given, and at most *limit*."""
        found, first = bytearray(), Get(name, 0, PIECE)
        for _, piece in self.read([first]):
            found += piece.data
            whole = piece.size
        if size not in (None, whole) or whole > limit:
            raise AskFault(f"{self.name} tells {whole} bytes of {name or 'its listing'}")
        for _, piece in self.read(pieces(name, len(found), whole)):
            if piece.size != whole:
                raise AskFault(f"{name or 'the listing'} of {self.name} has changed meanwhile")
            found += piece.data
        return bytes(found)

    def stay(self) -> None:
        """Keep the link alive during long work: see to what has come, and do not wait."""
        try:
            self._turn(wait=False)
        except (OSError, SealringError) as error:
            raise AskFault(f"{self.name}: {_words(error)}") from None

    def _say(self, message: Message) -> None:
        try:
            if self._link is None:
                raise AskFault(f"the link to {self.name} is closed")
            self._link.send(message)
            self._owed += 1
            self._flush()
        except (OSError, SealringError) as error:
            raise AskFault(f"{self.name}: {_words(error)}") from None

    def _answer(self) -> Piece:
        until = time.monotonic() + ANSWER_SECONDS
        try:
            while not self._came:
                if time.monotonic() > until:
                    raise AskFault(f"{self.name} has given no answer for {ANSWER_SECONDS:.0f} s")
                self._turn()
        except (OSError, SealringError) as error:
            raise AskFault(f"{self.name}: {_words(error)}") from None
        return self._came.popleft()

    # ---------------------------------------------------------------- driving

    def _turn(self, *, wait: bool = True) -> None:
        """See to what the link needs, and to what has come; wait for that for a moment at most."""
        self._asker.check()
        link, sock = self._link, self._sock
        if link is None or sock is None:
            raise AskFault(f"the link to {self.name} is closed")
        due = link.next_timeout() or 0.0
        pause = max(0.001, min(_LOOK, due - time.monotonic())) if wait else 0.0
        data = None
        try:
            sock.settimeout(pause)
            data = sock.recv(_ROOM)
        except (TimeoutError, BlockingIOError):
            pass
        now = time.monotonic()
        if data:
            link.receive_data(data, now)
        elif data is not None:
            link.receive_eof()
        link.handle_timeout(now)
        while (event := link.next_event()) is not None:
            self._on(link, event, now)
        self._flush()

    def _on(self, link: Link, event: object, now: float) -> None:
        match event:
            case SignatureRequested(payload):
                link.provide_signature(self._asker.signer.sign(payload), now)
            case RosterReceived(roster):
                self._asker.keep(roster)
                link.roster_stored(now)
            case LinkOpened():
                self._up = True
            case Piece() if self._owed:
                self._owed -= 1
                self._came.append(event)
            case Piece():
                link.fail(RemoteProtocolError("PIECE without a GET"))
            case LinkClosed(_, reason):
                self._up = False
                raise AskFault(f"{self.name} has closed the link: {reason}")
            case Get():
                link.fail(RoleViolation("only the end that dials asks on a link for weights"))
            case _:
                pass

    def _flush(self) -> None:
        if self._link is not None and self._sock is not None and self._link.has_data_to_send:
            self._sock.settimeout(DIAL_SECONDS)
            self._sock.sendall(self._link.data_to_send())


def pieces(name: str, begin: int, end: int) -> Iterator[Get]:
    """What to ask for the bytes *begin* to *end* (excluded) of the file *name*."""
    for offset in range(begin, end, PIECE):
        yield Get(name, offset, min(PIECE, end - offset))


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not error.strerror:
        return "no answer"
    return getattr(error, "strerror", None) or str(error)


# ---------------------------------------------------------------------- members
# Which members are asked for files of a model, and what each says that it has.


MAX_FILES: Final = 4096
"""Files of a listing."""

MAX_TOLD: Final = 2000
"""Bytes of a text for people that has members' words in it."""

_HASH: Final = re.compile("[0-9a-f]{64}|")
_PIN: Final = re.compile("[0-9]{1,20}")


@attrs.frozen
class MemberListing:
    """What a member says that it has: *files* by size, and *tensors* by SHA-256 (empty where it
    does not know it). *pins* are those of the whole model. All of it may be a lie."""

    files: dict[str, int]
    tensors: dict[str, str]
    pins: tuple[int, ...]

    @property
    def weights(self) -> dict[str, int]:
        """The files of weights."""
        return {name: size for name, size in self.files.items() if is_weights(name)}

    @property
    def small(self) -> dict[str, int]:
        """The other files: configuration, tokenizer, manifest."""
        return {name: size for name, size in self.files.items() if not is_weights(name)}


def is_weights(name: str) -> bool:
    """Whether *name* is that of a file of weights."""
    return name.endswith(".safetensors")


@attrs.frozen
class Members:
    """The other members of the *roster* in force. This one signs with *signer*, pinned
    *coordinator* and offers *suites*. *keep* is `Asker.keep`."""

    roster: Callable[[], SignedRoster]
    coordinator: bytes
    signer: Signer
    instance: int
    keep: Callable[[SignedRoster], None]
    suites: tuple[Suite, ...] = tuple(Suite)

    def others(self) -> Iterator[Member]:
        """All other members, the head first."""
        own = node_id(self.signer.public_key)
        return (member for member in self.roster().roster.members if member.id != own)

    def head(self) -> Member | None:
        """The head; None if this node is it."""
        first = self.roster().roster.members[0]
        return None if first.id == node_id(self.signer.public_key) else first

    def link(self, member: Member, check: Callable[[], None]) -> AskingLink:
        """A link to ask *member* on. *check* is `Asker.check`. The link ends when another roster is
        in force, which may have put *member* out."""
        roster = self.roster()

        def look() -> None:
            check()
            if self.roster().roster.serial != roster.roster.serial:
                raise AskFault("another roster has come into force meanwhile")

        config = HandshakeConfig(
            self.signer.public_key, roster, self.coordinator, self.instance, self.suites
        )
        return AskingLink(Asker(config, self.signer, self.keep, look), member)


def listing_of(link: AskingLink) -> MemberListing:
    """What the member at the other end of *link* has. Raises `AskFault`."""
    try:
        return read_listing(link.content(LISTING, MAX_LISTING))
    except ValueError:
        raise AskFault(f"the listing of {link.name} makes no sense") from None


def read_listing(text: bytes) -> MemberListing:
    """The listing in *text*, without the files that may not be asked for. Raises `ValueError`."""
    try:
        value = parse_foreign(MEMBER_LISTING, text)
        files, tensors, pins = value["files"], value["tensors"], value["pins"]
        found = MemberListing(
            {name: size for name, size in files.items() if _is_file(name, size)},
            {name: told for name, told in tensors.items() if _HASH.fullmatch(told)},
            tuple(int(pin) for pin in pins if _PIN.fullmatch(pin)),
        )
    except (LookupError, TypeError, AttributeError):
        raise ValueError("a listing of another form") from None
    if len(found.files) > MAX_FILES or len(found.pins) > MAX_LAYERS + 2:
        raise ValueError("a listing of too many files or pins")
    if any(pin >= 1 << 64 for pin in found.pins):
        raise ValueError("a pin beyond its width")
    return found


def _is_file(name: str, size: object) -> bool:
    """Whether a file *name* of *size* may be asked for, and written beside others here."""
    return is_shared(name) and type(size) is int and 0 <= size <= MAX_SIZE

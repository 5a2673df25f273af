"""The other members of the roster as a source of models.

Each is asked on a link of its own (`MemberLink`), over a blocking socket. It does not pass the
node: gigabytes come, and neither the event loop nor the links that steps go on are to wait for
them. It is for one thread at a time, which may also be that of a command without an event loop. The
member's files are read in small parts, several of which are under way at a time.

The first member that gives all of a model's description decides what the model is, and the head is
asked first.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final

import attrs
from sealring_model.errors import LoadError
from sealring_model.loading import model_store
from sealring_model.loading.foreign_json import MEMBER_LISTING, bound_of, parse_foreign
from sealring_model.loading.model_store import MAX_SIZE, HubOrigin, PartialModel, WeightFile
from sealring_model.loading.weights import MANIFEST
from sealring_protocol.codec.messages import LISTING, Get, Message, Piece
from sealring_protocol.codec.wire import clip
from sealring_protocol.errors import CloseCode, RemoteProtocolError, RoleViolation, SealringError
from sealring_protocol.limits import MAX_GETS, MAX_LAYERS
from sealring_protocol.link import Link, LinkClosed, LinkOpened, RosterReceived, SignatureRequested
from sealring_protocol.links.link_manager import FINISHING
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, SignedRoster

from sealring_trio.fetching.hub import in_hub_cache
from sealring_trio.fetching.source import (
    MAX_SAID,
    FetchFault,
    Holder,
    Listing,
    Source,
    SourceReader,
    Take,
    content,
    is_shared,
    known_model,
    start_at,
    start_model,
)
from sealring_trio.units import parse_address, wall_ms

log = logging.getLogger("sealring.fetch")

PART: Final = 256 * 1024
"""Bytes that are asked for at once. To seal so many holds the other node's event loop up."""

DIAL_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 20.0
"""Seconds that a member may take for one answer."""

_LOOK: Final = 0.25
"""Seconds after which the caller's `check` is called again."""

_ROOM: Final = 1 << 18
_ENTROPY: Final = 96


MAX_LISTING: Final = bound_of(MEMBER_LISTING)[0]
"""Bytes of a listing."""

MAX_FILES: Final = 4096
"""Files of a listing."""

PAUSE: Final = 5.0
"""Seconds between two rounds of questions."""

REPEAT_SECONDS: Final = 60.0
"""Seconds after which the same reason is logged again."""

_HASH: Final = re.compile("[0-9a-f]{64}|")
_PIN: Final = re.compile("[0-9]{1,20}")

Pause = Callable[[float], None]
"""Waits for so many seconds, or raises what ends the waiting."""


@attrs.frozen
class Members(Source):
    """The other members of the *roster* in force. This one signs with *signer*, pinned
    *coordinator* and offers *suites*. *keep* stores a newer roster that a member brings, or raises
    `FetchFault`."""

    roster: Callable[[], SignedRoster]
    coordinator: bytes
    signer: Signer
    instance: int
    keep: Callable[[SignedRoster], None]
    suites: tuple[Suite, ...] = tuple(Suite)

    remembered: ClassVar[str] = "members-"

    def holders(self) -> Iterator[Holder]:
        """All other members, the head first."""
        own = node_id(self.signer.public_key)
        for member in self.roster().roster.members:
            if member.id != own:
                yield Holder(member.name, member.id, partial(MemberLink, self, member))

    def head(self) -> Holder | None:
        """The head; None if this node is it."""
        first = self.roster().roster.members[0].id
        return next((holder for holder in self.holders() if holder.id == first), None)


class MemberLink:
    """A link of *members* to *member*, which is dialed by `__enter__`. *check* is that of `Holder`.
    An error of the link or of the network is a `FetchFault`. The link ends when another roster is
    in force, which may have put *member* out."""

    def __init__(self, members: Members, member: Member, check: Callable[[], None]) -> None:
        self.name: Final = member.name
        self._members: Final = members
        self._member: Final = member
        self._check: Final = check
        self._roster: Final = members.roster()
        self._sock: socket.socket | None = None
        self._link: Link | None = None
        self._up = False
        self._came: deque[Piece] = deque()
        self._owed = 0  # answers
        self._sizes: dict[str, int] = {}  # of the files that it has listed

    # ------------------------------------------------------------------- life

    def __enter__(self) -> MemberLink:
        """Dial the member at its addresses in turn."""
        fault = FetchFault(f"{self.name} has no address in the roster")
        for address in self._member.addresses:
            try:
                with self._named(f"{self.name} at {address}"):
                    self._dial(address)
            except FetchFault as error:
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
        us, now = self._members, time.monotonic()
        config = HandshakeConfig(
            us.signer.public_key, self._roster, us.coordinator, us.instance, us.suites
        )
        entropy = secrets.token_bytes(_ENTROPY)
        self._sock = socket.create_connection(parse_address(address), DIAL_SECONDS)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = Link.dial(config, self._member.id, Purpose.WEIGHTS, now, wall_ms(), entropy)
        self._flush()
        while not self._up:
            self._turn()

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = self._link = None
        self._up = False

    @contextlib.contextmanager
    def _named(self, who: str) -> Iterator[None]:
        """Have errors of the link and of the network say *who* they come from."""
        try:
            yield
        except (OSError, ValueError, SealringError) as error:
            late = isinstance(error, TimeoutError) and not error.strerror
            words = "no answer" if late else getattr(error, "strerror", None) or str(error)
            raise FetchFault(f"{who}: {words}") from None

    # ----------------------------------------------------------------- asking

    def list(self, model: str, revision: str) -> Listing:
        """See `SourceReader.list`. A member has one model."""
        try:
            found = read_listing(self.content(LISTING, MAX_LISTING))
        except ValueError:
            raise FetchFault(f"the listing of {self.name} makes no sense") from None
        self._sizes = {name: file.size for name, file in found.files.items()}
        return found

    def read(self, origin: HubOrigin, file: str, begin: int, end: int, take: Take) -> None:
        """See `SourceReader.read`."""
        for get, piece in self.ask(parts(file, begin, end)):
            if piece.size != self._sizes.get(file, piece.size) or len(piece.data) < get.length:
                raise FetchFault(f"{self.name} has {piece.size} bytes of {file}, and listed others")
            take(bytes(piece.data))

    def content(self, name: str, limit: int) -> bytes:
        """All of the file *name*, which may have *limit* bytes."""
        found = bytearray()
        for _, piece in self.ask([Get(name, 0, PART)]):
            found += piece.data
            whole = piece.size
        if whole > limit:
            raise FetchFault(f"{self.name} has {whole} bytes of {name or 'its listing'}")
        for _, piece in self.ask(parts(name, len(found), whole)):
            if piece.size != whole:
                raise FetchFault(f"{name or 'the listing'} of {self.name} has changed meanwhile")
            found += piece.data
        return bytes(found)

    def ask(self, gets: Iterable[Get]) -> Iterator[tuple[Get, Piece]]:
        """Ask *gets*, several at a time, and give each with its answer, in order.

        Raises `FetchFault` if the member refuses one, or gives less than it should. Use the link no
        more after that, or after leaving the iterator early.
        """
        rest, waiting = iter(gets), deque[Get]()
        while True:
            while len(waiting) < MAX_GETS and (get := next(rest, None)) is not None:
                self._send(get)
                waiting.append(get)
            if not waiting:
                return
            get, piece = waiting.popleft(), self._answer()
            if piece.reason:
                raise FetchFault(f"{self.name}: {piece.reason}")
            if len(piece.data) != max(0, min(get.length, piece.size - get.offset)):
                raise FetchFault(
                    f"{self.name} gives another length of {get.name} than was asked for"
                )
            yield get, piece

    def _send(self, message: Message) -> None:
        with self._named(self.name):
            self._opened()[0].send(message)
            self._owed += 1
            self._flush()

    def _answer(self) -> Piece:
        until = time.monotonic() + ANSWER_SECONDS
        with self._named(self.name):
            while not self._came:
                if time.monotonic() > until:
                    raise FetchFault(f"{self.name} has given no answer for {ANSWER_SECONDS:.0f} s")
                self._turn()
        return self._came.popleft()

    # ---------------------------------------------------------------- driving

    def _opened(self) -> tuple[Link, socket.socket]:
        if self._link is None or self._sock is None:
            raise FetchFault(f"the link to {self.name} is closed")
        return self._link, self._sock

    def _turn(self) -> None:
        """See to what the link needs, and to what has come; wait for that for a moment at most."""
        self._check()
        if self._members.roster().roster.serial != self._roster.roster.serial:
            raise FetchFault("another roster has come into force meanwhile")
        link, sock = self._opened()
        due = link.next_timeout() or 0.0
        data = None
        with contextlib.suppress(TimeoutError, BlockingIOError):
            sock.settimeout(max(0.001, min(_LOOK, due - time.monotonic())))
            data = sock.recv(_ROOM)
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
                link.provide_signature(self._members.signer.sign(payload), now)
            case RosterReceived(roster):
                self._members.keep(roster)
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
                raise FetchFault(f"{self.name} has closed the link: {reason}")
            case Get():
                link.fail(RoleViolation("only the end that dials asks on a link for weights"))
            case _:
                pass

    def _flush(self) -> None:
        if self._link is not None and self._sock is not None and self._link.has_data_to_send:
            self._sock.settimeout(DIAL_SECONDS)
            self._sock.sendall(self._link.data_to_send())


def hand_over(members: Members, head: Member, check: Callable[[], None]) -> str:
    """Have *head* know of the roster of *members*, which makes another member the head and is not
    in force here: a link on which the roster is presented is dialed, and the head ends that. Why it
    does not have it, in words; empty if it does. *check* is that of `Holder`."""
    try:
        with MemberLink(members, head, check):
            return f"{head.name} has another roster in force"
    except FetchFault as error:
        return "" if FINISHING in str(error) else str(error)


def parts(name: str, begin: int, end: int) -> Iterator[Get]:
    """What to ask for the bytes *begin* to *end* (excluded) of the file *name*."""
    for offset in range(begin, end, PART):
        yield Get(name, offset, min(PART, end - offset))


def read_listing(text: bytes) -> Listing:
    """The listing in *text*, without the files that may not be asked for. Raises `ValueError`."""
    try:
        value = parse_foreign(MEMBER_LISTING, text)
        files, tensors, pins = value["files"], value["tensors"], value["pins"]
        found = Listing(
            {name: WeightFile(size, "") for name, size in files.items() if _is_file(name, size)},
            tensors={name: hashed for name, hashed in tensors.items() if _HASH.fullmatch(hashed)},
            pins=tuple(int(pin) for pin in pins if _PIN.fullmatch(pin)),
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


def find_with_members(model: str, members: Members, pause: Pause | None = time.sleep) -> Path:
    """The folder of *model*, "owner/name", which can be described; its weights may be to come.

    What is here already counts, unless the head has another model by now. Else the other members
    are asked, until one of them gives it, with a *pause* between two rounds; or once, without one.
    Raises `LoadError` if *model* is no such name, or nobody gives it.
    """
    name, revision = model_store.split_id(model)
    if cached := in_hub_cache(name, revision):
        return cached
    if known := known_model(name, revision, Members):
        return _as_the_head_has_it(name, revision, known, members).folder
    logged, logged_at = "", 0.0
    while True:
        try:
            return start_model(name, revision, members).folder
        except FetchFault as fault:
            words = clip(str(fault), MAX_SAID)
        if pause is None:
            raise LoadError(f"no member gives {model}: {words}")
        if words != logged or time.monotonic() - logged_at > REPEAT_SECONDS:
            logged, logged_at = words, time.monotonic()
            log.warning("waiting for a member that gives %s: %s", model, words)
        pause(PAUSE)


def _as_the_head_has_it(
    name: str, revision: str, known: PartialModel, members: Members
) -> PartialModel:
    """*known*, or what the head has if that is something else. *known* counts too if the head is
    away, or is this node."""
    head = members.head()
    if head is None:
        return known
    try:
        with head.connect(lambda: None) as link:
            if _is_same(known, link):
                return known
            log.info("%s has another %s by now", head.name, name)
            return start_at(head, link, name, revision, members)
    except FetchFault as fault:
        log.info("beginning with the %s that is here: %s", name, clip(str(fault), MAX_SAID))
        return known


def _is_same(known: PartialModel, link: SourceReader) -> bool:
    """Whether the member at the other end of *link* has the model *known*, as far as the sizes of
    its files, its configuration, its manifest and its pins say."""
    listing = link.list(known.origin.model, known.origin.revision)
    here = {file.name: file for file in known.folder.iterdir() if is_shared(file.name)}
    sizes = {name: file.stat().st_size for name, file in here.items()}
    if sizes != {name: file.size for name, file in listing.files.items()}:
        return False
    pins = zip(known.origin.pins, listing.pins, strict=False)
    if any(one and two and one != two for one, two in pins):
        return False
    decisive = (name for name in here if name in ("config.json", MANIFEST))
    return all(
        content(link, known.origin, name, 0, sizes[name]) == here[name].read_bytes()
        for name in decisive
    )

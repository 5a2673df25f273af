"""Rosters and votes on disk, which roster a node begins with, and when it expires.

Three files in the state folder hold what a restart must not lose. ``adopted.roster`` is the newest
roster that the node has used, whether a peer brought it or the config named it, with the
certificate of the head that its members elected. ``roster.mark`` holds the serial and digest of
that roster, for each cluster and coordinator. Both are on disk before a roster is used. So a node
that finds only older rosters knows it, and refuses to start: an older roster may name members that
have been put out since. The mark says nothing of elections: of those the other members know.

The mark comes second. A crash between the two leaves a roster that is above the mark, which is
right; the other way round it would leave a mark that no file can meet.

``last.vote`` holds this node's last vote in an election, for each cluster and coordinator. It is on
disk before the vote is signed: a member that forgot it might vote twice in one term, and so make
two heads. A node whose last vote cannot be read refuses to start, too.

When the roster in force expires, all links end, and none comes up before a newer one is in force.
So the log warns (`watch_expiry`) on each of the last 14 days, in the last hour, and at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs
import trio
from sealring_protocol.control.election import Ballot
from sealring_protocol.errors import RemoteProtocolError, SealringError
from sealring_protocol.limits import MAX_ELECTED
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.keys import sha256
from sealring_protocol.security.roster import (
    Roster,
    SignedRoster,
    check_succession,
    is_newer,
)
from sealring_protocol.words import lasting

from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import make_private_folder, read_file, replace_file, reserve
from sealring_trio.units import format_time

log = logging.getLogger("sealring")

KEPT: Final = "adopted.roster"
MARK: Final = "roster.mark"
VOTE: Final = "last.vote"

_MARK_TITLE: Final = "sealring roster mark 1\n"
_VOTE_TITLE: Final = "sealring last vote 1\n"
_ROOM: Final = 4096
"""Bytes of disk that are reserved for the marks, and for the votes: enough for some twenty
clusters."""

DAY: Final = 86_400.0
HOUR: Final = 3600.0
WARNING_DAYS: Final = 14
"""Days before its expiry from which each is warned of."""

_MARKS: Final = (*(days * DAY for days in range(WARNING_DAYS, 0, -1)), HOUR, 0.0)
_LOOK: Final = 60.0  # most seconds between looks at the wall clock, which may be set at any time
_PAST: Final = 0.01  # seconds by which a mark has passed when it is looked at

_ADVICE: Final = (
    "Sign it again (sealring roster renew), and give it to any one node (sealring roster install): "
    "the others take it from there"
)


def read_roster(path: Path) -> SignedRoster:
    """The signed roster at *path*; its signature is not checked yet. Raises `UserError`."""
    try:
        data, _ = read_file(path)
    except OSError as error:
        raise UserError(
            f"cannot read the roster {path}: {error.strerror}",
            "Copy it from where it was signed, or from a node: its state folder has it as "
            "adopted.roster. Only a new cluster begins with sealring roster new, add, sign.",
        ) from None
    try:
        return SignedRoster.decode(data)
    except SealringError as error:
        if data[:1].isascii() and b"[[member]]" in data:
            advice = "This is a draft. Sign it: sealring roster sign."
        else:
            advice = "Sign it again, or copy it again from where it was signed."
        raise UserError(f"{path} is not a signed roster ({error})", advice) from None


def read_verified(path: Path, coordinator: bytes) -> SignedRoster:
    """The roster at *path*, which *coordinator* has signed. Raises `UserError`."""
    signed = read_roster(path)
    try:
        signed.verify(coordinator)
    except SealringError:
        raise UserError(
            f"the roster {path} is not signed by this coordinator key, or it was changed",
            "Check which coordinator public key you were given, and copy the roster again.",
        ) from None
    return signed


@attrs.frozen
class Mark:
    """The newest roster that was used: its *serial* and *digest*."""

    serial: int
    digest: bytes


@attrs.frozen
class CastBallot:
    """The last vote: the *ballot* of the roster with *digest*."""

    digest: bytes
    ballot: Ballot


Place = tuple[bytes, bytes]
"""The cluster's id, and the id of the coordinator's key."""

Marks = dict[Place, Mark]
Votes = dict[Place, CastBallot]


class RosterStore:
    """The roster files in the folder *state* of a node whose owner pinned *coordinator*."""

    def __init__(self, state: Path, coordinator: bytes) -> None:
        self._state = state
        self._coordinator = coordinator
        self._kept = state / KEPT
        self._mark = state / MARK
        self._vote = state / VOTE

    # ------------------------------------------------------------ at the start

    def newest(self, path: Path, wall_ms: int) -> SignedRoster:
        """The roster to begin with: the one at *path*, which the config names, or a newer one that
        was adopted from a peer; of one roster, that with the later election. One that has expired
        is given only if it was in use before: the node then waits for a newer one.

        Raises `UserError` rather than give an older roster than one that was used before.
        """
        given = read_verified(path, self._coordinator)
        marks = self._marks()
        mark = marks.get(self._place(given.roster))
        kept, fault = self._read_kept(given.roster, marks)
        if mark is None and fault:
            raise UserError(
                f"cannot tell whether roster {given.roster.serial} of {path} is the newest that "
                f"this node has used: {fault}, and there is no {self._mark}",
                f"If you know that no newer roster was signed: rm {self._kept}",
            )
        best = given
        if kept is not None:
            _check_twins(path, given.roster, self._kept, kept.roster)
            roster = kept.roster
            if is_newer(given.roster, roster.serial, roster.digest, roster.mandate):
                best = kept
            else:
                _check_succession(path, given.roster, roster)
        where = path if best is given else self._kept
        if mark is not None:
            self._check_mark(mark, path, given.roster, kept, fault)
        if best.roster.expired(wall_ms):
            known = mark is not None and mark.serial == best.roster.serial
            _tell_expired(where, best.roster, wall_ms, known=known)
        elif wall_ms < best.roster.issued_ms:
            log.warning(
                "this machine's clock says %s, and roster %d was signed at %s: one of the two "
                "clocks is wrong, and peers refuse a node whose clock is",
                format_time(wall_ms),
                best.roster.serial,
                format_time(best.roster.issued_ms),
            )
        if fault:
            log.warning("%s; roster %d of the config is used", fault, best.roster.serial)
        if best.roster.serial > given.roster.serial:
            log.info(
                "using roster %d, which this node has used before; the config's (%s) is older: %d",
                best.roster.serial,
                path,
                given.roster.serial,
            )
        return best

    def _read_kept(self, given: Roster, marks: Marks) -> tuple[SignedRoster | None, str]:
        """The adopted roster, if it is of *given*'s cluster; or what is wrong with it."""
        try:
            kept = read_roster(self._kept)
        except UserError as error:
            return None, error.what if _is_there(self._kept) else ""
        mark = Mark(kept.roster.serial, kept.roster.digest)
        if kept.roster.cluster != given.cluster:
            return None, ""
        try:
            kept.verify(self._coordinator)
        except SealringError:
            others = {key for key, value in marks.items() if value == mark}
            if others - {self._place(given)}:
                return None, ""  # what another coordinator signed, which the config named once
            return None, f"the roster {self._kept} does not verify"
        return kept, ""

    def _check_mark(
        self, mark: Mark, path: Path, given: Roster, kept: SignedRoster | None, fault: str
    ) -> None:
        """Raise `UserError` if the rosters there are do not come up to *mark*."""
        found = [(path, given)] + ([(self._kept, kept.roster)] if kept is not None else [])
        for where, roster in found:
            if roster.serial == mark.serial and roster.digest != mark.digest:
                raise UserError(
                    f"{where} holds another roster {mark.serial} than the one that this node has "
                    "used: the coordinator's key has signed two with one serial",
                    "Find out who signed it. Then sign one with a greater serial (sealring roster "
                    "sign), and give it to every node.",
                )
        if max(roster.serial for _, roster in found) >= mark.serial:
            return
        there = "; ".join(f"{where} holds roster {roster.serial}" for where, roster in found)
        if kept is None:
            there += f"; {fault or f'{self._kept} is not there'}"
        raise UserError(
            f"this node has used roster {mark.serial}, and only older ones are here: {there}. An "
            "older roster may name members that have been put out, so it is not used",
            f"Copy roster {mark.serial} or a newer one to {path}. Another node has it as {KEPT} in "
            "its state folder; or sign a newer one: sealring roster renew.",
        )

    # ----------------------------------------------------------------- keeping

    def keep(self, signed: SignedRoster) -> None:
        """Write *signed*, a roster that is about to be used, to disk, and then its mark. Raises
        `OSError`, or `UserError` when the mark there cannot be read."""
        marks = self._marks()
        roster = signed.roster
        known = marks.get(self._place(roster))
        if known is not None and known.serial > roster.serial:
            return  # what is on disk is newer than what this process has heard of
        if not _holds(self._kept, signed.encode()):
            replace_file(self._kept, signed.encode(), 0o600)
        mark = Mark(roster.serial, roster.digest)
        if known != mark:
            marks[self._place(roster)] = mark
            replace_file(self._mark, _encode_marks(marks), 0o600)
        reserve(self._kept, MAX_ELECTED)
        reserve(self._mark, _ROOM)

    def begin(self, signed: SignedRoster) -> None:
        """Make the state folder, and `keep` *signed*. Raises `UserError` or `OperationError`."""
        make_private_folder(self._state)
        try:
            self.keep(signed)
        except OSError as error:
            raise OperationError(
                f"cannot keep roster {signed.roster.serial} in {self._state}: {error.strerror}",
                "A node begins only with a roster that it can remember. Put that right first.",
            ) from None
        reserve(self._vote, _ROOM)

    def _place(self, roster: Roster) -> Place:
        return roster.cluster, node_id(self._coordinator)

    def _marks(self) -> Marks:
        """The marks in the file. Raises `UserError` when it cannot be read."""
        what = "cannot tell which roster this node has used last"
        advice = (
            "Find the greatest serial among the other nodes (sealring status), and copy that "
            "roster to the file that the config names"
        )
        found: Marks = {}
        for place, (serial, digest) in _read_lines(self._mark, _MARK_TITLE, what, advice):
            found[place] = Mark(int(serial), bytes.fromhex(digest))
        return found

    # ------------------------------------------------------------------- votes

    def ballot(self, roster: Roster) -> Ballot:
        """The last vote of this node in an election of *roster*; that of term 0 if it has cast
        none. Raises `UserError` when that cannot be read."""
        cast = self._votes().get(self._place(roster))
        return cast.ballot if cast is not None and cast.digest == roster.digest else Ballot()

    def keep_ballot(self, cluster: bytes, digest: bytes, ballot: Ballot) -> None:
        """Have *ballot*, a vote that is about to be signed, on disk; it is of the roster of
        *cluster* with this *digest*. Raises `OSError`, or `UserError` when the votes there cannot
        be read."""
        votes = self._votes()
        votes[cluster, node_id(self._coordinator)] = CastBallot(digest, ballot)
        replace_file(self._vote, _encode_votes(votes), 0o600)
        reserve(self._vote, _ROOM)

    def _votes(self) -> Votes:
        """The votes in the file. Raises `UserError` when it cannot be read."""
        what = "cannot tell for whom this node has voted last"
        advice = (
            "A node that forgot its vote could vote twice in one election. Wait until the other "
            "machines agree on a head (sealring head, on one of them), or are all off"
        )
        found: Votes = {}
        for place, (digest, term, head) in _read_lines(self._vote, _VOTE_TITLE, what, advice):
            found[place] = CastBallot(bytes.fromhex(digest), Ballot(int(term), int(head)))
        return found


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _check_twins(one: Path, first: Roster, two: Path, second: Roster) -> None:
    """Raise `UserError` for two rosters with one serial."""
    if first.serial == second.serial and first.digest != second.digest:
        raise UserError(
            f"{one} and {two} are two rosters with the serial {first.serial}",
            "Find out who signed them. Then sign one with a greater serial (sealring roster sign), "
            "and give it to every node.",
        )


def _check_succession(path: Path, given: Roster, kept: Roster) -> None:
    """Raise `UserError` if *given*, at *path*, has a coordinator that *kept* does not lead to."""
    try:
        check_succession(kept.appointment, given.appointment)
    except RemoteProtocolError as error:
        raise UserError(
            f"{path} may not take the place of roster {kept.serial}, which this node has used: "
            f"{error}",
            "Whoever signed it has a coordinator's key that counts no more, or began with an old "
            "draft. Copy the newest roster of another node there; sign what follows from that "
            "(sealring roster renew).",
        ) from None


def _tell_expired(path: Path, roster: Roster, wall_ms: int, *, known: bool) -> None:
    """Raise `UserError` for an expired roster, or log it for one that was in use before."""
    when = format_time(roster.expires_ms)
    if not known:
        raise UserError(
            f"the roster {path} (serial {roster.serial}) expired on {when}",
            "Sign a new one: sealring roster renew. Also check this machine's clock: it says "
            f"{format_time(wall_ms)}.",
        )
    log.error(
        "roster %d expired on %s (this machine's clock says %s): no peer links with this node, nor "
        "it with them, until one brings a newer roster. Sign one (sealring roster renew), and "
        "give it to any one node",
        roster.serial,
        when,
        format_time(wall_ms),
    )


def _encode_marks(marks: Marks) -> bytes:
    lines = {place: f"{mark.serial} {mark.digest.hex()}" for place, mark in marks.items()}
    return _encode_lines(_MARK_TITLE, lines)


def _encode_votes(votes: Votes) -> bytes:
    lines = {
        place: f"{cast.digest.hex()} {cast.ballot.term} {cast.ballot.head}"
        for place, cast in votes.items()
    }
    return _encode_lines(_VOTE_TITLE, lines)


def _encode_lines(title: str, lines: Mapping[Place, str]) -> bytes:
    """A file of one line for each place, and their checksum."""
    found = [
        f"{cluster.hex()} {coordinator.hex()} {line}\n"
        for (cluster, coordinator), line in sorted(lines.items())
    ]
    body = "".join([title, *found]).encode()
    return body + sha256(body).hex().encode() + b"\n"


def _read_lines(
    path: Path, title: str, what: str, advice: str
) -> Iterator[tuple[Place, list[str]]]:
    """The lines of the file *path*, which `_encode_lines` gave; none where there is no file.

    Raises `UserError` when it cannot be read: *what* follows from that, and the *advice* for
    whoever is to remove it.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as error:
        raise UserError(
            f"{what}: {path}: {error.strerror}",
            "Only the user whose node it is may read that. Be that user.",
        ) from None
    except OSError as error:
        raise UserError(
            f"{what}: {path}: {error.strerror or error}", f"{advice}. Then: rm {path}"
        ) from None
    *lines, total = data.splitlines(keepends=True) or [b""]
    body = b"".join(lines)
    if not body.startswith(title.encode()) or total != sha256(body).hex().encode() + b"\n":
        raise UserError(
            f"{what}: {path}: it is not as it was written", f"{advice}. Then: rm {path}"
        )
    for line in lines[1:]:
        cluster, coordinator, *values = line.decode().split()
        yield (bytes.fromhex(cluster), bytes.fromhex(coordinator)), values


def seconds_left(roster: Roster, wall_ms: int) -> float:
    """Seconds until *roster* expires; negative once it has."""
    return (roster.expires_ms - wall_ms) / 1000


def left(roster: Roster, wall_ms: int) -> str:
    """The same for people: "88 days left", "expired 2 hours ago"."""
    seconds = seconds_left(roster, wall_ms)
    return f"{lasting(seconds)} left" if seconds > 0 else f"expired {lasting(-seconds)} ago"


class Expiry:
    """Decides when to warn: once for each mark, for each roster."""

    def __init__(self) -> None:
        self._serial = 0
        self._ahead = len(_MARKS)  # marks that were not passed at the last warning

    def due(self, roster: Roster, wall_ms: int) -> str:
        """The warning about *roster* that is due now; empty if there is none."""
        ahead = sum(seconds_left(roster, wall_ms) > mark for mark in _MARKS)
        if roster.serial != self._serial:
            self._serial, self._ahead = roster.serial, len(_MARKS)
        news, self._ahead = ahead < self._ahead, ahead
        if not news:
            return ""
        when = f"{format_time(roster.expires_ms)}, by this machine's clock"
        if not ahead:
            return (
                f"roster {roster.serial} expired on {when}: every link has ended, and none comes "
                f"up before a newer roster is here. {_ADVICE}"
            )
        return (
            f"roster {roster.serial} has {left(roster, wall_ms)}: all links end on {when}. "
            f"{_ADVICE}"
        )


def until_next(roster: Roster, wall_ms: int) -> float:
    """Seconds until `Expiry.due` is to be asked again."""
    seconds = seconds_left(roster, wall_ms)
    ahead = (seconds - mark + _PAST for mark in _MARKS if seconds > mark)
    return min((_LOOK, *ahead))


async def watch_expiry(
    roster: Callable[[], Roster], wall_ms: Callable[[], int], changed: Callable[[], trio.Event]
) -> None:
    """Log the warnings about the *roster* in force, until cancelled. *changed* gives an event that
    is set when another roster is in force."""
    expiry = Expiry()
    while True:
        newer = changed()
        if warning := expiry.due(roster(), wall_ms()):
            log.warning("%s", warning)
        with trio.move_on_after(until_next(roster(), wall_ms())):
            await newer.wait()

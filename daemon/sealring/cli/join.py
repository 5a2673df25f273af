"""`sealring join`."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
import trio
from cyclopts import Parameter
from sealring_model.loading.foreign_json import parse_foreign
from sealring_protocol.codec.messages import Build
from sealring_protocol.codec.wire import is_plain
from sealring_protocol.joining.announcement import waiting_text
from sealring_protocol.joining.exchange import Admitted, InviterProved, Newcomer, build_of
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.limits import MAX_INVITATION
from sealring_protocol.security.identity import SoftwareSigner, node_id
from sealring_protocol.words import lasting
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.models import TINY, find_model, is_hub_id

from sealring.cli.doorway import LONGEST_LINE, read_invitation, say
from sealring.cli.options import STDIN, LogFormatChoice
from sealring.cli.up import run_node
from sealring.discovery.discovery import Announced, Discovery, find_doors, may_discover
from sealring.discovery.neighbours import Nearby
from sealring.files.cluster import new_key
from sealring.files.config import DEFAULT_API, load_config
from sealring.joining.asking import JoinProgress, JoinRequest
from sealring.joining.fingerprint import fingerprint
from sealring.joining.founding import (
    DEFAULT_PORT,
    FormerMember,
    MemberFiles,
    Settings,
    check_listen,
    former_member,
    read_api,
    read_listen,
    settle,
)
from sealring.joining.machine import (
    addresses_of,
    machine_memory,
    machine_name,
    plain_name,
    system_name,
)
from sealring.logs import begin_log
from sealring.output import print_json


def _no_option(_: object, value: str) -> None:
    if value.startswith("-") and value != STDIN:
        raise ValueError("there is no such option")


def join(
    invitation: Annotated[str, Parameter(allow_leading_hyphen=True, validator=_no_option)] = STDIN,
    folder: Path | None = None,
    *,
    model: str | None = None,
    listen: str = f"0.0.0.0:{DEFAULT_PORT}",
    api: str = DEFAULT_API,
    name: str = "",
    no_discover: bool = False,
    log_format: LogFormatChoice = "text",
    json: bool = False,
) -> int:
    """Join a cluster by an invitation, and run this machine's node.

    'sealring start' or 'sealring machines invite' on a machine of the
    cluster prints what to type here:

        sealring join sr1-...

    This machine makes a key, which never leaves it, and shows it as four
    words. Whoever is at the other machine sees the same words, and says
    whether this one may join. Then it fetches its part of the model, and
    serves until Ctrl-C. One that is let in as a witness fetches nothing.

    On a machine that others use as well, every user can see what is typed.
    There, have it read from standard input, or be asked for it:

        sealring join

    While it asks, it shows this machine's four words, and announces them in
    private networks: 'sealring machines' lists them on each member there.

    Next: sealring machines list. After a restart: sealring up

    A machine that was put out of the cluster comes back in the same way. It
    keeps its key and its config; of the options only --name has an effect.

    Parameters
    ----------
    invitation
        What the other machine printed. It is read from standard input if it
        is '-' or left out.
    folder
        Where the files of this machine go; if left out the default folder,
        which is where this system keeps the configs of a user.
    model
        Folder of the model on this machine, where the cluster's is no hub id.
    listen
        Address at which other machines reach this one, HOST or HOST:PORT.
    api
        Address of the API and the page on this machine, which passes requests
        on to the head; or 'off'.
    name
        What to call this machine, in ASCII; its host name if left out.
    no_discover
        Neither announce this machine in its private networks, by multicast
        DNS, nor look there for the machine that invites, should its addresses
        have changed. The config has it so.
    json
        Print one JSON object once it has joined.
    """
    place, where, signer = MemberFiles.at(folder), read_listen(listen, DEFAULT_PORT), new_key()
    discover = not no_discover
    served = read_api(api)
    if model is not None:
        find_model(model)
    own = Path(model).resolve() if model is not None and Path(model).is_dir() else model or ""
    words = fingerprint(signer.public_key)
    given = _given(invitation, place, where, words, discover=discover, json=json)
    if given is None:
        return 130
    former = former_member(place, given.coordinator)
    if former is not None:
        where, signer, discover = former.config.listen, former.signer, former.config.discover
    settings = Settings(_called(name, former), where, served, str(own), discover=discover)
    check_listen(where)
    place.check_room()
    begin_log("info", log_format)
    if not _join(given, place, settings, signer, former, json=json):
        return 130
    config = load_config(place.config)
    if config.model == _ABSENT:
        raise OperationError(
            "this machine has joined, and does not have the cluster's model: that is a folder of "
            "another machine",
            f"Copy it to {place.folder / _ABSENT}, or name it with 'model' in {config.path}. "
            "Then: sealring up",
        )
    run_node(config)
    return 0


_ABSENT = "./model"
"""The folder, beside the config, of a model that no hub has."""


def _called(name: str, former: FormerMember | None) -> str:
    """What this machine is to be called: *name*, or as before, or as its host. Raises
    `UserError`."""
    if not name.isascii():
        raise UserError(
            f"--name {name} has letters beyond ASCII, which may look like those of another name",
            "Give a name in ASCII. A member may have any: sealring machines rename.",
        )
    before = former.name if former is not None and former.name.isascii() else ""
    return plain_name(name) or before or machine_name()


def _given(
    text: str, place: MemberFiles, where: tuple[str, int], words: str, *, discover: bool, json: bool
) -> Invitation | None:
    """The invitation in *text* or, for `STDIN`, on standard input. A person at a terminal may take
    his time: the machine, which has these *words*, waits there to be invited. None if he gives
    up. Raises `UserError`."""
    if text == STDIN and sys.stdin.isatty() and place.is_free and not json:
        return trio.run(partial(ask_invitation, words, where, discover=discover))
    if text == STDIN:
        if sys.stdin.isatty():
            print("Invitation: ", end="", file=sys.stderr, flush=True)
        text = sys.stdin.readline(2 * MAX_INVITATION).strip()
    return read_invitation(text)


def _join(
    invitation: Invitation,
    place: MemberFiles,
    settings: Settings,
    signer: SoftwareSigner,
    former: FormerMember | None,
    *,
    json: bool,
) -> bool:
    """Join with the key of *signer*, and keep what the cluster gives at *place*; False if it was
    interrupted, be it when this machine had just become a member. A *former* member keeps its key
    and its config. Raises `UserError`."""
    words = fingerprint(signer.public_key)

    def newcomer(host: str) -> Newcomer:
        return Newcomer(
            signer.public_key,
            settings.name,
            system_name(),
            machine_memory(),
            build_of(Build()),
            addresses_of(settings.listen, host),
        )

    class Told(JoinProgress):
        """Prints how it goes, and keeps the files."""

        def proved(self, cluster: InviterProved, name: str) -> None:
            roster = cluster.roster.roster
            many = len(roster.members)
            machines = "one machine" if many == 1 else f"{many} machines"
            say(f"{name} answers: {roster.name}, a cluster of {machines}", json=json)
            say(f"this machine's fingerprint is {words}", json=json)

        def waiting(self, name: str, seconds: float) -> None:
            rest = f" ({lasting(seconds)})" if seconds else ", which shows these words"
            say(f"waiting for a yes at {name}{rest}", json=json)

        def store(self, cluster: InviterProved, admitted: Admitted) -> None:
            roster = admitted.roster.roster
            member = roster.member(node_id(signer.public_key))
            if former is not None:
                former.settle(admitted.roster)
            else:
                absent = "" if member is not None and member.is_witness else _ABSENT
                kept = _with_model(settings, _told_model(admitted.settings) or absent)
                settle(place, kept, signer, cluster.coordinator, admitted.roster)
            own = settings.name if member is None else member.name
            say(f"joined {roster.name} as {own}; files: {place.folder}", json=json)
            if json:
                print_json(
                    {
                        "cluster": roster.name,
                        "name": own,
                        "fingerprint": words,
                        "config": str(place.config),
                        "members": [each.name for each in roster.members],
                    }
                )
                sys.stdout.flush()

    host, search = settings.listen[0], None
    if settings.discover and may_discover(host):
        search = partial(find_doors, host, invitation.coordinator)
    asking = JoinRequest(invitation, signer, newcomer, Told(), search)
    joined = trio.run(ask_until_signal, asking)
    if joined and asking.stopped:
        say("this machine is a member, and was stopped before it served: sealring up", json=json)
    return joined and not asking.stopped


async def ask_until_signal(asking: JoinRequest) -> bool:
    """Run *asking*; a signal stops it, in good order. Whether this machine joined, which it may
    have when the signal came. Raises `UserError`."""
    outcome: list[bool | UserError] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:

        async def run(scope: trio.CancelScope) -> None:
            try:
                outcome.append(await asking.run())
            except UserError as error:  # a nursery would wrap it
                outcome.append(error)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, nursery.cancel_scope)
            await anext(signals)
            asking.stop()
    if isinstance(outcome[0], UserError):
        raise outcome[0]
    return outcome[0]


def _told_model(settings: str) -> str:
    """The model that the inviter's *settings* name; empty if they name none that this machine can
    have."""
    try:
        told: Any = parse_foreign("a join's settings", settings.encode())
    except ValueError:
        return ""
    model = told.get("model") if isinstance(told, dict) else None
    if isinstance(model, str) and is_plain(model) and (model == TINY or is_hub_id(model)):
        return model
    return ""


def _with_model(settings: Settings, told: str) -> Settings:
    """*settings* with a model: their own, or the one that was *told*."""
    return attrs.evolve(settings, model=settings.model or told)


# ---------------------------------------------------------------------- without an invitation
# The machine shows its four words, announces them in its private networks, and says where sealring
# runs there. The invitation is still typed by a person: nothing that was announced admits anybody.


_PROMPT: Final = "Paste here what that prints: "
_MOST: Final = 8
"""Places that are shown: anybody may announce more."""


async def ask_invitation(
    words: str, listen: tuple[str, int], *, discover: bool
) -> Invitation | None:
    """The invitation that the person at the terminal pastes for this machine, which is to *listen*
    there and whose key has these *words*; None at Ctrl-C or the end of the input. Meanwhile, if it
    is to *discover*, it is announced."""
    waiting = _Uninvited()
    say(f"this machine waits to be invited. Its fingerprint is {words}", json=False)
    say("to invite it, on a machine of the cluster: sealring machines invite", json=False)
    found: list[Invitation | None] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:

        async def read(scope: trio.CancelScope) -> None:
            found.append(await waiting.read())
            scope.cancel()

        async with trio.open_nursery() as nursery:
            if discover and may_discover(listen[0]):
                discovery = Discovery(listen[0], waiting.heard)
                discovery.announce(Announced(lambda _: waiting_text(words), listen[1]))
                nursery.start_soon(discovery.run)
            nursery.start_soon(read, nursery.cancel_scope)
            await anext(signals)
            nursery.cancel_scope.cancel()
    return found[0] if found else None


class _Uninvited:
    """The terminal of a machine that waits."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def heard(self, found: Nearby) -> None:
        """Say where sealring runs here, each place once."""
        for host in dict.fromkeys(host for host, _ in found.others):
            if host not in self._seen and len(self._seen) < _MOST:
                self._seen.add(host)
                print()
                say(f"sealring runs at {host}: whoever runs it can invite you", json=False)
                print(_PROMPT, end="", flush=True)

    async def read(self) -> Invitation | None:
        """The invitation that is pasted; what is none is asked for again."""
        terminal = sys.stdin.fileno()
        while True:
            print(_PROMPT, end="", flush=True)
            await trio.lowlevel.wait_readable(terminal)
            line = os.read(terminal, LONGEST_LINE)
            if not line:
                print()
                return None
            if not line.strip():
                continue
            try:
                return read_invitation(line.decode(errors="replace").strip())
            except UserError as error:
                say(f"{error.what}. {error.advice}", json=False)

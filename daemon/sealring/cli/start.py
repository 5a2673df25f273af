"""`sealring start`."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sealring_trio.errors import UserError
from sealring_trio.files.key_files import is_there
from sealring_trio.files.models import TINY
from sealring_trio.units import format_address

from sealring.cli.doorway import (
    QUESTION,
    ask_person,
    decided_where,
    describe_newcomer,
    join_command,
    late_answer,
    print_invitation,
)
from sealring.cli.options import LogFormatChoice
from sealring.cli.up import run_node
from sealring.files.config import DEFAULT_API, Config, load_config
from sealring.joining.founding import (
    DEFAULT_PORT,
    MemberFiles,
    Settings,
    check_start,
    found,
    read_api,
    read_listen,
    undo,
)
from sealring.joining.machine import machine_name, plain_name
from sealring.logs import begin_log
from sealring.output import print_facts, print_json, visible

if TYPE_CHECKING:
    from sealring_protocol.joining.invitation import Invitation
    from sealring_protocol.security.roster import Roster

    from sealring.joining.door import Door, Knock


log = logging.getLogger("sealring")


def start(
    folder: Path | None = None,
    *,
    model: str = TINY,
    listen: str = f"0.0.0.0:{DEFAULT_PORT}",
    api: str = DEFAULT_API,
    name: str = "",
    yes: bool = False,
    no_discover: bool = False,
    log_format: LogFormatChoice = "text",
    json: bool = False,
) -> None:
    """Make a cluster of this machine, serve, and invite another machine.

    It makes the keys, the roster and the config, runs the node until Ctrl-C,
    and prints what to type on the other machine:

        sealring start
        sealring start --model mlx-community/Llama-3.2-1B-Instruct-bf16

    When a machine knocks, you see its name and its key as four words, and
    say whether it may join. That machine shows the same words.

    Next: sealring machines invite, for one more. After a restart: sealring up

    Parameters
    ----------
    folder
        Where the files of this machine go; if left out the default folder,
        which is where this system keeps the configs of a user.
    model
        Folder of a model, or its hub id; the one that ships with sealring if
        left out.
    listen
        Address at which other machines reach this one, HOST or HOST:PORT.
        Those that join knock at the next port. With 127.0.0.1 all machines
        are processes of this one.
    api
        Address of the API and the page, or 'off'.
    name
        What to call this machine; its host name if left out.
    yes
        Let in whoever brings the invitation, without asking.
    no_discover
        Neither announce this machine in its private networks, by multicast
        DNS, nor look there for others. The config has it so.
    json
        Print one JSON object once it serves, and ask nothing.
    """
    place = MemberFiles.at(folder)
    place.check_free()
    where = read_listen(listen, DEFAULT_PORT)
    called = plain_name(name) or machine_name()
    settings = Settings(called, where, read_api(api), _model(model), discover=not no_discover)
    check_start(where, settings.api)
    begin_log("info", log_format)
    kept = is_there(place.kept)
    if not json and log_format == "text" and sys.stdin.isatty() and sys.stderr.isatty():
        # The question and what follows it say the same.
        logging.getLogger("sealring.newcomers").setLevel(logging.WARNING)
    found(place, settings)
    greeter = _Greeter(place, yes=yes, json=json)
    try:
        config = load_config(place.config)
        run_node(config, beside=partial(greeter.greet, config))
    finally:
        if not greeter.up:
            if not kept:
                shutil.rmtree(place.kept, ignore_errors=True)
            undo(place)


def _model(given: str) -> str:
    """*given* as a config in another folder names it."""
    return str(Path(given).resolve()) if Path(given).is_dir() else given


class _Greeter:
    """Prints where the cluster is and how to join it, and asks about who knocks."""

    def __init__(self, place: MemberFiles, *, yes: bool, json: bool) -> None:
        self._place = place
        self._yes = yes
        self._json = json
        self._at = "" if place.is_default else f" --config {place.config}"
        self._invite = f"sealring machines invite{self._at}"
        self._accept = f"sealring machines accept{self._at}"
        self.up = False

    async def greet(self, config: Config, door: Door) -> None:
        """Do so for the node of *config*, until cancelled."""
        self.up = True
        with door.news() as news:
            invitation = await door.invite()
            self._announce(config, door.roster.roster, invitation)
            if not self._yes and (self._json or not sys.stdin.isatty()):
                return
            async for each in news:
                if each.kind == "knock" and each.knock is not None:
                    await self._decide(config, door, each.knock)

    def _announce(self, config: Config, roster: Roster, invitation: Invitation) -> None:
        text, member, base = invitation.encode(), roster.members[0], _base(config)
        if self._json:
            print_json(
                {
                    "cluster": roster.name,
                    "name": member.name,
                    "api": f"{base}/v1" if base else None,
                    "page": f"{base}/" if base else None,
                    "config": str(config.path),
                    "coordinator_key": str(self._place.coordinator_key),
                    "invitation": text,
                    "command": join_command(text),
                    "expires_s": invitation.expires_s,
                }
            )
            sys.stdout.flush()
            return
        facts = [
            ("cluster", f"{roster.name}, of one machine: {member.name}"),
            ("reached at", " or ".join(member.addresses)),
            ("model", config.model),
            *([("API", f"{base}/v1"), ("page", f"{base}/")] if base else []),
            ("files", str(self._place.folder)),
        ]
        print_facts(facts)
        print(
            f"\nWho belongs to {roster.name} is signed by the coordinator's key, which lies on "
            f"this machine: {self._place.coordinator_key}"
        )
        print_invitation(text, invitation.expires_s, config.model)
        if not self._yes and sys.stdin.isatty():
            print("When it knocks, this terminal shows its key and asks whether it may join.")

    async def _decide(self, config: Config, door: Door, knock: Knock) -> None:
        """Have *knock* admitted or refused, as a person says here or elsewhere."""
        text = describe_newcomer(knock.facts())
        if self._yes:
            self._say(f"{text}: it may (--yes)")
        else:
            match await ask_person(text + QUESTION, knock.over):
                case "settled":
                    self._say(self._settled(knock))
                    if not knock.joined:
                        await late_answer()
                    return
                case "absent":  # the node outlives its terminal
                    log.info("nobody is asked here now. Say who may join: %s", self._accept)
                    return
                case "no":
                    self._refuse(door, knock)
                    return
        try:
            await door.accept(knock)
        except UserError as error:
            self._say(f"{error.what}. {error.advice}")
            return
        self._say_member(_base(config), door, knock)

    def _refuse(self, door: Door, knock: Knock) -> None:
        try:
            door.refuse(knock)
        except UserError as error:  # it was accepted elsewhere a moment ago
            self._say(f"{error.what}. {error.advice}")
            return
        self._say(f"{knock.name} was refused. For another invitation: {self._invite}")

    def _settled(self, knock: Knock) -> str:
        """What became of *knock* while its question stood here."""
        if knock.joined:
            return f"{knock.name} was let in {decided_where(knock.by)}"
        if knock.refused:
            return f"{knock.name} was refused {decided_where(knock.by)}"
        why = f": {knock.why}" if knock.why else ""
        return f"{knock.name} has left before it joined{why}"

    def _say_member(self, base: str, door: Door, knock: Knock) -> None:
        """*knock* has joined: say so, and what to do next."""
        roster = door.roster.roster
        self._say(f"{knock.name} is a member: {roster.name} has {len(roster.members)} machines")
        steps = [f"  sealring status{self._at}"]
        if base:
            url = "" if base == f"http://{DEFAULT_API}" else f" --url {base}"
            steps += [f"  sealring chat{url}", f"  the page: {base}/"]
        steps.append(f"  {self._invite}")
        self._say("Next, in another terminal:\n" + "\n".join(steps))

    def _say(self, text: str) -> None:
        if not self._json:
            with contextlib.suppress(OSError):  # whoever started it has gone; --yes still holds
                print(visible(text), flush=True)


def _base(config: Config) -> str:
    """The URL of the node of *config*, where the API and the page are; empty if it has none."""
    if config.api is None:
        return ""
    return f"{'http' if config.tls is None else 'https'}://{format_address(*config.api)}"

"""`sealring machines list | invite | accept | refuse`: who belongs to the cluster, and who may.

What changes machines that are members already is in `members`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import attrs
import cyclopts
import trio
from cyclopts import Parameter
from sealring_protocol.diagnosis import ADVICE, Cause
from sealring_protocol.security.roster import Member, Rights, TrustLevel
from sealring_trio.errors import OperationError, UserError
from sealring_trio.units import wall_ms

from sealring.cli import members
from sealring.cli.doorway import (
    QUESTION,
    ask_person,
    decided_where,
    describe_newcomer,
    join_command,
    late_answer,
    print_invitation,
    say,
)
from sealring.cli.members import (
    AS_CONFIGURED,
    ClusterChange,
    OwnCluster,
    found_beside,
    have_members,
    print_rights,
    read_cluster,
    read_signer,
)
from sealring.cli.options import AsJson, OwnConfig
from sealring.files.cluster import describe_rights, rights_of, sign_next
from sealring.files.config import Config, own_config
from sealring.joining.fingerprint import fingerprint
from sealring.local.node_socket import answer_of, ask
from sealring.output import print_json, print_table, visible

HELP = """\
Show and change which machines belong to the cluster.

    sealring machines
    sealring machines invite
    sealring machines accept den
    sealring machines rename den attic
    sealring machines remove attic

Next, on the machine that was invited: sealring join. To begin a cluster:
sealring start
"""

app = cyclopts.App(name="machines", help=HELP)
for _command in (
    *(members.remove, members.replace, members.move, members.heads, members.rights),
    *(members.rename, members.address),
):
    app.command(_command)

_JOIN_SECONDS = 60.0
"""Seconds that a machine that was accepted may take to join."""

_WITH_KEY = " --key FILE"
"""What `machines accept` needs where the coordinator's key is not on this machine."""

Minutes = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=1, lte=10080))]


@app.default
@app.command(name="list")
def list_(*, config: OwnConfig = None, json: AsJson = False) -> None:
    """Show the machines of the cluster, in rank order: the first is the head.

    If this machine's node runs, it says which of them are up, and where those
    answer that have moved; those that wait to be let in follow; then those of
    this private network that wait to be invited ('sealring join' without an
    invitation).
    """
    cluster = read_cluster(config, settled=False)
    roster, own = cluster.roster.roster, cluster.own
    waiting = _waiting(cluster.config) if cluster.running else []
    uninvited = _uninvited(cluster.config, waiting) if cluster.running else []
    status = answer_of(cluster.config.control_socket, "status") if cluster.running else None
    states, moved = _states(cluster, status), found_beside(status)
    out = [name for name, state in states.items() if state == _PUT_OUT]
    if json:
        machines = [
            {
                "rank": rank,
                "name": member.name,
                "fingerprint": fingerprint(member.public_key),
                "addresses": list(member.addresses),
                "answers_beside": moved.get(member.name, []),
                "here": member.id == own,
                "state": states[member.name],
                **describe_rights(member),
            }
            for rank, member in enumerate(roster.members)
        ]
        lists = {"machines": machines, "waiting": waiting, "uninvited": uninvited}
        print_json({"cluster": roster.name, **lists})
        return
    print_table(
        f"machines of {roster.name}",
        ["rank", "name", "state", "fingerprint", "addresses"],
        [
            (
                str(rank),
                f"{member.name} (this one)" if member.id == own else member.name,
                states[member.name] or "-",
                fingerprint(member.public_key),
                " ".join(member.addresses)
                + "".join(f", now {each}" for each in moved.get(member.name, [])),
            )
            for rank, member in enumerate(roster.members)
        ],
        numbers_from=9,
    )
    print_rights({"name": member.name, **describe_rights(member)} for member in roster.members)
    if out:
        print(
            f"\nThis machine was put out of {roster.name}: {' and '.join(map(visible, out))} "
            f"{'has' if len(out) == 1 else 'have'} a newer roster without it, and what is above is "
            f"the last that it was shown. {ADVICE[Cause.NOT_A_MEMBER]}"
        )
    for each in waiting:
        accept = f"sealring machines accept {each['fingerprint']}"
        admitted = each.get("state") == "admitted"  # a node may be older
        then = "it was let in, and stores its roster" if admitted else accept
        print(f"\n{describe_newcomer(each)}: {then}")
    for each in uninvited:
        at = " or ".join(each["hosts"])
        print(
            f"\nfingerprint {each['fingerprint']} announces at {at} that it waits to be invited: "
            "sealring machines invite"
        )


@app.command
def invite(
    *,
    minutes: Minutes = 10,
    config: OwnConfig = None,
    key: Path | None = None,
    yes: bool = False,
    json: bool = False,
) -> None:
    """Invite a machine: print what to type there, and ask here whether it may join.

    The node of this machine must run. Without a terminal it prints the
    invitation and ends; the machine then waits for: sealring machines accept

    Parameters
    ----------
    minutes
        How long the invitation is good. It lets one machine in.
    key
        The coordinator's private key; the config's 'coordinator_key' if left
        out.
    yes
        Let in whoever brings the invitation, without asking.
    json
        Print one JSON object, and end, unless --yes is given.
    """
    settings = own_config(config)
    at = "" if config is None else f" --config {config}"
    if (why := _cannot_sign(read_cluster(settings.path), key)) is not None:
        if yes or key is not None:
            raise why
        hint = f"To let in a machine that waits: sealring machines accept NAME{at}{_WITH_KEY}"
        say(f"{why.what}. {hint}", json=json)
    if yes or (not json and sys.stdin.isatty()):
        hints = (at, "" if why is None else _WITH_KEY)
        _watch(settings, minutes, key, hints, yes=yes, json=json)
        return
    fields = {"seconds": minutes * 60, "watch": False}
    for event in ask(settings.control_socket, "invite", fields):
        _print_invited(settings.model, event, json=json)
        if not json:
            print("When it has knocked: sealring machines accept")


def _print_invited(model: str, event: dict[str, Any], *, json: bool) -> None:
    """Print what the node, which has *model*, says of a new invitation."""
    if json:
        print_json({**event, "command": join_command(event["invitation"])})
        sys.stdout.flush()
    else:
        print_invitation(event["invitation"], event["expires_s"], model)


def _cannot_sign(cluster: OwnCluster, key: Path | None) -> UserError | None:
    """Why nothing can be signed with *key*, or the key that lies with *cluster*, if so."""
    try:
        read_signer(cluster, key)
    except UserError as error:
        return error
    return None


def _watch(
    settings: Config,
    minutes: int,
    key: Path | None,
    hints: tuple[str, str],
    *,
    yes: bool,
    json: bool,
) -> None:
    """Invite, and ask about each newcomer, until one has joined or none can. Raises `UserError`, or
    `KeyboardInterrupt` at Ctrl-C."""

    def decide(who: str, accepted: bool) -> None:
        if accepted:
            _accept(settings, who, key, Rights.TEXT)
        else:
            answer_of(settings.control_socket, "refuse", {"who": who})

    show = partial(_print_invited, settings.model, json=json)
    inviting = Inviting(decide, show, hints=hints, yes=yes, json=json)
    fields = {"seconds": minutes * 60, "watch": True}
    trio.run(inviting.run, ask(settings.control_socket, "invite", fields))
    if inviting.fault is not None:
        raise inviting.fault
    if inviting.interrupted:
        raise KeyboardInterrupt


@app.command
def accept(
    who: str = "",
    *,
    witness: Annotated[bool, Parameter(negative="")] = False,
    no_text: Annotated[bool, Parameter(negative="")] = False,
    change: ClusterChange = AS_CONFIGURED,
) -> None:
    """Let in a machine that waits: WHO, or the only one.

    Compare its fingerprint with what it shows on its own screen:

        sealring machines list
        sealring machines accept den
        sealring machines accept pi --witness --no-text

    What it may see and do can be changed later: sealring machines rights

    Parameters
    ----------
    who
        Its name, its fingerprint, or the beginning of its id.
    witness
        It is a witness: in no ring, and without a model and an engine.
    no_text
        It may see no texts, and is never the head.
    """
    rights = rights_of(text=not no_text, witness=witness)
    done = _accept(own_config(change.config), who, change.key, rights)
    if change.json:
        print_json(done)
        return
    print(f"{visible(done['name'])} is a member now, of roster {done['serial']}")


@app.command
def refuse(who: str = "", *, config: OwnConfig = None, json: AsJson = False) -> None:
    """Send a machine away that waits: WHO, or the only one. Its invitation is over.

    Parameters
    ----------
    who
        Its name, its fingerprint, or the beginning of its id.
    """
    done = answer_of(own_config(config).control_socket, "refuse", {"who": who})
    if json:
        print_json(done)
        return
    print(f"{visible(done['name'])} was refused. For another: sealring machines invite")


_PUT_OUT = "put us out"
"""The state of a machine that has a newer roster, without this one."""


def _states(cluster: OwnCluster, status: Mapping[str, Any] | None) -> dict[str, str]:
    """How each machine is, by its name, as far as the node here knows, by its *status*; empty for
    what it does not. The head has a link with each that is up, and another machine with some."""
    states = {member.name: "" for member in cluster.members}
    if status is None:
        return states
    states[status["name"]] = "up"
    for peer in status["peers"]:
        if peer["put_out"]:
            state = _PUT_OUT
        elif any(peer[link] for link in ("control", "step", "tunnel")):
            state = "up, left out" if peer.get("outside") else "up"
        else:
            state = "away" if status["role"] == "head" else ""
        states[peer["name"]] = state
    return states


def _waiting(settings: Config, who: str = "") -> list[dict[str, Any]]:
    """Those that wait, or of them those that *who* means. Raises `UserError`."""
    return list(answer_of(settings.control_socket, "waiting", {"who": who})["waiting"])


def _uninvited(settings: Config, waiting: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The machines of this network that have no invitation, and want one; without those that are
    *waiting* already."""
    try:
        answer = answer_of(settings.control_socket, "nearby")
    except UserError:  # the node runs an earlier release
        return []
    knocked = {each["fingerprint"] for each in waiting}
    return [each for each in answer["waiting"] if each["fingerprint"] not in knocked]


def _accept(settings: Config, who: str, key: Path | None, rights: Rights) -> dict[str, Any]:
    """Have the node let *who* in with *rights*; what it answers. With a *key* the roster is signed
    here. Raises `UserError`."""
    unusual = {} if Rights.TEXT in rights else {"text": False}
    if Rights.WITNESS in rights:
        unusual["witness"] = True  # a node of an earlier release refuses what it does not know
    fields = {"who": who, **unusual} if key is None else _signed(settings, who, key, rights)
    done = answer_of(settings.control_socket, "accept", fields, _JOIN_SECONDS)
    if key is not None and not done["installed"]:
        # Another roster came in force while the newcomer stored this one.
        cluster, member = read_cluster(settings.path), _member(done, rights)
        if cluster.roster.roster.member(member.id) is None:
            done["serial"] = have_members(cluster, (*cluster.members, member), key).serial
    return done


def _signed(settings: Config, who: str, key: Path, rights: Rights) -> dict[str, Any]:
    """A roster with *who* in it, who has *rights*, signed with *key*; and whom it means. Raises
    `UserError`."""
    cluster = read_cluster(settings.path)
    signer = read_signer(cluster, key)
    meant = _waiting(settings, who)
    if len(meant) != 1:
        return {"who": who}  # the node says what is wrong
    (facts,) = meant
    members = (*cluster.members, _member(facts, rights))
    signed = sign_next(cluster.roster, members, signer, wall_ms(), cluster.spent)
    return {"who": facts["visit"], "roster": signed.encode().hex()}


def _member(facts: Mapping[str, Any], rights: Rights) -> Member:
    """The member that the newcomer of *facts* is to be, with *rights*."""
    key, addresses = bytes.fromhex(facts["public_key"]), tuple(facts["addresses"])
    return Member(key, facts["name"], addresses, TrustLevel.SOFTWARE, rights=rights)


# ---------------------------------------------------------------------- inviting
# What a terminal that has invited a machine shows and asks, until one has joined. The node reports
# who knocks, and what becomes of that, also where another terminal decides. Each newcomer is a
# question of its own, by its node id: when it leaves, its question ends, and the next newcomer gets
# another.


@attrs.define(eq=False)
class _Newcomer:
    """A newcomer that waits; *facts* is what `Knock.facts` gives."""

    facts: dict[str, Any]
    decided: bool = False  # here
    settled: trio.Event = attrs.field(factory=trio.Event)

    @property
    def name(self) -> str:
        return str(self.facts["name"])


class Inviting:
    """Shows an invitation by *show*, and has *decide* called, in a thread, with the id of a
    newcomer's visit and whether it may join. With *yes* each may. *hints* are the options by
    which commands find the node, and by which `machines accept` finds the key."""

    def __init__(
        self,
        decide: Callable[[str, bool], None],
        show: Callable[[dict[str, Any]], None],
        *,
        hints: tuple[str, str],
        yes: bool,
        json: bool,
    ) -> None:
        self._decide = decide
        self._show = show
        at, signs = hints
        self._accept = f"{at}{signs}"
        self._invite = f"sealring machines invite{at}"
        self._yes = yes
        self._json = json
        self._waiting: dict[str, _Newcomer] = {}  # by node id
        self._terminal = trio.Lock()
        self.fault: UserError | None = None
        self.interrupted = False
        self._shown = False

    async def run(self, events: Iterator[dict[str, Any]]) -> None:
        """Follow *events*, those of the node, until a machine has joined, none can, or Ctrl-C."""
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:

                async def follow() -> None:
                    await self._follow(events, nursery)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(follow)
                await anext(signals)
                self.interrupted = True
                nursery.cancel_scope.cancel()
        if self.interrupted:
            for newcomer in self._waiting.values():
                if not newcomer.decided:
                    print(file=sys.stderr)
                    self._say(self._waits(newcomer))

    # ----------------------------------------------------------------- inside

    async def _follow(self, events: Iterator[dict[str, Any]], nursery: trio.Nursery) -> None:
        """Act on each of *events*. Returns when there is nothing to wait for any more."""
        step = partial(next, events, None)
        try:
            while (
                event := await trio.to_thread.run_sync(step, abandon_on_cancel=True)
            ) is not None:
                if await self._act(event, nursery):
                    return
        except OperationError as error:
            what = "this machine's node does not run any more, and its invitation is over"
            advice = f"Start it: sealring up. Then: {self._invite}"
            self.fault = OperationError(what, advice) if self._shown else error
        except UserError as error:
            self.fault = error

    async def _act(self, event: dict[str, Any], nursery: trio.Nursery) -> bool:
        """Act on *event*; whether nothing can follow."""
        match event["event"]:
            case "invitation":
                self._shown = True
                self._show(event)
            case "knock":
                newcomer = self._waiting[event["id"]] = _Newcomer(event)
                nursery.start_soon(self._ask, newcomer)
            case "joined":
                by = "" if self._decided(event) else f", let in {decided_where(event['by'])}"
                await self._settle(event, f"{event['name']} is a member now{by}")
                return True
            case "refused":
                at = "" if self._decided(event) else f" {decided_where(event['by'])}"
                text = f"{event['name']} was refused{at}. For another invitation: {self._invite}"
                await self._settle(event, text)
                return True
            case "left":
                await self._settle(event, event["text"])
                if not self._yes:
                    await late_answer()
            case "over":
                self._say(
                    f"nobody can join by this invitation any more: {event['why']}. For another: "
                    f"{self._invite}"
                )
            case _:
                self._say(event["text"])
        return False

    def _decided(self, event: dict[str, Any]) -> bool:
        newcomer = self._waiting.get(event["id"])
        return newcomer is not None and newcomer.decided

    async def _settle(self, event: dict[str, Any], text: str) -> None:
        """End the question about the newcomer of *event*, and say what became of it."""
        newcomer = self._waiting.pop(event["id"], None)
        if newcomer is not None:
            newcomer.settled.set()
        async with self._terminal:
            self._say(text)

    async def _ask(self, newcomer: _Newcomer) -> None:
        """Let *newcomer* in or not, as the person says."""
        text = describe_newcomer(newcomer.facts)
        if self._yes:
            self._say(f"{text}: it may (--yes)")
            answer = "yes"
        else:
            async with self._terminal:
                answer = await ask_person(f"sealring: {text}{QUESTION}", newcomer.settled)
        if answer == "absent":
            self._say(self._waits(newcomer))
        if answer not in ("yes", "no"):
            return
        newcomer.decided = True
        decide = partial(self._decide, newcomer.facts["visit"], answer == "yes")
        try:
            await trio.to_thread.run_sync(decide, abandon_on_cancel=True)
        except UserError as error:
            newcomer.decided = False
            self._say(f"{error.what}. {error.advice}")
            if not newcomer.settled.is_set():
                self._say(self._waits(newcomer))

    def _waits(self, newcomer: _Newcomer) -> str:
        words = newcomer.facts["fingerprint"]
        return f"{newcomer.name} still waits: sealring machines accept {words}{self._accept}"

    def _say(self, text: str) -> None:
        say(text, json=self._json)

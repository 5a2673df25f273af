"""`sealring machines remove | replace | move | heads | rights | rename | address`: each changes the
roster in force, signs what follows it, and installs that at the node that runs here.

The roster is the running node's; where none runs, the newest in the state folder and the config.
There the new one goes to the file that the config names, and the node hands it on when it starts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
from cyclopts import Parameter
from sealring_protocol.links.link_manager import HEAD_FIRST
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.roster import (
    NO_EVIDENCE,
    Member,
    Rights,
    Roster,
    SignedRoster,
    TrustLevel,
)
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import read_key, read_public_key, replace_file
from sealring_trio.files.rosters import RosterStore
from sealring_trio.units import format_time, wall_ms

from sealring.cli.options import AsJson, OwnConfig
from sealring.files.cluster import (
    describe_rights,
    make_member,
    read_coordinator_key,
    sign_next,
    unusual_rights,
    write_roster,
)
from sealring.files.config import Config, own_config
from sealring.local.node_socket import NobodyThere, answer_of
from sealring.output import print_json, print_note, progress, visible


@attrs.frozen
class OwnCluster:
    """The cluster of *config* as it is now: the roster in force, this machine's place in it, and
    whether its node is *running*."""

    config: Config
    roster: SignedRoster
    own: bytes  # node id
    running: bool
    coordinator: bytes  # the public key that signs the next roster
    spent: int = 0  # the serial of a roster that may have been sent, and need not be in force

    @property
    def members(self) -> tuple[Member, ...]:
        """In rank order."""
        return self.roster.roster.members

    def rank(self, name: str) -> int:
        """The rank of the member called *name*. Raises `UserError`."""
        for rank, member in enumerate(self.members):
            if member.name == name:
                return rank
        known = ", ".join(member.name for member in self.members)
        raise UserError(
            f"there is no machine called '{name}' in {self.roster.roster.name}",
            f"Its machines are: {known}.",
        )


def read_cluster(config: Path | None, *, settled: bool = True) -> OwnCluster:
    """The cluster of the machine with the config at *config*, or at the default place. Whoever
    signs for it needs it *settled*: the node waits until no newcomer is being let in. Raises
    `UserError`."""
    settings = own_config(config)
    pinned = read_public_key(settings.coordinator)
    own = node_id(read_key(settings.key).public_key)
    try:
        fields = {"settled": settled}
        answer = answer_of(settings.control_socket, "members", fields, report=print_note)
    except NobodyThere:
        roster = RosterStore(settings.state, pinned).newest(settings.roster, wall_ms())
        return OwnCluster(settings, roster, own, False, roster.roster.coordinator(pinned))
    roster = SignedRoster.decode(bytes.fromhex(answer["roster"]))
    coordinator = roster.roster.coordinator(pinned)
    return OwnCluster(settings, roster, own, True, coordinator, answer["spent"])


def read_signer(cluster: OwnCluster, key: Path | None) -> Signer:
    """The coordinator's key: at *key*, or where the config of *cluster* says. Raises
    `UserError`."""
    config = cluster.config
    path = key if key is not None else config.coordinator_key
    if path is None:
        raise UserError(
            f"this signs a roster, and {config.path} names no coordinator's key",
            "Give the file: --key FILE. Or bring the key here: sealring coordinator import FILE.",
        )
    return read_coordinator_key(path, cluster.coordinator)


def found_beside(status: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Where members answer besides where the roster says, by name: as far as a node knows, by its
    *status*."""
    return {
        peer["name"]: [
            route["address"]
            for route in peer.get("routes", ())  # the node may be of an older release
            if route["known_from"] != "roster" and route["ms"] is not None and not route["trouble"]
        ]
        for peer in ([] if status is None else status["peers"])
    }


def put_in_force(cluster: OwnCluster, signed: SignedRoster) -> Roster:
    """Install *signed*, which follows the roster of *cluster*, at the node that runs here, or leave
    it where the node begins with it. Raises `UserError`."""
    if cluster.running:
        try:
            install_roster(cluster.config, signed)
        except UserError as error:
            raise _with_file(error, cluster, signed) from None
        return signed.roster
    write_roster(cluster.config.roster, signed)
    return signed.roster


def install_roster(config: Config, signed: SignedRoster) -> dict[str, Any]:
    """Have the node of *config*, which runs, install *signed*; what it answers. A person hears what
    that waits for. Raises `UserError`."""
    with progress() as report:
        fields = {"roster": signed.encode().hex()}
        return answer_of(config.control_socket, "roster", fields, report=report)


def have_members(
    cluster: OwnCluster,
    members: Sequence[Member],
    key: Path | None,
    *,
    fixed_head: bool | None = None,
) -> Roster:
    """Put the roster with *members* in force, signed as `read_signer` says. *fixed_head* stays as
    it is if it is not given. Raises `UserError`."""
    signer, spent = read_signer(cluster, key), cluster.spent
    signed = sign_next(cluster.roster, members, signer, wall_ms(), spent, fixed_head=fixed_head)
    return put_in_force(cluster, signed)


def _with_file(error: UserError, cluster: OwnCluster, signed: SignedRoster) -> UserError:
    """*error*, with which the node here refused *signed*; it names the file to install at the head,
    if that could not be handed it."""
    if HEAD_FIRST not in error.what:
        return error
    head = cluster.members[0].name
    path = cluster.config.path.parent / f"roster-{signed.roster.serial}.roster"
    try:
        replace_file(path, signed.encode())
    except OSError:
        return error
    return UserError(
        error.what,
        f"The roster is signed, and lies in {path}. Copy it to {head}, and there: sealring roster "
        f"install {path.name} --config CONFIG",
    )


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ClusterChange:
    """How a change of the cluster is signed, and what is printed of it.

    Parameters
    ----------
    key
        The coordinator's private key; the config's 'coordinator_key' if left
        out.
    """

    config: OwnConfig = None
    key: Path | None = None
    json: AsJson = False

    def make(
        self,
        cluster: OwnCluster,
        members: Sequence[Member],
        what: str,
        next_: str = "",
        *,
        fixed_head: bool | None = None,
    ) -> None:
        """Have *cluster* have *members*, and print that *what* was done, and what a person does
        next. *fixed_head* is that of `have_members`. Raises `UserError`."""
        before = cluster.roster.roster
        after = have_members(cluster, members, self.key, fixed_head=fixed_head)
        if len(after.heads) == 1 < min(len(before.heads), len(after.members)) and not fixed_head:
            print_note(
                f"{after.members[0].name} alone may be the head now: while it is away, nobody is"
            )
        if self.json:
            print_json(roster_installed(cluster, after))
            return
        print(f"{what}: roster {after.serial}, valid until {format_time(after.expires_ms)}")
        if cluster.running:
            print(IN_FORCE)
        else:
            print(
                f"No node runs here, so it waits in {cluster.config.roster}.\n\nNext: sealring up "
                f"{cluster.config.path}, which hands it to the others. Or, on a machine whose node "
                "runs: copy the file there, and sealring roster install FILE --config CONFIG"
            )
        if next_:
            print(next_)


AS_CONFIGURED: Final = ClusterChange()
"""A change that the config's key signs."""


IN_FORCE: Final = "It is in force here, and the other machines take it from this node."


def roster_installed(cluster: OwnCluster, after: Roster) -> dict[str, Any]:
    """The roster *after*, which was put in force for *cluster*, as `--json` prints it."""
    names = [member.name for member in after.members]
    return {"serial": after.serial, "installed": cluster.running, "members": names}


def _refuse_own(cluster: OwnCluster, rank: int, verb: str) -> None:
    """Raise `UserError` where a change would put out this machine, the last one, or the head."""
    member, roster = cluster.members[rank], cluster.roster.roster
    if len(cluster.members) == 1:
        raise UserError(
            f"'{member.name}' is the only machine of {roster.name}, and a cluster has at least one",
            "To end the cluster, stop the node. To begin another, use another folder.",
        )
    if rank == 0:
        what = f"'{member.name}' is the head, and is not {verb} while it is"
        raise UserError(what, _other_head(cluster))
    if member.id == cluster.own:
        raise UserError(
            f"'{member.name}' is this machine, which would be cut off from the others before they "
            "know of it",
            "Do it on another machine of the cluster, with the coordinator's key there (--key).",
        )


def _other_head(cluster: OwnCluster) -> str:
    """How to make another machine the head of *cluster*, in words."""
    roster = cluster.roster.roster
    others = [roster.members[rank].name for rank in roster.heads if rank]
    if others:
        other = shlex.quote(others[0])
        return f"Make another machine the head first: sealring machines move {other} --rank 0"
    return (
        "No other machine may be the head. Let one first: sealring machines rights NAME --text "
        "--no-witness"
    )


def remove(name: str, *, change: ClusterChange = AS_CONFIGURED) -> None:
    """Put the machine NAME out of the cluster.

    The others end their links with it, and no one talks to it any more.
    Requests that run go on. The head is not removed while it is the head,
    nor is the last machine, nor the one that this is typed on.

        sealring machines remove den

    Parameters
    ----------
    name
        What the machine is called; see 'sealring machines list'.
    """
    cluster = read_cluster(change.config)
    rank = cluster.rank(name)
    _refuse_own(cluster, rank, "removed")
    left = [member for member in cluster.members if member.name != name]
    change.make(cluster, left, f"{name} is no member any more")


def replace(
    name: str,
    public_key: str,
    *,
    change: ClusterChange = AS_CONFIGURED,
) -> None:
    """Give the machine NAME another key: it is a new machine, or its key was stolen.

    The place in the order of ranks, the name and the addresses stay; the old
    key is no member any more. Make the new key on that machine, and bring
    only its .pub file here:

        sealring machines replace den den.pub

    Parameters
    ----------
    name
        What the machine is called.
    public_key
        The new key: its .pub file, or the hex in it.
    """
    cluster = read_cluster(change.config)
    rank = cluster.rank(name)
    before = cluster.members[rank]
    fresh_key = read_public_key(public_key)
    if fresh_key == before.public_key:
        raise UserError(
            f"'{name}' has this key already", "Make a new one on that machine: sealring keygen."
        )
    _refuse_own(cluster, rank, "given another key")
    # What was asserted of the old key, with its evidence, says nothing of the new one.
    trust = min(before.trust, TrustLevel.SOFTWARE)
    fresh = attrs.evolve(before, public_key=fresh_key, trust=trust, attestation=NO_EVIDENCE)
    change.make(cluster, _with(cluster, rank, fresh), f"{name} has the node id {fresh.id.hex()}")


def move(
    name: str,
    *,
    rank: int,
    change: ClusterChange = AS_CONFIGURED,
) -> None:
    """Give the machine NAME the rank N; the others keep their order.

    Rank 0 is the head, which serves the API. If that changes, the head of
    before lets its requests finish first.

        sealring machines move den --rank 0

    Parameters
    ----------
    name
        What the machine is called.
    rank
        Its rank, from 0 on.
    """
    cluster = read_cluster(change.config)
    at = cluster.rank(name)
    last = len(cluster.members) - 1
    if not 0 <= rank <= last:
        raise UserError(
            f"there is no rank {rank} in a cluster of {last + 1}", f"Ranks go from 0 to {last}."
        )
    if rank == at:
        raise UserError(f"'{name}' has rank {rank} already", "Nothing has changed.")
    if rank == 0:
        _check_may_lead(cluster.members[at])
    elif at == 0:
        _check_may_lead(cluster.members[1])
    order = [member for member in cluster.members if member.name != name]
    order.insert(rank, cluster.members[at])
    change.make(cluster, order, f"{name} is rank {rank}")


def _check_may_lead(member: Member) -> None:
    """Raise `UserError` if *member* may not be the head."""
    if member.is_witness or not member.sees_texts:
        why = "is a witness" if member.is_witness else "may see no texts"
        raise UserError(
            f"'{member.name}' {why}, so that it cannot be the head",
            f"Move another machine; or first: sealring machines rights {shlex.quote(member.name)} "
            "--text --no-witness",
        )


def heads(which: Literal["fixed", "elected"], *, change: ClusterChange = AS_CONFIGURED) -> None:
    """Say whether the machines elect another head when the head is away.

    'elected', as in every new cluster: when the head dies, the others elect
    the next machine that may be it, and go on. That takes more than half of
    all machines: of two machines neither can alone, and of three one may be
    away.

    'fixed': only the first machine is ever the head, and the ring waits for
    it. For who switches most machines off at night: it goes on with the first
    machine alone.

        sealring machines heads fixed
        sealring machines heads elected

    Next: sealring head

    Parameters
    ----------
    which
        'fixed' or 'elected'.
    """
    cluster = read_cluster(change.config)
    fixed, name = which == "fixed", cluster.members[0].name
    if fixed == cluster.roster.roster.fixed_head:
        raise UserError(f"heads are {which} already", "Nothing has changed.")
    what = f"{name} alone is the head" if fixed else f"{name} is the head until another is elected"
    change.make(cluster, cluster.members, what, fixed_head=fixed)


def rights(
    name: str,
    *,
    text: Annotated[bool | None, Parameter(negative="--no-text")] = None,
    witness: Annotated[bool | None, Parameter(negative="--no-witness")] = None,
    change: ClusterChange = AS_CONFIGURED,
) -> None:
    """Say what the machine NAME may see, or that it is a witness.

    A machine that may see no texts is never the head, and no rank of tensor
    parallelism. In a pipeline it still computes on hidden states, from which
    texts can be guessed: what must see nothing is no member, or a witness.

    A witness is a member and in no ring. It needs no layers, and nobody waits
    for it.

        sealring machines rights den --no-text
        sealring machines rights pi --witness --no-text

    What is left out stays as it is. Requests that run go on, and are read in
    again.

    Parameters
    ----------
    name
        What the machine is called.
    text
        Whether it may see what is asked and answered.
    witness
        Whether it is a witness.
    """
    cluster = read_cluster(change.config)
    rank = cluster.rank(name)
    member = cluster.members[rank]
    wanted = member.rights
    for right, given in ((Rights.TEXT, text), (Rights.WITNESS, witness)):
        if given is not None:
            wanted = wanted | right if given else wanted & ~right
    fresh = attrs.evolve(member, rights=wanted)
    if wanted == member.rights:
        raise UserError(
            f"'{name}' is that already: {_rights_text(member)}",
            "Say what is to change: --text or --no-text, --witness or --no-witness.",
        )
    if rank == 0:
        raise UserError(
            f"'{name}' is the head, which sees texts and is no witness", _other_head(cluster)
        )
    change.make(cluster, _with(cluster, rank, fresh), f"{name}: {_rights_text(fresh)}")


def _rights_text(member: Member) -> str:
    return unusual_rights(describe_rights(member)) or "may see texts, and be the head"


def print_rights(machines: Iterable[Mapping[str, Any]]) -> None:
    """Say which of *machines* have unusual rights; each has a name and its `describe_rights`."""
    for facts in machines:
        if text := unusual_rights(facts):
            print(f"\n{visible(facts['name'])}: {text}")


def rename(old: str, new: str, *, change: ClusterChange = AS_CONFIGURED) -> None:
    """Call the machine OLD by the name NEW.

        sealring machines rename den attic

    Parameters
    ----------
    old
        What it is called.
    new
        What it is to be called.
    """
    cluster = read_cluster(change.config)
    rank = cluster.rank(old)
    member = cluster.members[rank]
    make_member(new, member.public_key, [*member.addresses])  # a name that may be
    fresh = attrs.evolve(member, name=new)
    change.make(cluster, _with(cluster, rank, fresh), f"{old} is called {new} now")


def address(
    name: str,
    addresses: list[str],
    /,
    *,
    change: ClusterChange = AS_CONFIGURED,
) -> None:
    """Say where the others reach the machine NAME, in place of what they know.

        sealring machines address den 192.168.1.12:7470 den.example.com:7470

    Parameters
    ----------
    name
        What the machine is called.
    addresses
        host:port, or several, in the order in which they are tried.
    """
    cluster = read_cluster(change.config)
    rank = cluster.rank(name)
    member = cluster.members[rank]
    checked = make_member(name, member.public_key, addresses)
    fresh = attrs.evolve(member, addresses=tuple(checked.addresses))
    listens = (
        ""
        if member.id != cluster.own
        else (
            f"Check that 'listen' in {cluster.config.path} fits, and start the node again if you "
            "change it."
        )
    )
    change.make(
        cluster,
        _with(cluster, rank, fresh),
        f"{name} is at {' or '.join(fresh.addresses)}",
        listens,
    )


def _with(cluster: OwnCluster, rank: int, fresh: Member) -> list[Member]:
    """The members with *fresh* at *rank*."""
    members = [*cluster.members]
    members[rank] = fresh
    return members

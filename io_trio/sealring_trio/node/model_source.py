"""From where a node has its model: a folder, the hub, or the other members of the roster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
from sealring_model.errors import LoadError
from sealring_protocol.security.identity import Signer
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roster import SignedRoster

from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.fetcher import fetch
from sealring_trio.fetching.hub import Hub
from sealring_trio.fetching.rank_fetch import Source
from sealring_trio.files.config import Config
from sealring_trio.files.models import find_model, is_hub_id, refuse_absent_folder
from sealring_trio.files.roster_store import RosterStore
from sealring_trio.weights.asking import AskFault
from sealring_trio.weights.bringing import bring
from sealring_trio.weights.finding import Pause, find_with_members
from sealring_trio.weights.members import Members


@attrs.frozen
class OwnIdentity:
    """Who a node is to other members: it signs with *signer*, trusts rosters that *coordinator*
    signed, and offers *suites*. Its process is *instance*."""

    signer: Signer
    coordinator: bytes
    instance: int
    suites: tuple[Suite, ...]

    def members(
        self, roster: Callable[[], SignedRoster], keep: Callable[[SignedRoster], None]
    ) -> Members:
        """The members of the *roster* in force. *keep* is `Asker.keep`."""
        return Members(roster, self.coordinator, self.signer, self.instance, keep, self.suites)


def find_for(
    config: Config,
    identity: OwnIdentity,
    store: RosterStore,
    roster: SignedRoster,
    pause: Pause | None,
) -> tuple[Path, SignedRoster]:
    """The folder of the model of *config*, which can be described; and the roster to begin with,
    since a member that is asked for the model may bring a newer one than *roster*.

    Waits for a member that gives it, by *pause*, or not at all without one. Raises `UserError` if
    there can be no such model, or nobody gives it.
    """
    if config.fetch == "hub" or not is_hub_id(config.model):
        return find_model(config.model, Hub(offline=config.offline)), roster
    rosters = [roster]

    def keep(newer: SignedRoster) -> None:
        try:
            store.begin(newer)
        except (UserError, OperationError) as error:
            raise AskFault(f"a newer roster cannot be kept: {error.what}") from None
        rosters.append(newer)

    try:
        refuse_absent_folder(config.model)
        members = identity.members(lambda: rosters[-1], keep)
        return find_with_members(config.model, members, pause), rosters[-1]
    except LoadError as error:
        advice = "With fetch = 'members' a model is named as on the hub: owner/name."
        raise UserError(f"cannot find the model: {error}", advice) from None


def source_for(config: Config, identity: OwnIdentity, roster: Callable[[], SignedRoster]) -> Source:
    """Where tensors come from that are still missing, while the node runs with *roster*."""
    if config.fetch == "hub":
        hub = Hub(offline=config.offline)
        return lambda model, names, tell: fetch(model, names, hub, tell)

    def keep(_: SignedRoster) -> None:
        raise AskFault("a member has a newer roster, which comes over a control link first")

    members = identity.members(roster, keep)
    return lambda model, names, tell: bring(model, names, members, tell)

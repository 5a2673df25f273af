"""What the daemon needs before it runs: what its node needs, and what the head's API needs."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from sealring_model.text.tokens import has_chat_template
from sealring_trio.errors import UserError
from sealring_trio.fetching.members import Pause
from sealring_trio.node import setup as node_setup
from sealring_trio.node.setup import NodeSetup
from sealring_trio.units import format_address, is_loopback, is_unspecified

from sealring.files.config import Config
from sealring.files.models import NO_TEMPLATE, check_text
from sealring.files.tls_files import read_pair
from sealring.http.keys import KEY_FILE, read_keys

log = logging.getLogger("sealring")


def prepare(config: Config, pause: Pause | None = time.sleep) -> NodeSetup[Config]:
    """As `sealring_trio.node.setup.prepare`, and check what a head alone needs. Raises
    `UserError`."""
    setup = node_setup.prepare(config, pause)
    if setup.roster.roster.rank(setup.identity.id) == 0:
        check_text(setup.model)
        check_api(config)
        if not has_chat_template(setup.model):
            log.warning(NO_TEMPLATE)
    return setup


def check_api(config: Config) -> None:
    """Raise `UserError` when the API would listen beyond loopback without a key, at the address
    that is for other nodes, or cannot speak the TLS that *config* asks for."""
    if config.api is None:
        return
    if config.listen[1] == config.api[1] and (
        config.listen[0] == config.api[0] or is_unspecified(config.listen[0])
    ):
        raise UserError(
            f"{config.path}: 'listen' and 'api' are one address, {format_address(*config.api)}",
            "Other nodes dial 'listen', and clients 'api': give each a port of its own, as 7470 "
            "and 7480.",
        )
    if config.tls is not None:
        read_pair(*config.tls)
    if is_loopback(config.api[0]):
        return
    if not read_keys(config.state / KEY_FILE).keys:
        raise UserError(
            f"{config.path}: the API listens beyond loopback, at "
            f"{format_address(*config.api)}, and there are no API keys",
            f"Make one first: sealring apikey new NAME --config {config.path}",
        )


def why_not_head(config: Config, model: Path) -> str:
    """What would keep the node of *config* from serving, if a roster made it the head, and what to
    do; empty if nothing would."""
    try:
        check_text(model)
        check_api(config)
    except UserError as error:
        return f"{error.what}. {error.advice}"
    return ""

"""A node that is a witness: it reads no model and has no engine. Rosters make it one, and a rank
again."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio.testing
from sealring.files.cluster import sign_next
from sealring.files.config import Config, load_config
from sealring.generation.generation import Generator
from sealring.joining.door import Door
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring.service.head_api import NodeApi, prepare
from sealring.service.model_switch import ModelSwitch
from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.messages import CannotServe
from sealring_protocol.diagnosis import Cause
from sealring_protocol.limits import MAX_REASON
from sealring_protocol.security.roster import Rights, SignedRoster
from sealring_trio.engine.supervisor import NoEngine
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import read_key
from sealring_trio.files.models import TINY, find_model
from sealring_trio.node.runtime import Runtime
from sealring_trio.node.service import NodeSetup, build_runtime, running
from sealring_trio.units import wall_ms

from tests.io_trio.helpers import sealring
from tests.serving import PATIENCE

MODEL = f'model = "{find_model(TINY)}"\n'
RANK, WITNESS = Rights.TEXT, Rights.WITNESS


def next_roster(before: SignedRoster, folder: Path, rights: Rights) -> SignedRoster:
    """The one after *before*, in which rank 1 has *rights*."""
    head, other = before.roster.members
    members = (head, attrs.evolve(other, rights=rights))
    return sign_next(before, members, read_key(folder / "coordinator.key"), wall_ms(), 0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """That of rank 1, which its roster makes a witness. It names no model."""
    path = write_cluster(tmp_path, 2, find_model(TINY), elects=True)[1]
    roster = tmp_path / "demo.roster"
    signed = SignedRoster.decode(roster.read_bytes())
    roster.write_bytes(next_roster(signed, tmp_path, WITNESS).encode())
    path.write_text(path.read_text().replace(MODEL, ""))
    return path


@asynccontextmanager
async def life(
    switch: ModelSwitch, setup: NodeSetup[Config], runs: NodeSetup[Config] | None = None
) -> AsyncIterator[tuple[Runtime, Generator]]:
    """A life of a node with *setup*; what *runs* may be another one."""
    runtime = build_runtime(runs or setup)
    generator = Generator(runtime, setup.model)
    door = Door(setup.config, setup.identity.signer, setup.identity.coordinator)
    with trio.fail_after(PATIENCE):
        async with running(setup, runtime), trio.open_nursery() as nursery:
            switch.begin(setup, generator, NodeApi(generator, setup.config, door))
            nursery.start_soon(switch.follow_rights)
            yield runtime, generator
            nursery.cancel_scope.cancel()


def add_model(config: Path) -> None:
    config.write_text(MODEL + config.read_text())


def following(switch: ModelSwitch) -> NodeSetup[Config]:
    assert switch.leave.is_set()
    assert switch.next is not None
    return switch.next


async def _unheard(_: dict[str, Any]) -> None:
    raise AssertionError("nothing is to be said")


async def test_a_witness_becomes_a_rank_that_lacks_a_model_and_then_has_one(config: Path) -> None:
    switch = ModelSwitch(prepare)
    setup = prepare(load_config(config))
    assert (setup.has_engine, setup.is_witness) == (False, True)
    assert not setup.model.exists()
    setup.store.begin(setup.roster)
    async with life(switch, setup) as (runtime, generator):
        roster = next_roster(setup.roster, config.parent, RANK)
        assert (runtime.engine.pids, generator.obstacles()[0].rank) == ([], 0)  # the head is away
        with pytest.raises(UserError, match="'rank1' is a witness, which has no model"):
            await switch.answer("use", b'{"model": "tiny", "seconds": 1}', _unheard)
        await runtime.install(roster.encode())
        await switch.leave.wait()
    lacks = following(switch)
    assert (lacks.has_engine, lacks.is_witness) == (False, False)
    assert lacks.lacking == f"{config}: the key 'model' is missing"
    async with life(switch, attrs.evolve(lacks, roster=roster)) as (runtime, generator):
        await trio.testing.wait_all_tasks_blocked()
        assert not switch.leave.is_set()  # it is not tried again before there is another roster
        (engine, *_) = generator.obstacles()
        assert (engine.cause, engine.permanent) == (Cause.ENGINE_UNREADABLE, True)
        assert lacks.lacking in engine.what
        add_model(config)
        roster = next_roster(roster, config.parent, RANK)
        await runtime.install(roster.encode())
        await switch.leave.wait()
    rank = following(switch)
    assert (rank.has_engine, rank.lacking, rank.model) == (True, "", find_model(TINY))
    witness = next_roster(roster, config.parent, WITNESS)
    # No engine is started for this: the life has that of a rank which lacks something.
    async with life(switch, rank, lacks) as (runtime, _):
        await runtime.install(witness.encode())
        await switch.leave.wait()
    assert following(switch).is_witness


async def test_what_a_rank_would_lack_as_the_head_is_no_warning(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    witness = prepare(load_config(config))
    roster = next_roster(witness.roster, config.parent, RANK)
    setup = attrs.evolve(witness.without_engine("no model"), roster=roster)
    runtime = build_runtime(setup)
    runtime.head_fault = lambda: "there are no API keys"
    async with running(setup, runtime):
        pass
    (said,) = [each for each in caplog.records if "there are no API keys" in each.getMessage()]
    assert said.levelno == logging.INFO


def test_nothing_of_a_model_is_read_for_a_witness(config: Path) -> None:
    config.write_text(config.read_text() + 'model = "owner/none"\nadapter = "gone"\ntp = 3\n')
    assert prepare(load_config(config)).is_witness


def test_a_rank_needs_a_model(config: Path) -> None:
    roster = config.with_name("demo.roster")
    signed = SignedRoster.decode(roster.read_bytes())
    roster.write_bytes(next_roster(signed, config.parent, RANK).encode())
    with pytest.raises(UserError, match="the key 'model' is missing") as refused:
        prepare(load_config(config))
    assert 'model = "models/llama-8b"' in refused.value.advice
    assert "a witness needs none" in refused.value.advice


def test_doctor_asks_a_witness_for_no_model(config: Path) -> None:
    found = sealring("doctor", "--config", config, "--json").json()["findings"]
    (model,) = [each for each in found if each["check"] == "model"]
    assert model["state"] == "ok"
    assert "a witness, which needs neither model nor MLX" in model["what"]
    assert "collectives" not in {each["check"] for each in found}


@pytest.mark.slow
def test_a_witness_runs_where_there_is_no_mlx(config: Path) -> None:
    with running_node(config, program="tests.io_trio.without_mlx") as node:
        wait_until_up(node)
        status = node.status()
        shown = sealring("status", "--config", config).out
    assert (status["model"], status["engine_pids"], status["engine_restarts"]) == ("", [], 0)
    assert (status["witness"], status["state"]) == (True, "waiting for the head")
    assert "none: a witness needs none" in shown
    assert "model " not in shown


async def test_what_an_engine_lacks_is_said_in_plain_words_that_a_peer_takes() -> None:
    class Owner:
        told: list[CannotServe] = []  # noqa: RUF012

        def engine_message(self, message: CannotServe) -> None:
            self.told.append(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(NoEngine("a\nb" + "é" * MAX_REASON, Owner())._one_life)  # type: ignore[arg-type]
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    (said,) = Owner.told
    assert decode(b"".join(encode(said))) == said

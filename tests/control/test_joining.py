"""An engine that is lost on its way into a collective."""

from __future__ import annotations

import attrs
from sealring_protocol.codec.local_messages import Loaded
from sealring_protocol.codec.messages import CannotServe, Epoch, FailureKind
from sealring_protocol.control.effects import EndCollective, PrepareCollective

from tests.control.test_collective import (
    CONTROL,
    HEAD,
    PREPARE,
    TUNNEL,
    follower,
    of,
    sent,
    told,
)
from tests.sim.fake_engine import info


def test_an_engine_that_dies_as_it_loads_its_share_is_told_and_the_next_one_loads_it():
    rank = follower()
    (wanted,) = of(rank.message(0, CONTROL, PREPARE, 0.0), PrepareCollective)
    rank.link_up(0, TUNNEL, 0.0)
    effects = rank.engine_lost("it was killed", 1.0)
    assert of(effects, EndCollective) == [EndCollective(wanted.epoch)]
    (news,) = sent(effects)
    assert isinstance(news, CannotServe)
    assert (news.epoch, news.kind, news.n) == (wanted.epoch, FailureKind.ENGINE_LOST, 0)
    assert told(rank.engine_message(info(splits=2), 2.0)) == []
    assert rank.collective_prepared(wanted.epoch, 40001, 40002, 2.0) == []
    again = attrs.evolve(PREPARE, epoch=Epoch(HEAD, 2))
    effects = rank.message(0, CONTROL, again, 3.0)
    (wanted,) = of(effects, PrepareCollective)
    share, alone = told(effects)
    assert (share.rank, alone.epoch, wanted.epoch) == (1, again.epoch, again.epoch)
    rank.engine_message(Loaded(1, 1, 1), 4.0)
    (prepared,) = sent(rank.collective_prepared(again.epoch, 40001, 40002, 4.0))
    assert prepared.epoch == again.epoch

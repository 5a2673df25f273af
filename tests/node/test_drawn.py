"""Requests some of whose tokens are drawn already go on in whole clusters, in virtual time."""

from __future__ import annotations

from random import Random

import pytest
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig
from sealring_protocol.errors import LocalProtocolError

from tests.control.test_scores import told
from tests.sim.brains import AlwaysPay
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import VOCABULARY, prompts, reference, reference_scores

LAYERS = 6
COUNT = 30


@pytest.mark.parametrize("strategy", [Strategy.PIPELINE, Strategy.TENSOR])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_text_goes_on_from_any_token_as_if_it_had_been_drawn_here(world, strategy):
    """Rows with guesses, right or wrong, with and without ends, snapshots and a crash."""
    if world == 1 and strategy is Strategy.TENSOR:
        pytest.skip("tensor parallelism takes two ranks")
    config = SchedulerConfig(groups=2, rows=3, chunk=7, retries=50, prefixes=3, prefix_share=0.5)
    cluster = Cluster(world, world, scheduler=config, strategy=strategy, splits=world)
    random = Random(world)
    cluster.run_until(lambda: cluster.ready)
    cluster.head.node._brain.scheduler._guessing.costs = AlwaysPay()
    asked = {}
    for at, prompt in enumerate([*prompts(random, 8), *([tuple(range(80))] * 4)]):
        text = reference(prompt, COUNT, LAYERS)
        known = random.randrange(COUNT + 1)
        later = text[known + 5 : known + 6] if at % 2 else []
        eos = frozenset(later) - {*text[:known]}
        end = next((n for n, token in enumerate(text) if n >= known and token in eos), COUNT)
        guesses = None if at % 3 else [1 if n % 5 == 4 else each for n, each in enumerate(text)]
        request = Request(
            prompt, COUNT, eos, guesses=guesses, drawn=text[:known], owner=str(at % 2)
        )
        asked[cluster.submit(request)] = text[known:end], bool(eos)
        cluster.run_for(0.02)
    if world > 1:
        cluster.crash(cluster.hosts[f"host{world - 1}"])
        cluster.run_for(1.0)
        cluster.boot(world - 1)
    cluster.run_until(lambda: cluster.all_done)
    for uid, (rest, ends) in asked.items():
        assert cluster.tokens[uid] == rest
        reason = FinishReason.STOP if ends else FinishReason.LENGTH
        assert cluster.done[uid].reason is reason, cluster.done[uid]


def test_scores_of_a_prompt_come_once():
    """They were all given before the first token: none is given again after some were drawn."""
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    row, prompt = Row(0, logprobs=1), (4, 5, 6, 7)
    text = reference(prompt, 9, LAYERS)
    new = cluster.submit(Request(prompt, 9, sampling=row, scores=True))
    old = cluster.submit(Request(prompt, 9, sampling=row, scores=True, drawn=text[:3]))
    cluster.run_until(lambda: cluster.all_done)
    assert told(cluster.scores[new]) == reference_scores(prompt, 1, LAYERS)
    assert cluster.tokens[old] == text[3:]
    assert not cluster.scores[old]


def test_more_than_was_asked_for_or_fits_is_refused():
    cluster = Cluster(1, 1)
    cluster.run_until(lambda: cluster.ready)
    for request, says in (
        (Request((4, 5), 3, drawn=(1, 2, 3, 4)), "4 tokens are drawn already, of 3"),
        (Request((4, 5), drawn=(1,) * 4095), "4097 tokens"),
        (Request((4, 5), 3, drawn=(VOCABULARY,)), "beyond the vocabulary"),
    ):
        with pytest.raises(LocalProtocolError, match=says):
            cluster.submit(request)

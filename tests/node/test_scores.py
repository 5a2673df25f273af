"""Prompts are scored in whole clusters, in virtual time: pipelines and tensor parallelism."""

from __future__ import annotations

from random import Random

import pytest
from sealring_protocol.codec.messages import Prefill, Row, StepDone
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig

from tests.control.test_scores import told
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference, reference_scores

LAYERS = 6


@pytest.mark.parametrize("strategy", [Strategy.PIPELINE, Strategy.TENSOR])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_cluster_scores_and_goes_on_after_a_crash(world, strategy):
    if world == 1 and strategy is Strategy.TENSOR:
        pytest.skip("tensor parallelism takes two ranks")
    config = SchedulerConfig(groups=2, rows=3, chunk=7, retries=50)
    cluster = Cluster(world, world, scheduler=config, strategy=strategy, splits=world)
    random = Random(world)
    cluster.run_until(lambda: cluster.ready)
    asked = {}
    for at in range(8):
        prompt = tuple(random.randrange(900) for _ in range(random.randrange(1, 60)))
        row = Row(0, logprobs=at % 3)
        request = Request(prompt, (0, 1, 5)[at % 3], sampling=row, scores=True)
        asked[cluster.submit(request)] = request
        cluster.run_for(0.02)
    if world > 1:
        cluster.crash(cluster.hosts[f"host{world - 1}"])
        cluster.run_for(1.0)
        cluster.boot(world - 1)
    cluster.run_until(lambda: cluster.all_done)
    for uid, request in asked.items():
        assert cluster.done[uid].reason is FinishReason.LENGTH, cluster.done[uid]
        k = request.sampling.logprobs
        assert told(cluster.scores[uid]) == reference_scores(request.prompt, k, LAYERS)
        count = request.max_tokens or 0
        assert cluster.tokens[uid] == (reference(request.prompt, count, LAYERS) if count else [])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_other_tokens_keep_their_bound_while_a_long_prompt_is_scored(world):
    """A token of a prompt takes 1 ms on each rank, and its score 4 ms on rank 0."""

    def pace(message) -> float:
        match message:
            case StepDone():
                return 0.004 * message.tensors[0].shape[0] if message.tensors else 0.001
            case _ if isinstance(getattr(message, "work", None), Prefill):
                own = 0.004 if message.work.scored and world == 1 else 0.0
                return (0.001 + own) * message.work.count
        return 0.001

    bound = 0.5
    config = SchedulerConfig(groups=1, chunk_seconds=bound)
    cluster = Cluster(world, 1, scheduler=config, pace=pace)
    cluster.run_until(lambda: cluster.ready)
    reader = cluster.submit(Request((1, 2, 3), 400))
    cluster.run_until(lambda: len(cluster.tokens[reader]) > 10)
    row = Row(0, logprobs=1)
    scored = cluster.submit(Request(tuple(range(900)) * 2, 0, sampling=row, scores=True))
    gaps, last, seen = [], cluster.now, len(cluster.tokens[reader])
    while scored not in cluster.done and reader not in cluster.done:
        cluster.run_for(0.005)
        if len(cluster.tokens[reader]) > seen:
            gaps.append(cluster.now - last)
            last, seen = cluster.now, len(cluster.tokens[reader])
    assert scored in cluster.done or len(cluster.scores[scored]) > 20
    assert max(gaps) < bound + 0.1

"""Clusters in tensor parallelism, in virtual time: coming up, faults, fallback, drained answers."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.messages import Decode, Row, Step, StepDone
from sealring_protocol.control.head.trial import IDLE_SECONDS
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig
from sealring_protocol.control.scheduler.times import ENOUGH
from sealring_protocol.security.roster import sign_roster

from tests.rows import rows
from tests.sim.brains import AlwaysPay
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.hosts import Collective
from tests.sim.rosters import COORDINATOR, WALL, make_roster

PROMPTS = ((5, 6, 7), (11, 12, 13, 14, 15), (21,) * 9)
BATCH = SchedulerConfig(rows=8, prefixes=4)


def cluster(world=2, seed=1, **options):
    options = {"splits": world, "scheduler": BATCH} | options
    made = Cluster(world, seed, **options)
    made.run_until(lambda: made.ready)
    return made


def strategy(made):
    return made.head.node.standing().plan.strategy


def ask(made, prompt, tokens=12):
    return made.submit(Request(prompt, tokens, frozenset(), Row(0)))


def all_right(made, asked):
    made.run_until(lambda: made.all_done)
    for uid, (prompt, tokens) in asked.items():
        assert made.done[uid].reason is FinishReason.LENGTH, made.done[uid]
        assert made.tokens[uid] == reference(prompt, tokens, 6)


def serve(made, count=6, tokens=12):
    return {
        ask(made, PROMPTS[i % 3], tokens + i): (PROMPTS[i % 3], tokens + i) for i in range(count)
    }


@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_tokens_are_those_of_one_process(world):
    made = cluster(world)
    assert strategy(made) is Strategy.TENSOR
    all_right(made, serve(made))
    made.run_for(1)
    for host in made.hosts.values():
        assert len(host.engine.snaps) <= 4
        assert not host.engine.private
        assert not host.engine.groups


def test_every_rank_answers_every_step_once_and_two_are_under_way_at_most():
    made = cluster(3)
    steps, answers = {}, {}
    tell = made.collectives.tell

    def told(host, answer):
        answers[host.name, answer.n] = answers.get((host.name, answer.n), 0) + 1
        tell(host, answer)

    made.collectives.tell = told
    most = 0
    compute = made._compute

    def computed(host, engine, spent):
        if host.inbox and isinstance(host.inbox[0], Step):
            steps[host.name, host.inbox[0].n] = True
        compute(host, engine, spent)

    made._compute = computed
    asked = serve(made, 4, 20)
    while not made.all_done:
        made.step()
        flights = made.head.node._brain.scheduler._flights.by_number.values()
        most = max(most, sum(isinstance(flight.work, Decode) for flight in flights))
    all_right(made, asked)
    made.run_for(0.1)
    assert answers == dict.fromkeys(steps, 1)
    assert most == 2


FAULTS = ("engine", "head engine", "crash", "freeze", "poison", "cancel", "diverge")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", rows(range(6), 0, 1))
def test_after_a_fault_at_any_step_the_live_requests_go_on(fault, seed):
    made = cluster(2, seed)
    asked = serve(made, 5, 60)
    made.run_for(0.05 + made.random.random() * 0.1)
    follower = made.hosts["host1"]
    began = made.now
    match fault:
        case "engine":
            made.kill_engine(follower)
        case "head engine":
            made.kill_engine(made.head)
        case "crash":
            made.crash(follower)
            made.after(0.5, lambda: made.boot(1))
        case "freeze":
            follower.frozen = True
            made.after(5.0, lambda: setattr(follower, "frozen", False))
        case "poison":
            follower.engine.poison = reference(PROMPTS[0], 60, 6)[made.random.randrange(40, 60)]
        case "cancel":
            victim = list(asked)[2]
            made.cancel(victim)
            del asked[victim]
        case "diverge":
            follower.engine.wrong = True
    made.run_until(lambda: made.all_done, 200)
    for uid, (prompt, tokens) in asked.items():
        assert made.done[uid].reason is FinishReason.LENGTH, made.notes[-30:]
        assert made.tokens[uid] == reference(prompt, tokens, 6)
    if fault not in ("cancel",):
        found = [at for at, who, text in made.notes if at >= began and "failed on rank" in text]
        assert found[0] - began < 2
    later = {ask(made, (3, 4, 5)): ((3, 4, 5), 12)}
    all_right(made, asked | later)
    assert strategy(made) is Strategy.TENSOR


def test_what_went_wrong_on_both_sides_is_reported_together():
    made = cluster(2)
    ask(made, PROMPTS[0], 200)
    made.run_for(0.1)
    for name in ("host0", "host1"):
        made.hosts[name].engine.poison = reference(PROMPTS[0], 200, 6)[-9]
    made.run_until(lambda: any("failed on rank" in text for _, _, text in made.notes))
    (text,) = [text for _, _, text in made.notes if "failed on rank" in text]
    assert "rank 0" in text
    assert "rank 1" in text


def pace(message):
    """Ranks that compute for so long that a sum may cost less than it saves."""
    match message:
        case Step(work=Decode()):
            return 0.05
        case StepDone():
            return 0.0005
        case _:
            return 0.001


def measured(world=2, tokens=40, **options):
    """A ring with the strategy `auto` that has answered one request."""
    options = {"splits": world, "pace": pace} | options
    made = Cluster(world, 1, strategy=Strategy.AUTO, **options)
    made.run_until(lambda: made.ready)
    assert strategy(made) is Strategy.PIPELINE
    all_right(made, {ask(made, PROMPTS[0], tokens): (PROMPTS[0], tokens)})
    assert strategy(made) is Strategy.PIPELINE
    return made


def reason(made):
    return made.head.node.standing().plan.reason


def told(made, text):
    return [(at, said) for at, _, said in made.notes if text in said]


@pytest.mark.parametrize("world", [2, 3])
def test_auto_stays_with_a_pipeline_when_the_collective_does_not_come_up(world):
    made = measured(world)
    made.collectives.joins = False
    made.run_for(120)
    assert len(told(made, "is tried, which")) == 1
    assert strategy(made) is Strategy.PIPELINE
    assert "no tensor parallelism: this rank's engine is gone: it was killed" in reason(made)
    all_right(made, serve(made))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"splits": 0}, "no sharding"),
        ({"splits": 3}, "split evenly over a divisor of 3"),
        ({"sums": (9000, 200_000)}, "not clearly faster"),
        ({"pace": lambda _: 0.0001}, "cannot be clearly faster: a token takes "),
    ],
)
def test_auto_says_why_it_took_a_pipeline(options, why):
    made = measured(**options)
    made.run_for(20)
    assert strategy(made) is Strategy.PIPELINE
    assert why in reason(made)
    assert len(told(made, "is tried, which")) == ("sums" in options)
    all_right(made, serve(made))


@pytest.mark.parametrize(("token_us", "taken"), [(6 * 6 * 50, True), (6 * 6 * 50 - 1, False)])
def test_auto_takes_tensor_parallelism_that_is_clearly_faster(token_us, taken):
    """With 6 layers and sums of 50 us: a token may take 3/4 of a pipeline's."""
    made = measured(sums=(50, token_us))
    made.run_for(20)
    all_right(made, serve(made))
    assert strategy(made) is (Strategy.TENSOR if taken else Strategy.PIPELINE)


def test_a_trial_waits_for_timed_tokens_and_then_for_an_idle_ring():
    made = measured(tokens=ENOUGH - 1)
    made.run_for(600)
    assert "it is tried once some tokens have been timed" in reason(made)
    asked = {ask(made, PROMPTS[1], 40): (PROMPTS[1], 40)}
    all_right(made, asked)
    over = made.now
    made.run_for(20)
    ((at, _),) = told(made, "is tried, which")
    assert at - over == pytest.approx(IDLE_SECONDS, abs=0.1)


def test_no_trial_begins_while_there_is_a_request():
    made = measured()
    over = made.now
    while made.now < over + 60:
        made.run_for(IDLE_SECONDS - 1)
        all_right(made, {ask(made, PROMPTS[1], 5): (PROMPTS[1], 5)})
    assert told(made, "is tried, which") == []


def test_a_request_ends_a_trial_and_waits_for_a_pipeline_alone():
    """The next trial then waits for twice as long an idle ring."""
    made = measured(sums=(10, 1000))
    made.collectives.joins = False
    made.run_until(lambda: told(made, "is tried, which"))
    made.run_for(0.5)
    assert not made.head.node.serving
    asked = made.now
    all_right(made, {ask(made, PROMPTS[2], 3): (PROMPTS[2], 3)})
    assert made.now - asked < 1.5
    assert strategy(made) is Strategy.PIPELINE
    all_right(made, {ask(made, PROMPTS[1], 40): (PROMPTS[1], 40)})
    made.collectives.joins = True
    over = made.now
    made.run_until(lambda: strategy(made) is Strategy.TENSOR)
    assert told(made, "is tried, which")[1][0] - over == pytest.approx(2 * IDLE_SECONDS, abs=0.1)
    assert made.warnings == []


def test_a_node_that_is_lost_in_a_trial_is_no_reason_against_it():
    made = measured()
    made.collectives.joins = False
    made.run_until(lambda: told(made, "is tried, which"))
    made.run_for(0.5)
    made.crash(made.hosts["host1"])
    made.boot(1)
    made.run_until(lambda: made.head.node.serving)
    assert strategy(made) is Strategy.PIPELINE
    made.collectives.joins = True
    all_right(made, {ask(made, PROMPTS[1], 40): (PROMPTS[1], 40)})
    made.run_for(2 * IDLE_SECONDS + 5)
    assert strategy(made) is Strategy.TENSOR


def test_a_pipeline_after_a_measurement_reads_like_one():
    made = measured(sums=(9000, 200_000))
    made.run_for(20)
    assert len(told(made, "tensor parallelism was measured: not clearly faster")) == 1
    assert made.warnings == []
    assert (made.head.planned, made.hosts["host1"].planned) == (1, 1)


def test_what_was_measured_of_the_same_machines_is_not_measured_again():
    """Another order of the same ranks takes one epoch, and no engine is replaced again."""
    old, new = make_roster(3), make_roster(3, serial=2, order=(0, 2, 1))
    made = measured(3, sums=(20_000, 300_000), rosters=[old] * 3)
    made.run_for(20)
    before = made.head.node.standing()
    made.head.node.bring_roster(new.encode(), made.now, WALL)
    made.settle(made.head)
    made.notes.clear()
    made.run_until(lambda: made.ready)
    after = made.head.node.standing()
    assert after.plan.reason == before.plan.reason
    assert after.epoch.counter == before.epoch.counter + 1
    assert not any("was measured" in text for _, _, text in made.notes)
    assert [host.planned for host in made.hosts.values()] == [1, 1, 1]


def test_an_engine_that_leaves_a_collective_for_a_roster_has_not_died():
    made = cluster(rosters=[make_roster(2)] * 2)
    assert strategy(made) is Strategy.TENSOR
    made.warnings.clear()
    made.notes.clear()
    made.head.node.bring_roster(make_roster(2, serial=2, inner_seal=False).encode(), made.now, WALL)
    made.settle(made.head)
    made.run_until(lambda: made.ready)
    assert [host.planned for host in made.hosts.values()] == [1, 1]
    assert [host.node.facts(made.now).engine.lost for host in made.hosts.values()] == [0, 0]
    assert made.warnings == []


def test_who_asks_for_tensor_parallelism_is_told_why_not():
    made = Cluster(2, 1, splits=3, strategy=Strategy.TENSOR)
    made.run_for(20)
    assert not made.ready
    assert any("no plan: " in text and "divisor of 3" in text for _, _, text in made.notes)


FORBIDS = "the roster forbids it"


def test_where_the_roster_forbids_it_auto_takes_a_pipeline():
    made = cluster(strategy=Strategy.AUTO, rosters=[make_roster(2, tensor=False)] * 2)
    assert strategy(made) is Strategy.PIPELINE
    assert FORBIDS in made.head.node.standing().plan.reason
    all_right(made, serve(made))


def test_where_the_roster_forbids_it_who_asks_for_it_is_told():
    rosters = [make_roster(2, tensor=False)] * 2
    made = Cluster(2, 1, splits=2, strategy=Strategy.TENSOR, rosters=rosters)
    made.run_for(20)
    assert not made.ready
    assert any("no plan: " in text and FORBIDS in text for _, _, text in made.notes)


def test_a_roster_that_comes_to_forbid_it_ends_it():
    allows = make_roster(3)
    rosters = [allows, allows, make_roster(3, serial=2, tensor=False)]
    made = cluster(3, strategy=Strategy.AUTO, rosters=rosters)
    made.run_until(lambda: strategy(made) is Strategy.PIPELINE)
    all_right(made, serve(made))


def test_the_next_collective_is_told_the_addresses_of_a_newer_roster():
    made = cluster(2)
    rank = made.hosts["host1"]
    assert [host for host, _ in rank.node._brain._engine.order.hosts] == ["host0", "host1"]
    roster = made.head.node.roster.roster
    moved = attrs.evolve(roster.members[1], addresses=("host1.new:1", "host1:1"))
    newer = attrs.evolve(roster, serial=2, members=(roster.members[0], moved))
    made.head.node.bring_roster(sign_roster(newer, COORDINATOR).encode(), made.now, WALL)
    made.settle(made.head)
    made.run_for(1.0)
    epoch = rank.node.standing().epoch
    made.kill_engine(rank)
    made.run_until(lambda: rank.node.standing().epoch > epoch and rank.node.serving)
    assert [host for host, _ in rank.node._brain._engine.order.hosts] == ["host0", "host1.new"]


def test_an_answer_of_an_epoch_that_is_over_changes_nothing():
    made = cluster(2)
    asked = serve(made, 2, 40)
    made.run_for(0.1)
    stale = StepDone(made.head.node.standing().epoch, 3, ids=(1,))
    made.kill_engine(made.hosts["host1"])
    made.run_until(lambda: sum("the ring is ready" in text for _, _, text in made.notes) == 2)
    assert made.head.node._brain.message(1, 1, stale, made.now) == []
    all_right(made, asked)


def test_an_engine_that_left_its_group_is_replaced_and_nothing_is_wrong_with_it():
    made = cluster(2)
    serve(made, 2, 40)
    made.run_for(0.1)
    made.kill_engine(made.hosts["host1"])
    made.run_until(lambda: made.all_done)
    assert made.head.planned == 1
    assert isinstance(made.head.collective, Collective)


@pytest.mark.parametrize("fault", ["none", "engine", "diverge"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_read_the_same_guesses_ahead(world, fault):
    """One row, some of whose guesses are wrong, has the text of one process in fewer steps."""
    made = cluster(world)
    text = reference(PROMPTS[0], 200, 6)
    guesses = tuple(token if n % 7 else 3 for n, token in enumerate(text))
    uid = made.submit(Request(PROMPTS[0], 200, guesses=guesses))
    made.head.node._brain.scheduler._guessing.costs = AlwaysPay()
    made.run_until(lambda: len(made.tokens[uid]) > 40)
    (flight,) = flights(made)
    assert flight.guesses
    last = made.hosts[f"host{world - 1}"]
    if fault == "engine":
        made.kill_engine(last)
    if fault == "diverge" and world > 1:
        last.engine.wrong = True
    made.run_until(lambda: made.all_done, 200)
    assert made.tokens[uid] == text
    assert made.done[uid].accepted > 100
    assert made.done[uid].rejected > 10


def flights(made):
    return list(made.head.node._brain.scheduler._flights.by_number.values())

"""The head tells each rank why there is no epoch, and a hostile head gains nothing by it."""

from __future__ import annotations

import itertools

import pytest
from sealring_protocol.codec.messages import Hindrance, Message, Reason, Waiting
from sealring_protocol.control.effects import Level, Note, Phase, Send
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.control.head.epochs import NOTICE_SECONDS, Notices
from sealring_protocol.diagnosis import (
    BY_HINDRANCE,
    TELL_SECONDS,
    Cause,
    Obstacle,
    ObstacleLog,
)
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import MAX_REASONS, NO_RANK, WAITINGS_PER_SECOND
from sealring_protocol.links.logs import Notes
from sealring_protocol.security.roles import Purpose

from tests.node.test_why import Ring, says, too_little_room
from tests.sim.cluster import Cluster
from tests.sim.hosts import Host

CONTROL = Purpose.CONTROL


def why(*texts: str) -> Waiting:
    return Waiting(tuple(Reason(Hindrance.ABSENT, 2, text) for text in texts))


def told(host: Host, now: float) -> list[Obstacle]:
    return [each for each in host.node.obstacles(now) if each.from_head]


def heard(made: Cluster, *names: str) -> list[tuple[float, str, Waiting]]:
    """The WAITINGs that reach these nodes from here on."""
    came: list[tuple[float, str, Waiting]] = []
    for name in names:
        brain = made.hosts[name].node._brain

        def message(rank, purpose, message: Message, now, *, name=name, hear=brain.message):
            if isinstance(message, Waiting):
                came.append((now, name, message))
            return hear(rank, purpose, message, now)

        brain.message = message
    return came


def lines(made: Cluster, name: str) -> list[str]:
    return [text for _, who, text in made.notes if who == name and "the head says" in text]


# ------------------------------------------------------------------ what is said


def test_a_rank_says_in_the_heads_words_that_there_is_too_little_room():
    made = too_little_room()
    made.run_for(5.0)
    ((cause, head),) = says(made, "host0")
    ((same, rank),) = says(made, "host1")
    assert cause is same is Cause.TOO_LITTLE_ROOM
    words = head.partition(" (for")[0]
    assert rank.startswith(f"the head says: {words} (for ")
    (line,) = lines(made, "host1")
    assert line.startswith(f"not serving: the head says: {words}")
    assert "Raise 'memory' in the configs" in line


def test_a_rank_is_told_of_another_that_is_not_there_and_when_that_is_over():
    made = Cluster(3, 1)
    made.run_until(lambda: made.ready)
    rank = made.hosts["host1"]
    made.run_for(0.5)
    assert rank.node.serving
    made.crash(made.hosts["host2"])
    made.run_for(5.0)
    assert rank.node.standing().phase is not Phase.SERVING
    assert not rank.node.serving
    (obstacle,) = told(rank, made.now)
    assert obstacle.cause is Cause.UNREACHABLE
    assert obstacle.rank == 2
    assert obstacle.what.startswith("the head says: rank 2 (node2) cannot be reached at host2:1")
    assert says(made, "host0")[0][1].startswith(obstacle.what.removeprefix("the head says: "))
    made.boot(2)
    made.run_until(lambda: rank.node.serving)
    assert rank.node.obstacles(made.now) == []


def test_the_head_calls_itself_by_name_to_others():
    made = Cluster(2, 1)
    made.run_until(lambda: made.ready)
    made.kill_engine(made.head, back_after=100)
    made.run_for(5.0)
    assert says(made, "host0")[0][1].startswith("this node's engine has ended once: it was killed")
    (obstacle,) = told(made.hosts["host1"], made.now)
    text = "the head says: the head (node0)'s engine has ended once: it was killed"
    assert obstacle.what == text
    assert obstacle.cause is Cause.PEER_ENGINE


def test_what_a_rank_knows_of_itself_it_is_not_told_twice():
    made = Ring(unloadable="tensor x does not match the manifest")
    made.run_for(5.0)
    assert [cause for cause, _ in says(made, "host1")].count(Cause.CANNOT_SERVE) == 1
    assert told(made.hosts["host1"], made.now) == []


def test_a_start_that_goes_well_is_told_nobody():
    made = Cluster(3, 1)
    came = heard(made, "host1", "host2")
    made.run_until(lambda: made.ready)
    assert came == []


def test_a_link_that_is_lost_takes_what_it_told_along():
    made = too_little_room()
    made.run_for(5.0)
    assert told(made.hosts["host1"], made.now)
    made.crash(made.head)
    made.run_for(5.0)
    assert told(made.hosts["host1"], made.now) == []


def test_a_rank_that_comes_later_is_told_too():
    made = Cluster(3, 1)
    for name in ("host1", "host2"):
        made.crash(made.hosts[name])
    made.run_for(10.0)
    rank = made.boot(1)
    made.run_until(lambda: any(each.rank == 2 for each in told(rank, made.now)), 8.0)


# --------------------------------------------------------------------- how often


def test_each_rank_is_told_once_and_of_changes_at_most_once_a_second():
    notices = Notices(3)
    sent: list[float] = []
    for tick in range(100):
        now = tick / 10
        sends = notices.due(why(f"reason {tick}"), now)
        assert {send.rank for send in sends} in ({1, 2}, set())
        sent += [now] * bool(sends)
    assert sent == pytest.approx([NOTICE_SECONDS * i for i in range(10)])
    last = why("the last")
    assert notices.due(last, 20.0) == [Send(rank, CONTROL, last) for rank in (1, 2)]
    assert notices.due(last, 30.0) == []
    notices.forget(2)
    assert notices.due(last, 40.0) == [Send(2, CONTROL, last)]
    assert notices.due(Waiting(), 50.0) == [Send(rank, CONTROL, Waiting()) for rank in (1, 2)]
    notices.due(last, 60.0)
    notices.withdraw()  # by BOOTSTRAP: nothing is left to withdraw
    assert notices.due(Waiting(), 70.0) == []


def test_a_link_that_comes_and_goes_brings_no_more():
    notices = Notices(2)
    sends = 0
    for tick in range(100):
        notices.forget(1)
        sends += len(notices.due(why("the same"), tick / 10))
    assert sends == 10


def test_a_head_that_waits_for_long_sends_as_little_as_its_reasons_change():
    made = Cluster(3, 1)
    made.crash(made.hosts["host2"])
    came = heard(made, "host1")
    made.run_for(300.0)
    assert 1 <= len(came) <= 3, came
    assert len(lines(made, "host1")) == 1, "once, and not each minute: the head's log has it"


# ---------------------------------------------------------------- a hostile head


def follower() -> Follower:
    made = Follower(FollowerConfig(1, ("n0", "n1", "n2")))
    made.link_up(0, CONTROL, 0.0)
    return made


def test_more_than_a_few_a_second_end_the_link():
    rank = follower()
    for n in range(WAITINGS_PER_SECOND):
        rank.message(0, CONTROL, why(f"reason {n}"), 1.0)
    with pytest.raises(LimitExceeded, match="more than 4 WAITINGs a second"):
        rank.message(0, CONTROL, why("one more"), 1.0)
    rank.message(0, CONTROL, why("later"), 2.0)


@pytest.mark.parametrize("about", [3, 16, NO_RANK - 1])
def test_a_reason_of_a_rank_that_is_not_there_ends_the_link(about):
    with pytest.raises(RemoteProtocolError, match=f"about rank {about} of 3"):
        follower().message(0, CONTROL, Waiting((Reason(Hindrance.LINK, about, "x"),)), 1.0)


@pytest.mark.parametrize(("rank", "purpose"), [(2, CONTROL), (2, Purpose.STEP), (0, Purpose.STEP)])
def test_nobody_but_the_head_is_heard_and_on_no_other_link(rank, purpose):
    with pytest.raises(RemoteProtocolError, match="sent Waiting, which is not for this rank"):
        follower().message(rank, purpose, why("x"), 1.0)


def test_reasons_that_change_for_ever_write_a_bounded_log():
    obstacle_log, bounds, shown, seconds = ObstacleLog(), Notes(), 0, 3600
    causes = itertools.cycle(itertools.product(BY_HINDRANCE.values(), (None, 0, 1, 2)))
    for second in range(seconds):
        found = [
            Obstacle(cause, f"the head says: {second}", rank, from_head=True)
            for cause, rank in itertools.islice(causes, MAX_REASONS)
        ]
        notes = [bounds.limited(note, second) for note in obstacle_log.look(found, second)]
        shown += sum(note.level is not Level.DEBUG for note in notes)
    assert 0 < shown <= 20 + 6 * seconds / 60


def test_a_reason_that_lasts_is_logged_once_and_one_that_comes_back_later_again():
    obstacle_log = ObstacleLog()
    reason = Obstacle(Cause.UNREACHABLE, "the head says: rank 2 is away", 2, from_head=True)

    def look(now: float, *found: Obstacle) -> list[Note]:
        return obstacle_log.look(found, now)

    assert len(look(0.0, reason)) == 1
    assert sum(len(look(float(now), reason)) for now in range(1, 600)) == 0
    assert look(630.0) == look(640.0, reason) == []  # away for a moment
    assert len(look(640.0 + TELL_SECONDS + 1, reason)) == 1


# --------------------------------------------------------------------- the tables


def test_every_cause_says_what_a_rank_is_told_of_it():
    assert BY_HINDRANCE.keys() == set(Hindrance)
    assert {cause.hindrance for cause in Cause} == {None, *Hindrance}

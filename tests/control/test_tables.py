"""Every machine's table against its whole cross product: legal moves move, all others raise.

The expected moves are written here a second time, by hand, so that a row that is deleted, added
or changed makes a test fail.
"""

from __future__ import annotations

import pytest
from sealring_protocol.control.election import ELECTION_TABLE, ElectionEvent, ElectionState
from sealring_protocol.control.epoch.engine import JOINING_TABLE, JoiningEvent, JoiningState
from sealring_protocol.control.epoch.pipeline import PIPELINE_TABLE, PipelineEvent, PipelineState
from sealring_protocol.control.epoch.tensor import LEADER_TABLE, LeaderEvent, LeaderState
from sealring_protocol.control.head.trial import TRIAL_TABLE, TrialEvent, TrialState
from sealring_protocol.control.membership import (
    MEMBERSHIP_TABLE,
    MembershipEvent,
    MembershipState,
)
from sealring_protocol.control.scheduler.rows import ROW_TABLE, RowEvent, RowState
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.relay import STREAM_TABLE, StreamMove, StreamState
from sealring_protocol.table import Machine, cross_product

ROWS = """
    queued    open    prefill
    queued    preempt queued
    queued    end     gone
    prefill   read    ready
    prefill   preempt preempted
    prefill   end     gone
    ready     join    decode
    ready     preempt preempted
    ready     end     gone
    decode    preempt preempted
    decode    end     gone
    preempted open    prefill
    preempted preempt preempted
    preempted end     gone
"""
MEMBERSHIP = """
    gathering start     starting
    gathering prepare   preparing
    gathering break     gathering
    preparing all_prepared starting
    preparing break     gathering
    starting  all_ready serving
    starting  break     gathering
    serving   break     gathering
"""
PIPELINE = """
    running step    running
    running output  running
    running failure broken
    broken  step    broken
    broken  output  broken
    broken  failure broken
"""
LEADER = """
    running  step    running
    running  answer  running
    running  failure draining
    draining answer  draining
    draining failure draining
    draining drained broken
    broken   failure broken
    broken   drained broken
"""
JOINING = """
    out       prepare     preparing
    preparing prepared    prepared
    prepared  join        joining
    joining   joined      joined
    out       leave       out
    preparing leave       replacing
    prepared  leave       replacing
    joining   leave       replacing
    joined    leave       replacing
    replacing leave       replacing
    out       engine_lost out
    preparing engine_lost out
    prepared  engine_lost out
    joining   engine_lost out
    joined    engine_lost out
    replacing engine_lost replacing
    out       engine_up   out
    replacing engine_up   out
"""
TRIAL = """
    untried try       trying
    untried stop      untried
    trying  came_up   taken
    trying  stop      untried
    trying  drop      dropped
    taken   came_up   taken
    taken   stop      taken
    taken   drop      dropped
    dropped stop      dropped
"""
STREAM = """
    asked     request      asked
    asked     request_end  awaiting
    asked     reply        answered
    asked     give_up      given_up
    asked     leave        left
    awaiting  reply        answering
    awaiting  give_up      given_up_answering
    awaiting  leave        left
    answered  request      answered
    answered  request_end  answering
    answered  response     answered
    answered  response_end reading_on
    answered  give_up      given_up
    answered  leave        left
    answering response     answering
    answering response_end over
    answering give_up      given_up_answering
    answering leave        left
    reading_on request     reading_on
    reading_on request_end over
    reading_on give_up     given_up_reading_on
    reading_on leave       left
    given_up  request      given_up
    given_up  request_end  given_up
    given_up  reply        given_up
    given_up  response     given_up
    given_up  response_end given_up
    given_up  leave        over
    given_up_answering reply        given_up_answering
    given_up_answering response     given_up_answering
    given_up_answering response_end over
    given_up_answering leave        over
    given_up_reading_on request     given_up_reading_on
    given_up_reading_on request_end over
    given_up_reading_on leave       over
    left      give_up      over
"""
ELECTION = """
    following head_lost  lost
    following chosen     leading
    following obey       lost
    lost      head_found following
    lost      ask        asking
    lost      chosen     leading
    lost      obey       lost
    asking    head_found following
    asking    give_up    lost
    asking    chosen     leading
    asking    obey       lost
    leading   ask        proposing
    leading   chosen     leading
    leading   obey       lost
    proposing give_up    leading
    proposing chosen     leading
    proposing obey       lost
"""
MACHINES = {
    "stream": (STREAM_TABLE, StreamState, StreamMove, STREAM),
    "election": (ELECTION_TABLE, ElectionState, ElectionEvent, ELECTION),
    "row": (ROW_TABLE, RowState, RowEvent, ROWS),
    "membership": (MEMBERSHIP_TABLE, MembershipState, MembershipEvent, MEMBERSHIP),
    "leader": (LEADER_TABLE, LeaderState, LeaderEvent, LEADER),
    "joining": (JOINING_TABLE, JoiningState, JoiningEvent, JOINING),
    "trial": (TRIAL_TABLE, TrialState, TrialEvent, TRIAL),
    "pipeline": (PIPELINE_TABLE, PipelineState, PipelineEvent, PIPELINE),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_whole_cross_product(name):
    table, states, events, text = MACHINES[name]
    expected = {tuple(line.split()[:2]): line.split()[2] for line in text.strip().splitlines()}
    for state, event, after in cross_product(table, states, events):
        machine = Machine(table, state)
        wanted = expected.pop((state.value, event.value), None)
        if wanted is None:
            with pytest.raises(LocalProtocolError, match="not possible"):
                machine.fire(event)
            assert machine.state is state
        else:
            assert machine.fire(event) is after is states(wanted)
    assert not expected

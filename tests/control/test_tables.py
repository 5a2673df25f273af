"""Every machine's table against its whole cross product: legal moves move, all others raise.

The expected moves are written here a second time, by hand, so that a row that is deleted, added
or changed makes a test fail.
"""

from __future__ import annotations

import pytest
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
MACHINES = {
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

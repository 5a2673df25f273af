"""The two tables: every row is walked, and every other pair of state and move is illegal."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.codec.frame import FrameKind, frame_header
from sealring_protocol.codec.messages import Admit
from sealring_protocol.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.joining.exchange import (
    INVITER_TABLE,
    JOINER_TABLE,
    EncapsulationRequested,
    Inviter,
    InviterMove,
    InviterState,
    Joiner,
    JoinerMove,
    JoinerState,
    SignatureRequested,
)
from sealring_protocol.joining.session import JoinSession
from sealring_protocol.table import IllegalEvent, Machine, cross_product

from tests.security.pairs import assert_dead, bytes_of, encapsulate, frame

from .pairs import (
    ADA,
    DAN,
    INVITATION,
    NEWCOMER,
    NOW,
    Pair,
    answering,
    asking,
    drain,
    host,
    invitations,
    with_dan,
)

Role = Joiner | Inviter
State = JoinerState | InviterState

PAIRS = [
    pytest.param(table, state, move, after, id=f"{states.__name__}-{state.name}-{move.name}")
    for table, states, moves in (
        (JOINER_TABLE, JoinerState, JoinerMove),
        (INVITER_TABLE, InviterState, InviterMove),
    )
    for state, move, after in cross_product(table, states, moves)  # type: ignore[type-var]
]


@pytest.mark.parametrize(("table", "state", "move", "after"), PAIRS)
def test_the_cross_product(table: Any, state: Any, move: Any, after: Any) -> None:
    machine = Machine(table, state)
    if after is None:
        with pytest.raises(IllegalEvent):
            machine.fire(move)
        assert machine.state is state
    else:
        assert machine.fire(move) is after


def test_there_is_a_pair_for_each_state_and_move() -> None:
    assert len(PAIRS) == 8 * 7 + 9 * 8


@pytest.mark.parametrize(
    ("table", "states", "fail"),
    [(JOINER_TABLE, JoinerState, JoinerMove.FAIL), (INVITER_TABLE, InviterState, InviterMove.FAIL)],
)
def test_the_ends_are_final_and_everything_else_can_die(table: Any, states: Any, fail: Any) -> None:
    final = {states.CLOSED, states.DEAD}
    assert not any(state in final for state, _ in table)
    for state in set(states) - final:
        assert table[state, fail] is states.DEAD


# ---------------------------------------------------------- walks to each state


def joiner() -> Joiner:
    return Joiner(INVITATION, NEWCOMER, NOW, bytes_of("joiner", 96))


def inviter() -> Inviter:
    return Inviter(host(), invitations(), NOW, bytes_of("inviter", 32))


def _sign(machine: Role, signer: Any) -> None:
    event = machine.next_event()
    assert isinstance(event, SignatureRequested)
    machine.provide_signature(signer.sign(event.payload))


def _encapsulate(machine: Inviter) -> None:
    event = machine.next_event()
    assert isinstance(event, EncapsulationRequested)
    machine.provide_encapsulation(*encapsulate(event.encapsulation_key))


def both(state: State) -> Role:
    """The end that has *state*, after a join as far as that."""
    one, other = joiner(), inviter()
    steps: tuple[Callable[[], object], ...] = (
        one.dial,
        lambda: other.receive(frame(one.data_to_send())),
        lambda: _encapsulate(other),
        lambda: _sign(other, ADA),
        lambda: one.receive(frame(other.data_to_send())),
        lambda: _sign(one, DAN),
        lambda: other.receive(frame(one.data_to_send())),
        other.admit,
        lambda: one.receive_admit(Admit(with_dan(), "{}"), NOW),
        one.stored,
        other.receive_joined,
        one.close,
        other.close,
    )
    for step in (lambda: None, *steps):
        step()
        for end in (one, other):
            if end.state is state:
                return end
    raise AssertionError(f"no walk to {state}")


LIVE = [
    pytest.param(state, id=f"{type(state).__name__}-{state.name}")
    for states in (JoinerState, InviterState)
    for state in states
    if state.name not in {"CLOSED", "DEAD"}
]
CLOSED = [JoinerState.CLOSED, InviterState.CLOSED]
CALLS: Mapping[Any, Mapping[str, tuple[Callable[[Any], object], Any]]] = {
    JoinerState: {
        "dial": (lambda m: m.dial(), JoinerMove.DIAL),
        "sign": (lambda m: m.provide_signature(DAN.sign(b"")), JoinerMove.SIGNED),
        "stored": (lambda m: m.stored(), JoinerMove.STORED),
        "close": (lambda m: m.close(), JoinerMove.CLOSE),
    },
    InviterState: {
        "encapsulate": (
            lambda m: m.provide_encapsulation(bytes(1088), bytes(32)),
            InviterMove.ENCAPSULATED,
        ),
        "sign": (lambda m: m.provide_signature(ADA.sign(b"")), InviterMove.SIGNED),
        "admit": (lambda m: m.admit(), InviterMove.ADMIT),
        "close": (lambda m: m.close(), InviterMove.CLOSE),
    },
}
TABLES: Mapping[Any, Any] = {JoinerState: JOINER_TABLE, InviterState: INVITER_TABLE}
MISUSES = [
    pytest.param(state, call, id=f"{type(state).__name__}-{state.name}-{name}")
    for states, calls in CALLS.items()
    for state in states
    for name, (call, move) in calls.items()
    if state.name != "DEAD" and (state, move) not in TABLES[states]
]


@pytest.mark.parametrize(("state", "call"), MISUSES)
def test_a_call_that_the_table_lacks_kills(state: State, call: Callable[[Role], object]) -> None:
    machine = both(state)
    with pytest.raises(IllegalEvent) as caught:
        call(machine)
    if state in CLOSED:
        assert machine.state is state
        assert machine.data_to_send() == b""
    else:
        assert_dead(machine, caught.value)


@pytest.mark.parametrize("state", LIVE)
def test_every_live_state_dies_of_a_failure(state: State) -> None:
    machine, error = both(state), ConnectionLost("the stream ended")
    machine.fail(error)
    assert_dead(machine, error)


@pytest.mark.parametrize("state", CLOSED)
def test_a_closed_end_stays_closed(state: State) -> None:
    machine = both(state)
    with pytest.raises(IllegalEvent):
        machine.fail(ConnectionLost("after CLOSE"))
    with pytest.raises(RemoteProtocolError):
        machine.receive(frame(bytes(9)))
    assert machine.state is state


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_frame_out_of_place_kills(state: State, kind: int) -> None:
    machine = both(state)
    with pytest.raises(RemoteProtocolError) as caught:
        machine.receive(frame(bytes([1, kind, 0, 0, 0, 0, 0, 1]) + b"\x16"))
    assert not isinstance(caught.value, LocalProtocolError)
    assert_dead(machine, caught.value)


@pytest.mark.parametrize("state", LIVE)
def test_what_a_peer_seals_out_of_place_is_its_fault(state: State) -> None:
    machine = both(state)
    if state in {JoinerState.WAIT_ADMIT, InviterState.WAIT_JOINED}:
        return
    take = (
        (lambda: machine.receive_admit(Admit(with_dan(), ""), NOW))
        if isinstance(machine, Joiner)
        else machine.receive_joined
    )
    with pytest.raises(RemoteProtocolError) as caught:
        take()
    assert_dead(machine, caught.value)


def test_every_row_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines' public interface reaches each row, so that deleting one is noticed."""
    walked = set()
    fire = Machine.fire

    def recording(self: Any, move: Any) -> Any:
        before = self.state
        after = fire(self, move)
        walked.add((before, move))
        return after

    monkeypatch.setattr(Machine, "fire", recording)
    for states in (JoinerState, InviterState):
        for state in states:
            if state.name not in {"CLOSED", "DEAD"}:
                both(state).fail(ConnectionLost("the end"))
            if (state, CALLS[states]["close"][1]) in TABLES[states]:
                both(state).close()
    assert walked == {*JOINER_TABLE, *INVITER_TABLE}


# ---------------------------------------------------------------- any bytes


@pytest.mark.parametrize("state", LIVE)
@settings(max_examples=25, deadline=None)
@given(
    code=st.sampled_from([0x15, 0x16, 0x17, 0x18, 1, 2, 3]),
    size=st.sampled_from([0, 1, 1261, 1400, 250]),
    noise=st.binary(max_size=64),
)
def test_noise_in_every_state_is_the_peers_fault(
    state: State, code: int, size: int, noise: bytes
) -> None:
    machine = both(state)
    machine.data_to_send()
    body = (bytes([code]) + noise).ljust(size, b"\x55")
    with pytest.raises(RemoteProtocolError) as caught:
        machine.receive(frame(frame_header(FrameKind.HANDSHAKE, len(body)) + body))
    assert_dead(machine, caught.value)


def sessions() -> tuple[JoinSession, ...]:
    """An end of each kind, before and after the other has proved itself."""
    pair = Pair()
    late = pair.joiner, pair.inviter
    for end in late:
        end.data_to_send()
    return asking(), answering(invitations()), *late


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_bytes_in_any_pieces_are_the_peers_fault(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([1, 2, 3]))
    body = data.draw(st.binary(max_size=200))
    stream = data.draw(
        st.one_of(st.binary(max_size=300), st.just(frame_header(FrameKind(kind), len(body)) + body))
    )
    size = data.draw(st.integers(1, 64))
    for end in sessions():
        end.data_to_send()
        heard: list[object] = []
        with contextlib.suppress(RemoteProtocolError):
            for at in range(0, len(stream), size):
                end.receive_data(stream[at : at + size], 0.0)
                heard += drain(end, ADA)
        assert heard == []


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_altered_byte_of_either_end_lets_nobody_in(data: st.DataObject) -> None:
    """Whatever is altered, neither end takes the other for proved by what came after it."""
    pair = Pair()
    whole = {"joiner": pair.said["inviter"], "inviter": pair.said["joiner"]}
    name = data.draw(st.sampled_from(sorted(whole)))
    stream = bytearray(whole[name])
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    end = asking() if name == "joiner" else answering(invitations())
    heard: list[object] = []
    with contextlib.suppress(RemoteProtocolError):
        for part in (stream[:1269], stream[1269:]) if name == "inviter" else (stream,):
            end.receive_data(bytes(part), 0.0)
            heard += drain(end, DAN if name == "joiner" else ADA)
    assert heard == []


def test_the_same_join_in_single_bytes() -> None:
    whole, split = Pair(), Pair(piece=1)
    assert whole.said == split.said
    assert [type(e) for e in whole.heard["joiner"]] == [type(e) for e in split.heard["joiner"]]
    split.inviter.admit(Admit(with_dan(), "{}"), 0.0)
    split.run()
    split.joiner.stored(0.0)
    split.run()
    assert split.invitations.fault(INVITATION, NOW) == "this invitation was used"


def test_hundreds_of_strangers_cost_8_kib_each_at_most() -> None:
    kept, at, init = invitations(), host(), asking().data_to_send()
    ends = []
    tracemalloc.start()
    for _ in range(200):
        end = answering(kept, at)
        end.receive_data(init[:-1], 0.0)  # all but a byte of the most that is taken
        assert end.next_event() is None
        ends.append(end)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(ends) < 8192

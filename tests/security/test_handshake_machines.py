"""The two tables: every row is walked, and every other pair of state and event is illegal."""

import gc
from traceback import walk_tb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.codec.frame import FrameKind, frame_header
from sealring_protocol.codec.messages import Accept
from sealring_protocol.errors import ConnectionLost, RemoteProtocolError
from sealring_protocol.security import initiator as initiating
from sealring_protocol.security import responder as responding
from sealring_protocol.security.handshake import (
    INIT_BODY,
    RESP_BODY,
    EncapsulationRequested,
    Exchange,
    PeerRefused,
    PeerVerified,
    RosterReceived,
    Secrets,
    SignatureRequested,
)
from sealring_protocol.table import IllegalEvent, Machine, cross_product

from .pairs import (
    ADA,
    BEN,
    NOW,
    answer_init,
    answer_resp,
    assert_dead,
    config,
    dialing,
    encapsulate,
    frame,
    initiator,
    responder,
    run_to_fin,
    signed,
    take,
)

ROLES = {"initiator": initiating, "responder": responding}
PAIRS = [
    pytest.param(role.TABLE, state, event, after, id=f"{name}-{state.name}-{event.name}")
    for name, role in ROLES.items()
    for state, event, after in cross_product(role.TABLE, role.State, role.Event)
]


@pytest.mark.parametrize(("table", "state", "event", "after"), PAIRS)
def test_the_cross_product(table, state, event, after):
    machine = Machine(table, state)
    if after is None:
        with pytest.raises(IllegalEvent):
            machine.fire(event)
        assert machine.state is state
    else:
        assert machine.fire(event) is after


def test_there_is_a_pair_for_each_state_and_event():
    assert len(PAIRS) == 8 * 8 + 9 * 11


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_the_ends_are_final_and_everything_else_can_die(role):
    final = {role.State.CLOSED, role.State.DEAD}
    assert not any(state in final for state, _ in role.TABLE)
    for state in set(role.State) - final:
        assert role.TABLE[state, role.Event.FAIL] is role.State.DEAD


# ----------------------------------------------------------------- walks to each state

OLD, NEW = signed(serial=5), signed(serial=6)


def _asked(machine):
    machine.provide_signature(ADA.sign(take(machine, SignatureRequested).payload))


def at_start():
    return initiator(config(ADA, OLD))


def at_wait_resp():
    return dialing(config(ADA, OLD))[0]


def at_initiator_signature(theirs=OLD):
    machine, init = dialing(config(ADA, OLD))
    machine.receive(frame(answer_init(responder(config(BEN, theirs)), init)))
    return machine


def at_wait_accept(theirs=OLD):
    machine = at_initiator_signature(theirs)
    _asked(machine)
    return machine


def at_initiator_store():
    run = run_to_fin(config(ADA, OLD), config(BEN, NEW))
    run.responder.receive(frame(run.fin))
    run.initiator.receive_accept(run.responder.admit())
    take(run.initiator, RosterReceived)
    return run.initiator


def at_initiator_established():
    run = run_to_fin()
    run.responder.receive(frame(run.fin))
    run.initiator.receive_accept(run.responder.admit())
    return run.initiator


def at_wait_init():
    return responder()


def at_wait_encapsulation():
    machine = responder()
    machine.receive(frame(dialing()[1]))
    return machine


def at_responder_signature():
    machine = at_wait_encapsulation()
    key = take(machine, EncapsulationRequested).encapsulation_key
    machine.provide_encapsulation(*encapsulate(key))
    return machine


def at_wait_fin():
    return run_to_fin().responder


def at_responder_store():
    run = run_to_fin(config(ADA, NEW), config(BEN, OLD))
    run.responder.receive(frame(run.fin))
    return run.responder


def at_wait_admit():
    run = run_to_fin()
    run.responder.receive(frame(run.fin))
    take(run.responder, PeerVerified)
    return run.responder


def at_responder_established():
    machine = at_wait_admit()
    machine.admit()
    return machine


def closed(walk):
    def at_closed():
        machine = walk()
        machine.close()
        return machine

    return at_closed


WALKS = {
    initiating.State.START: at_start,
    initiating.State.WAIT_RESP: at_wait_resp,
    initiating.State.WAIT_SIGNATURE: at_initiator_signature,
    initiating.State.WAIT_ACCEPT: at_wait_accept,
    initiating.State.WAIT_STORE: at_initiator_store,
    initiating.State.ESTABLISHED: at_initiator_established,
    initiating.State.CLOSED: closed(at_initiator_established),
    responding.State.WAIT_INIT: at_wait_init,
    responding.State.WAIT_ENCAPSULATION: at_wait_encapsulation,
    responding.State.WAIT_SIGNATURE: at_responder_signature,
    responding.State.WAIT_FIN: at_wait_fin,
    responding.State.WAIT_STORE: at_responder_store,
    responding.State.WAIT_ADMIT: at_wait_admit,
    responding.State.ESTABLISHED: at_responder_established,
    responding.State.CLOSED: closed(at_responder_established),
}
SIZES = [0, 1, INIT_BODY, RESP_BODY, 230]
LIVE = [
    pytest.param(state, id=f"{type(state).__module__.split('.')[-1]}-{state.name}")
    for state in WALKS
    if state.name != "CLOSED"
]


def test_there_is_a_walk_to_every_state_but_the_grave():
    every = {*initiating.State, *responding.State}
    assert {state for state in every if state.name != "DEAD"} == set(WALKS)
    for state, walk in WALKS.items():
        assert walk().state is state


# A call of the interface, and the event that it stands for; None where it is the peer's doing.
CALLS = {
    initiating.State: {
        "dial": (lambda m: m.dial(), "DIAL"),
        "provide_signature": (lambda m: m.provide_signature(ADA.sign(b"")), "SIGNED"),
        "receive_accept": (lambda m: m.receive_accept(Accept(bytes(32), 5, b"")), "ACCEPTED"),
        "stored": (lambda m: m.stored(), "STORED"),
        "close": (lambda m: m.close(), "CLOSE"),
    },
    responding.State: {
        "provide_encapsulation": (
            lambda m: m.provide_encapsulation(bytes(1088), bytes(32)),
            "ENCAPSULATED",
        ),
        "provide_signature": (lambda m: m.provide_signature(BEN.sign(b"")), "SIGNED"),
        "stored": (lambda m: m.stored(), "STORED"),
        "admit": (lambda m: m.admit(), "ADMIT"),
        "refuse": (lambda m: m.refuse(), "REFUSE"),
        "close": (lambda m: m.close(), "CLOSE"),
    },
}
MISUSES = [
    pytest.param(state, call, id=f"{type(state).__module__.split('.')[-1]}-{state.name}-{name}")
    for state in WALKS
    for name, (call, event) in CALLS[type(state)].items()
    if (state, getattr(ROLES[type(state).__module__.split(".")[-1]].Event, event))
    not in ROLES[type(state).__module__.split(".")[-1]].TABLE
]


@pytest.mark.parametrize(("state", "call"), MISUSES)
def test_a_call_that_the_table_lacks_kills(state, call):
    machine = WALKS[state]()
    with pytest.raises(IllegalEvent) as caught:
        call(machine)
    if state.name == "CLOSED":
        assert machine.state is state
        assert machine.data_to_send() == b""
    else:
        assert_dead(machine, caught.value)


@pytest.mark.parametrize("state", LIVE)
def test_every_live_state_dies_of_a_failure(state):
    machine, error = WALKS[state](), ConnectionLost("the stream ended")
    machine.fail(error)
    assert_dead(machine, error)


@pytest.mark.parametrize("state", [initiating.State.CLOSED, responding.State.CLOSED])
def test_a_closed_link_stays_closed(state):
    machine = WALKS[state]()
    with pytest.raises(IllegalEvent):
        machine.fail(ConnectionLost("after CLOSE"))
    with pytest.raises(RemoteProtocolError):
        machine.receive(frame(bytes(9)))
    assert machine.state is state


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_frame_out_of_place_kills(state, kind):
    """A sealed frame before, a handshake frame after, and either while an effect is awaited."""
    machine = WALKS[state]()
    with pytest.raises(RemoteProtocolError) as caught:
        machine.receive(frame(bytes([1, kind, 0, 0, 0, 0, 0, 1]) + b"\x03"))
    assert type(caught.value) is not IllegalEvent
    assert_dead(machine, caught.value)


def at_fin_with_expired_roster():
    """The responder's clock says that the roster of both has expired; the initiator's does not."""
    held = signed(expires_ms=NOW + 1000)
    machine, init = dialing(config(ADA, held), wall_ms=NOW)
    answerer = responder(config(BEN, held), wall_ms=NOW + 2000)
    fin, _ = answer_resp(machine, answer_init(answerer, init))
    return answerer, fin


def test_every_row_is_walked(monkeypatch):
    """The machines' public interface reaches each row, so that deleting one is noticed."""
    walked = set()
    fire = Machine.fire

    def recording(self, event):
        before = self.state
        after = fire(self, event)
        walked.add((before, event))
        return after

    monkeypatch.setattr(Machine, "fire", recording)
    for state, walk in WALKS.items():
        if state.name != "CLOSED":
            walk().fail(ConnectionLost("the end"))
    for walk in (at_wait_accept, at_initiator_store, at_initiator_established):
        walk().close()
    for walk in (at_responder_store, at_wait_admit, at_responder_established):
        walk().close()
    at_initiator_store().stored()
    at_responder_store().refuse()
    at_wait_admit().refuse()
    run = run_to_fin(config(ADA, NEW), config(BEN, OLD))
    run.responder.receive(frame(run.fin))
    run.responder.stored()
    run.initiator.receive_accept(run.responder.admit())
    answerer, fin = at_fin_with_expired_roster()
    answerer.receive(frame(fin))
    take(answerer, PeerVerified)
    take(answerer, PeerRefused)
    rows = {*initiating.TABLE, *responding.TABLE}
    assert walked == rows


@pytest.mark.parametrize("state", LIVE)
@settings(max_examples=30, deadline=None)
@given(
    code=st.sampled_from([1, 2, 3, 4]), size=st.sampled_from(SIZES), noise=st.binary(max_size=64)
)
def test_noise_in_every_state_is_the_peers_fault(state, code, size, noise):
    """Whatever a frame holds, the error is a documented one and nothing is said."""
    machine = WALKS[state]()
    machine.data_to_send()
    body = (bytes([code]) + noise).ljust(size, b"\x55")
    with pytest.raises(RemoteProtocolError) as caught:
        machine.receive(frame(frame_header(FrameKind.HANDSHAKE, len(body)) + body))
    assert_dead(machine, caught.value)


def test_a_dead_handshake_keeps_no_frame_that_held_keys():
    machine = at_wait_fin()
    with pytest.raises(RemoteProtocolError) as caught:
        machine.receive(frame(frame_header(FrameKind.HANDSHAKE, 300) + b"\x03" + bytes(299)))
    error = caught.value
    assert error.__context__ is error.__cause__ is None
    assert [at.f_code.co_name for at, _ in walk_tb(error.__traceback__)] == [
        "test_a_dead_handshake_keeps_no_frame_that_held_keys"
    ]


def living(kind):
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_the_exchange_is_forgotten_once_its_secrets_are_made():
    """PRK, and the keys of RESP and FIN, belong to nobody on a link that is up, or dead."""
    before = living(Exchange)
    established = at_initiator_established(), at_responder_established()
    assert living(Exchange) == before
    waiting = at_wait_fin()
    assert living(Exchange) == before + 1
    waiting.fail(ConnectionLost("the end"))
    assert living(Exchange) == before
    assert all(machine.state.name == "ESTABLISHED" for machine in established)


def test_a_dead_handshake_forgets_secrets_that_were_not_taken():
    before = living(Secrets)
    machine = at_responder_store()
    assert living(Secrets) > before
    machine.fail(ConnectionLost("the end"))
    assert living(Secrets) == before
    assert machine.state.name == "DEAD"

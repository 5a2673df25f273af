"""Messages of a handshake that were altered, cut short or lengthened on their way: refused.

Any byte may be altered. Each must end in one of the package's own errors, with nothing to send.
"""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    RemoteProtocolError,
)
from sealring_protocol.limits import MAX_ELECTED, MAX_FIN_BODY
from sealring_protocol.security.responder import State as ResponderState

from .halfway import DIGEST, RUN, SILENT, at_fin, at_resp, reference_initiator
from .pairs import (
    answer_init,
    dialing,
    flip,
    refused,
    responder,
    run_to_fin,
)
from .reference import mac

# --------------------------------------------------------------- any byte altered


WAITING = {
    "init": responder,
    "resp": lambda: dialing()[0],
    "fin": lambda: run_to_fin().responder,
}
"""A new machine that waits for each message."""


@pytest.mark.parametrize("message", WAITING)
def test_every_byte_altered(message):
    data = getattr(RUN, message)
    for at in range(len(data)):
        refused(WAITING[message](), flip(data, at), *SILENT)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["init", "resp", "fin"]), st.integers(64, 2**16), st.integers(0, 7))
def test_a_bit_altered(message, at, bit):
    data = getattr(RUN, message)
    refused(WAITING[message](), flip(data, 8 + at % (len(data) - 8), 1 << bit), *SILENT)


@settings(max_examples=60, deadline=None)
@given(st.integers(9, len(RUN.init) - 33), st.integers(0, 7))
def test_an_init_altered_by_someone_who_knows_the_roster(at, bit):
    """Whoever can make tags can alter INIT, but then the two transcripts differ."""
    altered = flip(RUN.init, at, 1 << bit)[:-32]
    altered += mac(reference_initiator().admission(), altered)
    answerer = responder()
    try:
        resp = answer_init(answerer, altered)
    except RemoteProtocolError:
        assert answerer.state is ResponderState.DEAD
    else:
        refused(dialing()[0], resp, AuthenticationFailed)


# ------------------------------------------------------------- cut short, or too long


@pytest.mark.parametrize("message", WAITING)
def test_cut_short_at_every_length(message):
    data = getattr(RUN, message)
    for size in range(8, len(data)):
        refused(WAITING[message](), data[:size], *SILENT)


@pytest.mark.parametrize("more", [b"\x00", bytes(32), bytes(1024)])
def test_trailing_data(more):
    refused(responder(), RUN.init + more, RemoteProtocolError)
    refused(dialing()[0], RUN.resp + more, RemoteProtocolError)
    refused(run_to_fin().responder, RUN.fin + more, AuthenticationFailed)


def test_fin_beyond_its_limit():
    long = RUN.fin + bytes(MAX_FIN_BODY + 1 - (len(RUN.fin) - 8))
    assert "the limit" in refused(run_to_fin().responder, long, LimitExceeded)


def test_fin_at_its_limit_is_read():
    long = RUN.fin + bytes(MAX_FIN_BODY - (len(RUN.fin) - 8))
    refused(run_to_fin().responder, long, AuthenticationFailed)


@pytest.mark.parametrize("message", WAITING)
@pytest.mark.parametrize("kind", [0, 2, 3])
def test_a_frame_of_another_kind(message, kind):
    data = getattr(RUN, message)
    said = refused(WAITING[message](), data[:1] + bytes([kind]) + data[2:], RemoteProtocolError)
    assert said.endswith(f"a frame of kind {kind} came")


def test_trailing_data_inside_the_seal():
    machine, reference = at_resp()
    refused(machine, reference.resp(5, DIGEST, trailing=b"\x00"), RemoteProtocolError)
    machine, reference = at_fin()
    said = refused(machine, reference.fin(5, DIGEST, trailing=b"\x00"), RemoteProtocolError)
    assert said == "1 trailing bytes"


def test_fin_cut_short_inside_the_seal():
    _, reference = at_fin()
    fin = reference.fin(5, DIGEST)
    whole = reference.open(reference.kI, fin[9:], reference.t3 + fin[:9])
    for size in range(len(whole)):
        machine, reference = at_fin()
        hdr = struct.pack(">BBHI", 1, 1, 0, 1 + size + 16) + b"\x03"
        sealed = reference.seal(reference.kI, whole[:size], reference.t3 + hdr)
        refused(machine, hdr + sealed, RemoteProtocolError)


def test_a_roster_longer_than_its_limit_is_refused_by_its_length():
    machine, reference = at_fin()
    fin = reference.fin(6, DIGEST, roster_length=MAX_ELECTED + 1)
    assert "the limit" in refused(machine, fin, LimitExceeded)

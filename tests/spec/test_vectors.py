"""Every vector against the code, in every way in which it can be run: whole, its stream cut byte
by byte and at random, cut off, and grown."""

from __future__ import annotations

import pytest
from sealring_model.sampling import draw
from sealring_protocol.conformance.kinds import KINDS
from sealring_protocol.conformance.report import ways
from sealring_protocol.conformance.result import raw, run_end
from sealring_protocol.errors import RemoteProtocolError

from spec.vectors.plain import header
from tests.spec.files import every


@pytest.mark.parametrize("name", every())
def test_vector(name: str) -> None:
    for _, run in ways(every()[name], {**KINDS, **draw.VECTORS}):
        run(every()[name])


@pytest.mark.parametrize(
    ("name", "at", "step"),
    [("initiator/aes", 0, 37), ("responder/aes", 0, 37), ("responder/aes", 1, 3)],
)
def test_a_handshake_frame_cut_off_and_framed_anew(name: str, at: int, step: int) -> None:
    """Of each length, with a header that says that length: refused without a byte."""
    given = every()[name]["input"]
    body = raw(given["deliveries"][at]["data"])[8:]
    before = given["deliveries"][:at]
    for size in [*range(0, len(body), step), len(body) - 1]:
        data = header(1, size) + body[:size]
        end = run_end({**given, "deliveries": [*before, {"at": 0.02, "data": data.hex()}]})
        assert isinstance(end.error, RemoteProtocolError)
        assert end.output["told"] is None
        assert len(end.output["sent"]) == (1 if at or "peer" in given else 0)

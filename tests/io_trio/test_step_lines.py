"""What the log says of a step."""

import pytest
from sealring.generation.trace import describe_step
from sealring_protocol.codec.messages import NO_WORK, Decode, Prefill, Spent
from sealring_protocol.control.effects import StepTiming

WORKS = {
    "decode of group 2, rows 7": Decode(2),
    "decode of group 2, rows 7, on guess 3": Decode(2, 3),
    "decode of group 2, rows 7, 1 guess read ahead": Decode(2, 1, 1),
    "decode of group 2, rows 7, on guess 3, 4 guesses read ahead": Decode(2, 7, 4),
    "prefill of row 7 from 2, 3 tokens": Prefill(7, 2, 3),
    "no work": NO_WORK,
}


@pytest.mark.parametrize("said", WORKS)
def test_a_step_says_what_it_read(said):
    timing = StepTiming(9, WORKS[said], (7,), 1500, (Spent(1000),), Spent(), False)
    assert describe_step(timing).startswith(f"step 9: {said}: 1.50 ms: rank 0 1.00 ")

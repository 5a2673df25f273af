"""The fixed part of each message, as `struct` sees it: what the tables of the specification say."""

from __future__ import annotations

import struct
from typing import Final

CLOSE: Final = struct.Struct(">BH")
READY: Final = struct.Struct(">BQQ32sHHHBIBQQQHIIH")
BOOTSTRAP: Final = struct.Struct(">BQQBHBBI32sHH")
STEP: Final = struct.Struct(">BQQQ16sHHHHHBQIIBIBB")
DONE: Final = struct.Struct(">BQQQBIBB")
FAILURE: Final = struct.Struct(">HB")
OPEN: Final = struct.Struct(">QQI")
SAVE: Final = struct.Struct(">QQ")
PROGRESS: Final = struct.Struct(">B8Q")
SPENT: Final = struct.Struct(">III")
JOIN: Final = struct.Struct(">QH")
WINDOW: Final = struct.Struct(">IQ")
TUNNEL: Final = struct.Struct(">BQQBB")
DIGEST: Final = 16

INFO: Final = struct.Struct(">B32sBIIIBHBQQH")
HOP: Final = struct.Struct(">BBB32s32s")
ROW: Final = struct.Struct(">BQQHddIddddBHII")
BIAS: Final = struct.Struct(">Id")
LOGPROBS: Final = struct.Struct(">BQQdB")
LOGPROB: Final = struct.Struct(">Id")
LOADED: Final = struct.Struct(">BQQQ")
GROUP: Final = struct.Struct(">BBHHIH")
GROUPED: Final = struct.Struct(">BHII")
IDLE, PREFILL, DECODE = 0, 1, 2

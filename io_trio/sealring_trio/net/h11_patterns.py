"""Makes h11 take linear time for whatever comes, as a server and beneath httpx2.

Two patterns of h11 0.16 try each way to share blanks out among two of their parts before they fail:
16 KiB of blanks and a zero byte take 0.7 s, with the interpreter's lock. The patterns here match
the same texts, and share out in one way.
"""

from __future__ import annotations

import re

from h11 import _abnf, _readers


def bound_h11() -> None:
    """Put the patterns in the place of h11's own."""
    _readers.header_field_re = re.compile(
        rf"(?P<field_name>{_abnf.field_name}):{_abnf.OWS}+"  # takes all blanks, and gives none back
        rf"(?P<field_value>{_abnf.field_value}){_abnf.OWS}".encode()
    )
    _readers.chunk_header_re = re.compile(
        rf"(?P<chunk_size>{_abnf.chunk_size})"
        rf"(?:(?P<chunk_ext>{_abnf.chunk_ext})|{_abnf.OWS})\r\n".encode()
    )

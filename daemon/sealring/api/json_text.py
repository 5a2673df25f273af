"""Parses the JSON of a body, with a bound on the values in it."""

from __future__ import annotations

import gc
import re
from typing import Any, Final

from pydantic_core import from_json

from sealring.api.errors import invalid

_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def parse_json(body: bytes, most: int) -> Any:
    """What the JSON text *body* says, of *most* values. Raises `ApiError`.

    By itself, since faults that are found while a text is parsed keep copies of what they blame,
    one for each form that a field may have. The collector would go again and again through what
    grows here. How deep a body goes and how many digits a number has is bounded by the parser.
    """
    bare = _TEXT.sub(b"", body)
    if sum(map(bare.count, (b",", b"[", b"{"))) > most:
        raise invalid(f"The body has more than {most} values.", code="too_many_values")
    gc.disable()
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body is not valid JSON: {error}", code="invalid_json") from None
    finally:
        gc.enable()

"""Limits of what a request's body may have, and the values that its fields are made of."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import pydantic
from sealring_protocol.limits import MAX_LOGPROBS

from sealring.api import fields

U32: Final = (1 << 32) - 1

MAX_CHOICES: Final = 128
"""Choices of one request, over all its prompts."""

MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 1024
MAX_TOOLS: Final = 512
MAX_PROMPT_IDS: Final = 1 << 20
"""Entries of a conversation, of a message, of the tools, and of a prompt given as ids."""

MAX_VALUES: Final = 2 * MAX_PROMPT_IDS
"""Values in a body, counted before they are made. Memory: some 100 bytes for each."""

COMPLETION_TOKENS: Final = 16
"""Tokens of a text completion that says nothing of it, as OpenAI has it."""

MAX_SCORED: Final = 1 << 17
"""Log probabilities of prompts in one answer: for each token its own and those of the likeliest
ones. Memory: some 200 bytes for each."""

MAX_LIKELY: Final = 800_000
"""Log probabilities of the tokens of an answer that is kept until it is whole, over all choices: of
each token its own and those of the likeliest ones. Memory: some 80 bytes for each."""

MAX_STOPS: Final = 128
MAX_STOP: Final = 1024
MAX_STOP_TEXT: Final = 16 << 10
"""Stop strings, the characters of one, and of all: each piece of text is compared with all."""

Number = pydantic.Field
Several = partial(pydantic.Field, fail_fast=True)
"""A list. One fault is told; a list of a million faults is not gone through for the rest."""

Whole = pydantic.BeforeValidator(fields.whole)
Penalty = Annotated[float, Number(ge=-2, le=2)]
Logprobs = Annotated[int, Number(ge=0, le=MAX_LOGPROBS), Whole]
Count = Annotated[int, Number(ge=1, le=U32), Whole]
Limit = Annotated[
    int,
    Number(ge=-1, le=U32, json_schema_extra={"not": {"const": 0}}),
    pydantic.AfterValidator(fields.some),
    Whole,
]
"""A number of tokens; -1 for what the context allows, as llama.cpp and its like have it."""

Stop = Annotated[str, pydantic.StringConstraints(max_length=MAX_STOP)]
Name = Annotated[str, pydantic.StringConstraints(min_length=1, max_length=256)]
Token = Annotated[int, Number(ge=0, le=U32), Whole]
Ids = Annotated[list[Token], Several(min_length=1, max_length=MAX_PROMPT_IDS)]
Bias = dict[
    Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9]{1,10}$")],
    Annotated[float, Number(ge=-100, le=100)],
]


class Model(pydantic.BaseModel):
    """A part of a body: exact types, no infinities, unknown fields left aside."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Body(Model):
    """A whole body."""

    _ignored: tuple[str, ...] = ()

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names in the body that have no effect."""
        return self._ignored

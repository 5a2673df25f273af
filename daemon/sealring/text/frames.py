"""The frames between a node and its text workers, and how a job can fail.

A frame is a JSON object and bytes: first the sizes of both as big-endian u32s, then both. Large
values (bodies, token ids, tools) travel as the bytes: the node passes them on without looking at
them.

A worker runs templates of others. One that was taken over answers anything, so each field of an
answer is checked here for its type, size and range (`checked`), before anything of the node takes
it.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from collections.abc import Mapping, Set
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final, Literal, get_args

import attrs
import pydantic
from sealring_model.loading.foreign_json import values_in
from sealring_protocol.control.requests import TokenIds
from sealring_protocol.limits import MAX_BAD

ID: Final = "I"
"""The type code of an array of token ids."""

ID_SIZE: Final = 40
"""Bytes of a token id in a tuple, with the tuple's reference."""

_BRANCHES: Final = 8
"""Branches of a prompt: each may have its cache kept."""


_MAX_PROMPTS: Final = 128
_MAX_SIZES: Final = 1 << 16
_MAX_NAMES: Final = 2 << 20
"""As many as a body has values."""

_MAX_SAID: Final = 32 << 20
"""Characters of an error, which may repeat some of the body."""

_MAX_HEADERS: Final = 8

_Size = Annotated[int, pydantic.Field(ge=0, le=(1 << 32) - 1)]
_Sizes = Annotated[list[_Size], pydantic.Field(max_length=_MAX_SIZES)]
_Names = Annotated[list[str], pydantic.Field(max_length=_MAX_NAMES)]
_Type = Literal["null", "boolean", "integer", "number", "object", "array", "string"]
_Short = Annotated[str, pydantic.Field(max_length=256)]
_Header = Annotated[str, pydantic.Field(max_length=256, pattern=r"^[ -~]*$")]
_STRICT: Final = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Kind(pydantic.BaseModel):
    """What an argument of a function may be (`argument_types.Kind`)."""

    model_config = _STRICT
    types: Annotated[list[_Type], pydantic.Field(max_length=len(get_args(_Type)))] = []
    texts: _Names = []
    fields_: dict[str, _Kind] = pydantic.Field({}, alias="fields")
    items: _Kind | None = None


class _Fields(pydantic.BaseModel):
    """The fields of all jobs; `_FIELDS` says which of them a job has."""

    model_config = _STRICT
    options: dict[str, Any] = {}
    read: Annotated[float, pydantic.Field(ge=0)] = 0.0
    lengths: Annotated[list[_Size], pydantic.Field(min_length=1, max_length=_MAX_PROMPTS)] = [0]
    predicted: _Size = 0
    tools: _Size = 0
    grammar: _Size = 0
    echo: _Size = 0
    callable: dict[str, dict[str, _Kind]] = {}
    reasoning: bool = False
    calling: bool = False
    opens: bool = False
    functions: bool = False
    in_words: bool = False
    plain: bool = False
    background: bool = False
    store: bool = False
    summary: bool = False
    ignored: _Names = []
    adapted: _Names = []
    texts: Annotated[list[str], pydantic.Field(max_length=_MAX_PROMPTS)] = []
    ends: _Sizes = []
    bad: Annotated[list[_Sizes], pydantic.Field(max_length=MAX_BAD)] = []
    branches: _Sizes = []
    names: dict[str, Annotated[tuple[str, str, bool], pydantic.Strict(False)]] = {}
    previous: str | None = None
    references: _Names = []
    calls: Annotated[
        list[Annotated[list[str], pydantic.Field(min_length=3, max_length=3)]],
        pydantic.Field(max_length=_MAX_NAMES),
    ] = []


class _Error(pydantic.BaseModel):
    """The fields of an `ApiError`, all of which are there."""

    model_config = _STRICT
    status: Annotated[int, pydantic.Field(ge=400, le=599)]
    message: Annotated[str, pydantic.Field(max_length=_MAX_SAID)]
    code: _Short
    kind: _Short
    param: Annotated[str, pydantic.Field(max_length=_MAX_SAID)] | None
    headers: Annotated[dict[_Header, _Header], pydantic.Field(max_length=_MAX_HEADERS)]


_PROMPT: Final = frozenset({"read", "lengths"})
_MISSING: Final = _PROMPT | {"previous", "references"}
_NAMED: Final = frozenset({"ignored", "adapted"})
_SHARED: Final = _PROMPT | _NAMED | {"options", "predicted", "grammar", "bad", "branches"}
_ANSWER: Final = frozenset({"reasoning", "calling", "opens", "functions", "in_words", "plain"})
_CHAT: Final = _SHARED | _ANSWER | {"tools", "callable"}
_FIELDS: Final[Mapping[str, tuple[Set[str], ...]]] = {
    "chat": (_CHAT,),
    "messages": (_CHAT,),
    "responses": (_CHAT | {"background", "echo", "store", "summary", "names"}, _MISSING),
    "completion": (_SHARED | {"texts", "ends"},),
    "prompt": (_PROMPT,),
    "count": (_NAMED,),
    "count_input": (_NAMED, _MISSING),
    "call": (frozenset({"calls"}),),
    "tokenize": (frozenset(), _NAMED),
    "detokenize": (frozenset(),),
}
"""The fields of each job's answer; with `_MISSING` it needs earlier responses."""


def checked(job: str, fields: Mapping[str, Any], data: bytes) -> None:
    """Raise `ValueError` unless *fields* and *data* are an answer to *job*."""
    if fields.keys() not in _FIELDS[job]:
        raise ValueError("other fields than its job has")
    _Fields.model_validate(fields)
    if "lengths" in fields:
        ParsedRequest.of(fields, data)


def checked_error(fields: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless *fields* are those of an `ApiError`."""
    _Error.model_validate(fields)


@attrs.frozen
class ParsedRequest:
    """A request as a text worker has read it: its *fields* for the node, the *prompts* and the
    *prediction* (what the answer is likely to contain) as ids, the *grammar* that holds the answer,
    the *bad* token sequences, the *rest*, bytes that the node passes on unread, and the ids that
    are *ends* of this answer beside the model's own. The answer *opens* a text of its own, or goes
    on with the prompt's. *branches* are as `Request` has them."""

    fields: Mapping[str, Any]
    prompts: list[TokenIds]
    prediction: TokenIds
    rest: bytes
    ends: frozenset[int] = frozenset()
    grammar: bytes = b""
    bad: tuple[tuple[int, ...], ...] = ()
    opens: bool = False
    branches: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that its token ids take, and its grammar, which the rows have again."""
        ids = sum(map(len, (*self.prompts, self.prediction)))
        return ID_SIZE * ids + 2 * len(self.grammar)

    @classmethod
    def of(cls, fields: Mapping[str, Any], data: bytes) -> ParsedRequest:
        """The request in a worker's answer, whose ``lengths`` are those of the prompts, and
        ``predicted`` that of the prediction after them. Raises `KeyError`, `TypeError` or
        `ValueError` if it is none: a worker may have been taken over."""
        ids = array(ID)
        lengths = [*map(int, fields["lengths"]), int(fields.get("predicted", 0))]
        ends = list(accumulate(lengths, initial=0))
        size = ends[-1] * ids.itemsize
        if len(ends) == 2 or ends != sorted(ends) or len(data) < size:
            raise ValueError(f"{lengths} are no lengths of {len(data)} bytes of ids")
        ids.frombytes(data[:size])
        *prompts, prediction = [TokenIds(ids[start:end]) for start, end in pairwise(ends)]
        grammar = size + int(fields.get("grammar", 0))
        if not size <= grammar <= len(data):
            raise ValueError("a grammar that is not there")
        if grammar + int(fields.get("tools", 0)) + int(fields.get("echo", 0)) > len(data):
            raise ValueError("tools that are not there")
        more = frozenset(map(int, fields.get("ends", ())))
        bad = tuple(tuple(map(int, part)) for part in fields.get("bad", ()))
        held = data[size:grammar]
        opens = bool(fields.get("opens", False))
        branches = tuple(map(int, fields.get("branches", ())))[:_BRANCHES]
        return cls(fields, prompts, prediction, data[grammar:], more, held, bad, opens, branches)


SIZES: Final = struct.Struct(">II")

MAX_FRAME: Final = 128 << 20
"""Bytes of a frame: a body of 8 MiB whose prompts are echoed, escaped, and its ids."""

_MAX_VALUES: Final = 250_000
"""Values of a frame's JSON, which the node parses in 0.1 s. An answer has far fewer, for its texts
count as one each."""

_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

READ: Final = "reading the body"
RENDER: Final = "the chat template"
TOKENISE: Final = "making tokens of the prompt"
HOLD: Final = "making the grammar of the answer"
CALL: Final = "reading a tool call"

STAGE_SECONDS: Final[Mapping[str, float]] = {
    READ: 10.0,
    RENDER: 5.0,
    TOKENISE: 60.0,
    HOLD: 10.0,
    CALL: 5.0,
}
"""Seconds of wall clock that each stage of a job may take; a worker has a lower priority than its
node. On one slow core 8 MiB take 1 s to read and 10 s to tokenise, templates and tool calls
milliseconds."""

MEMORY: Final = 3 << 30
"""Bytes of memory that a job may take beside what has been loaded. 8 MiB of text take half of that
to tokenise. The worker limits itself where it can, and the node looks."""

LOAD_MEMORY: Final = 2 << 30
"""Bytes of memory that loading a tokenizer may take: those of all that its files may have."""

LOAD_SECONDS: Final = 60
"""Seconds of processor time that it may take; a vocabulary of 150,000 takes 4."""


class Refused(Exception):
    """The job was done, and the text is refused: *fields* say why (`ApiError`)."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields.get("message", ""))
        self.fields = fields


class Exceeded(Exception):
    """The job exceeded a limit and was ended. The text says which limit, and in what stage."""


class TextQueueFull(Exception):
    """More text waits than `MAX_WAITING` allows."""


class Lost(Exception):
    """The worker ended, for another reason than its job."""


class Unloadable(Exception):
    """The model's tokenizer cannot be loaded, or not within the limits; the text says why."""


class Wrong(Lost):
    """The worker answered what is no answer to its job: it may have been taken over."""


def pack(fields: Mapping[str, Any], data: bytes = b"") -> bytes:
    """The frame of *fields* and *data*."""
    text = json.dumps(fields).encode()
    return SIZES.pack(len(text), len(data)) + text + data


def keys_in(text: bytes | bytearray) -> int:
    """The keys of the JSON in *text*, or fewer if it is none. Parses nothing."""
    return _TEXT.sub(b"", text).count(b":")


def is_small(text: bytes | bytearray, most: int = _MAX_VALUES) -> bool:
    """Whether the JSON of a frame has so many values and keys at *most*. Parses nothing."""
    if values_in(text) <= most:
        return True
    if text.count(b'"') - text.count(b'\\"') > 2 * most:  # each text has two, or one
        return False
    return values_in(_TEXT.sub(b"", text)) <= most

"""What a text worker makes of the fields that hold an answer to a form: its grammar, and the token
sequences that it must not have.

The grammar is compiled here as engines will (`sealring_model.text.grammars`), within their limits
and a time, so that what an engine gets can be followed. What cannot be is refused, with the reason.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from llguidance import LLTokenizer
from sealring_model.errors import LoadError
from sealring_model.text import grammars
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.limits import MAX_BAD, MAX_GRAMMAR

from sealring.dialects.errors import ApiError, invalid, left_out, unsupported
from sealring.dialects.messages import Conversation, Opening, asked_tools
from sealring.dialects.schema import ChatRequest, CompletionRequest, Held
from sealring.structured.forms import Form, Grammar, answer, form_of, leniently, refusal
from sealring.structured.tool_forms import (
    WrongSchema,
    calls_or,
    forced_call,
    free_calls,
    is_strict,
    strict_places,
)

COMPILE_SECONDS: Final = 0.25
"""Processor time that a grammar may take to compile, twice, and for its first mask. Engines compile
it, too, one after the other, and no other row but those with grammars waits for that."""


_MOST_BYTES: Final = MAX_GRAMMAR - 64
"""Bytes of a grammar; whose it is will be added (`http.generate.jobs`)."""


@attrs.frozen
class Holding:
    """What holds an answer: its *grammar*, empty if it is free. What the fields *ignored* ask for
    is not held."""

    grammar: bytes = b""
    ignored: tuple[str, ...] = ()


def chat_grammar(
    tokenizer: Tokenizer,
    asked: ChatRequest,
    talk: Conversation,
    opening: Opening,
    *,
    vocabulary: int,
    context: int,
) -> Holding:
    """What holds the answer to *asked*, for a model of so many numbers and a *context* of so many
    tokens (0: not known). Raises `ApiError`."""
    form = form_of(asked, asked.response_format)
    tools = asked_tools(asked)
    calls = bool(tools) and (talk.forced or form is not None or any(map(is_strict, tools)))
    if form is None and not calls:
        return Holding()
    known = _Known(tokenizer, vocabulary)
    whole = functools.partial(
        answer,
        tokenizer,
        reasoning=opening.reasoning,
        calling=opening.calling,
        most=None if form is None else _most_thoughts(asked, context - len(opening.ids)),
    )
    if not calls and form is not None:
        return known.first(form.param, _plainly(known, form, whole))
    param = "tools" if form is None else form.param
    try:
        return known.first(param, _with_tools(known, asked, talk, tools, form, whole))
    except WrongSchema as error:
        at = _place(asked, tools, error.at)
        what = f"The schema of the strict tool '{tools[error.at]['function']['name']}'"
        raise refusal(f"tools.{at}.function.parameters", error.why, what) from None


def _most_thoughts(asked: ChatRequest, room: int) -> int | None:
    """Of how many tokens an answer that has a form may think: half of them; None if there is no
    bound to them."""
    limits = [limit for limit in (asked.limit, room) if limit is not None and limit > 0]
    return max(1, min(limits) // 2) if limits else None


def completion_grammar(tokenizer: Tokenizer, asked: CompletionRequest, vocabulary: int) -> Holding:
    """What holds the answers to *asked*, as `chat_grammar`. They have no reasoning."""
    form = form_of(asked, None)
    if form is None:
        return Holding()
    known = _Known(tokenizer, vocabulary)
    return known.first(
        form.param,
        ((json.dumps({"grammars": [grammar]}), names) for grammar, names in known.ways(form)),
    )


def bad_sequences(tokenizer: Tokenizer, asked: Held) -> list[list[int]]:
    """The token sequences of ``bad_words``: each word as it may stand at the beginning and after a
    space, also where that are different numbers of tokens. Raises `ApiError`."""
    found: list[list[int]] = []
    for word in asked.bad_words or ():
        bare, spaced = word.lstrip(), " " + word.lstrip()
        found += [ids for text in (bare, spaced) if (ids := tokenizer.encode_part(text))]
    if sum(map(len, found)) > MAX_BAD:
        raise invalid(f"'bad_words' are more than {MAX_BAD} tokens together.", "bad_words")
    return found


_Names = Callable[[], tuple[str, ...]]
_Try = tuple[str, _Names]
"""A grammar, empty for none, and the fields that it does not hold."""


class _Known:
    """Grammars of answers that *tokenizer* reads."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self.tokenizer: Final = tokenizer
        self._why = ""  # what is wrong with the grammar that was tried last
        try:
            self._tokens: Final = _tokens(tokenizer.folder, vocabulary or tokenizer.vocabulary)
        except LoadError as error:
            raise unsupported("response_format", f"{error}.") from None

    def fault(self, parts: Sequence[Grammar]) -> tuple[str, list[str]]:
        """What is wrong with an answer of these grammars, the first of which names the others,
        empty if nothing is; and llguidance's warnings."""
        text = json.dumps({"grammars": list(parts)})
        why = self._fault(text)
        return why, [] if why else grammars.warnings(self._tokens, text)

    def ways(self, form: Form) -> Iterator[tuple[Grammar, _Names]]:
        """The grammars of *form*, and the fields that they do not hold: first the exact one. Where
        that was tried and has keywords that llguidance does not know, one without them."""
        yield form.grammar, tuple
        if left_out([self._why]) and (lenient := leniently(form.grammar)) is not None:
            yield (
                lenient,
                lambda: tuple(
                    f"{form.param}.{word}" for word in left_out(self.fault([lenient])[1])
                ),
            )

    def first(self, param: str, tries: Iterable[_Try]) -> Holding:
        """The first of *tries* that can be held, which the field *param* asks for. Raises
        `ApiError` for what is wrong with the last."""
        refused: ApiError | None = None
        for text, names in tries:
            if not text:
                return Holding(b"", names())
            data = text.encode("utf-8", "replace")
            if len(data) > _MOST_BYTES:
                why = f"it is {len(data)} bytes, of {_MOST_BYTES} at most"
            elif not (why := self._fault(text)):
                return Holding(data, names())
            refused = refusal(param, why)
        raise refused or RuntimeError("nothing was tried")

    def _fault(self, text: str) -> str:
        began = time.process_time()
        why = grammars.fault(self._tokens, text)
        if not why and time.process_time() > began + COMPILE_SECONDS:
            why = f"it takes more than {COMPILE_SECONDS:g} s to compile"
        self._why = why.strip().rstrip(".")
        return self._why


@functools.lru_cache(1)
def _tokens(folder: Path, vocabulary: int) -> LLTokenizer:
    return grammars.grammar_tokenizer(folder, vocabulary)


def _plainly(known: _Known, form: Form, whole: Callable[..., str]) -> Iterator[_Try]:
    """Answers of *form*."""
    for grammar, names in known.ways(form):
        yield whole("answer: @form", {"form": grammar}), names


def _with_tools(
    known: _Known,
    asked: ChatRequest,
    talk: Conversation,
    tools: Sequence[Mapping[str, Any]],
    form: Form | None,
    whole: Callable[..., str],
) -> Iterator[_Try]:
    """Answers that may or must call *tools*, or else have *form*; none where the model's calls can
    be held to nothing, and need not be. Raises `ApiError`."""
    calls, reader, fault = talk.calls, known.tokenizer, known.fault
    if form is None or talk.forced:
        if talk.forced:
            several = asked.parallel_tool_calls is not False
            held = forced_call(calls, reader, tools, fault, several=several)
        else:
            held = free_calls(calls, reader, tools, fault)
        if held is not None:
            names = _named(asked, tools, held.unheld)
            yield whole(held.main, held.parts, call=calls.start), lambda: names
        if not talk.plain:
            yield "", lambda: _named(asked, tools, strict_places(tools))
        return
    for loosely in (False, True):
        for grammar, left in known.ways(form):
            made = calls_or(calls, reader, tools, fault, grammar, loosely=loosely)
            names = _named(asked, tools, made.unheld)
            text = whole(made.main, made.parts, call=calls.start)
            yield text, functools.partial(_both, names, left)


def _both(names: tuple[str, ...], more: _Names) -> tuple[str, ...]:
    return (*names, *more())


def _place(asked: ChatRequest, tools: Sequence[Mapping[str, Any]], at: int) -> int:
    """Where the one *at* this place of *tools* is among all that were sent."""
    name = tools[at]["function"]["name"]
    return next(n for n, tool in enumerate(asked.tools or ()) if tool.function.name == name)


def _named(
    asked: ChatRequest, tools: Sequence[Mapping[str, Any]], unheld: Iterable[tuple[int, str]]
) -> tuple[str, ...]:
    """The fields of *asked* that are *unheld* of *tools*."""
    return tuple(
        f"tools.{_place(asked, tools, at)}.function." + (f"parameters.{word}" if word else "strict")
        for at, word in unheld
    )

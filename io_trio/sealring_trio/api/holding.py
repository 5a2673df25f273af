"""What a text worker makes of the fields that hold an answer to a form: its grammar, and the token
sequences that it must not have.

The grammar is compiled here as engines will (`sealring_model.text.grammars`), within their limits
and a time, so that what an engine gets can be followed. What cannot be is refused, with the reason.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llguidance import LLTokenizer
from sealring_model.errors import LoadError
from sealring_model.text import grammars
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.limits import MAX_BAD, MAX_GRAMMAR

from sealring_trio.api.errors import invalid, unsupported
from sealring_trio.api.forms import Form, Grammar, answer, form_of, refusal
from sealring_trio.api.held_schema import Held
from sealring_trio.api.messages import Conversation, Opening, asked_tools
from sealring_trio.api.schema import ChatRequest, CompletionRequest
from sealring_trio.api.tool_forms import ToolGrammar, Unheld, calls_or, forced_call, free_calls

COMPILE_SECONDS: Final = 0.25
"""Processor time that a grammar may take to compile, twice, and for its first mask. Engines compile
it, too, one after the other, and no other row but those with grammars waits for that."""


def chat_grammar(
    tokenizer: Tokenizer,
    asked: ChatRequest,
    talk: Conversation,
    opening: Opening,
    vocabulary: int,
) -> bytes:
    """The grammar of the answer to *asked*, for a model of so many numbers; empty if it is free.
    Raises `ApiError`."""
    form = form_of(asked, asked.response_format)
    tools = asked_tools(asked)
    calls = bool(tools) and (talk.forced or form is not None or any(map(_is_strict, tools)))
    if form is None and not calls:
        return b""
    known = _Known(tokenizer, vocabulary)
    if calls:
        held = _tools(known, asked, talk, tools, form)
        if held is None:
            return b""
        text = answer(
            tokenizer, held.parts, held.main, reasoning=opening.reasoning, calling=opening.calling
        )
        return known.tried(text, "tools" if form is None else form.param)
    if form is None:
        return b""
    return known.whole(form, reasoning=opening.reasoning)


def completion_grammar(tokenizer: Tokenizer, asked: CompletionRequest, vocabulary: int) -> bytes:
    """The grammar of the answers to *asked*, as `chat_grammar`. They have no reasoning."""
    form = form_of(asked, None)
    if form is None:
        return b""
    return _Known(tokenizer, vocabulary).tried(json.dumps({"grammars": [form.grammar]}), form.param)


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


class _Known:
    """Grammars of answers that *tokenizer* reads."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self.tokenizer: Final = tokenizer
        try:
            self._tokens: Final = _tokens(tokenizer.folder, vocabulary or tokenizer.vocabulary)
        except LoadError as error:
            raise unsupported("response_format", f"{error}.") from None

    def fault(self, grammar: Grammar) -> str:
        """What is wrong with *grammar* by itself; empty if nothing is."""
        return self._fault(json.dumps({"grammars": [grammar]}))

    def whole(self, form: Form, *, reasoning: bool) -> bytes:
        """The grammar of an answer that has *form*. Raises `ApiError`."""
        text = answer(self.tokenizer, [form.grammar], "answer: @part_0", reasoning=reasoning)
        return self.tried(text, form.param)

    def tried(self, text: str, param: str) -> bytes:
        """The grammar *text*, asked for by the field *param*. Raises `ApiError`."""
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_GRAMMAR:
            raise refusal(param, f"it is {len(data)} bytes, of {MAX_GRAMMAR} at most")
        if why := self._fault(text):
            raise refusal(param, why)
        return data

    def _fault(self, text: str) -> str:
        began = time.process_time()
        why = grammars.fault(self._tokens, text)
        if not why and time.process_time() > began + COMPILE_SECONDS:
            return f"it takes more than {COMPILE_SECONDS:g} s to compile"
        return why.strip().rstrip(".")


@functools.lru_cache(1)
def _tokens(folder: Path, vocabulary: int) -> LLTokenizer:
    return grammars.grammar_tokenizer(folder, vocabulary)


def _is_strict(tool: Mapping[str, Any]) -> bool:
    return bool(tool["function"].get("strict"))


def _tools(
    known: _Known,
    asked: ChatRequest,
    talk: Conversation,
    tools: Sequence[Mapping[str, Any]],
    form: Form | None,
) -> ToolGrammar | None:
    """The grammar of an answer that may or must call *tools*; None where the model's calls can be
    held to nothing, and need not be. Raises `ApiError`."""
    try:
        if talk.forced:
            several = asked.parallel_tool_calls is not False
            held = forced_call(talk.calls, known.tokenizer, tools, known.fault, several=several)
        elif form is not None:
            held = calls_or(talk.calls, known.tokenizer, tools, known.fault, form.grammar)
        else:
            held = free_calls(talk.calls, known.tokenizer, tools, known.fault)
    except Unheld as error:
        strict = ((tool.function.name, bool(tool.function.strict)) for tool in asked.tools or ())
        at = list(strict).index((error.function, True))
        what = f"The schema of the strict tool '{error.function}'"
        raise refusal(f"tools.{at}.function.parameters", error.why, what) from None
    if held is None and (any(map(_is_strict, tools)) or (form is not None and not talk.forced)):
        raise unsupported(
            "tools" if form is None else form.param,
            f"This model writes tool calls in a format that is not JSON ('{talk.calls.name}'), "
            "which cannot be held to a schema here. Leave 'strict' and the form out.",
        )
    return held

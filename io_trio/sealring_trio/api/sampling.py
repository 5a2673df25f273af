"""How the rows of a request are drawn: from OpenAI's fields to the ring's `Row`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TypeVar

import attrs
from sealring_protocol.codec.messages import NO_LOGPROBS, Row

from sealring_trio.api.errors import invalid
from sealring_trio.api.gate import Caller
from sealring_trio.api.schema import ChatOptions, CompletionOptions, Sampled
from sealring_trio.node.generation import Job
from sealring_trio.text.parsed import ParsedRequest

_U64 = (1 << 64) - 1
N = TypeVar("N", int, float)


def jobs(
    asked: ChatOptions | CompletionOptions,
    parsed: ParsedRequest,
    vocabulary: int,
    caller: Caller,
) -> Iterator[Job]:
    """A job for each choice of each prompt, in the order of their indices. Raises `ApiError`."""
    row = attrs.evolve(_row(asked, vocabulary), grammar=parsed.grammar, bad=parsed.bad)
    ends = frozenset(asked.stop_token_ids or ()) | parsed.ends
    if beyond := [token for token in asked.stop_token_ids or () if token >= vocabulary]:
        raise invalid(
            f"stop_token_ids names token {beyond[0]}; the vocabulary has {vocabulary}.",
            "stop_token_ids",
        )
    scope = f"{caller.scope} salt {asked.cache_salt}" if asked.cache_salt else caller.scope
    for prompt in parsed.prompts:
        for choice in range(asked.n or 1):
            sampling = attrs.evolve(row, choice=choice)
            scores = asked.scores is not None and choice == 0  # the prompt is the same for all
            yield Job(
                prompt,
                asked.limit,
                sampling,
                asked.stops,
                caller.owner,
                scope,
                parsed.prediction,
                scores=scores,
                stop_tokens=ends,
                stop_shown=bool(asked.include_stop_str_in_output),
                endless=bool(asked.ignore_eos),
                special=asked.skip_special_tokens is not True,
                opens=parsed.opens,
                min_tokens=asked.min_tokens or 0,
            )


def _row(asked: ChatOptions | CompletionOptions, vocabulary: int) -> Row:
    return Row(
        uid=0,
        seed=secrets.randbits(64) if asked.seed is None else asked.seed & _U64,
        temperature=_or(asked.temperature, 1.0),
        top_p=asked.top_p or 1.0,
        # The likeliest tokens that make up no share at all are the likeliest one.
        top_k=1 if asked.top_p == 0 else max(0, asked.top_k or 0),
        min_p=_or(asked.min_p, 0.0),
        repetition=_or(asked.repetition_penalty, 1.0),
        presence=_or(asked.presence_penalty, 0.0),
        frequency=_or(asked.frequency_penalty, 0.0),
        logprobs=_logprobs(asked),
        bias=_bias(asked, vocabulary),
    )


def _or(value: N | None, default: N) -> N:
    return default if value is None else value


def _logprobs(asked: ChatOptions | CompletionOptions) -> int:
    """As many as either the answer or the prompt is to be told with."""
    told = [each for each in (asked.alternatives, asked.scores) if each is not None]
    return max(told, default=NO_LOGPROBS)


def _bias(asked: Sampled, vocabulary: int) -> tuple[tuple[int, float], ...]:
    pairs = sorted((int(token), value) for token, value in (asked.logit_bias or {}).items())
    for token, _ in pairs:
        if token >= vocabulary:
            raise invalid(
                f"logit_bias names token {token}; the vocabulary has {vocabulary}.", "logit_bias"
            )
    if len({token for token, _ in pairs}) < len(pairs):
        raise invalid("logit_bias names a token twice.", "logit_bias")
    return tuple(pairs)

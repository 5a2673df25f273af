"""An agent's turns read only what is new, in families whose caches cannot be cut: a real head, real
engines, and prompts as the API's text workers make them of conversations."""

import json
from itertools import takewhile
from pathlib import Path
from random import Random

import pytest
from model_rings import Ring
from sealring.text.frames import ParsedRequest
from sealring.text_worker import JOBS
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.codec.messages import Prefill
from sealring_protocol.control.requests import Request, SchedulerConfig
from test_guesses import RealEngine

from tests.families.checkpoints import write
from tests.families.templates import TEMPLATES, WORDS, write_tokenizer
from tests.rows import rows
from tests.sim.brains import Brains

MODELS = {
    "Qwen3.5": "qwen3_5",
    "Qwen3.6": "qwen3_5_moe",
    "Gemma 4": "gemma4_text",
    "gpt-oss": "gpt_oss",
    "thoughts dropped": "nemotron_h",
}
"""By template, the model that it is tried with."""

LENGTH = 5
"""Tokens of an answer."""


def said(random: Random, words: int) -> str:
    return "".join(random.choice(WORDS) for _ in range(words))


def conversations(random: Random):
    """What an agent asks: a task, calls and their results, the next task, and so on, in ten
    requests; at last another task with the same system prompt and tools."""
    head = [{"role": "system", "content": said(random, 60)}]
    talk = [*head, {"role": "user", "content": said(random, 20)}]
    yield talk
    for turn in range(9):
        thoughts = {"reasoning_content": said(random, 12)}
        if turn % 3 < 2:
            function = {"name": WORDS[turn], "arguments": "{}"}
            call = {"id": str(turn), "type": "function", "function": function}
            answer = {"role": "assistant", "content": "", "tool_calls": [call], **thoughts}
            after = {"role": "tool", "tool_call_id": str(turn), "content": said(random, 30)}
        else:
            answer = {"role": "assistant", "content": said(random, 9), **thoughts}
            after = {"role": "user", "content": said(random, 10)}
        talk = [*talk, answer, after]
        yield talk
    yield [*head, {"role": "user", "content": said(random, 8)}]


def prompt_of(tokenizer: Tokenizer, talk) -> ParsedRequest:
    tools = [
        {"type": "function", "function": {"name": name, "description": name * 8}}
        for name in WORDS[:2]
    ]
    body = {"model": "m", "messages": talk, "tools": tools}
    asked = {"models": ["m"], "context": 4096, "vocabulary": 128, "branches": True}
    return ParsedRequest.of(*JOBS["chat"](tokenizer, asked, json.dumps(body).encode(), print))


def common(one, other) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """The model and tokenizer of each family."""
    root = tmp_path_factory.mktemp("agents")
    return {
        template: write_tokenizer(write(root / family, family), template)
        for template, family in MODELS.items()
    }


@pytest.mark.parametrize(
    ("family", "world"),
    rows(
        [(family, world) for family in TEMPLATES for world in (1, 2, 3)],
        ci=[("thoughts dropped", 3), ("Qwen3.5", 1), ("Gemma 4", 2), ("gpt-oss", 3)],
    ),
)
def test_an_agents_turn_reads_only_what_is_new(folders, family, world):
    folder, random = folders[family], Random(f"{family} {world}")
    tokenizer, alone = Tokenizer(folder), Ring(folder)
    ring = Brains(
        world,
        random,
        SchedulerConfig(groups=world, rows=2, chunk=48, prefixes=16),
        lambda: RealEngine(folder, random),
        lambda request: [0] * LENGTH,
    )
    ring.start()
    known: list[list[int]] = []
    for turn, talk in enumerate(conversations(random)):
        parsed = prompt_of(tokenizer, talk)
        (prompt,) = parsed.prompts
        uid = ring.submit(Request(prompt, LENGTH, branches=parsed.branches))
        ring.run()
        assert ring.tokens[uid] == alone.generate(list(prompt), LENGTH)
        works = [timing.work for timing in ring.timings]
        read = sum(work.count for work in works if isinstance(work, Prefill) and work.uid == uid)
        shared = max((common(prompt, before) for before in known), default=0)
        assert len(prompt) - 1 - read >= 0.9 * shared, f"turn {turn}: {shared} are known"
        assert not turn or shared > 70
        known.append([*prompt, *ring.tokens[uid]])

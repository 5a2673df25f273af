"""What a conversation's next turn finds in the caches, where these cannot be cut: over HTTP, in all
three APIs; and where a prompt says that later ones leave it."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring.text.frames import ParsedRequest
from sealring.text_worker import JOBS
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer
from sealring_trio.collective.loopback import free_ports

from tests.api.conftest import Served, connected
from tests.families.checkpoints import write
from tests.families.templates import TEMPLATES, WORDS, write_tokenizer

SYSTEM = "".join(WORDS[:40])
TASK = "".join(WORDS[40:60])
RESULT = "".join(WORDS[60:75])
PARAMETERS = {"type": "object", "properties": {}}
FUNCTION = {"name": "w01.", "description": "".join(WORDS[:20]), "parameters": PARAMETERS}


@pytest.fixture(scope="module")
def uncut() -> Iterator[Served]:
    """Two ranks of a small Qwen3.5, whose recurrent states cannot be cut."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        model = write_tokenizer(write(folder / "uncut", "qwen3_5"), "Qwen3.5")
        address = f"127.0.0.1:{free_ports(1)[0]}"
        configs = write_cluster(folder, 2, model, api=address)
        nodes = [stack.enter_context(running_node(config)) for config in configs]
        for node in nodes:
            wait_until_up(node)
        served = stack.enter_context(connected(nodes[0], f"http://{address}", "", "uncut"))
        served.until("/health", lambda told: told["status"] == "ok")
        yield served


def chat(task: str, *turns: dict[str, Any]) -> dict[str, Any]:
    system = {"role": "system", "content": SYSTEM}
    return {
        "model": "uncut",
        "messages": [system, {"role": "user", "content": task}, *turns],
        "tools": [{"type": "function", "function": FUNCTION}],
        "max_tokens": 4,
    }


def responses(task: str, *turns: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "uncut",
        "instructions": SYSTEM,
        "input": [{"role": "user", "content": task}, *turns],
        "tools": [{"type": "function", **FUNCTION}],
        "max_output_tokens": 16,
    }


def messages(task: str, *turns: dict[str, Any]) -> dict[str, Any]:
    tool = {name: FUNCTION[name] for name in ("name", "description")}
    return {
        "model": "uncut",
        "system": SYSTEM,
        "messages": [{"role": "user", "content": task}, *turns],
        "tools": [{**tool, "input_schema": PARAMETERS}],
        "max_tokens": 4,
    }


CALLS = {
    "/v1/chat/completions": [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "w01.", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": RESULT},
    ],
    "/v1/responses": [
        {"type": "function_call", "call_id": "1", "name": "w01.", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": RESULT},
    ],
    "/v1/messages": [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "1", "name": "w01.", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "1", "content": RESULT}],
        },
    ],
}
MAKERS = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
    "/v1/messages": messages,
}


def counts(served: Served, path: str, body: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt, and how many were cached."""
    answer = served.post(body, path)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    if path == "/v1/messages":
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached
    prompt, details = (
        ("prompt_tokens", "prompt_tokens_details")
        if path == "/v1/chat/completions"
        else ("input_tokens", "input_tokens_details")
    )
    return usage[prompt], usage[details]["cached_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("path", MAKERS)
def test_a_turn_reuses_the_prompt_before_it_and_another_task_the_system_prompt(
    uncut: Served, path: str
) -> None:
    make, turns = MAKERS[path], CALLS[path]
    task = WORDS[50 + len(path)] + TASK  # of this API alone
    first, _ = counts(uncut, path, make(task))
    opening = 5  # <|im_start|>, assistant, a line break, <think>, a line break
    second, cached = counts(uncut, path, make(task, *turns))
    assert cached >= first - opening
    next_user = {"role": "user", "content": RESULT}
    done = {"role": "assistant", "content": "w02."}
    _, cached = counts(uncut, path, make(task, *turns, done, next_user))
    assert cached >= first - opening, "the thoughts since the last task are dropped"
    assert cached < second
    _, cached = counts(uncut, path, make("w79."))
    assert cached >= 60


# ------------------------------------------------------------------ branches


def branches(tokenizer: Tokenizer, body: dict[str, Any], **asked: Any) -> list[str]:
    """The prompt of a chat, in the parts that it says it has."""
    about = {"models": ["uncut"], "context": 0, "branches": True, **asked}
    parsed = ParsedRequest.of(*JOBS["chat"](tokenizer, about, json.dumps(body).encode(), str))
    (prompt,) = parsed.prompts
    ends = [0, *parsed.branches, len(prompt)]
    return [tokenizer.decode(prompt[a:b]) for a, b in pairwise(ends)]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for family in TEMPLATES:
        (root / family).mkdir()
        (root / family / "config.json").write_text('{"model_type": "llama"}')
        made[family] = Tokenizer(write_tokenizer(root / family, family))
    return made


OPENINGS = {
    "Qwen3.5": "<|im_start|>assistant\n<think>\n",
    "Qwen3.6": "<|im_start|>assistant\n<think>\n",
    "Gemma 4": "<|turn>model\n<|channel>thought\n",
    "gpt-oss": "<|start|>assistant",
    "thoughts dropped": "<assistant><think>\n",
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_prompt_parts_after_the_system_prompt_the_task_and_before_the_opening(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    body = chat(TASK, *CALLS["/v1/chat/completions"])
    system, task, calls, opening = branches(tokenizers[family], body)
    assert SYSTEM in system
    assert TASK in task
    assert TASK not in calls
    assert RESULT in calls
    assert opening == OPENINGS[family]
    *_, opening = branches(tokenizers[family], chat(TASK))
    assert opening == OPENINGS[family]


def test_a_call_that_is_begun_for_the_model_is_behind_the_opening(
    tokenizers: dict[str, Tokenizer],
) -> None:
    body = {**chat(TASK), "tool_choice": "required"}
    *_, opening = branches(tokenizers["Qwen3.5"], body)
    assert opening.startswith(OPENINGS["Qwen3.5"])
    assert opening.endswith("<tool_call>")


def test_a_message_that_goes_on_has_no_opening(tokenizers: dict[str, Tokenizer]) -> None:
    turns = [{"role": "assistant", "content": "w02."}]
    body = {**chat(TASK, *turns), "continue_final_message": True, "add_generation_prompt": False}
    parts = branches(tokenizers["Qwen3.6"], body)
    assert [TASK in part for part in parts] == [False, True, False]
    assert parts[-1].endswith("w02.")


def test_a_prompt_that_the_client_rendered_parts_at_the_marks_of_ends(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["thoughts dropped"]
    turns = ["<bos>", SYSTEM, "<eos><user>", TASK, "<assistant>", "w02.", "<eos>", "<user>w03."]
    about = {"models": ["uncut"], "context": 0, "branches": True}

    def parted(prompts: list[str]) -> ParsedRequest:
        body = json.dumps({"model": "uncut", "prompt": prompts}).encode()
        return ParsedRequest.of(*JOBS["completion"](tokenizer, about, body, str))

    parsed = parted(["".join(turns)])
    (prompt,) = parsed.prompts
    first, last = parsed.branches
    assert tokenizer.decode(prompt[:first]) == "<bos>" + SYSTEM + "<eos>"
    assert tokenizer.decode(prompt[last:]) == "<user>w03."
    assert parted(["".join(turns)] * 2).branches == ()
    assert parted([TASK]).branches == ()


def test_nothing_is_rendered_again_where_caches_can_be_cut(
    tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, rendered = tokenizers["Qwen3.5"], []
    render = tokenizer.render
    monkeypatch.setattr(
        tokenizer, "render", lambda *a, **fields: rendered.append(a) or render(*a, **fields)
    )
    assert len(branches(tokenizer, chat(TASK), branches=False)) == 1
    assert len(rendered) == 1


def test_a_template_that_refuses_parts_of_a_conversation_names_no_more_branches() -> None:
    tokenizer = Tokenizer(tiny.path())
    turns = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "No."}]
    body = {"model": "uncut", "messages": [{"role": "user", "content": "Hello."}, *turns]}
    whole = "".join(branches(tokenizer, body))
    assert "Hello." in whole
    assert len(branches(tokenizer, {**body, "truncate_prompt_tokens": 5})) == 1

"""Log probabilities of prompts: those of mlx-lm's own forward, in the forms of OpenAI and vLLM."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from sealring.dialects.schema import MAX_SCORED
from sealring.http.openapi import ChatAnswer, TextAnswer
from sealring_model import tiny
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.text.tokens import Tokenizer

from tests.api.conftest import Served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPTS = ("Once upon a time there was a fox.", "A dog")


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny.path())


@cache
def lines(prompt: tuple[int, ...]) -> list[list[float]]:
    """The log probabilities of the vocabulary in each place of *prompt*, but before the first."""
    logits = _model()(mx.array([prompt]))[0].astype(mx.float32)
    told: Any = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()
    return told


@cache
def _model() -> Any:
    return mlx_lm("utils").load_model(tiny.path())[0]


def ask(ring: Served, path: str, **body: Any) -> dict[str, Any]:
    answer = ring.post({"model": ring.model, "temperature": 0, **body}, path)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("ids", [False, True], ids=["text", "ids"])
def test_an_echoed_prompt_has_the_columns_of_its_tokens_before_those_of_the_answer(
    ring: Served, count: int, ids: bool
) -> None:
    encoded = [tokenizer().encode(text) for text in PROMPTS]
    prompt = encoded if ids else list(PROMPTS)
    told = ask(ring, TEXT, prompt=prompt, echo=True, logprobs=2, max_tokens=count, n=2)
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
    for number, choice in enumerate(told["choices"]):
        text, tokens = PROMPTS[number // 2], encoded[number // 2]
        columns = choice["logprobs"]
        names = [tokenizer().token_bytes(token).decode() for token in tokens]
        size = len(names)
        assert choice["text"].startswith(text)
        assert columns["tokens"][:size] == names
        assert columns["token_logprobs"][0] is columns["top_logprobs"][0] is None
        offsets = [len("".join(columns["tokens"][:at])) for at in range(size + count)]
        assert columns["text_offset"] == offsets
        for at, line in enumerate(lines(tuple(tokens))[:-1], 1):
            assert columns["token_logprobs"][at] == pytest.approx(line[tokens[at]], abs=1e-4)
            best = max(columns["top_logprobs"][at].values())
            assert best == pytest.approx(max(line), abs=1e-4)
            assert columns["top_logprobs"][at][names[at]] == columns["token_logprobs"][at]
            assert len(columns["top_logprobs"][at]) in (2, 3)
        assert {len(column) for column in columns.values()} == {size + count}
        assert choice["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == 4 * count
    assert told["usage"]["prompt_tokens"] == sum(map(len, encoded))


def check_list(told: list[Any], tokens: list[int], alternatives: int) -> None:
    """*told* is vLLM's list for *tokens*."""
    assert told[0] is None
    assert len(told) == len(tokens)
    for at, line in enumerate(lines(tuple(tokens))[:-1], 1):
        entry, own = told[at], str(tokens[at])
        assert next(iter(entry)) == own
        assert entry[own]["logprob"] == pytest.approx(line[tokens[at]], abs=1e-4)
        likelier = sum(value > line[tokens[at]] + 1e-4 for value in line)
        likely = sum(value > line[tokens[at]] - 1e-4 for value in line)
        assert likelier < entry[own]["rank"] <= likely
        ranks = {each["rank"] for name, each in entry.items() if name != own}
        assert ranks == {*range(1, alternatives + 1)} - {entry[own]["rank"]}
        for name, each in entry.items():
            assert each["decoded_token"] == tokenizer().token_bytes(int(name)).decode()
            assert each["logprob"] == pytest.approx(line[int(name)], abs=1e-4)


@pytest.mark.parametrize("alternatives", [0, 3])
def test_prompt_logprobs_are_those_of_vllm(ring: Served, alternatives: int) -> None:
    """However many are asked for with the tokens of the answer."""
    wanted = {"prompt_logprobs": alternatives, "max_tokens": 2, "n": 2}
    told = ask(ring, TEXT, prompt=PROMPTS[0], logprobs=1, **wanted)
    TextAnswer.model_validate(told)
    for choice in told["choices"]:
        check_list(choice["prompt_logprobs"], tokenizer().encode(PROMPTS[0]), alternatives)
        assert len(choice["logprobs"]["tokens"]) == 2
        assert all(len(tops) == 1 for tops in choice["logprobs"]["top_logprobs"])
    messages = [{"role": "user", "content": "Count to three."}]
    told = ask(ring, CHAT, messages=messages, **wanted)
    ChatAnswer.model_validate(told)
    rendered = tokenizer().render(messages)
    check_list(told["prompt_logprobs"], tokenizer().encode_rendered(rendered), alternatives)
    assert all(choice["logprobs"] is None for choice in told["choices"])


def test_without_scores_nothing_is_told_and_no_token_is_drawn(ring: Served) -> None:
    told = ask(ring, TEXT, prompt=PROMPTS[0], echo=True, max_tokens=0)
    (choice,) = told["choices"]
    assert (choice["text"], choice["logprobs"]) == (PROMPTS[0], None)
    assert "prompt_logprobs" not in choice
    (choice,) = ask(ring, TEXT, prompt="A", echo=True, logprobs=0, max_tokens=0)["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None]


def test_what_was_read_before_is_read_again_for_its_scores(ring: Served) -> None:
    asked = {"prompt": PROMPTS[0] * 4, "echo": True, "logprobs": 1, "max_tokens": 1}
    first = ask(ring, TEXT, **{**asked, "logprobs": None})
    one, other = (ask(ring, TEXT, **asked)["choices"] for _ in range(2))
    assert one[0]["logprobs"] == other[0]["logprobs"]
    assert one[0]["text"] == first["choices"][0]["text"]


def test_an_answer_tells_only_so_many(ring: Served) -> None:
    n = MAX_SCORED // (21 * 100) + 1
    body = {"model": ring.model, "prompt": [[5] * 100], "prompt_logprobs": 20, "n": n}
    answer = ring.post({**body, "max_tokens": 0}, TEXT)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_value")
    assert error["param"] == "prompt_logprobs"
    assert f"{2100 * n} log probabilities" in error["message"]


TASK = {
    "task": "fox",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{q}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
QUESTIONS = (
    ("Once upon a", (" time", " dog", " three")),
    ("Once upon a time, there was a", (" strong", " the", ".")),
    ("One, two,", (" fox", " three", " upon")),
)


@pytest.mark.slow
def test_lm_evaluation_harness_has_the_same_likelihoods(ring: Served, tmp_path: Path) -> None:
    """Its own command, with its model `local-completions` as it is, and a task of this test's."""
    if (command := shutil.which("lm_eval")) is None:
        pytest.skip("lm_eval is not installed: pip install 'lm_eval[api]' transformers")
    data = tmp_path / "data.jsonl"
    rows = [{"q": q, "choices": choices, "gold": 0} for q, choices in QUESTIONS]
    data.write_text("\n".join(map(json.dumps, rows)))
    task = {**TASK, "dataset_kwargs": {"data_files": {"test": str(data)}}}
    (tmp_path / "fox.yaml").write_text(json.dumps(task))
    model = f"model=tiny,base_url={ring.url}{TEXT},tokenizer={tiny.path()},max_length=512"
    arguments = ("run", "--model", "local-completions", "--model_args", model, "--tasks", "fox")
    places = ("--include_path", str(tmp_path), "--output_path", str(tmp_path), "--log_samples")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [command, *arguments, *places, "--batch_size", "2"],
        env={"PATH": "/usr/bin:/bin", **offline},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (samples,) = tmp_path.rglob("samples_fox_*.jsonl")
    told = [json.loads(line)["resps"] for line in samples.read_text().splitlines()]
    for (question, choices), answers in zip(QUESTIONS, told, strict=True):
        for choice, ((likelihood, greedy),) in zip(choices, answers, strict=True):
            whole = tokenizer().encode(question + choice)
            asked = range(len(tokenizer().encode(question)), len(whole))
            scored = lines(tuple(whole))
            exact = sum(scored[at - 1][whole[at]] for at in asked)
            assert float(likelihood) == pytest.approx(exact, abs=1e-3)
            best = all(max(scored[at - 1]) == scored[at - 1][whole[at]] for at in asked)
            assert str(greedy) == str(best)


def test_an_empty_prompt_is_refused(ring: Served) -> None:
    body = {"model": ring.model, "prompt": "", "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = ring.post(body, TEXT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "empty_prompt")

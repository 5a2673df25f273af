"""The clients, what they are installed from, and the features that are tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs


@attrs.frozen
class Client:
    """One client: what the table calls it, its script below this folder, and its packages, of which
    the first has its version in the table. Python's are installed in an environment of their own,
    Node's into one folder."""

    name: str
    script: str
    packages: tuple[str, ...]

    @property
    def package(self) -> str:
        """The package that the table names, without its extras."""
        return self.packages[0].partition("[")[0]

    @property
    def is_node(self) -> bool:
        """Whether npm installs it."""
        return self.packages[0] in NODE


AI_SDK: Final = ("@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic")

NODE: Final = (
    "openai (npm)", "@anthropic-ai/sdk", *AI_SDK, "@openai/codex", "@anthropic-ai/claude-code"
)  # fmt: skip
"""What npm has; `(npm)` tells a package from PyPI's of the same name."""

CLIENTS: Final = (
    Client("openai", "python/openai_client.py", ("openai",)),
    Client("openai, Node", "node/openai.mjs", ("openai (npm)", "zod")),
    Client("anthropic", "python/anthropic_client.py", ("anthropic",)),
    Client("anthropic, Node", "node/anthropic.mjs", ("@anthropic-ai/sdk", "zod")),
    Client("langchain-openai", "python/langchain_openai_client.py", ("langchain-openai",)),
    Client("langchain-anthropic", "python/langchain_anthropic_client.py", ("langchain-anthropic",)),
    Client("llama-index", "python/llama_index_client.py", ("llama-index-llms-openai-like",)),
    Client("litellm", "python/litellm_client.py", ("litellm[proxy]",)),
    Client("pydantic-ai", "python/pydantic_ai_client.py", ("pydantic-ai-slim[openai,anthropic]",)),
    Client("instructor", "python/instructor_client.py", ("instructor",)),
    Client("AI SDK, openai", "node/ai_sdk_openai.mjs", (AI_SDK[0], "ai", "zod")),
    Client("AI SDK, openai-compatible", "node/ai_sdk_compatible.mjs", (AI_SDK[1], "ai", "zod")),
    Client("AI SDK, anthropic", "node/ai_sdk_anthropic.mjs", (AI_SDK[2], "ai", "zod")),
    Client("LiteLLM's proxy", "programs/litellm_proxy.py", ("litellm[proxy]",)),
    Client("llm", "programs/llm_command.py", ("llm",)),
    Client("Codex", "programs/codex.py", ("@openai/codex",)),
    Client("Claude Code", "programs/claude_code.py", ("@anthropic-ai/claude-code",)),
    Client("guidellm", "programs/guidellm_load.py", ("guidellm",)),
    Client("ollama", "python/ollama_client.py", ("ollama",)),
)

FEATURES: Final[Mapping[str, str]] = {
    "models": "lists the models, and finds one",
    "answer": "a whole answer, with its counts of tokens",
    "stream": "the same text in parts",
    "usage": "counts of tokens at the end of a stream",
    "stop": "ends before a text",
    "n": "several choices",
    "seed": "equal seeds, equal texts",
    "logprobs": "log probabilities of tokens and alternatives",
    "forced tool": "a call that must be made, held to its schema",
    "tool": "a call that the model chooses to make",
    "tool result": "the answer after a call's result",
    "tool stream": "a call in parts",
    "schema": "an answer held to a JSON schema",
    "typed": "the client's own way to a value of a type",
    "reasoning": "the model's thoughts apart from its answer, and back again",
    "go on": "continues from what the server keeps: `previous_response_id`, or references to items",
    "count": "counts a prompt's tokens",
    "echo": "the prompt before its continuation, with log probabilities",
    "cancel": "a stream that is closed ends the request",
    "wrong model": "the client's own error for what is not found",
    "bad field": "the client's own error for a bad request",
    "wrong key": "the client's own error for a wrong key",
    "image": "is refused, and the message says what",
    "embeddings": "are refused, and the message says what",
    "load": "1, 8, 32 and 100 requests at once without an error",
    "refused": "an API that is not served is refused, and the message says so",
}
"""What each feature means, in the order of the table."""

UNSERVED: Final[Mapping[tuple[str, str, str], str]] = {}
"""What fails and may, by client, API and feature: why."""

"""ollama's own client, whose API is not served: use a client of OpenAI's with the base URL that
ends in ``/v1``, as with Ollama's OpenAI mode."""

from __future__ import annotations

import ollama
from features import KEY, TINY, feature, raises, run

client = ollama.Client(host=TINY, headers={"authorization": f"Bearer {KEY}"})


@feature("ollama's", "refused")
def refused() -> None:
    said = [{"role": "user", "content": "x"}]
    error = raises(ollama.ResponseError, lambda: client.chat("tiny", said), "OpenAI", "/v1")
    assert error.status_code == 404, error


run()

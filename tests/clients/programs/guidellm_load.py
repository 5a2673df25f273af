"""guidellm: made-up prompts, so many at once, and none may fail."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

from features import KEY, TINY, equal, feature, holds, run

TOKENIZER = os.environ["RING_TOKENIZER"]


# docs: connect
# language: sh
COMMAND = f"""
guidellm run --backend kind=openai_http,target={TINY},model=tiny,api_key={KEY} \\
    --tokenizer kind=huggingface_auto,model={TOKENIZER} \\
    --data kind=synthetic_text,prompt_tokens=24,output_tokens=8 \\
    --profile kind=concurrent,streams=8 --constraint kind=max_requests,count=100
"""
# docs: end


def load(streams: int, requests: int) -> None:
    """So many *requests* in all, *streams* at once."""
    report = Path(f"{streams}.json").resolve()
    command = shlex.split(
        COMMAND.replace("\\\n", " ")
        .replace("streams=8", f"streams={streams}")
        .replace("count=100", f"count={requests}")
    )
    done = subprocess.run(
        [*command, "--output", f"kind=json,path={report}", "--disable-console"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    equal((done.returncode, done.stderr[-600:] if done.returncode else ""), (0, ""))
    (bench,) = json.loads(report.read_text())["benchmarks"]
    totals = bench["metrics"]["request_totals"]
    holds(totals["successful"] >= requests and not totals["errored"], totals)


@feature("chat", "load")
def at_once() -> None:
    for streams, requests in ((1, 4), (8, 16), (32, 48), (100, 110)):
        load(streams, requests)


run()

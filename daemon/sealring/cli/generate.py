"""`sealring generate`."""

from __future__ import annotations

from pathlib import Path

from sealring.cli.options import (
    STDIN,
    Count,
    Fraction,
    FromZero,
    Positive,
    Prompt,
    Seed,
    TopP,
    read_prompt,
)
from sealring.cli.speaking import PlainSpeaker, Silent, Speaker
from sealring.files.config import load_config
from sealring.local.control_client import ask
from sealring.output import print_json, tell_cut_off


def generate(
    *,
    config: Path,
    prompt: Prompt,
    max_tokens: Positive = 256,
    temperature: FromZero | None = None,
    top_p: TopP | None = None,
    top_k: Count | None = None,
    min_p: Fraction | None = None,
    seed: Seed | None = None,
    raw: bool = False,
    json: bool = False,
) -> None:
    """Ask the ring whose head runs on this machine, and stream the answer.

    Talks to the running head over its local control socket, which only you
    can open. If a rank is missing, it waits until the ring is complete, and
    says what it waits for. Ctrl-C withdraws the request from every rank.

        sealring generate --config desk.toml --prompt "Why is the sky blue?"

        sealring generate --config desk.toml --prompt - < question.txt

    Next: sealring status --config desk.toml shows what it cost. Without a
    config, by its API or with a ring of its own: sealring run

    Parameters
    ----------
    config
        The config of the head, as given to 'sealring up'.
    prompt
        What to ask; - reads it from standard input. The model's chat template
        is put around it.
    max_tokens
        The most tokens to give. 'run' has no such limit if it is left out.
    temperature
        0 always takes the likeliest token; higher is more varied. If left
        out, what the model's generation_config.json says, or else 0, where
        'run' and the API take 1. The next three come from there, too.
    top_p
        Choose among the likeliest tokens that together have this probability.
    top_k
        Choose among this many likeliest tokens; 0 for all.
    min_p
        Leave out tokens that are less likely than this fraction of the likeliest.
    seed
        The same seed, settings and prompt give the same text; random if left
        out.
    raw
        Continue the prompt as it stands, without the chat template.
    json
        Print one JSON object at the end, instead of streaming.
    """
    socket = load_config(config).control_socket
    request = {
        "do": "generate",
        "prompt": read_prompt(prompt) if prompt == STDIN else prompt,
        "raw": raw,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": None,
        "seed": seed,
    }
    text = ""
    speaker: Speaker = Silent() if json else PlainSpeaker()
    facts = {}
    try:
        for event in ask(socket, request, notice=speaker.wait):
            match event["event"]:
                case "waiting":
                    speaker.wait(event["text"])
                case "text":
                    text += event["text"]
                    speaker.say("content", event["text"])
                case "done":
                    facts = {key: value for key, value in event.items() if key != "event"}
    finally:
        speaker.end()
    if json:
        print_json({"text": text, **facts})
    elif facts.get("reason") == "length":
        tell_cut_off(max_tokens)

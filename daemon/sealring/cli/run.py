"""`sealring run` and `sealring generate`: one question, and its answer as it comes."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from sealring_trio.errors import OperationError, UserError

from sealring.cli.options import (
    NO_KEY,
    STDIN,
    Access,
    Count,
    Fraction,
    FromZero,
    Positive,
    Prompt,
    Seed,
    Temperature,
    TopP,
    is_piped,
    note_without_key,
    read_prompt,
    usual_url,
)
from sealring.cli.speaking import PlainSpeaker, Speaker, speaker
from sealring.files.config import own_config
from sealring.local.node_socket import ask
from sealring.output import note_cut_off, print_json, print_note, progress, reporter

if TYPE_CHECKING:
    from sealring.local.client import HeadClient, StreamedAnswer
    from sealring.local.ring import LocalApi

RAW_TOKENS: Final = 256
"""Tokens of a continuation that is given no limit, as in 'generate'."""

DEATH_SECONDS: Final = 2.0
"""Seconds in which a node that broke off an answer is seen to have ended."""


def run(
    model: str,
    prompt: Prompt | None = None,
    /,
    *,
    system: str = "",
    max_tokens: Positive | None = None,
    temperature: Temperature | None = None,
    top_p: TopP | None = None,
    seed: Seed | None = None,
    raw: bool = False,
    no_guesses: bool = False,
    json: bool = False,
    url: str | None = None,
    access: Access = NO_KEY,
    plain: bool = False,
    no_history: bool = False,
) -> int:
    """Ask a model one thing, and print the answer.

    A ring that runs on this machine answers if it serves the model. Else a
    ring of one is started for it, and ends with the answer. Standard output
    has the answer and nothing else; what is going on is reported on standard
    error. Without a prompt, in a terminal, this is a chat with the model.

        sealring run tiny "Tell me a story."
        cat notes.txt | sealring run tiny "Summarise this."
        sealring run tiny - < question.txt
        sealring run tiny "Hello." --json --seed 7 --max-tokens 20
        sealring run tiny

    A pipe's text comes before the prompt, with an empty line between. The
    exit code is 0 after an answer, also one that --max-tokens has cut off, as
    standard error says; 1 if there is none or it broke off, 2 for a mistake
    and 130 after Ctrl-C.

    Next: sealring serve, so that the next answer need not wait for the model.

    Parameters
    ----------
    model
        Folder of a model, its hub id, or 'tiny' for the one that ships with
        sealring. A running ring answers if it serves a model of this name.
    prompt
        What to ask; - reads it from standard input.
    system
        The system prompt: what the model reads first.
    max_tokens
        The most tokens of the answer; as many as the context has room for if
        left out, and 256 with --raw.
    temperature
        0 always takes the likeliest token; higher is more varied. If left
        out, as the model's generation_config.json has it, or else 1, as in
        the API.
    top_p
        Choose among the likeliest tokens that together have this probability.
    seed
        The same seed, settings and prompt give the same text; random if left
        out.
    raw
        Continue the prompt as it stands, without the chat template.
    no_guesses
        Guess no tokens ahead. A ring of its own then answers, whatever runs.
    json
        Print one JSON object at the end: the answer, its tokens and times.
    url
        Ask this head and no other; it must serve the model. With commas, several
        machines of one ring: with an API key, the answer goes on at the next if
        one is gone.
    plain
        Show the answer as it is written, without colours, in a terminal too.
    no_history
        Keep nothing of what you type in a chat.
    """
    asks = prompt is not None or is_piped()
    if raw and (system or not asks):
        raise UserError("--raw takes a prompt, and no system prompt", "See: sealring run --help")
    if json and not asks:
        raise UserError("--json needs a prompt", 'sealring run MODEL "PROMPT" --json')
    if no_guesses and url is not None:
        raise UserError(
            "--no-guesses is for a ring that this command starts, and --url names another",
            "Give one of the two. That head's config may say guesses = false.",
        )
    text = read_prompt(prompt) if asks else ""
    chosen = {
        "max_completion_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    settings = {name: value for name, value in chosen.items() if value is not None}
    began = time.perf_counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with _head(model, url, access, raw=raw, no_guesses=no_guesses) as head:
        if not asks:
            from sealring.cli.chat import Chat, begin  # noqa: PLC0415 - as below

            begin(Chat(head.session(settings, system), plain), keep=not no_history)
            return 0
        answer = _answer(head, text, settings, system, raw=raw, json=json, plain=plain)
        _report(head, answer, began, json=json)
    return 0


@attrs.frozen
class _Head:
    """Whom to ask, and the ring that was started for it."""

    http: HeadClient
    url: str
    model: str
    own: LocalApi | None = None

    def session(self, settings: dict[str, Any], system: str) -> Any:
        """A conversation with it."""
        from sealring.local.chat_session import ChatSession  # noqa: PLC0415 - as below

        return ChatSession(self.http, self.url, self.model, settings, system)


@contextlib.contextmanager
def _head(
    model: str, url: str | None, access: Access, *, raw: bool, no_guesses: bool
) -> Iterator[_Head]:
    """The head that serves *model*: the one at *url*, the one on this machine, or one of its own
    that ends with the block, as it always is with *no_guesses*."""
    # A tenth of a second, which a mistake need not wait for.
    from sealring_model.text.tokens import has_chat_template  # noqa: PLC0415
    from sealring_trio.files.models import find_whole_model  # noqa: PLC0415

    from sealring.files.models import NO_TEMPLATE, check_text  # noqa: PLC0415
    from sealring.local import client  # noqa: PLC0415
    from sealring.local.client import HeadClient  # noqa: PLC0415
    from sealring.local.ring import guess_options, local_api  # noqa: PLC0415

    base = client.base_urls(url or usual_url())
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(access.client(base))
        note_without_key(http)
        card = {} if no_guesses else _card(http, base, sure=url is not None)
        served = card.get("id", "")
        template = card.get("chat_template") is not False
        if served and (served == model or served == _name(model, sure=url is None)):
            head = _Head(http, base, served)
            print_note(f"the ring at {base} answers")
        elif url is not None:
            raise UserError(
                f"the head at {base} serves {served}, and not {model}",
                "Leave --url out, and a ring of its own is started for the model.",
            )
        else:
            folder = find_whole_model(model)
            check_text(folder)
            template = has_chat_template(folder)
            why = "a ring without guesses" if no_guesses else f"no ring here serves {model}: one"
            print_note(f"{why} is started, and ends with the answer")
            options = guess_options(None, folder, no_guesses=no_guesses)
            with progress() as report:
                own = stack.enter_context(local_api(1, folder, options=options, report=report))
            http = stack.enter_context(HeadClient(own.url))
            head = _Head(http, own.url, own.model, own)
        if not template and not raw:
            print_note(NO_TEMPLATE)
        yield head


def _name(model: str, *, sure: bool) -> str:
    """What a head calls *model*. When this machine has none, empty, or `UserError` if it is *sure*
    to be needed here."""
    from sealring_trio.files.models import find_model, is_hub_id, model_name  # noqa: PLC0415

    try:
        return model if is_hub_id(model) else model_name(find_model(model))
    except UserError:
        if sure:
            raise
        return ""


def _card(http: HeadClient, base: str, *, sure: bool) -> dict[str, Any]:
    """What the head at *base* says of its model. Unless it is *sure* to be the one to ask, nothing
    where none can be asked; else it waits for the next head if there is none."""
    from sealring.local import client  # noqa: PLC0415 - as above
    from sealring.local.client import stranger  # noqa: PLC0415

    if not sure and (why := stranger(base)):
        print_note(why)
        return {}
    try:
        return client.model_at(http, base, report=reporter() if sure else None)
    except client.HeadUnreachable:
        if sure:
            raise
    except OperationError as error:
        if sure:
            raise
        print_note(f"the ring at {base} cannot be asked: {error}")
    return {}


def _answer(
    head: _Head,
    text: str,
    settings: dict[str, Any],
    system: str,
    *,
    raw: bool,
    json: bool,
    plain: bool,
) -> StreamedAnswer:
    """Have *text* answered, and print the answer as it comes."""
    from sealring.local.client import COMPLETION, StreamedAnswer, stream  # noqa: PLC0415 - as above

    out = Speaker() if json else speaker(plain)
    if raw:
        answer = StreamedAnswer()
        most = settings.pop("max_completion_tokens", RAW_TOKENS)
        body = {"model": head.model, "prompt": text, "max_tokens": most, **settings}
        pieces = stream(head.http, head.url, COMPLETION, body, answer, out.wait)
    else:
        session = head.session(settings, system)
        pieces = session.ask(text, out.wait)
    try:
        for kind, piece in pieces:
            out.say(kind, piece)
    except OperationError:
        if head.own is not None and head.own.dead(DEATH_SECONDS):
            head.own.check()
        raise
    finally:
        pieces.close()
        out.end()
    return answer if raw else session.answer


def _report(head: _Head, answer: StreamedAnswer, began: float, *, json: bool) -> None:
    """Print *answer* as JSON, or how it came, for a person."""
    from sealring.local.client import machines  # noqa: PLC0415 - as above

    if not json:
        if sys.stderr.isatty():
            print_note(answer.summary(machines(head.http)))
        elif answer.cut_off:
            print_note(f"the answer is {answer.cut_off}")
        return
    print_json(
        {
            "answer": answer.content,
            "reasoning": answer.reasoning,
            "model": head.model,
            "ring": {
                "url": head.url,
                "started": head.own is not None,
                "machines": machines(head.http),
            },
            "finish_reason": answer.finish,
            "usage": answer.usage,
            "tokens_per_s": round(answer.tokens_per_s, 2),
            "times_s": {
                "start": round(answer.began - began, 3),
                "first_text": None if answer.first_s is None else round(answer.first_s, 3),
                "answer": round(answer.took_s, 3),
            },
        }
    )


def generate(
    *,
    prompt: Prompt,
    config: Path | None = None,
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

    Talks to the running head over its Unix socket, which only you can open.
    If too few ranks are there, it waits, and says what it waits for. Ctrl-C
    withdraws the request from every rank.

        sealring generate --prompt "Why is the sky blue?"

        sealring generate --config desk.toml --prompt - < question.txt

    Next: sealring status --config desk.toml shows what it cost. Without a
    config, by its API or with a ring of its own: sealring run

    Parameters
    ----------
    prompt
        What to ask; - reads it from standard input. The model's chat template
        is put around it.
    config
        The config of the head, as given to 'sealring up'; that of the default
        folder if left out.
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
    socket = own_config(config).control_socket
    fields = {
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
    out = Speaker() if json else PlainSpeaker()
    facts = {}
    try:
        for event in ask(socket, "generate", fields, notice=out.wait):
            match event["event"]:
                case "waiting":
                    out.wait(event["text"])
                case "text":
                    text += event["text"]
                    out.say("content", event["text"])
                case "done":
                    facts = {key: value for key, value in event.items() if key != "event"}
    finally:
        out.end()
    if json:
        print_json({"text": text, **facts})
    elif facts.get("reason") == "length":
        note_cut_off(max_tokens)

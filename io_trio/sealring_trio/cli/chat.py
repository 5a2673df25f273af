"""`sealring chat`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import cyclopts

from sealring_trio.cli.output import tell_error, visible
from sealring_trio.errors import OperationError

if TYPE_CHECKING:
    from sealring_trio.local.chat_session import ChatSession

Positive = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=1))]
FromZero = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0, lte=2))]

HELP: Final = """\
/reset          forget what has been said
/system TEXT    begin again, with TEXT as the system prompt; without TEXT, none
/help           this
/quit           leave, as Ctrl-D does
Ctrl-C stops an answer."""


def chat(
    *,
    url: str | None = None,
    api_key: str | None = None,
    api_key_file: Path | None = None,
    certificate: Path | None = None,
    model: str | None = None,
    system: str = "",
    temperature: FromZero | None = None,
    max_tokens: Positive | None = None,
) -> int:
    """Talk to a model that is served, in the terminal.

    The conversation so far goes with each question, and the ring reads in
    only what is new of it. Answers are streamed; Ctrl-C stops one. Lines that
    begin with / are commands: /help shows them. Without a terminal, each
    line of standard input is a question.

        sealring chat
        sealring chat --url http://desk:7480 --system "Be brief."

    Next: the same model from any client of OpenAI's, with URL/v1 as its base.

    Parameters
    ----------
    url
        The head's address; http://127.0.0.1:7480 if left out.
    api_key
        A key of 'sealring apikey new', where one is needed; SEALRING_API_KEY
        or OPENAI_API_KEY of the environment if left out. On the command line
        every user of this machine can see it.
    api_key_file
        File that holds that key, which nobody else may read.
    certificate
        For https://, the server's certificate or that of its issuer, in PEM;
        those that this machine trusts if left out.
    model
        Which model, where several are served; the only one if left out.
    system
        What the model is told before the conversation begins.
    temperature
        0 always takes the likeliest token; higher is more varied.
    max_tokens
        The most tokens of an answer.
    """
    import httpx2  # noqa: PLC0415 - a tenth of a second, which a mistake need not wait for

    from sealring_trio.files.models import NO_TEMPLATE  # noqa: PLC0415
    from sealring_trio.local import client  # noqa: PLC0415
    from sealring_trio.local.chat_session import ChatSession  # noqa: PLC0415

    base = client.base_url(url or client.DEFAULT_URL)
    chosen = {"temperature": temperature, "max_completion_tokens": max_tokens}
    settings = {name: value for name, value in chosen.items() if value is not None}
    key = client.api_key(api_key, api_key_file)
    trust = None if certificate is None else client.trusting(certificate)
    with httpx2.Client(**client.settings(base, key, trust)) as http:
        card = {"id": model} if model else client.model_at(http, base)
        if card.get("chat_template") is False:
            print(f"sealring: {NO_TEMPLATE}", file=sys.stderr)
        talk = ChatSession(http, base, card["id"], settings, system)
        return _converse(talk) if sys.stdin.isatty() else _answer_lines(talk)


def _answer_lines(talk: ChatSession) -> int:
    """Each line is a question, and the first that fails ends it."""
    for line in sys.stdin:
        if not _command(talk, line.strip()):
            break
    return 0


def _converse(talk: ChatSession) -> int:
    """Ask a person, until they leave."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - lets a line be edited, and earlier ones come back

    print(f"{visible(talk.model)} at {talk.url}. /help shows the commands, Ctrl-D leaves.")
    while True:
        try:
            line = input("\n> ")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /quit leaves)")
            continue
        try:
            if not _command(talk, line.strip()):
                return 0
        except OperationError as error:
            tell_error(error)


def _command(talk: ChatSession, line: str) -> bool:
    """Do what *line* says. True to go on."""
    word, _, rest = line.partition(" ")
    match word:
        case "":
            pass
        case "/quit" | "/exit":
            return False
        case "/help":
            print(HELP)
        case "/reset":
            talk.reset()
            print("(forgotten)")
        case "/system":
            talk.reset()
            talk.system = rest.strip()
            print("(begun again, with a system prompt)" if talk.system else "(begun again)")
        case _ if word.startswith("/"):
            print(f"There is no command {word}.\n{HELP}")
        case _:
            _answer(talk, line)
    return True


def _answer(talk: ChatSession, question: str) -> None:
    """Stream the answer; Ctrl-C stops it."""
    pieces = talk.ask(question)
    say = _speaker()
    try:
        for kind, piece in pieces:
            say(kind, piece)
    except KeyboardInterrupt:
        say("content", " [stopped]")
    finally:
        pieces.close()
        print()


def _speaker() -> Callable[[str, str], None]:
    """Prints pieces; reasoning is set apart where the terminal can."""
    dim = sys.stdout.isatty()
    last = ""

    def say(kind: str, piece: str) -> None:
        nonlocal last
        if last and kind != last:
            print("\n")
        last = kind
        piece = visible(piece)
        if dim and kind == "reasoning":
            piece = f"\x1b[2m{piece}\x1b[0m"
        print(piece, end="", flush=True)

    return say

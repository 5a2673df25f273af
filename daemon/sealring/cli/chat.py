"""`sealring chat`."""

from __future__ import annotations

import sys

from sealring.cli.access import NO_KEY, Access, head_at
from sealring.cli.options import Positive, Temperature


def chat(
    *,
    url: str | None = None,
    access: Access = NO_KEY,
    model: str | None = None,
    system: str = "",
    temperature: Temperature | None = None,
    max_tokens: Positive | None = None,
    plain: bool = False,
    no_history: bool = False,
) -> int:
    """Talk to a model that is served, in the terminal.

    The conversation so far goes with each question, and the ring reads in
    only what is new of it. Answers are streamed, and their Markdown is laid
    out; Ctrl-C stops one. Lines that begin with / are commands: /help shows
    them. What you type is kept for the next time, in a file that only you
    can read; Ctrl-R searches it.

        sealring chat
        sealring chat --url http://desk:7480 --system "Be brief."

    Without a terminal each line of standard input is a question, and so is
    what stands between lines of triple quotes:

        printf 'Hello.\\nAnd again.\\n' | sealring chat

    Next: the same model from any client of OpenAI's, with URL/v1 as its base.
    For one question without a conversation: sealring run

    Parameters
    ----------
    url
        The head's address; http://127.0.0.1:7480 if left out.
    model
        Which model, where several are served; the only one if left out.
    system
        What the model is told before the conversation begins.
    temperature
        0 always takes the likeliest token; higher is more varied.
    max_tokens
        The most tokens of an answer.
    plain
        Show answers as they are written, without colours. NO_COLOR of the
        environment does the same.
    no_history
        Keep nothing of what you type.
    """
    # A tenth of a second, which a mistake need not wait for.
    from sealring_trio.files.models import NO_TEMPLATE  # noqa: PLC0415

    from sealring.cli.chatting import Chat, begin  # noqa: PLC0415
    from sealring.local import client  # noqa: PLC0415
    from sealring.local.chat_session import ChatSession  # noqa: PLC0415

    base = head_at(url)
    chosen = {"temperature": temperature, "max_completion_tokens": max_tokens}
    settings = {name: value for name, value in chosen.items() if value is not None}
    with access.client(base) as http:
        card = client.model_at(http, base, model or "")
        if card.get("chat_template") is False:
            print(f"sealring: {NO_TEMPLATE}", file=sys.stderr)
        talk = ChatSession(http, base, card["id"], settings, system)
        begin(Chat(talk, plain), keep=not no_history)
    return 0

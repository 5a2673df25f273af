"""Options and arguments that several commands share.

Types of numbers within bounds and of common options come first, then a prompt (`Prompt`,
`read_prompt`), then how a head is reached: `Access`, the options for its key and its certificate,
and `head_at`, its address.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number
from sealring_trio.errors import UserError
from sealring_trio.units import format_address, is_unspecified

from sealring.logs import LogFormat
from sealring.output import print_note

if TYPE_CHECKING:
    from sealring.local.client import HeadClient

Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Fraction = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
TopP = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]
FromZero = Annotated[float, Parameter(validator=Number(gte=0))]
Temperature = Annotated[float, Parameter(validator=Number(gte=0, lte=2))]
Count = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 32))]
Seed = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 64))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65_535))]

AsJson = Annotated[bool, Parameter(help="Print one JSON object.")]
OwnConfig = Annotated[
    Path | None,
    Parameter(help="The config of this machine's node; that of the default folder if left out."),
]
LogFormatChoice = Annotated[
    LogFormat,
    Parameter(
        help="'json' has one JSON object a line: time, level, logger, text, and exception where "
        "there is one."
    ),
]


# ---------------------------------------------------------------------- prompts
# Prompts from the command line and from standard input.


STDIN: Final = "-"
"""The argument that stands for standard input."""


def _no_option(_: object, value: str | None) -> None:
    if value is not None and value.startswith("--"):
        raise ValueError("there is no such option. A prompt that begins so can come from a pipe")


Prompt = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_no_option)]
"""A prompt as an argument: `STDIN` is one, and what is meant as an option is none."""

MAX_PROMPT: Final = 8 << 20
"""Characters of standard input; a request has no more bytes."""


def is_piped() -> bool:
    """Whether standard input is there, and is no terminal."""
    return sys.stdin is not None and not sys.stdin.isatty()


def read_prompt(given: str | None) -> str:
    """The prompt: what is *given*, with what standard input has before it unless that is a
    terminal; for `STDIN` and None, standard input alone. Raises `UserError` if there is none."""
    alone = given in (None, STDIN)
    text = _input() if is_piped() or (given == STDIN and sys.stdin is not None) else ""
    parts = [text.strip("\n"), "" if alone else given or ""]
    prompt = "\n\n".join(part for part in parts if part.strip())
    if not prompt:
        raise UserError("there is no prompt", "Give one as an argument, or on standard input.")
    return prompt


def _input() -> str:
    text = sys.stdin.read(MAX_PROMPT + 1)
    if len(text) > MAX_PROMPT:
        raise UserError(
            f"standard input has more than {MAX_PROMPT >> 20} MiB", "No model reads so much."
        )
    return text


# ---------------------------------------------------------------------- access
# Options of the commands that ask a head by its API: how they are let in, and whom they trust.


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Access:
    """What a head may want to know of a client, and a client of a head.

    Parameters
    ----------
    api_key
        A key of 'sealring apikey new', where one is needed; SEALRING_API_KEY
        or OPENAI_API_KEY of the environment if left out. On the command line
        every user of this machine can see it.
    api_key_file
        File that holds that key, which nobody else may read.
    certificate
        For https://, the server's certificate or that of its issuer, in PEM;
        those that this machine trusts if left out.
    """

    api_key: str | None = None
    api_key_file: Path | None = None
    certificate: Path | None = None

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[HeadClient]:
        """A client of the API at *url*, until the block ends. Where that names several machines of
        a ring, with commas between them, it is the first that answers, whose streams go on
        at the others. Raises `UserError`."""
        # It takes a tenth of a second to import, which a mistake need not wait for.
        from sealring.local import client  # noqa: PLC0415
        from sealring.local.client import HeadClient  # noqa: PLC0415

        trust = None if self.certificate is None else client.trusting(self.certificate)
        key = client.api_key(self.api_key, self.api_key_file)
        with contextlib.ExitStack() as stack:
            made = [stack.enter_context(HeadClient(each, key, trust)) for each in url.split(",")]
            first = made[0]
            if len(made) > 1:
                first = next((each for each in made if each.is_there()), first)
            first.others = [each for each in made if each is not first]
            yield first


def note_without_key(http: HeadClient) -> None:
    """Say that an answer ends with its machine, where *http* has other machines and no key."""
    if http.others and "authorization" not in http.headers:
        print_note(
            "without an API key an answer goes on at no other machine; to make one, on the head's "
            "machine: sealring apikey new NAME"
        )


def usual_url() -> str:
    """Where the head's API is if nobody says: as the config of the default folder has it, or else
    the default."""
    from sealring.files.config import has_own_config, own_config  # noqa: PLC0415 - as above
    from sealring.local.client import DEFAULT_URL  # noqa: PLC0415 - as above

    if not has_own_config():
        return DEFAULT_URL
    try:
        config = own_config(None)
    except UserError:  # which is for 'sealring up' to say
        return DEFAULT_URL
    if config.api is None:
        return DEFAULT_URL
    host, port = config.api
    if is_unspecified(host):
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{'http' if config.tls is None else 'https'}://{format_address(host, port)}"


def head_at(url: str | None) -> str:
    """The address of the head at *url*; if that is left out the usual one, unless another user of
    this machine listens there. Raises `UserError`."""
    from sealring.local import client  # noqa: PLC0415 - as above
    from sealring.local.client import stranger  # noqa: PLC0415 - as above

    base = client.base_urls(url or usual_url())
    if url is None and (why := stranger(base)):
        raise UserError(
            why, f"Give the address of your head, or this one if you mean it: --url {base}"
        )
    return base


NO_KEY: Final = Access()
"""Of a command that is given none of these options."""

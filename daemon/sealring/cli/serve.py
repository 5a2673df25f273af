"""`sealring serve`."""

from __future__ import annotations

import contextlib
import json as jsons
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import cyclopts
from sealring_model.text.tokens import has_chat_template
from sealring_trio.errors import UserError
from sealring_trio.files.config import CollectivesName, StrategyName
from sealring_trio.files.models import TINY, find_whole_model
from sealring_trio.units import is_loopback

from sealring.cli.options import LogFormatChoice, Port, Positive
from sealring.files.models import NO_TEMPLATE, check_text
from sealring.files.origins import check_host, check_origin
from sealring.http.tls import read_pair
from sealring.local.ring import guess_options
from sealring.logs import LogLevel, begin_log
from sealring.output import print_facts, print_json, print_note, progress, reporter, visible

if TYPE_CHECKING:
    from sealring.local.ring import LocalApi, Setting

LOOK_SECONDS: Final = 0.25
"""Seconds between looks at the head's log, which is passed on."""

QUESTION: Final = "Tell me a story about a fox."


def serve(
    *,
    ranks: Positive = 2,
    model: str = TINY,
    draft: str | None = None,
    no_guesses: bool = False,
    strategy: StrategyName = "pp",
    collectives: CollectivesName = "sealed",
    host: str = "127.0.0.1",
    port: Port = 7480,
    api_key: Annotated[str | None, cyclopts.Parameter(env_var="SEALRING_API_KEY")] = None,
    api_key_file: Path | None = None,
    allowed_hosts: tuple[str, ...] = (),
    allowed_origins: tuple[str, ...] = (),
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    log: LogLevel = "info",
    log_format: LogFormatChoice = "text",
    trace: bool = False,
    json: bool = False,
) -> int:
    """Serve a model on this machine: a local ring, its HTTP API and its page.

    Starts one node process per rank on loopback, with throwaway keys, and
    tells where the API and the page are once every rank has loaded its
    layers. The log of the head follows on standard error, with one line for
    each request. Ctrl-C finishes the requests that run, and stops; a second
    one stops at once.

        sealring serve
        sealring serve --ranks 3 --model models/llama-8b --port 8000

    Only this machine can reach it, unless --host says otherwise; beyond
    this machine it needs a key, and should have TLS:

        export SEALRING_API_KEY="$(openssl rand -hex 32)"
        sealring serve --host 0.0.0.0 --tls-certificate a.crt --tls-key a.key

    A ring of several machines: sealring up.

    Next, in a second terminal: sealring chat, or sealring status

    Parameters
    ----------
    ranks
        Node processes; each holds a part of the layers.
    model
        Folder of a model, or its hub id; the one that ships with sealring if
        left out.
    draft
        Folder or hub id of a small model with the same vocabulary, which
        guesses tokens. They may come sooner, and are the same.
    no_guesses
        Guess no tokens ahead.
    strategy
        'pp': each rank has some of the layers. 'tp': each has its share of
        every layer. 'auto' chooses.
    collectives
        'shared-loopback' has the sums of 'tp' within reach of every user of
        this machine, where engines can have no network of their own.
        'trusted-link' has them go beside the sealed links.
    host
        Address at which the API listens; 0.0.0.0 for all of this machine's.
    port
        Port of the API and the page; 0 for any that is free.
    api_key
        The key that clients must present; none if left out. On the command
        line every user of this machine can see it: set SEALRING_API_KEY
        instead, or use --api-key-file.
    api_key_file
        File that holds that key, which nobody else may read.
    allowed_hosts
        Names besides loopback by which clients without a key may address it,
        such as host.docker.internal; repeat the option for several.
    allowed_origins
        Origins whose web pages may use it, such as app://obsidian.md; repeat
        the option for several.
    tls_certificate
        Certificate in PEM to speak TLS with, its issuers' after it.
    tls_key
        The certificate's private key, in PEM.
    log
        How much the log says.
    trace
        Log each step too: what every rank did, and the hops.
    json
        Print one JSON object once it serves.
    """
    from sealring.local.ring import local_api  # noqa: PLC0415 - see `up`

    say: Callable[[str], None] = print_note
    if log_format == "json":
        begin_log(log, log_format)
        say = logging.getLogger("sealring").info
    folder = find_whole_model(model)
    check_text(folder)
    if not has_chat_template(folder):
        say(NO_TEMPLATE)
    key = _key(host, api_key, api_key_file)
    options: dict[str, Setting] = {"strategy": strategy, "collectives": collectives}
    options |= guess_options(draft, folder, no_guesses=no_guesses)
    for name, given in (("allowed_hosts", allowed_hosts), ("allowed_origins", allowed_origins)):
        if given:
            options[name] = [_checked(name, each) for each in given]
    for name, path in (("tls_certificate", tls_certificate), ("tls_key", tls_key)):
        if path is not None:
            options[name] = str(path.resolve())
    if tls_certificate is not None and tls_key is not None:
        read_pair(tls_certificate, tls_key)
    elif tls_certificate is not None or tls_key is not None:
        raise UserError("TLS needs a certificate and its key", "Give the other option as well.")
    flags = ["--log", log, "--log-format", log_format, *(["--trace"] if trace else [])]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with contextlib.ExitStack() as stack:
        with (
            progress() if log_format == "text" else contextlib.nullcontext(reporter(say)) as report
        ):
            api = stack.enter_context(
                local_api(
                    ranks,
                    folder,
                    host=host,
                    port=port,
                    options=options,
                    flags=flags,
                    api_key=key,
                    certificate=tls_certificate,
                    report=report,
                )
            )
        _announce(
            api,
            json=json,
            keyed=bool(key),
            key_file=None if api_key else api_key_file,
            certificate=tls_certificate,
        )
        head = api.nodes[0]
        follow = stack.enter_context(_following(head.log))
        try:
            while api.dead(LOOK_SECONDS) is None:
                follow()
        except KeyboardInterrupt:
            _drain(head.process, follow)
            return 0
        follow()
        api.check()
    return 1


def _key(host: str, given: str | None, file: Path | None) -> str:
    """The key that the API asks for; empty for none. Raises `UserError`."""
    from sealring.local.client import read_api_key  # noqa: PLC0415 - see `up`

    key = given or (read_api_key(file) if file is not None else "")
    if not key and not is_loopback(host):
        raise UserError(
            f"the API is to listen beyond loopback, at {host}, and there is no API key",
            "Set SEALRING_API_KEY, or give --api-key-file. One that nobody guesses: "
            "openssl rand -hex 32",
        )
    return key


def _checked(name: str, value: str) -> str:
    """*value*, if the config's key *name* may have it. Raises `UserError`."""
    try:
        return check_host(value) if name == "allowed_hosts" else check_origin(value)
    except ValueError as error:
        raise UserError(f"--{name.replace('_', '-')}: {error}", "Give it in that form.") from None


def _announce(
    api: LocalApi, *, json: bool, keyed: bool, key_file: Path | None, certificate: Path | None
) -> None:
    """Print where everything is."""
    ranks = [node.status() for node in api.nodes]
    many = "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
    spans = [f"{first} to {end - 1}" for first, end in (rank["layers"] for rank in ranks)]
    if json:
        print_json(
            {
                "url": api.url,
                "api": f"{api.url}/v1",
                "page": f"{api.url}/",
                "model": api.model,
                "strategy": ranks[0]["strategy"],
                "ranks": [
                    {"pid": n.process.pid, "layers": r["layers"]}
                    for n, r in zip(api.nodes, ranks, strict=True)
                ],
            }
        )
        sys.stdout.flush()
        return
    body = {"model": api.model, "messages": [{"role": "user", "content": QUESTION}]}
    print_facts(
        [
            ("model", f"{api.model}, on {many} with layers {', '.join(spans)}"),
            ("page", f"{api.url}/"),
            ("API", f"{api.url}/v1"),
        ]
    )
    trust = "" if certificate is None else f" --certificate {shlex.quote(str(certificate))}"
    cacert = "" if certificate is None else f" --cacert {shlex.quote(str(certificate))}"
    file = "" if key_file is None else shlex.quote(str(key_file))
    chat = f"{trust} --api-key-file {file}" if file else trust
    key = f"$(cat {file})" if file else "$SEALRING_API_KEY"
    bearer = f'        -H "Authorization: Bearer {key}" \\\n' if keyed else ""
    print(
        f"\nTry it from another terminal:\n\n    sealring chat --url {api.url}{chat}\n\n"
        f"    curl{cacert} {api.url}/v1/chat/completions \\\n"
        f"        -H 'Content-Type: application/json' \\\n{bearer}"
        f"        -d {shlex.quote(jsons.dumps(body))}\n\n"
        "Ctrl-C finishes what runs, and stops. The head's log follows.\n",
        flush=True,
    )


@contextlib.contextmanager
def _following(log: Path) -> Iterator[Callable[[], None]]:
    """A function that prints what has been added to *log* since its last call."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)

        def follow() -> None:
            sys.stderr.write(visible(file.read().decode(errors="replace")))
            sys.stderr.flush()

        yield follow


def _drain(head: subprocess.Popen[bytes], follow: Callable[[], None]) -> None:
    """Have *head* finish its requests and stop; a second interrupt stops it at once."""
    head.terminate()
    while head.poll() is None:
        try:
            follow()
            head.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            head.terminate()
    follow()

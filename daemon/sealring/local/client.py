"""Asks a head by its HTTP API, for the commands that do: plain calls, streamed answers, errors.

The API speaks OpenAI's dialect; what a client has to know of its errors is here. Streams go on over
connections that break (`sealring_client`).

While nothing of an answer has come yet, the head breaks its silence with comments. Then, and when
the head itself falls silent, it is asked what it does, and a person hears of that. A read that
waits calls for that every `LOOK_SECONDS`, and goes on: a timeout of httpx's own would end the
connection, and with it the request.

Any user of a machine may listen at a port that a ring is expected at, and would be sent prompts. So
`stranger` finds out who listens at a port of loopback, as the kernel has it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import httpcore2
import httpx2
from sealring_client import ResumableStream, StreamLost, StreamRefused
from sealring_protocol.limits import MAX_TOKENS
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import read_secret

from sealring.files.config import DEFAULT_API, has_own_config

DEFAULT_URL: Final = f"http://{DEFAULT_API}"
KEY_VARIABLES: Final = ("SEALRING_API_KEY", "OPENAI_API_KEY")
CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"
CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 900.0
"""Silence after which an answer in one piece is given up. The head itself gives up earlier."""

SILENCE_SECONDS: Final = 90.0
"""Silence after which a stream is given up. A head breaks it every 2 s, once it has read the
prompt, for which it has 75. So its machine has stopped, or the way to it is cut without a word."""

LOOK_SECONDS: Final = 12.0
"""Silence that is noticed, and how often a head is asked that breaks it."""

CARD_SECONDS: Final = 10.0
"""Seconds within which a head says what it serves. It answers that while it waits for its ring."""

NEXT_HEAD_SECONDS: Final = 30.0
"""Seconds for which a machine without a head is asked again: as long as it keeps a request for an
answer."""

NEXT_HEAD_PAUSE: Final = 0.5
"""Seconds between two times that it is."""

_NO_HEAD: Final = ("no_head", "head_lost", "not_head", "no_majority")
"""The codes of a machine that may soon have another head."""

ASK_SECONDS: Final = 3.0
"""Seconds that a head has to say what it does. A person waits, and it takes no work."""

MAX_REPLY: Final = 4 << 20
"""Bytes of any other answer. The state of a ring of 16 ranks has 20 KiB."""

MAX_ANSWER: Final = 64 << 20
"""Characters of an answer. A million tokens have some 5 million."""

_WORDS: Final = 1000
"""Characters of what the head says that it does."""

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"
Notice = Callable[[], None]
Pieces = Generator[tuple[str, str]]
"""A kind, ``content`` or ``reasoning``, and a text."""

Report = Callable[[str], None]
"""Hears what is waited for."""


class HeadClient(httpx2.Client):
    """A client of the API at *url*; see `settings`."""

    def __init__(self, url: str, key: str = "", trust: ssl.SSLContext | None = None) -> None:
        self._transport_here = _Transport(True if trust is None else trust)
        super().__init__(**settings(url, key, trust), transport=self._transport_here)
        self.others: list[HeadClient] = []
        """Clients of other machines of the ring, at which a stream may go on."""

    @contextlib.contextmanager
    def noticing(self, notice: Notice) -> Iterator[None]:
        """Meanwhile call *notice* whenever the head has been silent for so long. It may ask the
        head something else, for less time."""
        networks = [each._transport_here.network for each in (self, *self.others)]
        for network in networks:
            network.notice = notice
        try:
            yield
        finally:
            for network in networks:
                network.notice = _nothing

    def is_there(self) -> bool:
        """Whether somebody answers, soon."""
        try:
            soon(self, "/livez", ASK_SECONDS)
        except (httpx2.HTTPError, ValueError):
            return False
        return True


def settings(url: str, key: str, trust: ssl.SSLContext | None = None) -> dict[str, Any]:
    """The arguments of an HTTP client for the API at *url*, with *key* if there is one; *trust*
    says which certificates it takes, if not those that this machine does."""
    from sealring_trio.net.h11_patterns import bound_h11  # noqa: PLC0415 - h11 is slow to import

    bound_h11()  # anybody may be who answers
    # Nothing packed: a few bytes of that may become gigabytes.
    headers = {"accept-encoding": "identity"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    timeout = patience(READ_SECONDS)
    # Proxies of the environment are for the world outside, not for machines of one's own.
    known = {"base_url": url, "headers": headers, "timeout": timeout, "trust_env": False}
    return known if trust is None else {**known, "verify": trust}


def patience(seconds: float) -> httpx2.Timeout:
    """How long a head may take to connect, and then be silent."""
    return httpx2.Timeout(seconds, connect=CONNECT_SECONDS)


def base_urls(given: str) -> str:
    """The URLs in *given*, which commas separate, each without what people add to it. Raises
    `UserError` where one is no URL."""
    return ",".join(map(base_url, given.split(",")))


def base_url(given: str) -> str:
    """*given* without what people add to it. Raises `UserError` when it is no URL."""
    text = given if "://" in given else f"http://{given}"
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.host.isdecimal():
        raise UserError(f"'{given}' is no URL of an API", f"Give one like {DEFAULT_URL}")
    return text.rstrip("/").removesuffix("/v1")


def trusting(certificate: Path) -> ssl.SSLContext:
    """A context that trusts the *certificate*, and those that it has issued, alone. Raises
    `UserError`."""
    try:
        context = ssl.create_default_context(cafile=str(certificate))
    except OSError as error:  # as OpenSSL's are
        raise UserError(
            f"cannot read the certificate {certificate}: {error.strerror or error}",
            "Give a file in PEM: the server's own, or that of its issuer.",
        ) from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # also one that its issuer has signed
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as people make them with openssl
    return context


def api_key(given: str | None, file: Path | None = None) -> str:
    """The key to present: the one *given*, or the one in *file*, or the environment's, or none.
    Raises `UserError`."""
    if given is not None:
        return _checked_key(given, "of --api-key")
    if file is not None:
        return read_api_key(file)
    for name in KEY_VARIABLES:
        if value := os.environ.get(name):
            return _checked_key(value, f"in {name}")
    return ""


def read_api_key(path: Path) -> str:
    """The API key in the file *path*. Raises `UserError`."""
    key = read_secret(path, "API key", "The file should hold the key alone.")
    return _checked_key(key.strip(), f"in {path}")


def _checked_key(key: str, where: str) -> str:
    """*key*, if a header may hold it; an error does not repeat what may be another secret. Raises
    `UserError`."""
    if not all("!" <= character <= "~" for character in key):
        raise UserError(
            f"the API key {where} is none: it is not one word of plain characters",
            "Give the key alone, as 'sealring apikey new' has shown it.",
        )
    return key


@attrs.define
class StreamedAnswer:
    """What has come of one answer.

    *finish* is OpenAI's word for how it ended; empty if it did not. It is *limited* if max_tokens
    was asked for. *usage* is as the API has it, at the end. Times are seconds
    of `time.perf_counter`.
    """

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    limited: bool = False
    usage: Mapping[str, Any] = attrs.field(factory=dict)
    began: float = attrs.field(factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the answer; 0 if it was broken off before the head sent them."""
        return self.count("completion_tokens")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 if unknown."""
        return self.count("prompt_tokens")

    @property
    def known_tokens(self) -> int:
        """Tokens of the prompt that the head knew already."""
        return self.count("prompt_tokens_details", "cached_tokens")

    def count(self, *path: str) -> int:
        """The number at *path* in the usage; 0 for what is none, as any server may say."""
        known: Any = self.usage
        for name in path:
            known = known.get(name) if isinstance(known, dict) else None
        return known if isinstance(known, int) and 0 <= known <= MAX_TOKENS else 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second after the first; 0 if unknown, as when all came at once."""
        took = self.last - self.first if self.first is not None else 0.0
        return max(0, self.tokens - 1) / took if took > 0 else 0.0

    @property
    def first_s(self) -> float | None:
        """Seconds to the first piece; None if there was none."""
        return None if self.first is None else self.first - self.began

    @property
    def took_s(self) -> float:
        """Seconds from the question to the latest piece."""
        return max(0.0, self.last - self.began)

    def summary(self, names: Sequence[str]) -> str:
        """How it came, in a few words; *names* are those of the machines that have the layers."""
        facts = [f"{self.tokens} tokens"] if self.tokens else []
        if self.tokens_per_s:
            facts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.first_s is not None:
            facts.append(f"first after {self.first_s:.1f} s")
        if names:
            facts.append(f"by {', '.join(names)}")
        if self.cut_off:
            facts.append(self.cut_off)
        return ", ".join(facts)

    @property
    def cut_off(self) -> str:
        """Where it was cut off, in words; empty if it has an end."""
        if self.finish != "length":
            return ""
        return "cut off at max_tokens" if self.limited else "cut off where the context ends"

    def take(self, kind: str, piece: str) -> tuple[str, str]:
        """Add *piece*."""
        self.last = time.perf_counter()
        if self.first is None:
            self.first = self.last
        if kind == "reasoning":
            self.reasoning += piece
        else:
            self.content += piece
        return kind, piece


def stream(
    http: HeadClient,
    url: str,
    path: str,
    body: Mapping[str, Any],
    answer: StreamedAnswer,
    report: Report,
) -> Pieces:
    """The pieces of the answer to *body*, which also become *answer*; *report* hears what the head
    does while none comes. Closing the iterator withdraws the request. Raises `OperationError` when
    the head at *url* does not answer."""
    asked = {**body, "stream_options": {"include_usage": True}}
    answer.limited = "max_tokens" in body or "max_completion_tokens" in body

    looked = -math.inf

    def look() -> None:
        nonlocal looked
        looked = time.monotonic()
        report(_doing(http, given.name, begun=answer.first is not None))

    def silent() -> None:
        if answer.first is None and time.monotonic() >= looked + LOOK_SECONDS:
            look()

    given = ResumableStream(
        [http, *http.others],
        path,
        asked,
        timeout=patience(SILENCE_SECONDS),
        silent=silent,
        broken=lambda why: report(f"{why}, and the rest is asked for"),
    )
    events = given.events()
    try:
        with http.noticing(look), contextlib.closing(events):
            for event in events:
                if "error" in event:
                    raise broken_off(event)
                if isinstance(usage := event.get("usage"), dict):
                    answer.usage = usage
                for choice in event["choices"]:
                    answer.finish = choice.get("finish_reason") or answer.finish
                    for kind, piece in _pieces(choice):
                        yield answer.take(kind, piece)
                if len(answer.content) + len(answer.reasoning) > MAX_ANSWER:
                    raise broken_off({"error": "the answer does not end"})
            if not answer.finish:
                raise broken_off({"error": "the head went away in the middle of the answer"})
    except StreamRefused as error:
        raise refused(httpx2.Response(error.status, content=error.body)) from None
    except StreamLost as error:
        if not answer.finish:  # else all has come but the last line, which some servers leave out
            raise OperationError(str(error), _how_to_outlive(http)) from None
    except httpx2.HTTPError as error:
        raise unreachable(url, error) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise no_api(url) from None


def _pieces(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """The texts in *choice*, of a chat or of a completion."""
    delta = choice.get("delta", {})
    named = (
        ("reasoning", delta.get("reasoning_content")),
        ("content", delta.get("content")),
        ("content", choice.get("text")),
    )
    return [(kind, encodable(text)) for kind, text in named if isinstance(text, str) and text]


def encodable(text: str) -> str:
    """*text*, in which lone surrogates, which JSON and terminals can bring, are "?": nothing can
    send them, and no file hold them."""
    return text.encode("utf-8", "replace").decode()


def _doing(http: HeadClient, name: str, *, begun: bool) -> str:
    """What the head does with the request that is called *name*, in words."""
    try:
        health = _known(http, "/health")
        whys = [*health["why"], *health.get("starved", [])]
        faults = [str(why.get("what") or why["text"]) for why in whys]
        faults = faults or list(map(str, health["faults"]))
        if not faults and not begun:
            faults = [str(_known(http, f"/v1/requests/{name}/trace")["doing"])]
    except httpx2.HTTPError:
        return "the head does not answer: it may be stopped, or the way to it is cut"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        faults = []
    doing = "; ".join(each.rstrip(".") for each in faults if each)[:_WORDS]
    return doing or ("waiting for more" if begun else "waiting for the first token")


def machines(http: HeadClient) -> list[str]:
    """The names of the machines that have layers; none if the head does not say."""
    try:
        return [
            str(rank["name"]) for rank in _known(http, "/v1/cluster")["ranks"] if rank["layers"]
        ]
    except (httpx2.HTTPError, ValueError, LookupError, TypeError, RecursionError):
        return []


def model_at(
    client: httpx2.Client, url: str, name: str = "", report: Report | None = None
) -> dict[str, Any]:
    """What the server at *url* says of its model called *name*, or of its first; its name is under
    ``id``. Where it has no head, as just after that has died, it is asked again for as long as its
    ring lets a request wait, if *report* is there to hear of it. Raises `OperationError`, also if
    it has no model of that name."""
    end = time.monotonic() + NEXT_HEAD_SECONDS
    while True:
        try:
            response = _got(client, url, "/v1/models")
            break
        except NoHead:
            if report is None or time.monotonic() >= end:
                raise
            report("there is no head, and the next one is waited for")
            time.sleep(NEXT_HEAD_PAUSE)
    try:
        cards = [{**card, "id": str(card["id"])} for card in response.json()["data"]]
        first = cards[0]
        names = " or ".join(f"'{card['id']}'" for card in cards)
    except (ValueError, LookupError, TypeError, RecursionError):
        raise no_api(url) from None
    chosen = next((card for card in cards if card["id"] == name), first if not name else None)
    if chosen is None:
        raise OperationError(f"there is no model '{name}' at {url}", f"Give --model {names}.")
    return chosen


def cluster_at(client: httpx2.Client, url: str) -> dict[str, Any]:
    """What the head at *url* says of its ring. Raises `OperationError`."""
    response = _got(client, url, "/v1/cluster")
    try:
        return {**response.json()}
    except (ValueError, TypeError, RecursionError):
        raise no_api(url) from None


def _got(client: httpx2.Client, url: str, path: str) -> httpx2.Response:
    try:
        response = soon(client, path, CARD_SECONDS)
    except httpx2.HTTPError as error:
        raise unreachable(url, error) from None
    except ValueError:
        raise no_api(url) from None
    if response.status_code == 404 and not _error(response):
        raise no_api(url)
    if response.status_code != 200:
        raise refused(response)
    return response


def _known(http: HeadClient, path: str) -> Any:
    """What the head says at *path*, soon and not too long. Raises `httpx2.HTTPError`, or
    `ValueError` for what is no such thing."""
    return soon(http, path, ASK_SECONDS).json()


def soon(client: httpx2.Client, path: str, seconds: float) -> httpx2.Response:
    """What the server of *client* says at *path* within so many *seconds*. Raises as `whole`."""
    end = time.monotonic() + seconds
    with client.stream("GET", path, timeout=seconds) as response:
        return whole(response, end)


def whole(response: httpx2.Response, end: float) -> httpx2.Response:
    """*response*, whose body is read here. Raises `ValueError` if it is too long, and
    `httpx2.HTTPError`, as when it has not come by *end* (`time.monotonic`)."""
    data = bytearray()
    for piece in response.iter_raw():
        data += piece
        if len(data) > MAX_REPLY:
            raise ValueError("it says too much")
        if time.monotonic() > end:
            raise httpx2.ReadTimeout("it takes too long")
    return httpx2.Response(response.status_code, content=bytes(data))


class HeadUnreachable(OperationError):
    """Nobody listens at the address of a head."""


class NoHead(OperationError):
    """A machine answers whose ring has no head, or not yet."""


def unreachable(url: str, error: httpx2.HTTPError) -> OperationError:
    """The error for a server at *url* that nobody reaches."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return OperationError(
            f"the certificate of {url} is none that this machine trusts for that name: {error}",
            "Give it, or its issuer's, with --certificate; and use a name that is in it.",
        )
    if "WRONG_VERSION_NUMBER" in str(error):
        return OperationError(f"{url} does not speak TLS", "Use http:// instead.")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        reason = str(error).rpartition("] ")[2] or "no answer in time"
        return HeadUnreachable(f"no head answers at {url}: {reason}", _how_to_reach())
    if isinstance(error, httpx2.RemoteProtocolError) and "sending a response" in str(error):
        return OperationError(
            f"{url} closed the connection without an answer",
            "Is that the API's address? A node's own port ('listen' in its config, mostly 7470) is "
            f"for nodes; the API's is 'api' in the head's, {DEFAULT_API} if left out. If it is, "
            "the head has just ended: start it again.",
        )
    if isinstance(error, httpx2.TimeoutException):
        return OperationError(
            f"the head at {url} says nothing any more",
            "It or its machine hangs, or the way there is cut. Its log may say more.",
        )
    return OperationError(
        f"the head at {url} went away: {error or type(error).__name__}",
        "Start it again if it has ended, and ask again.",
    )


def _how_to_reach() -> str:
    """What to do where no head answers."""
    if not has_own_config():
        return "Start one: sealring serve. Or give its address: --url URL."
    return (
        "This machine is in a cluster: its node has the API while it runs (sealring up), where "
        "'api' in its config says. Or give another machine's address: --url URL."
    )


def _how_to_outlive(http: HeadClient) -> str:
    """What to do where an answer was lost with its machine."""
    if not http.others:
        return (
            "Ask again. With another machine's URL too (--url A,B), and an API key, an answer goes "
            "on there."
        )
    if "authorization" not in http.headers:
        return "Ask again, with an API key; on the head's machine: sealring apikey new NAME"
    return "The head's log says more. Ask again."


def refused(response: httpx2.Response) -> OperationError:
    """The error for a request that the API refused."""
    message = message_of(response)
    if response.status_code == 401:
        return OperationError(
            message, f"Give it in {KEY_VARIABLES[0]}, with --api-key-file, or with --api-key."
        )
    if _error(response).get("code") == "context_length_exceeded":
        return OperationError(message, "Ask for less; in a conversation, /undo or /clear")
    code = _error(response).get("code")
    if code in _NO_HEAD:
        return NoHead(message, "Or ask another machine: --url URL.")
    if code == "no_texts":
        return OperationError(message, "Or ask another machine: --url URL.")
    return OperationError(message, "The head's log says more.")


def broken_off(event: dict[str, Any]) -> OperationError:
    """The error for an answer that ended with *event*, an error."""
    error = event["error"]
    known = error.get("message") if isinstance(error, dict) else error
    message = str(known or "the answer broke off")
    return OperationError(message, "The head's log says more. Ask again.")


def no_api(url: str) -> OperationError:
    """The error for a server at *url* that does not speak OpenAI's dialect."""
    return OperationError(
        f"what answers at {url} is no such API", "Give the head's address with --url."
    )


def message_of(response: httpx2.Response) -> str:
    """The message of an error answer."""
    return _error(response).get("message") or f"it answered {response.status_code}"


def _error(response: httpx2.Response) -> dict[str, str]:
    try:
        error = response.json()["error"]
        return {name: str(value) for name, value in error.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def stranger(url: str) -> str:
    """Why not to ask what listens at *url*, which nobody has named, in words; empty if there is no
    reason: another user could have put it there, to be sent keys and prompts."""
    uid = strangers_uid(url)
    if uid is None:
        return ""
    return f"what listens at {url} belongs to another user (uid {uid}), and is not asked"


def strangers_uid(url: str) -> int | None:
    """The user who listens at *url*, if that is on loopback and neither this user nor root; None
    also where the system does not say."""
    where = httpx2.URL(url)
    if not _is_loopback(where.host):
        return None
    port = where.port or (443 if where.scheme == "https" else 80)
    uids = {uid for table in _TABLES for uid in _listeners(table, port)}
    return min(uids - {0, os.geteuid()}, default=None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listeners(table: Path, port: int) -> list[int]:
    """The users that listen at *port*; the fourth column is the state, the eighth the user."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [
        int(row[7])
        for row in rows
        if len(row) > 7 and row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port
    ]


def _nothing() -> None:
    """Nobody waits."""


class _Transport(httpx2.HTTPTransport):
    """httpx's own, over connections that notice silence."""

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        super().__init__(verify=verify, trust_env=False)
        self.network: Final = _Network()
        # httpx passes on all that its pool takes but this; httpcore documents it.
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(verify, trust_env=False),
            network_backend=self.network,
        )


class _Network(httpcore2.NetworkBackend):
    """Makes connections whose silence *notice* hears of."""

    def __init__(self) -> None:
        self.notice: Notice = _nothing
        self._inner: Final = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """See httpcore."""
        options = list(socket_options or ())
        return _Stream(self._inner.connect_tcp(host, port, timeout, local_address, options), self)


class _Stream(httpcore2.NetworkStream):
    """A connection: *inner*, whose reads look around."""

    def __init__(self, inner: httpcore2.NetworkStream, network: _Network) -> None:
        self._inner: Final = inner
        self._network: Final = network

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """See httpcore. What was waited for is not lost by a look: nothing had come."""
        end = time.monotonic() + (READ_SECONDS if timeout is None else timeout)
        while True:
            left = end - time.monotonic()
            try:
                return self._inner.read(max_bytes, max(0.001, min(LOOK_SECONDS, left)))
            except httpcore2.ReadTimeout:
                if left <= LOOK_SECONDS:
                    raise
                self._network.notice()

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """See httpcore."""
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        """See httpcore."""
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        """See httpcore."""
        inner = self._inner.start_tls(ssl_context, server_hostname, timeout)
        return _Stream(inner, self._network)

    def get_extra_info(self, info: str) -> Any:
        """See httpcore."""
        return self._inner.get_extra_info(info)

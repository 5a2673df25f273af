"""Asks the model hub: what a model consists of, and ranges of its files.

huggingface_hub knows the addresses, the token, proxies, and what the hub's errors mean
(``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE``). Ranges are read here with its HTTP client,
because it fetches whole files alone. The hub redirects to a server with the bytes; that address is
kept, and asked for again when it is refused. Calls block, and may be made in any thread.

What answers may be broken or hostile: a listing is read up to a bound, an error's words not at all,
and an answer that trickles is given up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

import attrs
from sealring_model.errors import LoadError
from sealring_model.loading import model_store
from sealring_model.loading.foreign_json import HUB_LISTING, ForeignFault, bound_of, parse_foreign
from sealring_model.loading.model_folder import NEEDED_FILES
from sealring_model.loading.model_store import MAX_SIZE, HubOrigin, WeightFile
from sealring_model.loading.weights import read_entries

from sealring_trio.fetching.source import (
    FetchFault,
    Holder,
    Listing,
    Source,
    Take,
    fault_of,
    is_shared,
    known_model,
    start_model,
)

REACH_IT = "See that this machine reaches it, name a mirror (HF_ENDPOINT)"
"""What helps against a hub that does not answer."""

# Its user agent would else ask the hub which tools to look for on this machine, and name them.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# It logs addresses, and whoever has the address of a redirection has the file.
logging.getLogger("httpx2").setLevel(logging.WARNING)

MAX_FILES: Final = 10_000
"""Files of a listing that are fetched."""

_MAX_PLACES: Final = 1000
_MAX_PLACE: Final = 4096
"""Addresses of redirections that are kept, and the characters of each, at most."""

_CONNECT_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 20.0
"""Seconds without a byte after which a connection is given up."""

_HEAD_SECONDS: Final = 60.0
"""Seconds within which an answer must begin, after all redirections. Its head may trickle."""

_SLOW_SECONDS: Final = 30.0
_SLOW_BYTES: Final = 4096
"""Bytes that must come in `_SLOW_SECONDS`. A server that sends one now and then is never silent."""

_MAX_REDIRECTS: Final = 10
_LONGEST_WAIT: Final = 300.0
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_SHA256: Final = re.compile("[0-9a-f]{64}")
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_PASSING: Final = (408, 425, 429, 500, 502, 503, 504)
_STALE: Final = (400, 401, 403, 404, 410)
"""What a server answers to an address that it gave out, once its time is up."""

_INTERNET6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")

_OF_BODY: Final = ("content-length", "content-encoding", "transfer-encoding")


@attrs.frozen
class _Place:
    """An *address* that the hub redirected to, and whether the hub itself is *near* (`_follow`)."""

    address: str
    near: bool


class Hub(Source):
    """The hub at *endpoint*, or where the environment says. *offline* forbids to ask it."""

    connections: ClassVar[int] = 6
    lone: ClassVar[bool] = True

    def __init__(self, *, endpoint: str | None = None, offline: bool = False) -> None:
        self._endpoint: Final = endpoint
        self._offline: Final = offline
        self._places: dict[str, _Place] = {}  # by address: where the hub redirected to
        self._places_lock: Final = threading.Lock()

    @property
    def forbidden_by(self) -> str:
        """What forbids to ask the hub; empty if nothing does."""
        from huggingface_hub.constants import is_offline_mode  # noqa: PLC0415 - 0.2 s

        if self._offline:
            return "offline = true"
        return "HF_HUB_OFFLINE" if is_offline_mode() else ""

    def check_allowed(self, what: str) -> None:
        """Raise `FetchFault` if the hub may not be asked for *what*, which is not here."""
        if by := self.forbidden_by:
            raise FetchFault(
                f"{what} is not on this machine, and {by} forbids to ask the hub", permanent=True
            )

    def holders(self) -> tuple[Holder]:
        """The hub alone. It has no connection of its own: each question finds one."""
        return (Holder("the hub", b"hub", lambda _: contextlib.nullcontext(self)),)

    def list(self, model: str, revision: str) -> Listing:
        """See `SourceReader.list`."""
        self.check_allowed(model)
        value = self._listed(model, revision)
        try:
            sizes = {s["rfilename"]: s["size"] for s in value["siblings"] if _is_named(s)}
            hashes = {s["rfilename"]: (s.get("lfs") or {}).get("sha256") for s in value["siblings"]}
            commit = value["sha"]
            readable = _COMMIT.fullmatch(commit) and len(sizes) <= MAX_FILES
        except (LookupError, TypeError, AttributeError):
            readable = None
        if not readable:
            raise _unreadable(model)
        if _COMMIT.fullmatch(revision) and commit != revision:
            raise FetchFault(
                f"the hub gives commit {commit} of {model} in place of {revision}", permanent=True
            )
        for name, size in sizes.items():
            if type(size) is not int or not 0 <= size <= MAX_SIZE:
                raise FetchFault(
                    f"the hub's listing of {model} tells no size that {name} could have",
                    permanent=True,
                )
        files = {name: WeightFile(size, _hash(hashes[name])) for name, size in sizes.items()}
        return Listing(files, commit)

    def _listed(self, model: str, revision: str) -> Any:
        """The hub's JSON about *model* at *revision*. Raises `FetchFault`."""
        from huggingface_hub import HfApi  # noqa: PLC0415
        from huggingface_hub.utils._headers import build_hf_headers  # noqa: PLC0415

        endpoint = HfApi(endpoint=self._endpoint).endpoint
        address = f"{endpoint}/api/models/{model}/revision/{quote(revision, safe='')}?blobs=true"
        headers = {"Accept-Encoding": "identity", **build_hf_headers()}
        text, pace = bytearray(), _Pace()
        with _explained(model), _asked(address, headers) as (response, _):
            _check_status(response, model)
            for chunk in response.iter_raw():
                text += chunk
                pace.came(len(chunk))
                if len(text) > bound_of(HUB_LISTING)[0]:
                    break
        try:
            return parse_foreign(HUB_LISTING, text)
        except ForeignFault as error:
            raise _unreadable(model, f": {error}") from None

    def read(self, origin: HubOrigin, file: str, begin: int, end: int, take: Take) -> None:
        """See `SourceReader.read`."""
        if begin == end:
            return
        self.check_allowed(f"a part of {file} of {origin.model}")
        from huggingface_hub import hf_hub_url  # noqa: PLC0415

        address = hf_hub_url(origin.model, file, revision=origin.commit, endpoint=self._endpoint)
        place = self._places.get(address)
        try:
            with _explained(f"{file} of {origin.model}"):
                self._read(origin, file, (begin, end), take, (address, place))
        except FetchFault:
            with self._places_lock:  # its time is up, or nobody is there any more
                self._places.pop(address, None)
            raise

    def _read(
        self,
        origin: HubOrigin,
        file: str,
        wanted: tuple[int, int],
        take: Take,
        where: tuple[str, _Place | None],
    ) -> None:
        """`read` at the hub's address, or at the place that it redirected to."""
        from huggingface_hub.utils._headers import build_hf_headers  # noqa: PLC0415

        (begin, end), (address, place) = wanted, where
        headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        headers |= {} if place else build_hf_headers()
        with _asked(address, headers, place) as (response, near):
            if place and response.status_code in _STALE:
                raise FetchFault("an address has run out", wait=0.0)
            _check_status(response, file)
            known = origin.files.get(file)
            _check_range(response, file, begin, end, known.size if known is not None else None)
            found = _Place(str(response.url), near)
            if _origin_of(found.address) != _origin_of(place.address if place else address):
                self._keep(address, found)
            left, pace = end - begin, _Pace()
            for chunk in response.iter_raw():
                if not left:
                    break  # more than was asked for
                take(chunk[:left])
                left -= len(chunk[:left])
                if left:
                    pace.came(len(chunk))
            if left:
                raise FetchFault("the connection ended early")

    def _keep(self, address: str, place: _Place) -> None:
        """Ask at *place* for the next part of what is at *address*."""
        with self._places_lock:
            if len(place.address) <= _MAX_PLACE:
                self._places[address] = place
            if len(self._places) > _MAX_PLACES:
                del self._places[next(iter(self._places))]


def find_hub_model(model: str, hub: Hub) -> Path:
    """The folder of *model*, "owner/name" or "owner/name@revision". It can be described; its
    weights may still be to come. The hub is asked once what a revision is.

    Raises `FetchFault`.
    """
    try:
        name, revision = model_store.split_id(model)
        if cached := in_hub_cache(name, revision):
            return cached
        known = known_model(name, revision, Hub)
    except LoadError as error:
        raise fault_of(error) from None
    return (known or start_model(name, revision, hub)).folder


def in_hub_cache(model: str, revision: str) -> Path | None:
    """The folder of *model* in the hub's own cache, which is used as it is if all weights are
    there."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - 0.2 s
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        folder = Path(
            snapshot_download(
                model, revision=revision, local_files_only=True, allow_patterns=list(NEEDED_FILES)
            )
        )
        read_entries(folder)
    except (OSError, LoadError, HFValidationError):
        return None
    return folder if (folder / "config.json").is_file() else None


class _Pace:
    """How fast an answer comes."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._count = 0

    def came(self, count: int) -> None:
        """So many bytes have come. Raises `FetchFault` if they are too few for the time."""
        self._count += count
        if (now := time.monotonic()) - self._since > _SLOW_SECONDS:
            if self._count < _SLOW_BYTES:
                text = f"too slow: {self._count} bytes came in {_SLOW_SECONDS:.0f} s"
                raise FetchFault(text)
            self._since, self._count = now, 0


def _is_named(sibling: dict[str, Any]) -> bool:
    """Whether a file of the hub's listing is fetched."""
    return is_shared(sibling["rfilename"])


def _hash(value: object) -> str:
    """The SHA-256 that *value* of a listing is; "" if it is none."""
    return value if isinstance(value, str) and _SHA256.fullmatch(value) else ""


def _unreadable(model: str, why: str = "") -> FetchFault:
    return FetchFault(f"the hub's listing of {model} cannot be read{why}", permanent=True)


def _timeout() -> Any:
    import httpx2  # noqa: PLC0415 - as above

    return httpx2.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS)


@contextlib.contextmanager
def _asked(
    address: str, headers: Mapping[str, str], place: _Place | None = None
) -> Iterator[tuple[Any, bool]]:
    """The answer of *address*, or of the *place* that it redirected to, within the block; and
    whether the hub is near (`_follow`). Raises `FetchFault` if it does not begin in time.

    The client limits each silence and not the whole, so it runs in a thread that is left behind.
    """
    from huggingface_hub import get_session  # noqa: PLC0415

    from sealring_trio.net.h11_patterns import bound_h11  # noqa: PLC0415

    bound_h11()
    begun: Future[tuple[Any, bool]] = Future()

    def ask() -> None:
        try:
            client = get_session()
            begun.set_result(_follow(client, address, headers, place))
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            begun.set_exception(error)

    try:
        threading.Thread(target=ask, daemon=True, name="ask the hub").start()
    except RuntimeError:
        raise FetchFault("the system gives no thread to ask the hub") from None
    try:
        answer = begun.result(_HEAD_SECONDS)
    except TimeoutError:
        begun.add_done_callback(_close)
        text = f"the hub is too slow: no answer has begun within {_HEAD_SECONDS:.0f} s"
        raise FetchFault(text) from None
    except BaseException:
        begun.add_done_callback(_close)
        raise
    try:
        yield answer
    finally:
        answer[0].close()


def _follow(
    client: Any, address: str, headers: Mapping[str, str], place: _Place | None
) -> tuple[Any, bool]:
    """What *client* gets for *address*, or at *place*, after redirections; and whether the hub is
    near: in this machine or its network. Raises `FetchFault` if a hub that is not redirects to what
    is, whose servers may trust this machine.

    A name may have other addresses the next time that somebody looks it up. So what counts is the
    address that a connection has; where a proxy has that, it is those of the name.
    """
    import httpx2  # noqa: PLC0415

    asked = request = client.build_request("GET", address, headers=headers, timeout=_timeout())
    near: bool | None = None
    if place is not None:
        near = place.near
        request = client.build_request("GET", place.address, headers=headers, timeout=_timeout())
    for _ in range(_MAX_REDIRECTS):
        if near is False:
            _keep_out(client, request, asked.url.host)
        response = client.send(request, stream=True, follow_redirects=False)
        if near is None:
            near = _is_near(client, response)
        if (following := response.next_request) is None:
            return response, near
        response.close()
        request = following
    raise httpx2.TooManyRedirects("too many redirections", request=asked)


def _keep_out(client: Any, request: Any, asked: str) -> None:
    """Have *request*, to which the host *asked* has redirected, fail rather than reach this machine
    or its network. Raises `FetchFault` if its host's name shows that."""

    def refused() -> FetchFault:
        text = f"{asked} redirects to {request.url.host}, which is in this network"
        return FetchFault(f"{text}; name a hub there in HF_ENDPOINT instead", permanent=True)

    def look(event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            stream = info["return_value"]
            if not _is_outside(stream):
                stream.close()
                raise refused()

    if not all(map(_is_of_internet, _addresses(request))):
        raise refused()
    if not _is_carried(client, request):
        request.extensions["trace"] = look


def _is_near(client: Any, response: Any) -> bool:
    """Whether *response* came from this machine or its network, or a proxy may have it there."""
    if not _is_carried(client, response.request):
        return not _is_outside(response.extensions["network_stream"])
    found = _addresses(response.request)
    return bool(found) and not any(map(_is_of_internet, found))


def _is_carried(client: Any, request: Any) -> bool:
    """Whether a proxy carries *request*."""
    return client._transport_for_url(request.url) is not client._transport


def _is_outside(stream: Any) -> bool:
    """Whether a connection leads into the internet."""
    here, there = (stream.get_extra_info(name)[0] for name in ("client_addr", "server_addr"))
    return here != there and _is_of_internet(there)


def _addresses(request: Any) -> set[str]:
    """Those that the host of *request* has, as its connection looks for them. Empty if this machine
    finds none; a proxy may."""
    try:
        host = request.url.raw_host.decode("ascii")
        return {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return set()


def _is_of_internet(text: str) -> bool:
    """Whether *text* is an address of the internet, whichever way of writing IPv4 as IPv6 it is."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        within = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            within = IPv4Address(int(address) & 0xFFFFFFFF)
        if within is None and address not in _INTERNET6:
            return False
        address = within or address
    return address.is_global and not address.is_multicast


def _close(begun: Future[Any]) -> None:
    """Close an answer that nobody waits for any more."""
    if begun.exception() is None:
        begun.result()[0].close()


def _origin_of(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


def _check_status(response: Any, file: str) -> None:
    import httpx2  # noqa: PLC0415 - as above
    from huggingface_hub.utils._http import hf_raise_for_status  # noqa: PLC0415

    if response.status_code in _PASSING:
        text, wait = (
            f"{_host(response)} answers {response.status_code} for {file}",
            _wait_of(response),
        )
        asks = f", and asks to wait {wait:.0f} s" if wait else ""
        raise FetchFault(f"{text}{asks}", wait=wait)
    if response.status_code >= 400:
        # Without its body, which may have no end, or be no JSON of the hub's.
        headers = {n: v for n, v in response.headers.items() if n.lower() not in _OF_BODY}
        bare = httpx2.Response(response.status_code, headers=headers, request=response.request)
        hf_raise_for_status(bare)


def _wait_of(response: Any) -> float | None:
    """Seconds that the server asks to wait, if it does."""
    value = response.headers.get("Retry-After", "")
    return (min(float(value), _LONGEST_WAIT) or None) if value.isdecimal() else None


def _check_range(response: Any, file: str, begin: int, end: int, size: int | None) -> None:
    """Raise `FetchFault` unless *response* is the range that was asked for, as it is, of a file of
    *size* bytes (None: of any size). A server without ranges gives the whole, which may be it."""
    encoded = response.headers.get("Content-Encoding", "identity") != "identity"
    whole = begin == 0 and size in (None, end)
    whole = whole and response.headers.get("Content-Length") == str(end)
    if response.status_code == 200 and whole and not encoded:
        return
    if response.status_code != 206:
        raise FetchFault(
            f"{_host(response)} does not serve parts of {file}; fetch the model whole with `hf "
            "download`, and it is used from there",
            permanent=True,
        )
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    another = match is None or (int(match[1]), int(match[2])) != (begin, end - 1)
    resized = match is not None and size is not None and match[3] not in ("*", str(size))
    if another or resized or encoded:
        raise FetchFault(
            f"{_host(response)} sent another part of {file} than was asked for", permanent=True
        )


def _unreached(error: Any) -> str:
    """What kept a host of the hub from answering."""
    try:
        host = str(error.request.url.host)
    except RuntimeError:  # no request was made yet
        host = "the hub"
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return f"{host} does not resolve"
    return f"{host} cannot be reached: {error or type(error).__name__}"


def _host(response: Any) -> str:
    return str(response.url.host)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise `FetchFault` for errors of the hub and of the network while *what* is fetched."""
    import httpx2  # noqa: PLC0415
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        yield
    except errors.GatedRepoError:
        text = f"{what} asks for consent on the hub first, and for HF_TOKEN"
    except errors.RevisionNotFoundError:
        text = f"the hub has no such revision of {what}"
    except errors.RepositoryNotFoundError:
        text = f"the hub has no model {what}, or it is private (HF_TOKEN?)"
    except errors.EntryNotFoundError:
        text = f"the hub has no {what}"
    except errors.HFValidationError as error:
        text = f"{what} is neither a folder nor a hub id: {error}"
    except errors.OfflineModeIsEnabled:
        text = f"HF_HUB_OFFLINE forbids to ask the hub for {what}"
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        text = f"the hub answers {status} for {what}"
        wait = _wait_of(error.response)
        raise FetchFault(text, permanent=status not in _PASSING, wait=wait) from None
    except (httpx2.TransportError, httpx2.StreamError) as error:
        raise FetchFault(_unreached(error)) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:  # of a host's name
        text = f"fetching {what} failed: {error}"
    else:
        return
    raise FetchFault(text, permanent=True) from None

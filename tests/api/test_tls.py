"""TLS of the API: what is wrong with its files, whom it greets, and how long it waits for them."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
from sealring.http.tls import HANDSHAKE_SECONDS, Tls, read_pair
from sealring_trio.errors import UserError
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.certificates import certificate, new_key, pem, write_pair
from tests.attacks.doorway import HOST, Door, door, get, hello, one, reply, rest
from tests.attacks.key_updates import Records

# ------------------------------------------------------------------- the files

KEY, OTHER = new_key(), new_key()
PARAMETERS = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"

WRONG: dict[str, tuple[bytes, bytes, int, str]] = {
    "another's key": (certificate(OTHER), pem(KEY), 0o600, "does not belong to the certificate"),
    "the issuer first": (
        certificate(OTHER) + certificate(KEY),
        pem(KEY),
        0o600,
        "does not begin with the server's own certificate",
    ),
    "expired": (certificate(KEY, (-9, -2)), pem(KEY), 0o600, "expired on"),
    "of tomorrow": (certificate(KEY, (1, 9)), pem(KEY), 0o600, "is not valid before"),
    "encrypted": (certificate(KEY), pem(KEY, "secret"), 0o600, "is encrypted"),
    "encrypted, older form": (
        certificate(KEY),
        pem(KEY, "secret", traditional=True),
        0o600,
        "is encrypted",
    ),
    "a certificate for a key": (certificate(KEY), certificate(KEY), 0o644, "no private key in PEM"),
    "a key for a certificate": (pem(KEY), pem(KEY), 0o600, "no certificate in PEM"),
    "nothing": (b"", b"", 0o600, "no certificate in PEM"),
    "open to a group": (certificate(KEY), pem(KEY), 0o640, "others can read the TLS key"),
}


@pytest.mark.parametrize(("chain", "key", "mode", "what"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_pair(
    tmp_path: Path, chain: bytes, key: bytes, mode: int, what: str
) -> None:
    paths = tmp_path / "a.crt", tmp_path / "a.key"
    for path, data in zip(paths, (chain, key), strict=True):
        path.write_bytes(data)
        path.chmod(mode)
    with pytest.raises(UserError, match=what):
        read_pair(*paths)


def test_what_is_right(tmp_path: Path) -> None:
    paths = write_pair(tmp_path, key=KEY)
    with paths[0].open("ab") as chain:
        chain.write(certificate(OTHER))  # an issuer's
    paths[1].write_bytes(PARAMETERS + pem(KEY, traditional=True))  # as `openssl ecparam -genkey`
    assert read_pair(*paths).context.minimum_version == ssl.TLSVersion.TLSv1_2
    with pytest.raises(UserError, match="cannot read the TLS key"):
        read_pair(paths[0], tmp_path / "none")


# ------------------------------------------------------------------- clients


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls.read(*write_pair(tmp_path))


def trusting(path: Path) -> ssl.SSLContext:
    """The context of a client that trusts the certificate at *path* alone."""
    context = ssl.create_default_context(cafile=str(path))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


async def connect(served: Door, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    stream = trio.SSLStream(
        await served.connect(), context, server_hostname="localhost", https_compatible=True
    )
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def works(served: Door, tls: Tls) -> None:
    """A client like any other is served, twice on one connection."""
    stream = await connect(served, trusting(tls.certificate))
    assert stream.selected_alpn_protocol() == "http/1.1"
    for path in ("/a", "/b"):
        await stream.send_all(get(path))
        assert await one(stream) == (200, b"GET " + path.encode())
    await stream.aclose()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_much_is_sent_to_a_client_that_takes_it_slowly(
    tls: Tls, version: ssl.TLSVersion
) -> None:
    size = 4 << 20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["scheme"] == "https"
        await reply(send, bytes(range(256)) * (size // 256))

    context = trusting(tls.certificate)
    context.minimum_version = context.maximum_version = version
    async with door(app, tls=tls) as served:
        stream = await connect(served, context)
        await stream.send_all(get("/", "Connection: close"))
        await wait_all_tasks_blocked()  # the server has filled every buffer between them
        got = bytearray()
        while data := await stream.receive_some(10_000):
            got += data
        # The end was told (`close_notify`): it was not cut off.
        assert bytes(got).partition(b"\r\n\r\n")[2] == bytes(range(256)) * (size // 256)
        await stream.aclose()


async def test_older_versions_are_refused(tls: Tls) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with door(tls=tls) as served:
        with pytest.raises(trio.BrokenResourceError):
            await connect(served, context)
        await works(served, tls)


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (get("/"), 400, "tls_needed"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{", 400, "tls_needed"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "tls_needed"),
        (b"\x15\x03\x01\x00\x02\x02\x28" + b"\r\n" * 100, 400, "bad_request"),
        (b"\x00" * 100, 400, "bad_request"),
    ],
)
async def test_plain_http_is_told_so(tls: Tls, said: bytes, status: int, code: str) -> None:
    async with door(tls=tls) as served:
        got = await served.answer(said)
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(body)["error"]["code"] == code
        await works(served, tls)


def hello_of_a_client() -> bytes:
    """The first bytes of a handshake."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


@pytest.mark.parametrize(
    "said",
    [b"", hello_of_a_client()[:1], hello_of_a_client()[:-1], hello_of_a_client()],
    ids=["nothing", "a byte", "half", "no more than a hello"],
)
async def test_handshakes_that_do_not_end(tls: Tls, mock_clock: MockClock, said: bytes) -> None:
    async with door(limit=8, tls=tls) as served:
        slow = [await served.connect(said) for _ in range(40)]
        await works(served, tls)  # they give way to others, the oldest first
        assert len(served.book) <= served.book.limit_of_source
        last = await served.connect(said)
        while len(served.book) < served.book.limit_of_source:
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        mock_clock.jump(HANDSHAKE_SECONDS)  # and go by themselves after that
        await rest(last)
        while served.book:
            await trio.lowlevel.checkpoint()
        for stream in [*slow, last]:
            await stream.aclose()


async def test_junk_in_place_of_a_handshake(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    async with door(tls=tls) as served:
        whole = hello_of_a_client()
        junk = [b"\x16" * 70_000, b"\x16\x03\x01\xff\xff" + bytes(70_000), whole + b"\x00" * 500]
        for said in [*junk, whole + whole, whole[:5] + bytes(len(whole) - 5)]:
            assert not (await served.answer(said)).startswith(b"HTTP")
            await works(served, tls)
        cut = socket.create_connection((HOST, served.port))
        cut.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        cut.sendall(whole)
        cut.close()  # by a reset
        await works(served, tls)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_client_that_breaks_off_in_the_middle(tls: Tls) -> None:
    seen: list[str] = []
    left = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        message = await receive()
        seen.append(message["type"])
        left.set()

    async with door(app, tls=tls) as served:
        stream = await connect(served, trusting(tls.certificate))
        await stream.send_all(get("/"))
        await wait_all_tasks_blocked()
        await trio.aclose_forcefully(stream)  # with no word of TLS
        await left.wait()
        assert seen == ["http.disconnect"]


@pytest.mark.parametrize("count", [100, 20_000])
async def test_updates_of_keys_without_end(tls: Tls, tmp_path: Path, count: int) -> None:
    """They carry nothing, and cost the server as much as the client. A few are served; one that
    sends no more than that is cut off long before its end, and OpenSSL never has the event loop
    for longer than one read's worth of them."""
    context = trusting(tls.certificate)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(tmp_path / "secrets")
    async with door(tls=tls) as served:
        stream = await connect(served, context)
        assert (stream.cipher() or ("",))[0] == "TLS_AES_256_GCM_SHA384"
        client = Records.of(tmp_path / "secrets")
        got = None
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.transport_stream.send_all(
                client.updates(count) + client.record(get("/after"))
            )
            got = await one(stream)
        assert got == ((200, b"GET /after") if count == 100 else None)
        await trio.aclose_forcefully(stream)
        await works(served, tls)


# ------------------------------------------------------------------- renewal


async def test_a_renewed_pair_is_taken_up(
    tls: Tls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sealring.api")

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    async with door(hello, tls=tls) as served:
        old = await connect(served, trusting(tls.certificate))
        first = tls.certificate.read_bytes()
        (tmp_path / "new").mkdir()
        fresh = write_pair(tmp_path / "new")

        # One file is replaced after the other, as certbot does: nothing is said, nothing breaks.
        fresh[0].replace(tls.certificate)
        await tls.look()
        assert lines() == []
        tls_as_it_was = tmp_path / "first.crt"
        tls_as_it_was.write_bytes(first)
        stream = await connect(served, trusting(tls_as_it_was))
        await stream.aclose()
        # It stays so: it is told, once.
        await tls.look()
        await tls.look()
        assert [line.partition(":")[0] for line in lines()] == [
            "the API goes on with the certificate that it has"
        ]
        fresh[1].replace(tls.key)
        await tls.look()
        assert "the API has a renewed certificate" in lines()[-1]
        await works(served, tls)
        with pytest.raises(trio.BrokenResourceError):
            await connect(served, trusting(tls_as_it_was))
        # Who was there before goes on.
        await old.send_all(get("/old"))
        assert await one(old) == (200, b"GET /old")
        await old.aclose()


async def test_the_log_warns_before_a_certificate_expires(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    for days, said in ((30.0, []), (3.5, ["expires in 4 days"]), (0.5, ["expires in 1 days"])):
        paths = write_pair(tmp_path, key=KEY)
        paths[0].write_bytes(certificate(KEY, (-1, days)))
        caplog.clear()
        with trio.move_on_after(60):
            await Tls.read(*paths).watch()
        found = [record.getMessage() for record in caplog.records]
        assert len(found) == len(said)
        assert all(each in line for each, line in zip(said, found, strict=True))

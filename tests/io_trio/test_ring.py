"""A real ring: two `sealring up`, real sockets, real engines, seen from outside."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import ssl
import struct
import sys
import tempfile
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import httpx2
import psutil
import pytest
import trio
from sealring.files.config import load_config
from sealring.local.reference import one_process
from sealring.local.ring import LocalNode, running_node, wait_until_up, write_cluster
from sealring.service.owner_api import OwnerApi
from sealring.service.verification import Reply
from sealring_model import tiny
from sealring_model.loading.model_folder import describe
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import SignedRoster, sign_roster
from sealring_trio.errors import OperationError, UserError

from tests.io_trio.conftest import Ring
from tests.io_trio.helpers import sealring, until, wait_for
from tests.io_trio.test_config import GOOD
from tests.io_trio.test_control import serving
from tests.serving import PATIENCE

PROMPT = "Tell me a story about a fox named Pip."
TOKENS = 24
TINY = describe(tiny.path())


def ask(node: LocalNode, prompt: str = PROMPT, **options: object) -> dict[str, object]:
    """The summary of one request, with its text."""
    text = ""
    for event in node.ask("generate", {"prompt": prompt, "max_tokens": TOKENS, **options}):
        text += event.get("text", "") if event["event"] == "text" else ""
    return {**event, "text": text}


@pytest.fixture(scope="module")
def expected() -> dict[str, object]:
    """What one mlx-lm process says."""
    with one_process(tiny.path()) as single:
        answer = single.generate(PROMPT, TOKENS)
        return {"tokens": list(answer.tokens), "text": answer.text}


def test_two_ranks_say_what_one_process_says(ring: Ring, expected: dict[str, object]) -> None:
    done = sealring(
        *("generate", "--config", ring.configs[0], "--prompt", PROMPT),
        *("--max-tokens", str(TOKENS), "--json"),
    )
    assert done.code == 0
    facts = done.json()
    assert facts["token_ids"] == expected["tokens"]
    assert facts["text"] == expected["text"]
    assert facts["reason"] == "length"
    assert facts["prompt_tokens"] > 0


def test_text_streams_to_the_terminal(ring: Ring, expected: dict[str, object]) -> None:
    done = sealring(
        *("generate", "--config", ring.configs[0], "--prompt", PROMPT),
        *("--max-tokens", str(TOKENS)),
    )
    assert done.out == f"{expected['text']}\n"


@contextlib.asynccontextmanager
async def node_that_says(config: Path, facts: dict[str, Any]) -> AsyncIterator[None]:
    """At the node of *config*, one that answers whatever it is asked with *facts*."""

    async def answer(name: str, body: bytes, reply: Reply) -> None:
        await reply(facts)

    node = load_config(config)
    node.state.mkdir(mode=0o700, exist_ok=True)
    async with serving(node.control_socket, OwnerApi(answer, lambda: None)):
        yield


async def test_status_shows_nothing_that_a_terminal_obeys(ring: Ring, tmp_path: Path) -> None:
    facts = ring.nodes[0].status()
    facts["peers"][0]["trouble"] = [{"what": "x", "link": "step", "text": "a\x1b[2Jlink"}]
    unknown = {"source": "a\x1b[2Jsource", "reason": "a\x1b[2Jreason", "last_s": 1.0, "tries": 1}
    facts["strangers"] = [unknown]

    config = tmp_path / "desk.toml"
    config.write_text(f"{GOOD}state = '{tmp_path}'\n")
    async with node_that_says(config, facts):
        shown = await trio.to_thread.run_sync(sealring, "status", "--config", config)
    assert not shown.code
    assert "\x1b" not in shown.out
    for word in ("link", "source", "reason"):
        assert f"a[2J{word}" in shown.out


async def test_a_node_of_an_older_release_that_still_runs_is_told_of(
    ring: Ring, tmp_path: Path
) -> None:
    facts = ring.nodes[0].status()
    facts["version"] = "0.0.9"
    del facts["ring"]
    for peer in facts["peers"]:
        del peer["routes"], peer["outside"]

    config, _ = write_cluster(tmp_path, 2, tiny.path())
    async with node_that_says(config, facts):
        shown = await trio.to_thread.run_sync(sealring, "status", "--config", config)
        found = await trio.to_thread.run_sync(sealring, "doctor", "--config", config)
    assert (shown.code, shown.err) == (0, "")
    assert "0.0.9" in shown.out
    assert "the node still runs sealring 0.0.9" in found.out


def test_status_tells_both_ranks(ring: Ring) -> None:
    ask(ring.nodes[0])
    head, rank = (sealring("status", "--config", c, "--json").json() for c in ring.configs)
    assert (head["role"], rank["role"]) == ("head", "rank")
    assert (head["state"], head["strategy"], head["world"]) == ("serving", "pp", 2)
    assert head["epoch"] == rank["epoch"]
    assert head["layers"][0] == 0
    assert head["layers"][1] == rank["layers"][0]
    assert head["suite"] == "aes-256-gcm"
    assert head["trust"] == "software"
    assert 0 < head["hop_us"]["p50"] <= head["hop_us"]["p99"]
    links = {"control": True, "step": True, "tunnel": False, "collective": ""}
    (peer,) = head["peers"]
    assert peer.pop("version").startswith(head["version"])
    assert peer.pop("addresses")[0].startswith("127.0.0.1:")
    (route,) = peer.pop("routes")
    assert route["address"].startswith("127.0.0.1:")
    assert route["known_from"] == "roster"
    fetch = {"fetched_bytes": 0, "fetch_bytes": 0}
    assert peer == {
        "rank": 1,
        "name": "rank1",
        "trouble": [],
        "put_out": False,
        "outside": "",
        "sees_texts": True,
        "witness": False,
        **links,
        **fetch,
    }
    assert (head["why"], rank["why"]) == ([], [])
    assert (head["members"], head["engine_pids"]) == (None, [head["engine_pid"]])
    for facts in (head, rank):
        assert 0 < facts["weights_held"] < 1.01 * facts["weights_read"]
        assert facts["memory"] > facts["weights_held"]
    shown = sealring("status", "--config", ring.configs[0]).out
    assert "rank0, rank 0 of 2 (head)" in shown
    assert re.search(r"hop +[\d.]+ [mu]s median, [\d.]+ [mu]s at p99\n", shown)


def test_sampling_by_seed(ring: Ring) -> None:
    options = {"temperature": 0.9, "top_p": 0.95, "seed": 7}
    first, second = (ask(ring.nodes[0], **options) for _ in range(2))
    assert first["token_ids"] == second["token_ids"]
    assert ask(ring.nodes[0], **options | {"seed": 8})["token_ids"] != first["token_ids"]
    unseeded = ask(ring.nodes[0], temperature=0.9)
    again = ask(ring.nodes[0], temperature=0.9, seed=unseeded["seed"])
    assert again["token_ids"] == unseeded["token_ids"]


def test_the_head_says_what_its_pipeline_gives_and_what_one_machine_would(ring: Ring) -> None:
    head = ring.nodes[0]
    said = re.compile(
        r"the ring of 2 gives [\d.]+ tokens/s for one stream, and rank[01] alone would give [\d.]+ "
        r"\(estimate\)"
    )
    for seed in range(12):
        if said.search(head.log.read_text()):
            return
        ask(head, max_tokens=48, temperature=1.0, seed=seed)
    assert said.search(head.log.read_text())


def test_raw_leaves_the_template_out(ring: Ring) -> None:
    raw = ask(ring.nodes[0], raw=True)
    assert raw["prompt_tokens"] < ask(ring.nodes[0])["prompt_tokens"]


def test_a_client_that_goes_away_withdraws_its_request(ring: Ring) -> None:
    head = ring.nodes[0]
    answer = head.ask("generate", {"prompt": PROMPT, "max_tokens": 1500})
    assert next(event for event in answer if event["event"] == "text")
    answer.close()  # type: ignore[attr-defined]
    wait_for(head, "requests", 0)
    assert ask(head)["reason"] == "length"


REFUSED: dict[str, tuple[dict[str, object], type[Exception], str]] = {
    "prompt too long": (
        {"prompt": "fox " * 3000},
        UserError,
        rf"{TINY.context} tokens\. However, your prompt has \d+",
    ),
    "empty": ({"prompt": "", "raw": True}, UserError, "the prompt has no tokens"),
    "unknown field": ({"colour": 1}, UserError, "colour: "),
    "wrong type": ({"max_tokens": "many"}, UserError, "max_tokens: "),
    "out of range": ({"top_p": 2}, UserError, "top_p: "),
    "no text": (
        {"prompt": "\ud800"},
        UserError,
        "request cannot be read",
    ),
}


@pytest.mark.parametrize(("fields", "kind", "what"), REFUSED.values(), ids=REFUSED)
def test_refused_requests(
    ring: Ring, fields: dict[str, object], kind: type[Exception], what: str
) -> None:
    with pytest.raises(kind, match=what):
        ask(ring.nodes[0], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "what"),
    {"end": "why: Field required", "roster": "roster: ", "dance": "does not know 'dance'"}.items(),
)
def test_other_requests_that_are_refused(ring: Ring, name: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        next(ring.nodes[0].ask(name))


def test_a_long_prompt_through_the_command(ring: Ring) -> None:
    done = sealring("generate", "--config", ring.configs[0], "--prompt", "fox " * 3000)
    assert done.code == 2
    assert f"maximum context length is {TINY.context}" in done.err


def test_only_the_head_takes_requests(ring: Ring) -> None:
    with pytest.raises(OperationError, match="rank 1, which takes no requests"):
        ask(ring.nodes[1])


def test_a_second_node_with_the_same_state_is_refused(ring: Ring) -> None:
    done = sealring("up", ring.configs[0])
    assert done.code == 1
    assert "is already running" in done.err


def test_a_second_node_with_the_same_address_is_refused(ring: Ring) -> None:
    twin = ring.folder / "twin.toml"
    twin.write_text(ring.configs[0].read_text())
    done = sealring("up", twin)
    assert done.code == 1
    assert "cannot listen at 127.0.0.1" in done.err
    assert "Change 'listen'" in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_daemon_holds_no_mlx(ring: Ring) -> None:
    for node in ring.nodes:
        engine = node.status()["engine_pid"]
        assert "libmlx" in Path(f"/proc/{engine}/maps").read_text()
        assert "libmlx" not in Path(f"/proc/{node.process.pid}/maps").read_text()


def test_the_control_socket_is_the_owners(ring: Ring) -> None:
    control = ring.nodes[0].control
    assert control.stat().st_mode & 0o777 == 0o600
    assert control.parent.stat().st_mode & 0o777 == 0o700
    transport = httpx2.HTTPTransport(uds=str(control))
    with httpx2.Client(transport=transport, base_url="http://localhost") as http:
        for body in ("", "[]", "{"):
            headers = {"content-type": "application/json"}
            answer = http.post("/node/generate", content=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["exit_code"]) == (400, 2)


# --------------------------------------------------------------- what others see


def test_the_wire_holds_no_plaintext(ring: Ring, expected: dict[str, object]) -> None:
    before = [len(relay.captured) for relay in ring.relays]
    tokens: list[int] = ask(ring.nodes[0])["token_ids"]  # type: ignore[assignment]
    traffic = b"".join(
        bytes(relay.captured[start:]) for relay, start in zip(ring.relays, before, strict=True)
    )
    everything = b"".join(bytes(relay.captured) for relay in ring.relays)
    hidden_bytes = TOKENS * TINY.hidden * TINY.dtype.width * 2
    assert len(traffic) > hidden_bytes
    tokenizer = Tokenizer(tiny.path())
    prompt = tokenizer.chat([{"role": "user", "content": PROMPT}])
    secret = {PROMPT.encode(), str(expected["text"])[:12].encode(), b"rank0", b"rank1", b"demo"}
    for ids in (prompt, tokens):
        for pair in pairwise(ids):
            secret |= {struct.pack(order, *pair) for order in (">2I", "<2I")}
    roster = SignedRoster.decode((ring.folder / "demo.roster").read_bytes()).roster
    secret |= {roster.cluster, roster.digest, *(member.id for member in roster.members)}
    secret |= {member.public_key[1:33] for member in roster.members}
    for needle in secret:
        assert needle not in everything
    # Activations in f32 share their exponents, so they shrink; only ciphertext does not.
    source = random.Random(1)
    activations = struct.pack(">20000f", *(source.gauss(0, 1) for _ in range(20_000)))
    assert len(zlib.compress(activations, 9)) < 0.95 * len(activations)
    assert len(zlib.compress(traffic, 9)) > 0.98 * len(traffic)


def hello_of_tls() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


KNOCKS = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": hello_of_tls(),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zeros": bytes(4096),
    "our header, then noise": bytes.fromhex("0101000000000500") + b"\x5a" * 1280,
    "a sealed frame": bytes.fromhex("0102000000000020") + bytes(32),
    "a huge frame": bytes.fromhex("01010000ffffffff"),
    "nothing": b"",
}


@pytest.mark.parametrize("knock", KNOCKS.values(), ids=KNOCKS)
def test_a_port_scanner_gets_not_a_byte(ring: Ring, knock: bytes) -> None:
    text = ring.configs[1].read_text()
    port = int(text.split('listen = "127.0.0.1:')[1].split('"')[0])
    with socket.create_connection(("127.0.0.1", port)) as scanner:
        scanner.settimeout(10)
        scanner.sendall(knock)
        with contextlib.suppress(ConnectionResetError):
            assert scanner.recv(1) == b""
    assert "refused a connection from 127.0.0.1" in ring.nodes[1].log.read_text()


# ------------------------------------------------------------- losses and returns


def processes_of(node: LocalNode) -> Iterator[psutil.Process]:
    daemon = psutil.Process(node.process.pid)
    yield daemon
    yield from daemon.children(recursive=True)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_engine_is_replaced(ring: Ring, expected: dict[str, object], rank: int) -> None:
    before = ring.nodes[rank].status()
    psutil.Process(before["engine_pid"]).kill()
    answer = ask(ring.nodes[0])
    assert answer["token_ids"] == expected["tokens"]
    after = ring.nodes[rank].status()
    assert after["engine_restarts"] == before["engine_restarts"] + 1
    assert after["engine_pid"] != before["engine_pid"]
    assert "the engine process ended: it was ended by SIGKILL" in ring.nodes[rank].log.read_text()


def test_an_engine_killed_in_the_middle_of_an_answer(ring: Ring) -> None:
    whole = ask(ring.nodes[0], max_tokens=60)
    tokens: list[int] = []
    struck = False
    for event in ring.nodes[0].ask("generate", {"prompt": PROMPT, "max_tokens": 60}):
        if event["event"] == "text" and not struck:
            struck = True
            psutil.Process(ring.nodes[1].status()["engine_pid"]).kill()
        tokens = event.get("token_ids", tokens)
    assert tokens == whole["token_ids"]


@pytest.mark.slow
def test_a_stopped_rank_stops_the_tokens_and_they_go_on_with_it(ring: Ring) -> None:
    head, rank = ring.nodes
    whole = ask(head, max_tokens=200)
    events: list[dict[str, object]] = []
    begun, waits = threading.Event(), threading.Event()

    def listen() -> None:
        for event in head.ask("generate", {"prompt": PROMPT, "max_tokens": 200}):
            events.append(event)
            if event["event"] == "text":
                begun.set()
            if event["event"] == "waiting":
                waits.set()

    def texts() -> int:
        return sum(event["event"] == "text" for event in events)

    listener = threading.Thread(target=listen)
    listener.start()
    assert begun.wait(PATIENCE)
    with stopped(rank):
        wait_for(head, "missing", [1])
        assert waits.wait(PATIENCE)
        said = texts()
        for _ in range(50):
            head.status()
        assert texts() == said
        assert all(event["event"] != "done" for event in events)
    listener.join(30)
    assert events[-1]["token_ids"] == whole["token_ids"]


@contextlib.contextmanager
def stopped(node: LocalNode) -> Iterator[None]:
    """The daemon of *node* does nothing within the block, and everything goes on after it."""
    node.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


def sign_again(folder: Path) -> None:
    """The roster once more, with the next serial, for whoever reads it from now on."""
    signer = SoftwareSigner.from_pem((folder / "coordinator.key").read_bytes())
    roster = SignedRoster.decode((folder / "demo.roster").read_bytes()).roster
    newer = sign_roster(attrs.evolve(roster, serial=roster.serial + 1), signer)
    (folder / "demo.roster").write_bytes(newer.encode())


@pytest.mark.slow
def test_a_killed_rank_is_reported_and_welcome_back(
    ring: Ring, expected: dict[str, object]
) -> None:
    head, rank = ring.nodes
    family = list(processes_of(rank))
    rank.process.kill()
    rank.process.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive  # no orphan: the kernel ends the engine with its daemon
    wait_for(head, "missing", [1])
    answer = head.ask("generate", {"prompt": PROMPT, "max_tokens": TOKENS})
    waiting = next(answer)
    assert waiting["event"] == "waiting"
    assert "rank 1 (rank1)" in waiting["text"]
    assert "rank 1 (rank1) is gone" in head.log.read_text()
    sign_again(ring.folder)
    with running_node(ring.configs[1]) as back:
        wait_until_up(back)
        ring.nodes[1] = back
        assert list(answer)[-1]["token_ids"] == expected["tokens"]
        assert head.status()["serial"] == 2  # the rank brought a newer roster along
        assert (head.control.parent / "adopted.roster").exists()
        family = list(processes_of(back))
    assert back.process.returncode == 0
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive
    assert "stopping: closing the links" in back.log.read_text()
    assert not back.control.exists()


def test_the_logs_say_in_plain_words_what_is_waited_for(ring: Ring) -> None:
    head, rank = (ring.folder / f"rank{n}.log" for n in range(2))
    # Either engine may be the last to come up.
    last = r"waiting for rank (0 \(rank0\)|1 \(rank1\))"
    until(lambda: re.search(last, head.read_text()), head.read_text)
    assert re.search(r"waiting for the head, rank0, at 127\.0\.0\.1:\d+", rank.read_text())
    for log in (head, rank):
        assert "Traceback" not in log.read_text()


ENDS: dict[str, Callable[[LocalNode], object]] = {
    "interrupt": lambda node: node.process.send_signal(signal.SIGINT),
    "terminate": lambda node: node.process.send_signal(signal.SIGTERM),
    "supervisor gone": lambda node: node.lifeline.close(),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_node_stops_in_good_order(end: Callable[[LocalNode], object]) -> None:
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        (config,) = write_cluster(Path(folder), 1, tiny.path())
        with running_node(config) as node:
            wait_until_up(node)
            family = list(processes_of(node))
            end(node)
            assert node.process.wait(PATIENCE) == 0
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive
        assert not node.control.exists()

"""`sealring chat`, with and without a terminal, against a ring that is served."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest
from sealring.local import client
from sealring.local import client as head_client
from sealring.local.chat_session import ChatSession, load
from sealring.local.client import HeadClient
from sealring_trio.errors import OperationError, UserError

from tests.io_trio.helpers import Outcome, as_process, sealring
from tests.io_trio.strange_head import BREAKS, COMMENT, strange_head
from tests.io_trio.terminal import PROMPT, Terminal
from tests.serving import PATIENCE, Served


def chat(url: str, lines: Sequence[str], *options: str) -> Outcome:
    """Chat without a terminal."""
    given = "".join(f"{line}\n" for line in lines).encode()
    code, out, err = as_process("chat", "--url", url, "--temperature", "0", *options, given=given)
    return Outcome(code, out.decode(), err.decode())


def latest(served: Served) -> list[dict[str, int]]:
    """The traces of the requests, the latest first."""
    traces: list[dict[str, int]] = httpx2.get(f"{served.url}/v1/requests").json()["data"]
    return traces


def test_a_conversation_goes_on(served: Served) -> None:
    alone = served.ask("Count to twenty.", temperature=0).json()["choices"][0]["message"]["content"]
    done = chat(
        f"{served.url}/v1/", ["Count to twenty.", "And again.", "/reset", "Count to twenty."]
    )
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == alone
    assert lines[2] == "(forgotten)"
    assert lines[3] == alone
    third, second, first = latest(served)[:3]
    assert first["prompt_tokens"] == third["prompt_tokens"]
    assert second["prompt_tokens"] > first["prompt_tokens"] + first["tokens"]


def test_commands(served: Served) -> None:
    lines = ["/system Be brief.", "", "/system", "/what", "/help", "/quit", "Hello."]
    done = chat(served.url, lines, "--max-tokens", "2")
    assert done.code == 0
    assert (
        "(begun again, with a system prompt)\n(begun again)\nThere is no command /what." in done.out
    )
    assert done.out.count("/clear") == 1
    assert "Hello" not in done.out


EVIL = (
    "\x1b]52;c;aGk=\x07 \x1b]0;title\x07 \x9b31m \x9d0;x\x9c \x1b[?2004l",
    " \u202eabc\u202c \u2066x\u2069",
    " &#27;[31m &#x9b;31m &#x202e; <http://a/%1b]52;c;aGk=%07%C2%9B%E2%80%AE> [a](http://b/%1b)",
    " \u2028 and \x85 in one event",
)
"""What an answer may hold to have a terminal obey it, or show what is not so."""

OBEYED = ("\x1b]", "\x07", "\x9b", "\x9d", "\u202e", "\u2066", "\x1b[31m")


BEGUN = "Once upon"
"""How the tiny model's stories begin. What is echoed may come twice, and what is typed meanwhile is
for the line editor."""


def typed(terminal: Terminal, line: str, pattern: str = "") -> str:
    """Type *line*; what came until *pattern* and the next prompt."""
    terminal.type(f"{line}\r")
    return terminal.until(pattern + ".*?" + PROMPT)


def test_ctrl_c_stops_the_answer_and_not_the_chat(served: Served, tmp_path: Path) -> None:
    with Terminal("chat", "--url", served.url, XDG_STATE_HOME=str(tmp_path)) as terminal:
        assert f"tiny at {served.url}" in terminal.until(PROMPT)
        typed(terminal, "/set temperature 0")
        typed(terminal, "/set frequency_penalty -2")  # an answer that goes round without end
        terminal.type("Tell me a story about a fox.\r")
        terminal.until(BEGUN)
        terminal.interrupt(r"\[stopped\].*?" + PROMPT)
        typed(terminal, "/set frequency_penalty 0")
        told = typed(terminal, "What is two plus two?", r"tokens/s, ")
        assert "by rank0, rank1" in told
        terminal.type("half a question")
        terminal.until("half a question")
        terminal.interrupt("")  # empties the line
        terminal.interrupt(r"leaves\)" + ".*?" + PROMPT)
        terminal.type("\x03")
        assert terminal.ended() == 0
    asked, stopped = latest(served)[:2]
    assert (stopped["state"], asked["state"]) == ("request_cancelled", "stop")
    assert asked["prompt_tokens"] > stopped["prompt_tokens"]  # what came of the first answer stays
    history = tmp_path / "sealring" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+What is two plus two?" in history.read_text()


def test_what_is_typed_ahead_is_not_shown_in_the_answer(served: Served, tmp_path: Path) -> None:
    """It would move the lines that are drawn again, so that they come twice."""
    with Terminal("chat", "--url", served.url, XDG_STATE_HOME=str(tmp_path)) as terminal:
        terminal.until(PROMPT)
        typed(terminal, "/set max_tokens 60")
        terminal.type("Tell me a story about a fox.\r")
        terminal.until(BEGUN)
        terminal.type("/stats\r")
        assert "/stats" not in terminal.until(r"60 tokens, .*?\]")
        assert "ended by length" in terminal.until("ended by .*?" + PROMPT)
        terminal.type("\x04")
        assert terminal.ended() == 0


def test_what_is_typed(tmp_path: Path) -> None:
    """Lines of one question, earlier ones, files, and a head that goes away."""
    questions = {
        "one\n  two": ["first"],
        "three\nfour": ["second"],
        "five\nsix": ["third"],
        "broken": ["half an ans", BREAKS],
        "lost": [BREAKS],
        "thinks": [COMMENT, {"reasoning_content": "hm"}, "aha"],
    }
    health = {"why": [{"what": "rank 1 is away"}], "faults": []}
    saved = tmp_path / "saved.json"
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with strange_head(questions, health=health) as head:
        with Terminal("chat", "--url", head.url, **state) as terminal:
            terminal.until(PROMPT)
            assert "first" in typed(terminal, "\x1b[200~one\n  two\x1b[201~")  # pasted
            assert "second" in typed(terminal, "three\x1b\rfour")
            assert "third" in typed(terminal, '"""five\rsix"""')
            assert "forgotten: five" in typed(terminal, "/undo")
            assert "/retry asks again" in typed(terminal, "lost")
            assert "went away" in typed(terminal, "/retry")
            told = typed(terminal, "thinks", "aha")
            assert told.index("rank 1 is away ...") < told.index("hm") < told.index("aha")
            typed(terminal, "/set seed 7")
            assert "cannot be 9" in typed(terminal, "/set temperature 9")
            assert "text alone" in typed(terminal, "/image cat.png")
            typed(terminal, f"/save {saved}")
            assert "is there already" in typed(terminal, f"/save {tmp_path}/sealring/chat_history")
            typed(terminal, f"/save {tmp_path / 'saved.md'}")
            assert "broken" not in typed(terminal, "/clear")
            terminal.type("\x04")
            assert terminal.ended() == 0
        asked = [body["messages"] for body in head.asked]
        assert [messages[-1]["content"] for messages in asked[:5]] == [
            *("one\n  two", "three\nfour", "five\nsix", "lost", "lost"),
        ]
        assert stat.S_IMODE(saved.stat().st_mode) == 0o600
        assert json.loads(saved.read_text())["messages"] == [
            *asked[-1],
            {"role": "assistant", "content": "aha"},
        ]
        assert "## Question\n\nthree\nfour\n\n## Answer" in (tmp_path / "saved.md").read_text()
        with Terminal("chat", "--url", head.url, **state) as terminal:
            terminal.until(PROMPT)
            assert "(6 messages)" in typed(terminal, f"/load {saved}")
            terminal.type("\x12thi")  # Ctrl-R finds what another session was asked
            terminal.until("thinks")
            terminal.type("\r")
            assert "aha" in typed(terminal, "")
        assert head.asked[-1]["messages"] == [
            *json.loads(saved.read_text())["messages"],
            asked[-1][-1],
        ]
        assert head.asked[-1]["seed"] == 7


@pytest.mark.parametrize("look", [{}, {"NO_COLOR": "1"}])
def test_no_answer_reaches_the_terminal_as_a_command(tmp_path: Path, look: dict[str, str]) -> None:
    with strange_head({"evil": EVIL}, model="str\x1b]0;x\x07ange") as head:
        with Terminal("chat", "--url", head.url, XDG_STATE_HOME=str(tmp_path), **look) as terminal:
            assert "str]0;xange at" in terminal.until(f"{PROMPT}|> ")
            terminal.type("evil\r")
            told = terminal.until("in one event")
            raw = terminal.raw
        assert not [each for each in OBEYED if each in raw]
        assert "]52;c;aGk=" in told  # it is shown, as the text that it is
        assert "abc" in told
        out = chat(head.url, ["evil"]).out
        assert not [each for each in OBEYED if each in out]


def test_a_head_that_is_silent_is_told_of_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(head_client, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(client, "ASK_SECONDS", 0.01)
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with HeadClient(url) as http:
            talk = ChatSession(http, url, "tiny")
            with pytest.raises(OperationError, match="says nothing any more"):
                list(talk.ask("Hello.", told.append))
    assert set(told) == {"the head does not answer: it may be stopped, or the way to it is cut"}


def test_silence_is_told_of_and_costs_no_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first piece and after it, by a head that answers all else."""
    looks = threading.Semaphore(0)

    class Pieces(list[str]):
        def __iter__(self) -> Iterator[str]:
            for piece in ("one", "two", COMMENT):
                looks.acquire(timeout=PATIENCE)
                yield piece

    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        looks.release()

    monkeypatch.setattr(head_client, "LOOK_SECONDS", 0.05)
    strange = strange_head({"Hello.": Pieces()}, doing="2 requests are before yours.")
    with strange as head, HeadClient(head.url) as http:
        pieces = list(ChatSession(http, head.url, "strange").ask("Hello.", tell))
    assert pieces == [("content", "one"), ("content", "two")]
    assert told[0] == "2 requests are before yours"
    assert set(told[1:]) <= {told[0], "waiting for more"}
    assert told[-1] == "waiting for more"


SAVED = [
    ("[]", "holds no conversation"),
    ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ('{"messages": [{"role": "tool", "content": "x"}]}', "message 1"),
    ('{"messages": [{"role": "user", "content": 7}]}', "message 1"),
    ('{"messages": [], "settings": {"temperature": NaN}}', "temperature cannot be nan"),
    (
        '{"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}',
        "message 2",
    ),
]


def test_files_that_hold_no_conversation(tmp_path: Path) -> None:
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = tmp_path / "saved.json"
    with httpx2.Client() as http:
        talk = ChatSession(http, "http://127.0.0.1:1", "tiny", history=list(before))
        for text, what in [*SAVED, (" " * (9 << 20), "has more than 8 MiB")]:
            path.write_text(text)
            with pytest.raises(UserError, match=what):
                load(talk, path)
        with pytest.raises(UserError, match="no regular file"):
            load(talk, Path("/dev/zero"))
        assert talk.messages == before


@pytest.mark.parametrize(
    ("options", "code", "what", "advice"),
    [
        (
            ["--url", "http://127.0.0.1:1"],
            1,
            "no head answers at http://127.0.0.1:1",
            "sealring serve",
        ),
        (["--url", "gopher://x"], 2, "'gopher://x' is no URL", "http://127.0.0.1:7480"),
        (["--url", "http://"], 2, "is no URL", ""),
        (["--url", "7480"], 2, "is no URL", ""),
        (["--api-key", "two words"], 2, "the API key of --api-key is none", "the key alone"),
        (["--temperature", "3"], 2, "--temperature", "sealring chat --help"),
    ],
)
def test_mistakes(options: list[str], code: int, what: str, advice: str) -> None:
    done = sealring("chat", *options)
    assert done.code == code
    assert what in done.err
    assert advice in done.err


def test_a_file_that_holds_no_api_key_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    sealring("keygen", path)
    done = sealring("chat", "--api-key-file", path)
    assert done.code == 2
    assert f"the API key in {path} is none" in done.err
    assert "PRIVATE" not in done.err


def test_a_question_that_is_refused(served: Served) -> None:
    done = chat(served.url, ["word " * 4000, "Hello."])
    assert done.code == 1
    assert "This model's maximum context length is 2048 tokens" in done.err
    assert "/clear" in done.err
    assert "Traceback" not in done.err


def test_a_model_that_is_not_served_is_no_conversation(served: Served) -> None:
    done = chat(served.url, [], "--model", "gpt-9")
    assert (done.code, done.out) == (1, "")
    told = f"there is no model 'gpt-9' at {served.url}\nGive --model 'tiny'.\n"
    assert done.err == f"sealring: {told}"
    assert chat(served.url, [], "--model", "tiny").code == 0


def test_several_machines_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in head_client.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    told = "sealring: without an API key an answer goes on at no other machine"
    with strange_head({}, refusals=["no_head"]) as head, strange_head({}) as other:
        done = chat(f"{head.url},{other.url}", [])
        assert done.code == 0
        first, second = done.err.splitlines()
        assert first.startswith(told)
        assert second == "sealring: there is no head, and the next one is waited for ..."
        assert chat(f"{head.url},{other.url}", [], "--api-key", "k").err == ""
        assert chat(head.url, []).err == ""


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("no_head", "Or ask another machine: --url URL."),
        ("head_lost", "Or ask another machine: --url URL."),
        ("no_majority", "Or ask another machine: --url URL."),
        ("no_texts", "Or ask another machine: --url URL."),
        ("overloaded", "The head's log says more."),
    ],
)
def test_a_head_that_was_not_asked_has_no_log_of_it(code: str, advice: str) -> None:
    told = {"error": {"message": "It cannot be asked.", "code": code}}
    error = head_client.refused(httpx2.Response(503, json=told))
    assert (error.what, error.advice) == ("It cannot be asked.", advice)

"""`sealring decode`, the keys that it takes, and the dissector: what they make of a capture."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sealring_protocol.security.handshake import TrafficSecrets
from sealring_tools.capture.decoding import read_key_log
from sealring_trio.files.key_files import KeyLog

from spec.vectors.join_talk import JOINED, JoinTalk, admit_of
from tests.io_trio.captures import (
    STEPS,
    Said,
    disturbed,
    packet,
    segments,
    talk,
    write_pcap,
    write_pcapng,
)
from tests.io_trio.helpers import sealring

DISSECTOR = Path(__file__).parent.parent.parent / "spec" / "wireshark" / "sealring.lua"
TSHARK = shutil.which("tshark")


@pytest.fixture(scope="module")
def talked() -> tuple[Said, list[TrafficSecrets]]:
    return talk()


@pytest.fixture
def keys(talked: tuple[Said, list[TrafficSecrets]], tmp_path: Path) -> Path:
    """The file of the initiator's end."""
    path = tmp_path / "desk.keys"
    KeyLog(path).write(talked[1][0])
    return path


def events(capture: Path, keys: Path | None = None) -> list[dict[str, Any]]:
    more = () if keys is None else ("--keys", keys)
    done = sealring("decode", capture, "--json", *more)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_both_ends_log_the_same(talked: tuple[Said, list[TrafficSecrets]]) -> None:
    initiators, responders = sorted(talked[1], key=repr)
    assert initiators == responders


def test_a_key_log_is_its_owners_alone_and_is_read_back(
    talked: tuple[Said, list[TrafficSecrets]], keys: Path
) -> None:
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    KeyLog(keys).write(talked[1][1])  # another run adds to it
    with keys.open("a") as file:
        file.write("# a comment\nCLIENT_RANDOM 00 00\n")
    assert read_key_log(keys) == talked[1]
    for secret in (talked[1][0].to_responder, talked[1][0].to_initiator):
        assert secret.hex() not in repr(talked[1][0])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [7, 1000, 1 << 15])
def test_everything_that_was_said_is_shown(
    talked: tuple[Said, list[TrafficSecrets]], keys: Path, tmp_path: Path, size: int, seed: int
) -> None:
    packets = segments(talked[0], size)
    shown = events(write_pcap(tmp_path / "ring.pcap", disturbed(packets, seed)), keys)
    assert [event["what"] for event in shown[:4]] == ["INIT", "RESP", "FIN", "ACCEPT"]
    assert [event["fields"]["n"] for event in shown if event["what"] == "STEP"] == [
        str(n) for n in range(1, STEPS + 1)
    ]
    assert (shown[-1]["what"], shown[-1]["fields"]["reason"]) == ("CLOSE", "enough")
    assert shown[0]["fields"]["suites"] == [1, 2]
    assert (shown[0]["source"], shown[0]["destination"]) == ("127.0.0.1:40001", "127.0.0.1:7470")
    assert {event["connection"] for event in shown} == {1}


def test_without_keys_only_sizes_show(
    talked: tuple[Said, list[TrafficSecrets]], tmp_path: Path
) -> None:
    capture = write_pcap(tmp_path / "ring.pcap", segments(talked[0]))
    told = Counter(event["what"] for event in events(capture))
    assert told == {"INIT": 1, "RESP": 1, "FIN": 1, "sealed": STEPS + 2}
    other = tmp_path / "other.keys"
    KeyLog(other).write(talk(1)[1][0])
    assert Counter(event["what"] for event in events(capture, other))["sealed"] in (0, STEPS + 2)


@pytest.mark.parametrize(
    ("link", "before"),
    [
        (1, bytes(12) + b"\x08\x00"),
        (1, bytes(12) + b"\x81\x00\x00\x05\x08\x00"),
        (0, bytes(4)),
        (113, bytes(16)),
        (276, bytes(20)),
    ],
)
def test_kinds_of_link(
    talked: tuple[Said, list[TrafficSecrets]], keys: Path, tmp_path: Path, link: int, before: bytes
) -> None:
    capture = write_pcap(tmp_path / "ring.pcap", segments(talked[0]), link, before)
    assert len(events(capture, keys)) == STEPS + 5


def test_pcapng(talked: tuple[Said, list[TrafficSecrets]], keys: Path, tmp_path: Path) -> None:
    shown = events(write_pcapng(tmp_path / "ring.pcapng", segments(talked[0])), keys)
    assert len(shown) == STEPS + 5
    assert shown[0]["time"] == pytest.approx(1000, abs=1e-3)


def joined() -> Said:
    """What a join says."""
    talk = JoinTalk()
    said = [("ab", talk.init()), ("ba", talk.resp()), ("ab", talk.fin())]
    admitted = talk.to_dialer(0, admit_of())
    return [*said, ("ba", admitted), ("ab", talk.to_answerer(0, JOINED))]


def test_a_join_shows_what_it_has_in_the_clear(tmp_path: Path) -> None:
    shown = events(write_pcap(tmp_path / "join.pcap", segments(joined())))
    assert [event["what"] for event in shown] == [
        *("JOIN_INIT", "JOIN_RESP", "JOIN_FIN"),
        *("sealed", "sealed"),
    ]
    asked, answer, fin = (event["fields"] for event in shown[:3])
    frame = joined()[0][1]
    assert asked == {
        "wall_ms": str(int.from_bytes(frame[9:17], "big")),
        "suites": [1, 2],
        "x_J": frame[21:53].hex(),
        "ek_J": "1184 bytes",
        "tag": frame[-32:].hex(),
    }
    assert (answer["suite"], answer["x_H"]) == (1, joined()[1][1][10:42].hex())
    assert fin == {}


def test_a_lost_packet_is_told_of(
    talked: tuple[Said, list[TrafficSecrets]], keys: Path, tmp_path: Path
) -> None:
    packets = segments(talked[0])
    done = sealring(
        *("decode", write_pcap(tmp_path / "a.pcap", packets[:10] + packets[11:])), "--keys", keys
    )
    assert done.code == 0
    assert "bytes from 127.0.0.1:40001 to 127.0.0.1:7470 are missing" in done.err
    assert "STEP" in done.out


def test_for_people(talked: tuple[Said, list[TrafficSecrets]], keys: Path, tmp_path: Path) -> None:
    capture = write_pcap(tmp_path / "ring.pcap", segments(talked[0]))
    done = sealring("decode", capture, "--keys", keys)
    assert " 1 127.0.0.1:40001 > 127.0.0.1:7470 INIT 1269 bytes wall_ms=" in done.out
    assert "16 bytes" in done.out  # the elements of a tensor
    assert bytes(16).hex() + bytes(16).hex() not in done.out


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("none", None, "cannot read"),
        ("poem", b"roses are red", "is neither pcap nor pcapng"),
        ("cut", b"\xd4\xc3\xb2\xa1" + bytes(24), "is cut short or damaged"),
        ("empty", b"\xd4\xc3\xb2\xa1" + bytes(20), "holds no link of sealring/1"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, name: str, data: bytes | None, says: str) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    done = sealring("decode", path)
    assert done.code in (1, 2)
    assert says in done.err


@pytest.mark.parametrize(
    "line", ["SEALRING_1", "SEALRING_1 1 00 00 00", "SEALRING_1 9 " + "00 " * 3]
)
def test_bad_keys_are_told(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"\n{line}\n")
    write_pcap(tmp_path / "a.pcap", [packet("ab", 0, 2, b"")])
    done = sealring("decode", tmp_path / "a.pcap", "--keys", tmp_path / "keys")
    assert (done.code, "keys, line 2, is no line of keys" in done.err) == (2, True)


# ------------------------------------------------------------------- dissector


def tshark(capture: Path, *more: str) -> list[list[str]]:
    assert TSHARK is not None
    done = subprocess.run(
        [TSHARK, "-X", f"lua_script:{DISSECTOR}", "-r", str(capture), "-T", "fields", *more],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "Lua" not in done.stderr, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
def test_the_dissector(talked: tuple[Said, list[TrafficSecrets]], tmp_path: Path) -> None:
    capture = write_pcap(tmp_path / "ring.pcap", segments(talked[0]))
    names = ["kind", "code", "length", "init.suites", "resp.suite", "init.wall_ms", "malformed"]
    fields = [part for name in names for part in ("-e", f"sealring.{name}")]
    rows = tshark(capture, "-Y", "sealring", *fields)
    kinds = ",".join(row[0] for row in rows).split(",")
    assert Counter(kinds) == {"1": 3, "2": STEPS + 2}
    assert [row[1] for row in rows[:3]] == ["0x01", "0x02", "0x03"]
    assert rows[0][2:4] == ["1261", "0x00000006"]
    assert rows[1][2:5] == ["1314", "", "1"]
    assert not any(row[6] for row in rows)
    decoded = events(capture)
    assert rows[0][5] == decoded[0]["fields"]["wall_ms"]


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
def test_the_dissector_knows_a_join(tmp_path: Path) -> None:
    capture = write_pcap(tmp_path / "join.pcap", segments(joined()))
    names = ("kind", "code", "join_init.suites", "join_resp.suite", "malformed")
    fields = [part for name in names for part in ("-e", f"sealring.{name}")]
    assert tshark(capture, "-Y", "sealring", *fields) == [
        ["1", "0x15", "0x00000006", "", ""],
        ["1", "0x16", "", "1", ""],
        ["1", "0x17", "", "", ""],
        ["2", "", "", "", ""],
        ["2", "", "", "", ""],
    ]


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
def test_the_dissector_leaves_others_alone(tmp_path: Path) -> None:
    said: Said = [("ab", b"GET / HTTP/1.1\r\n\r\n"), ("ba", bytes(100))]
    capture = write_pcap(tmp_path / "web.pcap", segments(said))
    assert tshark(capture, "-Y", "sealring", "-e", "frame.number") == []

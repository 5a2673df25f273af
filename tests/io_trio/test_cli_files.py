"""The commands that make and show files: keygen, roster, plan, digest; and how they fail."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from sealring.files.config import load_config
from sealring.local.node_socket import claimed
from sealring.local.ring import write_cluster
from sealring.service.owner_api import OwnerApi
from sealring.service.verification import Reply
from sealring_model import tiny
from sealring_protocol.security.identity import SoftwareSigner, node_id
from sealring_protocol.security.roster import SignedRoster

from tests.io_trio.helpers import Outcome, sealring
from tests.io_trio.test_control import serving

pytestmark = pytest.mark.usefixtures("quick_paces")


def make_home(folder: Path) -> Path:
    """A folder with a coordinator's key, two nodes' keys, a draft and a signed roster."""
    sealring("keygen", folder / "coordinator.key", "--coordinator")
    sealring("roster", "new", "home", "--out", folder / "home.toml")
    for port, name in enumerate(("desk", "laptop"), start=7470):
        sealring("keygen", folder / f"{name}.key")
        sealring(
            *("roster", "add", folder / "home.toml", name),
            *("--key", folder / f"{name}.pub", "--address", f"127.0.0.1:{port}"),
        )
    done = sealring("roster", "sign", folder / "home.toml", "--key", folder / "coordinator.key")
    assert done.code == 0
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def own_home(home: Path, tmp_path: Path) -> Path:
    """A copy of *home* to spoil."""
    return Path(shutil.copytree(home, tmp_path / "home"))


def test_keygen(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        done = sealring("keygen", tmp_path / "node.key", "--json")
    finally:
        os.umask(before)
    facts = done.json()
    pem = (tmp_path / "node.key").read_bytes()
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    public_key = SoftwareSigner.from_pem(pem).public_key
    assert facts["public_key"] == public_key.hex()
    assert facts["node_id"] == node_id(public_key).hex()
    assert (tmp_path / "node.pub").read_text() == public_key.hex() + "\n"
    secret = b"".join(pem.split(b"\n")[1:-2]).decode()
    for line in pem.decode().split("\n")[1:-2]:
        assert line not in done.out
    assert secret not in done.out


def test_keygen_for_people(tmp_path: Path) -> None:
    node = sealring("keygen", tmp_path / "node.key")
    assert "node id" in node.out
    assert "Next: sealring roster add" in node.out
    coordinator = sealring("keygen", tmp_path / "coordinator.key", "--coordinator")
    assert "node id" not in coordinator.out
    assert "Next: sealring roster new" in coordinator.out


@pytest.mark.parametrize("taken", ["node.key", "node.pub"])
def test_keygen_overwrites_nothing(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    done = sealring("keygen", tmp_path / "node.key")
    assert done.code == 2
    assert f"{taken} already exists, and is left as it is" in done.err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_roster_from_new_to_verify(home: Path) -> None:
    roster = home / "home.roster"
    done = sealring("roster", "verify", roster, "--coordinator", home / "coordinator.pub", "--json")
    facts = done.json()
    assert (done.code, facts["signature"], facts["serial"]) == (0, "good", 1)
    assert [(m["rank"], m["name"]) for m in facts["members"]] == [(0, "desk"), (1, "laptop")]
    assert (facts["inner_seal"], facts["tensor_parallelism"]) == (True, True)
    assert (facts["fixed_head"], facts["term"], facts["taken"]) == (False, 0, False)
    signed = SignedRoster.decode(roster.read_bytes())
    assert signed.roster.members[1].addresses == ("127.0.0.1:7471",)
    shown = sealring("roster", "show", roster)
    assert "not checked" in shown.out
    assert "laptop" in shown.out


def test_members_of_a_draft_have_rights(own_home: Path) -> None:
    add = ("roster", "add", own_home / "home.toml")
    for name, address, *rights in (
        ("den", "den:1", "--no-text"),
        ("pi", "pi:1", "--witness", "--no-text"),
    ):
        assert sealring("keygen", own_home / f"{name}.key").code == 0
        key = own_home / f"{name}.pub"
        assert sealring(*add, name, "--key", key, "--address", address, *rights).code == 0
    sign = ("roster", "sign", own_home / "home.toml", "--key", own_home / "coordinator.key")
    members = sealring(*sign, "--json").json()["members"]
    rights = [(each["name"], each["sees_texts"], each["witness"]) for each in members]
    assert rights == [
        ("desk", True, False),
        ("laptop", True, False),
        ("den", False, False),
        ("pi", False, True),
    ]
    text = (own_home / "home.toml").read_text()
    (own_home / "home.toml").write_text(text.replace("text = true", "text = false", 1))
    refused = sealring(*sign)
    assert refused.code == 2
    assert "desk is the first member, which is the head" in refused.err


def test_signing_again_raises_the_serial(own_home: Path) -> None:
    done = sealring(
        *("roster", "sign", own_home / "home.toml", "--key", own_home / "coordinator.key"),
        *("--days", "1", "--json"),
    )
    facts = done.json()
    assert facts["serial"] == 2
    assert facts["expires_ms"] - facts["issued_ms"] == 24 * 3600 * 1000


def test_names_are_kept_whole(tmp_path: Path) -> None:
    name = 'Bär "x" \\ 日本'
    policies = ("--no-inner-seal", "--no-tensor-parallelism", "--fixed-head")
    sealring("roster", "new", name, "--out", tmp_path / "a.toml", *policies)
    sealring("keygen", tmp_path / "c.key")
    sealring("keygen", tmp_path / "n.key")
    add = ("roster", "add", tmp_path / "a.toml", name, "--address", "[::1]:1", "--address", "h:2")
    assert sealring(*add, "--key", tmp_path / "n.pub").code == 0
    assert sealring("roster", "sign", tmp_path / "a.toml", "--key", tmp_path / "c.key").code == 0
    facts = sealring("roster", "show", tmp_path / "a.roster", "--json").json()
    policies = (facts["inner_seal"], facts["tensor_parallelism"], facts["fixed_head"])
    assert (facts["name"], policies) == (name, (False, False, True))
    assert facts["members"][0]["addresses"] == ["[::1]:1", "h:2"]


def test_a_roster_is_renewed_without_its_draft(own_home: Path) -> None:
    roster, key = own_home / "home.roster", own_home / "coordinator.key"
    before = SignedRoster.decode(roster.read_bytes()).roster
    (own_home / "home.toml").unlink()
    expire(own_home)
    done = sealring("roster", "renew", roster, "--key", key, "--days", "30")
    assert done.code == 0
    assert "serial 2, 2 members, valid until" in done.out
    assert f"sealring roster install {roster} --config CONFIG" in done.out
    after = sealring("roster", "verify", roster, "--coordinator", own_home / "coordinator.pub")
    assert after.code == 0
    renewed = SignedRoster.decode(roster.read_bytes()).roster
    assert renewed.members == before.members
    assert renewed.expires_ms - renewed.issued_ms == 30 * 86_400_000
    flip(roster)
    spoiled = roster.read_bytes()
    refused = sealring("roster", "renew", roster, "--key", key)
    assert refused.code == 2
    assert roster.read_bytes() == spoiled


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def expire(folder: Path) -> None:
    signed = SignedRoster.decode((folder / "home.roster").read_bytes())
    import attrs
    from sealring_protocol.security.roster import sign_roster

    signer = SoftwareSigner.from_pem((folder / "coordinator.key").read_bytes())
    old = attrs.evolve(signed.roster, issued_ms=0, expires_ms=86_400_000)
    (folder / "home.roster").write_bytes(sign_roster(old, signer).encode())


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("demo --ranks 0", 2),
        ("demo --model ./none", 2),
        ("plan --model tiny --memory 1M,1M", 1),
        ("roster show none", 2),
        ("status --config none.toml", 2),
        ("frobnicate", 2),
    ],
)
def test_with_json_an_error_is_json_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    done = sealring(*shlex.split(command), "--json")
    assert done.code == code
    error = done.json()["error"]
    assert error["exit_code"] == code
    assert done.err == f"sealring: {error['what']}\n{error['advice']}\n"
    assert sealring(*shlex.split(command)).out == ""


def test_a_prompt_does_not_ask_for_json() -> None:
    assert sealring("run", "./none", "--", "--json").out == ""


Spoil = Callable[[Path], object]
VERIFY = "roster verify home.roster --coordinator coordinator.pub"
SIGN = "roster sign home.toml --key coordinator.key"
ADD = "roster add home.toml third --address h:1 --key "
MISTAKES: dict[str, tuple[Spoil, str, int, str, str]] = {
    "unknown command": (lambda _: 0, "frobnicate", 2, "frobnicate", "See: sealring --help"),
    "unknown option": (lambda _: 0, "keygen a --bad", 2, "--bad", "See: sealring keygen --help"),
    "missing argument": (
        lambda _: 0,
        "keygen",
        2,
        "PATH is needed: ",
        "See: sealring keygen --help",
    ),
    "missing option": (
        lambda _: 0,
        "roster renew home.roster",
        2,
        "--key is needed: the coordinator's private key",
        "See: sealring roster renew --help",
    ),
    "missing value": (
        lambda _: 0,
        "generate --prompt hi --config",
        2,
        "--config is given without a value: the config of the head",
        "See: sealring generate --help",
    ),
    "an argument for an option": (
        lambda _: 0,
        "plan tiny",
        2,
        "'tiny' is too much: plan takes no argument",
        "Did you mean --model tiny? See: sealring plan --help",
    ),
    "a misspelt option that is needed": (
        lambda _: 0,
        "roster sign home.toml --kye coordinator.key",
        2,
        "--key is needed",
        "Did you mean --key instead of --kye?",
    ),
    "below a group": (
        lambda _: 0,
        "roster add a.toml",
        2,
        "NAME is needed: what people call the node",
        "sealring roster add --help",
    ),
    "a config too many": (
        lambda _: 0,
        "status desk.toml",
        2,
        "'desk.toml' is too much: status takes no argument",
        "Did you mean --config desk.toml? See: sealring status --help",
    ),
    "a model too many": (
        lambda _: 0,
        "serve tiny",
        2,
        "'tiny' is too much: serve takes no argument",
        "Did you mean --model tiny?",
    ),
    "a command that is misspelled": (
        lambda _: 0,
        "head mov",
        2,
        "'mov' is too much: head takes no argument",
        "Did you mean 'move'? See: sealring head --help",
    ),
    "one word too many": (lambda _: 0, "keygen a b", 2, "'b' is too much: no option", "keygen"),
    "a prompt that is an option": (
        lambda _: 0,
        "run tiny --max-token 5 hi",
        2,
        "Unknown option: --max-token. Did you mean --max-tokens?",
        "See: sealring run --help",
    ),
    **{
        f"an option's beginning: {line}": (lambda _: 0, line, 2, f"Did you mean {meant}?", "")
        for line, meant in {
            "run tiny --temp 1 hi": "--temperature",
            "run tiny hi --max 4": "--max-tokens",
            "generate --config a --prompt b --top 3": "--top-p",
            "serve --key x": "--tls-key",
            "serve --tls-certificat=x": "--tls-certificate",
            "serve --rank 2": "--ranks",
        }.items()
    },
    "a prompt that is no option": (
        lambda _: 0,
        "run tiny --zzzz",
        2,
        "there is no such option",
        "See: sealring run --help",
    ),
    "a folder as a key": (lambda _: 0, "keygen .", 2, "'.' is no name of a file", "node.key"),
    "wrong coordinator": (
        lambda _: 0,
        "roster verify home.roster --coordinator desk.pub",
        2,
        "is not signed by this coordinator key, or it was changed",
        "Check which coordinator public key",
    ),
    "tampered": (lambda f: flip(f / "home.roster"), VERIFY, 2, "home.roster", ""),
    "expired": (expire, VERIFY, 2, "expired on 1970-01-02", "Sign a new one"),
    "a draft": (
        lambda _: 0,
        "roster verify home.toml --coordinator coordinator.pub",
        2,
        "home.toml is not a signed roster",
        "This is a draft. Sign it",
    ),
    "cut short": (
        lambda f: (f / "home.roster").write_bytes(b"\x01"),
        "roster show home.roster",
        2,
        "is not a signed roster",
        "copy it again",
    ),
    "no roster": (lambda _: 0, "roster show none", 2, "No such file", "sealring roster new"),
    "no draft": (lambda _: 0, "roster sign none --key coordinator.key", 2, "there is no", ""),
    "no members": (
        lambda f: (f / "home.toml").write_text('name = "h"\ncluster = "' + "0" * 64 + '"\n'),
        SIGN,
        2,
        "makes no roster",
        "",
    ),
    "bad member": (
        lambda f: (f / "home.toml").write_text(
            (f / "home.toml").read_text().replace("127.0.0.1:7471", "127.0.0.1")
        ),
        SIGN,
        2,
        "'member.2.addresses.1': '127.0.0.1' is no address",
        "",
    ),
    "member without a key": (
        lambda f: (f / "home.toml").write_text(
            (f / "home.toml").read_text() + '[[member]]\nname = "x"\naddresses = ["h:1"]\n'
        ),
        SIGN,
        2,
        "the key 'member.3.public_key' is missing",
        "its .pub file's line",
    ),
    "key of others": (
        lambda f: (f / "coordinator.key").chmod(0o644),
        SIGN,
        2,
        "others can read the private key",
        "chmod 600",
    ),
    "not a key": (
        lambda f: (f / "coordinator.key").write_text("x"),
        SIGN,
        2,
        "holds no P-256 private key",
        "sealring keygen",
    ),
    "no key": (lambda _: 0, "roster sign home.toml --key none", 2, "no private key at", "keygen"),
    "member signs": (
        lambda _: 0,
        "roster sign home.toml --key desk.key",
        2,
        "desk.key is the key of its member 'desk'",
        "If that is the coordinator's, 'desk' needs one of its own: make it there "
        "(sealring keygen), put the line of its .pub file at 'public_key' of 'desk' in home.toml",
    ),
    "another key signs": (
        lambda f: sealring("keygen", f / "other.key", "--coordinator"),
        "roster sign home.toml --key other.key",
        2,
        "is not signed by this key",
        "Sign with the key that signed it, the coordinator's",
    ),
    "a public key signs": (
        lambda _: 0,
        "roster sign home.toml --key coordinator.pub",
        2,
        "coordinator.pub is a public key, and a private key is needed",
        "Give its private half, coordinator.key",
    ),
    "a roster signs": (
        lambda _: 0,
        "roster sign home.toml --key home.roster",
        2,
        "holds no P-256 private key",
        "",
    ),
    "no days": (lambda _: 0, SIGN + " --days 0", 2, "--days", ""),
    "endless days": (lambda _: 0, SIGN + " --days 36501", 2, "--days", ""),
    "endless days again": (
        lambda _: 0,
        "roster renew home.roster --key coordinator.key --days 99999999",
        2,
        "--days",
        "",
    ),
    "draft exists": (lambda _: 0, "roster new home --out home.toml", 2, "left as it is", "--out"),
    "empty name": (lambda _: 0, "roster new '' --out a.toml", 2, "printable", ""),
    "twice": (lambda _: 0, ADD + "desk.pub", 2, "'third' has the key of 'desk'", "of its own"),
    "a name twice": (
        lambda _: 0,
        "roster add home.toml desk --address h:1 --key coordinator.pub",
        2,
        "there are two called 'desk'",
        "of its own",
    ),
    "an address twice": (
        lambda _: 0,
        "roster add home.toml third --address h:1 --address 127.0.0.1:7470 --key coordinator.pub",
        2,
        "'third' has an address of 'desk', 127.0.0.1:7470",
        "of its own",
    ),
    "an address in other letters": (
        lambda _: 0,
        "roster add home.toml third --address LOCALHOST:1 --address localhost:1"
        " --key coordinator.pub",
        2,
        "addresses: 'localhost:1' is there twice",
        "run the command again",
    ),
    **{
        f"the address {address}": (
            lambda _: 0,
            f"roster add home.toml third --address {address} --key coordinator.pub",
            2,
            said,
            "",
        )
        for address, said in {
            "0.0.0.0:7470": "a node may listen there, and no other node reaches it so",
            "[::]:7470": "a node may listen there, and no other node reaches it so",
            "h:0": "'h:0' is no address",
        }.items()
    },
    **{
        f"a draft edited to {change}": (
            lambda f, old=old, new=new: (f / "home.toml").write_text(
                (f / "home.toml").read_text().replace(old, new)
            ),
            SIGN,
            2,
            said,
            "",
        )
        for change, (old, new, said) in {
            "one address": ("127.0.0.1:7471", "127.0.0.1:7470", "has an address of 'desk'"),
            "one name": ("laptop", "desk", "home.toml: there are two called 'desk'"),
            "every address": ("127.0.0.1:7471", "0.0.0.0:7471", "no other node reaches it so"),
        }.items()
    },
    "private key": (lambda _: 0, ADD + "desk.key", 2, "is a private key", "desk.pub"),
    "no such key": (lambda _: 0, ADD + "none", 2, "cannot read the public key", "keygen"),
    "no hex": (lambda _: 0, ADD + "home.toml", 2, "holds no public key", "130 digits"),
    "no point": (lambda _: 0, ADD + "04" + "00" * 64, 2, "not a point of P-256", ""),
    "no trust": (lambda _: 0, ADD + "coordinator.pub --trust full", 2, "no trust level", ""),
    "plan: too little": (
        lambda _: 0,
        "plan --model tiny --memory 1M,1M",
        1,
        "it does not fit",
        "Change --memory",
    ),
    "plan: layers": (
        lambda _: 0,
        "plan --model tiny --memory 1G,1G --layers 1,1",
        1,
        "add up to 2",
        "",
    ),
    "plan: no room for caches": (
        lambda _: 0,
        "plan --model tiny --memory 1G,20M --context 2048 --streams 40",
        1,
        "rank 1 would need 45.0 MiB for the caches of 40 x 2048 tokens",
        "--streams",
    ),
    "plan: beyond the context": (
        lambda _: 0,
        "plan --model tiny --memory 1G --context 4096",
        2,
        "the model takes 2048 tokens",
        "no more",
    ),
    "plan: no room for a draft model": (
        lambda _: 0,
        "plan --model tiny --memory 10M,1G --draft tiny",
        1,
        "the draft model takes",
        "",
    ),
    "plan: a roster's draft as the draft model": (
        lambda _: 0,
        "plan --model tiny --memory 1G --draft home.toml",
        2,
        "cannot find the draft model (--draft): home.toml is a file",
        "A draft model is a small one with the same vocabulary, which guesses tokens.",
    ),
    "a config for a roster's draft": (
        lambda f: (f / "desk.toml").write_text('key = "desk.key"\nlisten = "h:1"\n'),
        "roster sign desk.toml --key coordinator.key",
        2,
        "desk.toml is no roster draft: it has none of the keys name, cluster",
        "'sealring roster new' makes the draft of a roster",
    ),
    "a roster's draft for a config": (
        lambda _: 0,
        "status --config home.toml",
        2,
        "home.toml is no config file: it has none of the keys key, roster, coordinator",
        "'sealring up --help' shows the config of a node",
    ),
    "plan: not a count": (
        lambda _: 0,
        "plan --model tiny --memory 1G,1G --layers 1,x",
        2,
        "'x' is no number of layers",
        "--layers 20,12",
    ),
    "plan: not a size": (lambda _: 0, "plan --model tiny --memory x", 2, "'x' is no size", ""),
    "plan: no model": (lambda _: 0, "plan --model none --memory 1G", 2, "there is no folder", ""),
    "plan: empty model": (lambda _: 0, "plan --model= --memory 1G", 2, "name is empty", "tiny"),
    "digest: no model": (
        lambda f: (f / "empty").mkdir(),
        "digest empty",
        2,
        "config.json",
        "Fetch it again",
    ),
}


@pytest.mark.parametrize(
    ("spoil", "line", "code", "what", "advice"), MISTAKES.values(), ids=MISTAKES
)
def test_mistakes(
    own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil,
    line: str,
    code: int,
    what: str,
    advice: str,
) -> None:
    spoil(own_home)
    monkeypatch.chdir(own_home)
    done = sealring(*(word.strip("'") for word in line.split(" ")))
    assert what in done.err
    assert advice in done.err
    assert done.code == code
    assert done.out == ""


def test_plan(tmp_path: Path) -> None:
    facts = sealring("plan", "--model", "tiny", "--memory", "1G,1G", "--json").json()
    assert facts["fits"] is True
    assert sum(rank["weights"] for rank in facts["ranks"]) == facts["weights"]
    bounds = [rank["layers"] for rank in facts["ranks"]]
    assert bounds[0][1] == bounds[1][0]
    assert bounds[1][1] == facts["layers"]
    split = f"1,{facts['layers'] - 1}"
    chosen = sealring("plan", "--model", "tiny", "--memory", "1G,1G", "--layers", split, "--json")
    assert [rank["layers"] for rank in chosen.json()["ranks"]] == [[0, 1], [1, facts["layers"]]]
    assert "0 (head)" in sealring("plan", "--model", "tiny", "--memory", "1G").out


def test_plan_makes_no_estimates_for_a_node_that_starts(tmp_path: Path) -> None:
    (config,) = write_cluster(tmp_path, 1, tiny.path())
    with claimed(tmp_path / "rank0.state"):
        outcome = sealring("plan", "--config", config)
    assert outcome.code == 1
    assert "is starting" in outcome.err


async def test_plan_at_a_head_is_of_those_that_are_there(tmp_path: Path) -> None:
    config = write_cluster(tmp_path, 3, tiny.path())[0]
    facts: dict[str, Any] = {
        **{"rank": 0, "world": 3, "name": "rank0", "addresses": ["127.0.0.1:1"]},
        **{"rooms": {0: 1 << 30, 2: 1 << 30}, "bounds": [0, 4, 8], "sum_us": 0, "choice": None},
        "paces": {"decode_us": {}},
        "peers": [
            {"rank": rank, "name": f"rank{rank}", "addresses": [f"10.0.0.{rank}:1"], "control": up}
            for rank, up in ((1, False), (2, True))
        ],
    }

    async def answer(_name: str, _body: bytes, reply: Reply) -> None:
        await reply(facts)

    def plan() -> Outcome:
        return sealring("plan", "--config", config, "--json")

    socket = load_config(config).control_socket
    socket.parent.mkdir(mode=0o700, exist_ok=True)
    async with serving(socket, OwnerApi(answer, lambda: None)):
        done = await trio.to_thread.run_sync(plan)
        assert "rank1 (rank 1) is away: this is a plan of those that are there" in done.err
        assert len(done.json()["ranks"]) == 2
        machines = {name for way in done.json()["ways"] for name in way["machines"]}
        assert machines == {"rank0", "rank2"}

        facts["peers"][0]["control"] = True
        done = await trio.to_thread.run_sync(plan)
    assert (done.code, "does not know yet what memory rank1 has" in done.err) == (1, True)


def test_plan_counts_the_ends_on_every_rank_of_tensor_parallelism() -> None:
    """Each rank of the tiny model's holds 4,270,720 bytes: the norms are not shared out."""
    asked = ("plan", "--model", "tiny", "--memory", "1G,1G", "--json", "--strategy", "tp")
    held = [rank["weights"] for rank in sealring(*asked).json()["ranks"]]
    assert held[0] == held[1] == pytest.approx(4_270_720, rel=0.002)


def test_plan_counts_a_draft_model_on_the_head() -> None:
    asked = ("plan", "--model", "tiny", "--memory", "1G,1G", "--json")
    plain, beside = sealring(*asked).json(), sealring(*asked, "--draft", "tiny").json()
    assert plain["draft"] == 0
    assert beside["draft"] > plain["weights"]  # and caches
    assert beside["ranks"][0]["memory"] == plain["ranks"][0]["memory"] - beside["draft"]
    assert beside["ranks"][1]["memory"] == plain["ranks"][1]["memory"]


def test_plan_counts_the_caches_of_rows(tmp_path: Path) -> None:
    asked = ("plan", "--model", "tiny", "--memory", "1G,20M", "--context", "2048", "--json")
    one = sealring(*asked, "--streams", "1").json()["ranks"][1]
    two = sealring(*asked, "--streams", "2").json()["ranks"][1]
    assert two["caches"] == 2 * one["caches"] > 0
    assert two["left"] == one["left"] - one["caches"] == 20 * 2**20 - two["weights"] - two["caches"]
    assert one["most_while_loading"] >= one["weights"]


def test_digest(tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny.path(), tmp_path / "model"))
    (model / "sealring.json").unlink(missing_ok=True)
    unpinned = sealring("plan", "--model", model, "--memory", "1G", "--json").json()
    facts = sealring("digest", model, "--json").json()
    assert unpinned["notes"] == [
        "no sealring.json: of the weights a sample is compared (see: sealring digest --help)"
    ]
    assert facts["digest"] != unpinned["digest"]
    manifest = json.loads((model / "sealring.json").read_text())
    assert len(manifest["tensors"]) == facts["tensors"]
    assert "digest" in sealring("digest", model).out

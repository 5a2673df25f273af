"""`sealring machines` and `sealring coordinator`: who belongs to the cluster is changed without an
editor, at a node that runs or where none does; and the key that signs comes and goes."""

from __future__ import annotations

import contextlib
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from sealring.cli.coordinator import KEY_NAME
from sealring.files.cluster import changed_roster, create_key
from sealring.files.config import load_config
from sealring.local.ring import LocalNode, running_node, wait_until_up, write_cluster
from sealring.service.owner_api import OwnerApi
from sealring.service.service import due_in
from sealring.service.verification import Reply
from sealring_model import tiny
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.mandate import Certificate, Mandate, vote_payload
from sealring_protocol.security.roster import Rights, Roster, SignedRoster, sign_roster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import read_key
from sealring_trio.files.rosters import RosterStore
from sealring_trio.units import wall_ms

from tests.io_trio.helpers import Outcome, sealring, until, wait_for
from tests.io_trio.test_cli_files import make_home
from tests.io_trio.test_control import serving
from tests.serving import PATIENCE
from tests.sim.rosters import WALL, make_roster

CONFIG = """\
key = "desk.key"
roster = "home.roster"
coordinator = "coordinator.pub"
coordinator_key = "coordinator.key"   # signs
listen = "127.0.0.1:7470"
model = "tiny"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_home(tmp_path_factory.mktemp("home"))
    (folder / "desk.toml").write_text(CONFIG)
    (folder / "laptop.toml").write_text(CONFIG.replace("desk", "laptop").replace("7470", "7471"))
    return folder


def machines(home: Path, *arguments: str | Path, at: str = "desk") -> Outcome:
    return sealring("machines", *arguments, "--config", home / f"{at}.toml")


def roster_in(home: Path) -> Roster:
    signed = SignedRoster.decode((home / "home.roster").read_bytes())
    signed.verify(bytes.fromhex((home / "coordinator.pub").read_text()))
    return signed.roster


def names(roster: Roster) -> list[str]:
    return [member.name for member in roster.members]


# ---------------------------------------------------------------------- where no node runs


def test_a_machine_is_renamed_moved_and_readdressed(home: Path) -> None:
    before = roster_in(home)
    done = machines(home, "rename", "laptop", "den")
    assert done.code == 0, done.err
    assert "laptop is called den now: roster 2" in done.out
    assert "No node runs here" in done.out
    assert f"sealring up {home / 'desk.toml'}" in done.out
    assert machines(home, "address", "den", "10.0.0.7:7470", "[::1]:7").code == 0
    assert machines(home, "move", "den", "--rank", "0", "--json").json() == {
        "serial": 4,
        "installed": False,
        "members": ["den", "desk"],
    }
    after = roster_in(home)
    assert after.members[0].addresses == ("10.0.0.7:7470", "[::1]:7")
    assert after.members[0].id == before.members[1].id
    assert after.members[1] == before.members[0]
    assert after.expires_ms - after.issued_ms == before.expires_ms - before.issued_ms


def test_a_machine_may_see_no_texts_and_be_a_witness(home: Path) -> None:
    done = machines(home, "rights", "laptop", "--no-text")
    assert done.code == 0, done.err
    assert "laptop: sees no texts, and is never the head: roster 2" in done.out
    assert done.err == "sealring: desk alone may be the head now: while it is away, nobody is\n"
    assert roster_in(home).members[1].rights == Rights(0)
    assert "laptop: sees no texts, and is never the head" in machines(home, "list").out
    lead = machines(home, "move", "laptop", "--rank", "0")
    assert lead.code == 2
    assert "'laptop' may see no texts, so that it cannot be the head" in lead.err
    assert "sealring machines rights laptop --text --no-witness" in lead.err
    away = machines(home, "move", "desk", "--rank", "1")
    assert "'laptop' may see no texts, so that it cannot be the head" in away.err
    gone = machines(home, "remove", "desk")
    assert "No other machine may be the head" in gone.err
    witness = machines(home, "rights", "laptop", "--witness", "--json")
    assert (witness.json()["serial"], witness.err) == (3, "")  # no other could be before
    assert roster_in(home).members[1].rights == Rights.WITNESS
    listed = machines(home, "list", "--json").json()["machines"]
    assert [(each["sees_texts"], each["witness"]) for each in listed] == [
        (True, False),
        (False, True),
    ]
    assert "laptop: a witness, in no ring, and sees no texts" in machines(home, "list").out
    shown = sealring("roster", "show", home / "home.roster")
    assert "laptop: a witness, in no ring, and sees no texts" in shown.out
    told = sealring("roster", "show", home / "home.roster", "--json").json()["members"]
    assert [(each["sees_texts"], each["witness"]) for each in told] == [
        (True, False),
        (False, True),
    ]
    done = machines(home, "rights", "laptop", "--text", "--no-witness")
    assert "laptop: may see texts, and be the head: roster 4" in done.out
    assert machines(home, "move", "laptop", "--rank", "0").code == 0


def test_the_head_is_fixed_and_elected(home: Path) -> None:
    done = machines(home, "heads", "fixed")
    assert done.code == 0, done.err
    assert "desk alone is the head: roster 2" in done.out
    assert roster_in(home).fixed_head
    assert machines(home, "rename", "laptop", "den").code == 0
    assert roster_in(home).fixed_head
    again = machines(home, "heads", "fixed")
    assert (again.code, "heads are fixed already" in again.err) == (2, True)
    shown = sealring("roster", "show", home / "home.roster")
    assert "desk, and never another (fixed)" in shown.out
    done = machines(home, "heads", "elected")
    assert "desk is the head until another is elected: roster 4" in done.out
    assert not roster_in(home).fixed_head
    assert machines(home, "heads", "always").code == 2


def test_what_follows_an_election_has_its_head_first(home: Path) -> None:
    before = SignedRoster.decode((home / "home.roster").read_bytes())
    payload = vote_payload(before.roster.digest, 3, 1)
    keys = [read_key(home / f"{name}.key") for name in ("desk", "laptop")]
    votes = tuple((voter, key.sign(payload)) for voter, key in enumerate(keys))
    elected = before.elected(Certificate(3, 1, votes))
    (home / "home.roster").write_bytes(elected.encode())
    assert names(roster_in(home)) == ["laptop", "desk"]
    told = sealring("roster", "show", home / "home.roster")
    assert "laptop, elected in term 3" in told.out
    assert machines(home, "rename", "desk", "den").code == 0
    after = roster_in(home)
    assert (names(after), after.mandate) == (["laptop", "den"], Mandate())
    # Of a certificate whose votes nobody gave, nothing is signed.
    forged = before.elected(Certificate(3, 1, (votes[0], (1, votes[0][1]))))
    (home / "home.roster").write_bytes(forged.encode())
    renew = ("roster", "renew", home / "home.roster", "--key", home / "coordinator.key")
    assert "it was changed" in sealring(*renew).err
    (home / "home.roster").write_bytes(elected.encode())
    assert sealring(*renew).code == 0
    assert names(roster_in(home)) == ["laptop", "desk"]


def test_a_machine_is_removed_and_another_key_takes_its_place(home: Path) -> None:
    fresh = create_key(home / "fresh.key").public_key
    done = machines(home, "replace", "laptop", home / "fresh.pub")
    assert done.code == 0, done.err
    assert roster_in(home).members[1].public_key == fresh
    assert roster_in(home).members[1].addresses == ("127.0.0.1:7471",)
    assert machines(home, "remove", "laptop").code == 0
    assert names(roster_in(home)) == ["desk"]


def test_the_key_may_be_given_by_hand(home: Path) -> None:
    (home / "desk.toml").write_text(CONFIG.replace("coordinator_key", "#"))
    refused = machines(home, "rename", "laptop", "den")
    assert refused.code == 2
    assert "names no coordinator's key" in refused.err
    assert "--key FILE" in refused.err
    create_key(home / "fresh.key")
    key = ("--key", home / "coordinator.key")
    assert machines(home, "rename", "laptop", "den", *key).code == 0
    assert machines(home, "replace", "den", home / "fresh.pub", *key).code == 0


REFUSED: dict[str, tuple[str, str, str]] = {
    "the rights that it has": (
        "rights laptop --text",
        "'laptop' is that already: may see texts, and be the head",
        "--no-text",
    ),
    "no rights": ("rights laptop", "'laptop' is that already", "--witness or --no-witness"),
    "the head's rights": (
        "rights desk --no-text",
        "'desk' is the head, which sees texts and is no witness",
        "move laptop --rank 0",
    ),
    "nobody": ("remove attic", "there is no machine called 'attic'", "desk, laptop"),
    "the head": ("remove desk", "'desk' is the head", "move laptop --rank 0"),
    "the head's key": (
        "replace desk coordinator.pub",
        "'desk' is the head",
        "move laptop --rank 0",
    ),
    "a rank too many": ("move laptop --rank 2", "there is no rank 2", "from 0 to 1"),
    "a rank that it has": ("move laptop --rank 1", "has rank 1 already", ""),
    "a name that is taken": ("rename laptop desk", "there are two called 'desk'", "of its own"),
    "no name": ("rename laptop ", "a name is printable text", ""),
    "an address of all": ("address laptop 0.0.0.0:7471", "is every address", ""),
    "another's address": ("address laptop 127.0.0.1:7470", "has an address of 'desk'", "own"),
    "an address twice": ("address laptop h:1 H:1", "'H:1' is there twice", ""),
    "no address": ("address laptop nowhere", "is no address", ""),
    "the coordinator's key": (
        "replace laptop coordinator.pub",
        "is the coordinator's, which belongs to no machine",
        "sealring keygen",
    ),
    "another's key": ("replace laptop desk.pub", "'laptop' has the key of 'desk'", "own"),
    "its own key": ("replace laptop laptop.pub", "has this key already", "keygen"),
    "a private key": ("replace laptop desk.key", "is a private key", "desk.pub"),
    "a key that signs nothing": (
        "rename laptop den --key desk.key",
        "desk.key is not the key that signs this cluster's rosters",
        "",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_words(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(home)
    line, what, advice = REFUSED[name]
    words = [word or " " for word in line.split(" ")]
    done = machines(home, *words)
    assert done.code == 2
    assert what in done.err
    assert advice in done.err
    assert roster_in(home).serial == 1


def test_a_machine_does_not_cut_itself_off(home: Path) -> None:
    refused = machines(home, "remove", "laptop", at="laptop")
    assert refused.code == 2
    assert "'laptop' is this machine" in refused.err
    assert "on another machine of the cluster" in refused.err
    assert machines(home, "remove", "laptop").code == 0
    last = machines(home, "remove", "desk")
    assert "the only machine of home" in last.err
    assert "To end the cluster, stop the node" in last.err


def test_the_config_of_the_default_folder_is_meant(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent / "xdg"))
    monkeypatch.setenv("HOME", str(home.parent))
    monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: home.parent / "xdg")
    refused = sealring("machines", "rename", "laptop", "den")
    assert f"there is no {home.parent / 'xdg' / 'node.toml'}" in refused.err
    shutil.copytree(home, home.parent / "xdg")
    (home.parent / "xdg" / "desk.toml").rename(home.parent / "xdg" / "node.toml")
    assert sealring("machines", "rename", "laptop", "den").code == 0


def test_a_machine_of_a_cluster_is_asked_about_that_and_not_told_to_serve(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: home)
    (api,) = free_ports(1)
    (home / "node.toml").write_text(f'{CONFIG}api = "0.0.0.0:{api}"\n')
    status = sealring("status")
    assert status.code == 1
    assert "no node is running here" in status.err
    assert "Start it: sealring up. For a ring of 'sealring serve'" in status.err
    assert "no node is running here" in sealring("generate", "--prompt", "Hi.").err
    for command in (("chat",), ("status", "--url", f"http://127.0.0.1:{api}")):
        asked = sealring(*command)
        assert f"no head answers at http://127.0.0.1:{api}" in asked.err, command
        assert "its node has the API while it runs (sealring up)" in asked.err
        assert "Start one" not in asked.err
    listed = sealring("machines")
    assert "laptop" in listed.out
    assert sealring("machines", "list").out == listed.out
    assert [each["state"] for each in sealring("machines", "--json").json()["machines"]] == ["", ""]


async def test_a_machine_that_has_moved_is_listed_where_it_answers(home: Path) -> None:
    """Beside where the roster says."""
    signed = (home / "home.roster").read_bytes().hex()
    routes = [
        {"address": address, "known_from": known_from, "ms": ms, "trouble": trouble}
        for address, known_from, ms, trouble in (
            ("127.0.0.1:7471", "roster", 0.3, "nobody is there"),
            ("10.0.0.9:7471", "told", 0.4, ""),
            ("10.0.0.8:7471", "heard", None, ""),
        )
    ]
    links = {"control": True, "step": True, "tunnel": False, "put_out": False}
    laptop = {"name": "laptop", "addresses": ["127.0.0.1:7471"], "routes": routes, **links}
    attic = {**laptop, "name": "attic"}  # of a roster that came in force meanwhile
    told: dict[str, dict[str, Any]] = {
        "members": {"roster": signed, "spent": 0},
        "status": {"name": "desk", "role": "head", "peers": [laptop, attic]},
        "waiting": {"waiting": []},
        "nearby": {"waiting": []},
    }

    async def answer(name: str, _: bytes, reply: Reply) -> None:
        await reply(told[name])

    config = home / "desk.toml"
    state = load_config(config).state
    state.mkdir(mode=0o700, exist_ok=True)
    async with serving(load_config(config).control_socket, OwnerApi(answer, lambda: None)):
        listed = await trio.to_thread.run_sync(machines, home, "list", "--json")
        shown = await trio.to_thread.run_sync(machines, home, "list")
    beside = [each["answers_beside"] for each in listed.json()["machines"]]
    assert beside == [[], ["10.0.0.9:7471"]]
    for address in ("127.0.0.1:7471, now", "10.0.0.9:7471"):
        assert address in shown.out


def test_a_clock_that_is_behind_signs_nothing() -> None:
    before = make_roster(2).roster
    with pytest.raises(UserError, match="this machine's clock says"):
        changed_roster(before, before.members, before.issued_ms - 121_000)
    near = changed_roster(before, before.members, before.issued_ms - 60_000)
    assert near.issued_ms == before.issued_ms


# ---------------------------------------------------------------------- the coordinator's key


def test_the_key_is_taken_off_and_brought_back(home: Path, tmp_path: Path) -> None:
    pem = (home / KEY_NAME).read_bytes()
    stick = tmp_path / "stick"
    stick.mkdir()
    done = sealring("coordinator", "export", stick, "--config", home / "desk.toml")
    assert done.code == 0, done.err
    taken = stick / KEY_NAME
    assert taken.read_bytes() == pem
    assert stat.S_IMODE(taken.stat().st_mode) == 0o600
    assert not (home / KEY_NAME).exists()
    assert "coordinator_key" not in (home / "desk.toml").read_text()
    assert (home / "desk.toml").read_text() == CONFIG.replace(CONFIG.splitlines(True)[3], "")
    assert "sealring roster renew" in done.out
    assert "The roster is renewed by nobody: all links end on" in done.out
    assert "names no coordinator's key" in machines(home, "rename", "laptop", "den").err
    again = sealring("coordinator", "export", stick / "b", "--config", home / "desk.toml")
    assert "there is none to take off" in again.err

    back = sealring("coordinator", "import", taken, "--config", home / "desk.toml")
    assert back.code == 0, back.err
    assert (home / KEY_NAME).read_bytes() == pem
    assert stat.S_IMODE((home / KEY_NAME).stat().st_mode) == 0o600
    assert load_config(home / "desk.toml").coordinator_key == home / KEY_NAME
    assert machines(home, "rename", "laptop", "den").code == 0
    twice = sealring("coordinator", "import", taken, "--config", home / "desk.toml")
    assert "names a coordinator's key already" in twice.err


def test_a_key_behind_a_link_is_taken_off_too(home: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.key"
    (home / KEY_NAME).rename(real)
    (home / KEY_NAME).symlink_to(real)
    export = ("coordinator", "export", tmp_path / "taken", "--config", home / "desk.toml")
    facts = sealring(*export, "--json").json()
    assert facts["file"] == str(tmp_path / "taken")
    assert facts["expires_ms"] == roster_in(home).expires_ms
    assert not real.exists()
    assert not (home / KEY_NAME).is_symlink()


def test_a_key_that_cannot_be_taken_off_stays(home: Path, tmp_path: Path) -> None:
    before = (home / KEY_NAME).read_bytes()
    (tmp_path / "there").write_text("mine")
    export = ("coordinator", "export", tmp_path / "there", "--config", home / "desk.toml")
    assert "already exists, and is left as it is" in sealring(*export).err
    odd = 'coordinator_key = """\ncoordinator.key"""'
    text = CONFIG.replace('coordinator_key = "coordinator.key"', odd)
    (home / "desk.toml").write_text(text)
    export = ("coordinator", "export", tmp_path / "new", "--config", home / "desk.toml")
    assert "written in an unusual way" in sealring(*export).err
    assert not (tmp_path / "new").exists()
    assert (home / KEY_NAME).read_bytes() == before
    assert (home / "desk.toml").read_text() == text


def test_another_key_is_not_brought(home: Path) -> None:
    (home / "desk.toml").write_text(CONFIG.replace("coordinator_key", "#"))
    before = (home / "desk.toml").read_text()
    done = sealring("coordinator", "import", home / "laptop.key", "--config", home / "desk.toml")
    assert (done.code, "is not the key that signs" in done.err) == (2, True)
    assert (home / "desk.toml").read_text() == before


UP: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "absent": (
        lambda home: (home / KEY_NAME).unlink(),
        "there is no coordinator's key at",
        "sealring coordinator import FILE",
    ),
    "for all to read": (
        lambda home: (home / KEY_NAME).chmod(0o644),
        "others can read the private key",
        "chmod 600",
    ),
    "another": (
        lambda home: shutil.copy(home / "laptop.key", home / KEY_NAME),
        "is not the key that signs this cluster's rosters",
        "take 'coordinator_key' out",
    ),
}


@pytest.mark.parametrize("name", UP)
def test_a_node_with_a_wrong_key_says_so_at_its_start(home: Path, name: str) -> None:
    spoil, what, advice = UP[name]
    spoil(home)
    done = sealring("up", home / "desk.toml")
    assert done.code == 2
    assert what in done.err
    assert advice in done.err


# ---------------------------------------------------------------------- at nodes that run


@attrs.define
class Answers:
    """Answers of *node* to one request, in a thread: at least one, and until they are enough."""

    node: LocalNode
    tokens: int
    begun: threading.Event = attrs.field(factory=threading.Event)
    enough: threading.Event = attrs.field(factory=threading.Event)
    whole: list[dict[str, Any]] = attrs.field(factory=list)
    """How each ended."""

    def run(self) -> None:
        fields = {"prompt": "Count to a thousand.", "max_tokens": self.tokens, "seed": 1}
        while not (self.whole and self.enough.is_set()):
            for event in self.node.ask("generate", fields):
                if event["event"] == "text":
                    self.begun.set()
            self.whole.append(event)


@contextlib.contextmanager
def answering(node: LocalNode, tokens: int = 100) -> Iterator[Answers]:
    """Answers of *node* of so many *tokens*: the first has begun before the block, and the last,
    which is whole after it, was going on at its end."""
    answers = Answers(node, tokens)
    thread = threading.Thread(target=answers.run)
    thread.start()
    assert answers.begun.wait(PATIENCE)
    try:
        yield answers
    finally:
        answers.enough.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Path, LocalNode, LocalNode]]:
    """A ring of two that serves, whose configs name the coordinator's key: its folder and nodes."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        key = {"coordinator_key": KEY_NAME}
        configs = write_cluster(folder, 2, tiny.path(), options=key)
        head, other = [stack.enter_context(running_node(config)) for config in configs]
        for node in (head, other):
            wait_until_up(node)
        wait_for(head, "state", "serving")
        yield folder, head, other


def engineless(node: LocalNode) -> bool:
    """Whether *node* is a witness, and its engine has ended. It begins anew for that, and answers
    nobody for a moment."""
    try:
        status = node.status()
    except OperationError:
        return False
    return (status["state"], status["engine_pids"]) == ("witness", [])


@pytest.mark.slow
def test_a_stream_goes_on_while_a_machine_is_renamed_and_removed() -> None:
    with two_machines() as (folder, head, other):
        with answering(head) as alone:
            pass
        with answering(head) as answers:
            done = sealring("machines", "rename", "rank1", "den", "--config", other.config)
            assert done.code == 0, done.err
            assert "It is in force here" in done.out
            wait_for(head, "serial", 2)
            done = sealring("machines", "rights", "den", "--witness", "--config", head.config)
            assert "den: a witness, in no ring: roster 3" in done.out
            wait_for(head, "ring", [0])
            until(lambda: engineless(other), other.log.read_text)
            assert "a witness, in no ring" in sealring("status", "--config", head.config).out
            done = sealring("machines", "rights", "den", "--no-witness", "--config", head.config)
            assert done.code == 0, done.err
            wait_for(head, "ring", [0, 1])
            done = sealring("machines", "remove", "den", "--config", head.config, "--json")
            assert done.json() == {"serial": 5, "installed": True, "members": ["rank0"]}
        for each in answers.whole:
            assert each["token_ids"] == alone.whole[0]["token_ids"]
        assert head.status()["world"] == 1

        # The key is taken off a node that runs, which asks for it then.
        taken = folder / "taken.key"
        done = sealring("coordinator", "export", taken, "--config", head.config)
        assert done.code == 0, done.err
        rename = ("machines", "rename", "rank0", "desk", "--config", head.config)
        assert "names no coordinator's key" in sealring(*rename).err
        assert sealring(*rename, "--key", taken).code == 0
        assert head.status()["serial"] == 6


@pytest.mark.slow
def test_another_machine_becomes_the_head_while_a_stream_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The roster is signed on a machine that is not the head, which hands it to the head."""
    with two_machines() as (folder, head, other):
        with answering(head, 400) as answers:  # it comes to its end
            answers.enough.set()  # a head that lets its requests finish takes no other
            move = ("machines", "move", "rank1", "--rank", "0", "--config", other.config)
            done = sealring(*move, "--json")
        assert done.json() == {"serial": 2, "installed": True, "members": ["rank1", "rank0"]}, done
        assert answers.whole[0]["reason"] == "stop"  # a head that is cut off has its requests fail
        assert "rank0 lets its requests finish: roster 2 makes rank1 the head" in done.err
        wait_for(other, "role", "head")
        wait_for(other, "state", "serving")

        # Without options a machine asks about itself.
        text = head.config.read_text() + f'state = "{folder / "rank0.state"}"\n'
        (folder / "node.toml").write_text(text)
        monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: folder)
        assert re.search(r"(?m)^head +rank1$", sealring("status").out)
        made = sealring("apikey", "new", "alice")
        assert "this machine is not the head" in made.err
        assert "make one there, on rank1" in made.err
        for config in (head.config, other.config):
            listed = sealring("machines", "list", "--config", config, "--json").json()
            assert [each["state"] for each in listed["machines"]] == ["up", "up"]


@pytest.mark.parametrize("left", [20, -1])
def test_a_node_renews_the_roster_where_the_key_lies(left: int) -> None:
    with tempfile.TemporaryDirectory(prefix="sealring-") as name:
        folder = Path(name)
        key = {"coordinator_key": KEY_NAME}
        (config,) = write_cluster(folder, 1, tiny.path(), options=key)
        signer = SoftwareSigner.from_pem((folder / KEY_NAME).read_bytes())
        roster = SignedRoster.decode((folder / "demo.roster").read_bytes()).roster
        hour, now = 3_600_000, wall_ms()
        issued = now - (90 - left) * hour
        old = attrs.evolve(roster, issued_ms=issued, expires_ms=issued + 90 * hour)
        signed = sign_roster(old, signer)
        (folder / "demo.roster").write_bytes(signed.encode())
        RosterStore(folder / "rank0.state", signer.public_key).begin(signed)  # it was in use
        with running_node(config) as node:
            wait_until_up(node)
            wait_for(node, "serial", 2)
        assert "roster 1 is renewed as roster 2, valid until" in node.log.read_text()
        kept = SignedRoster.decode((folder / "rank0.state" / "adopted.roster").read_bytes())
        kept.verify(signer.public_key)
        assert kept.roster.members == old.members
        assert kept.roster.expires_ms - kept.roster.issued_ms == 90 * hour
        assert kept.roster.issued_ms >= now


def test_a_roster_is_renewed_when_a_third_is_left_by_one_rank_after_the_other() -> None:
    hour = 3600
    roster = make_roster(2, lifetime_ms=90 * 24 * hour * 1000).roster
    third = roster.expires_ms - (roster.expires_ms - roster.issued_ms) // 3
    assert due_in(roster, 0, third) == pytest.approx(0, abs=0.01)
    assert due_in(roster, 0, WALL) > 0
    assert due_in(roster, 1, third) == pytest.approx(hour, abs=0.01)
    assert due_in(roster, 1, roster.expires_ms) < 0
    brief = attrs.evolve(roster, issued_ms=WALL, expires_ms=WALL + 300_000)
    assert due_in(brief, 2, WALL + 200_000) == pytest.approx(6)

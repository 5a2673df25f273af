"""The commands that run or ask a node: mistakes that are told before anything starts, the demo,
and what the commands cost to start."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from sealring.cli import COMMANDS
from sealring.files.cluster import create_key
from sealring.local.reference import Gap, one_process, pace
from sealring_model import tiny
from sealring_tools.bench import hop, measure, solo
from sealring_trio.errors import OperationError

from tests.io_trio.helpers import sealring
from tests.io_trio.test_cli_files import expire, flip, make_home

CONFIG = """\
key = "desk.key"
roster = "home.roster"
coordinator = "coordinator.pub"
listen = "127.0.0.1:1"
model = "tiny"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_home(tmp_path_factory.mktemp("home"))
    (folder / "desk.toml").write_text(CONFIG)
    return folder


def edit(old: str, new: str) -> Callable[[Path], object]:
    """Change the config."""
    return lambda f: (f / "desk.toml").write_text(CONFIG.replace(old, new))


def break_model(folder: Path) -> None:
    model = Path(shutil.copytree(tiny.path(), folder / "model"))
    (model / "model.safetensors").write_bytes(b"\x00")
    edit('"tiny"', '"model"')(folder)


UP_MISTAKES: dict[str, tuple[Callable[[Path], object], int, str, str]] = {
    "no config": (lambda f: (f / "desk.toml").unlink(), 2, "no config file at desk.toml", ""),
    "wrong key in the file": (
        edit("listen", "listn"),
        2,
        "line 4: unknown key 'listn'",
        "The keys are",
    ),
    "wrong type": (edit('"tiny"', "7"), 2, "line 5: 'model'", ""),
    "no key": (lambda f: (f / "desk.key").unlink(), 2, "no private key at", "sealring keygen"),
    "key of others": (lambda f: (f / "desk.key").chmod(0o640), 2, "(mode 0640)", "chmod 600"),
    "no coordinator": (edit("coordinator.pub", "none.pub"), 2, "cannot read the public", ""),
    "wrong coordinator": (
        edit("coordinator.pub", "laptop.pub"),
        2,
        "is not signed by this coordinator key",
        "Check which",
    ),
    "no roster": (lambda f: (f / "home.roster").unlink(), 2, "cannot read the roster", "sign"),
    "unsigned roster": (edit("home.roster", "home.toml"), 2, "is not a signed roster", "draft"),
    "tampered roster": (lambda f: flip(f / "home.roster"), 2, "home.roster", ""),
    "expired roster": (expire, 2, "expired on 1970-01-02", "Also check this machine's clock"),
    "not a member": (
        lambda f: create_key(f / "x.key") and edit('"desk.key"', '"x.key"')(f),
        2,
        "is not in the roster",
        "sealring roster add",
    ),
    "the coordinator's key": (
        edit("desk.key", "coordinator.key"),
        2,
        "desk.toml: 'key' and 'coordinator' name one key",
        "The coordinator's belongs to no node",
    ),
    "its own key as the coordinator's": (
        edit("coordinator.pub", "desk.pub"),
        2,
        "desk.toml: 'key' and 'coordinator' name one key",
        "The coordinator's belongs to no node",
    ),
    "a public key": (
        edit("desk.key", "desk.pub"),
        2,
        "desk.pub is a public key, and a private key is needed",
        "Give its private half",
    ),
    "the key of another": (
        edit('listen = "127.0.0.1:1"', 'listen = "127.0.0.1:7471"'),
        2,
        "desk.toml has the key of 'desk', and the roster has 'laptop' at 127.0.0.1:7471, where "
        "this node listens",
        "give it the key of 'laptop'",
    ),
    "the key of another, at every address": (
        edit('listen = "127.0.0.1:1"', 'listen = "0.0.0.0:7471"'),
        2,
        "desk.toml has the key of 'desk', and the roster has 'laptop' at 127.0.0.1:7471",
        "give it the key of 'laptop'",
    ),
    "unknown model": (
        edit('"tiny"', '"owner/none"\noffline = true'),
        2,
        "cannot find the model",
        "hub id",
    ),
    **{
        f"no folder in models, fetch = '{fetch}'": (
            edit('"tiny"', f'"models/none"\nfetch = "{fetch}"'),
            2,
            "there is no folder models/none; if you mean the hub's",
            "",
        )
        for fetch in ("hub", "members")
    },
    "no model folder": (edit('"tiny"', '"./none"'), 2, "there is no folder", "'tiny'"),
    "broken model": (break_model, 2, "cannot use the model", "Fetch it again"),
    "layers": (
        edit('model = "tiny"', 'model = "tiny"\nlayers = [4, 30]'),
        2,
        "layers = [4, 30] does not fit 2 ranks and a model of",
        "sealring plan",
    ),
    "single": (
        edit('model = "tiny"', 'model = "tiny"\nstrategy = "single"'),
        2,
        "strategy = 'single' runs on one rank, and the roster has 2",
        "Use 'auto'",
    ),
    "heads of members": (
        edit('model = "tiny"', 'model = "tiny"\ntp = 3'),
        2,
        "tp = 3 does not fit a model with 8 and 4 heads: they cannot be shared out evenly",
        "Take a divisor of 4, or use strategy = 'pp'.",
    ),
    "a collective of collectives": (
        edit('model = "tiny"', 'model = "tiny"\ntp = 2\nstrategy = "tp"'),
        2,
        "strategy = 'tp' makes one collective of all 2 ranks, and tp = 2 one of this node alone",
        "Use strategy = 'pp': the ranks are its stages",
    ),
    "one address for both": (
        edit('"127.0.0.1:1"', '"127.0.0.1:7470"\napi = "127.0.0.1:7470"'),
        2,
        "desk.toml: 'listen' and 'api' are one address, 127.0.0.1:7470",
        "Other nodes dial 'listen', and clients 'api': give each a port of its own",
    ),
    "one address for both among all": (
        edit('"127.0.0.1:1"', '"0.0.0.0:7470"\napi = "127.0.0.1:7470"'),
        2,
        "desk.toml: 'listen' and 'api' are one address, 127.0.0.1:7470",
        "",
    ),
    "state": (
        edit('model = "tiny"', 'model = "tiny"\nstate = "desk.key/state"'),
        2,
        "cannot make the state folder",
        "'state'",
    ),
    "long state": (
        edit('model = "tiny"', f'model = "tiny"\nstate = "{"s" * 100}"'),
        2,
        "longer than 100 bytes",
        "'state'",
    ),
    "address of another": (
        edit("127.0.0.1:1", "192.0.2.1:7470"),
        1,
        "cannot listen at 192.0.2.1:7470",
        "This machine has no such address",
    ),
    "address of nobody": (
        edit("127.0.0.1:1", "host.invalid:7470"),
        1,
        "cannot listen at host.invalid:7470",
        "",
    ),
}


FIRST_TOKEN = 534
"""The first token of the tiny model's answer to the demo's prompt."""


@pytest.mark.parametrize(("spoil", "code", "what", "advice"), UP_MISTAKES.values(), ids=UP_MISTAKES)
def test_up_tells_mistakes(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], object],
    code: int,
    what: str,
    advice: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = Path(shutil.copytree(home, tmp_path / "h"))
    monkeypatch.chdir(folder)
    spoil(folder)
    done = sealring("up", "desk.toml")
    assert what in done.err
    assert advice in done.err
    assert done.code == code
    assert done.out == ""


@pytest.mark.parametrize("command", [["generate", "--prompt", "x"], ["status"]])
def test_no_node_is_running(home: Path, command: list[str]) -> None:
    done = sealring(*command, "--config", home / "desk.toml")
    assert done.code == 1
    assert "no node is running here" in done.err
    assert "Start it: sealring up CONFIG" in done.err


@pytest.mark.parametrize("command", [["generate", "--prompt", "x"], ["status"]])
def test_a_node_is_starting(home: Path, tmp_path: Path, command: list[str]) -> None:
    """It waits for a member to give it the model, and listens to nobody yet."""
    folder = Path(shutil.copytree(home, tmp_path / "h"))
    edit('"tiny"', '"owner/model"\nfetch = "members"')(folder)
    config = folder / "desk.toml"
    up = [sys.executable, "-m", "sealring", "up", config]
    with subprocess.Popen(up, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        done = sealring(*command, "--config", config)
        process.kill()
    assert done.code == 1
    assert "is starting" in done.err
    assert "Ask again soon" in done.err
    assert "no node is running" in sealring(*command, "--config", config).err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--max-tokens", "0"), ("--temperature", "-1"), ("--top-p", "2"), ("--seed", "x")],
)
def test_options_out_of_range(home: Path, option: str, value: str) -> None:
    done = sealring(*("generate", "--config", home / "desk.toml", "--prompt", "x"), option, value)
    assert done.code == 2
    assert option in done.err
    assert "sealring generate --help" in done.err


@pytest.mark.slow
def test_the_demo_proves_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sealring", "demo", "--max-tokens", "24", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["identical"] is True
    assert report["tokens"] == len(report["token_ids"]) == 24
    assert report["ring_tokens_per_s"] > 0
    assert report["single_tokens_per_s"] > 0
    assert 0 < report["hop_us"]["p50"] <= report["hop_us"]["p99"]
    assert 0 < report["seal_share"] < 1
    assert (report["suite"], report["strategy"]) == ("aes-256-gcm", "pp")
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert report["ranks"][0]["layers"][1] == report["ranks"][1]["layers"][0]


@pytest.mark.slow
def test_the_demo_of_tensor_parallelism() -> None:
    options = ("--strategy", "tp", "--collectives", "trusted-link")
    done = sealring("demo", *options, "--max-tokens", "24", "--json")
    assert done.code == 0
    report = done.json()
    assert report["identical"] is True
    assert report["strategy"] == "tp"
    assert "tensor parallelism over 2 ranks (ring): a token takes" in report["reason"]
    assert report["collectives"] == [
        "NOT SEALED: ring goes beside the sealed links, as the config allows"
    ]
    assert report["hop_us"] is None
    for rank in report["ranks"]:
        assert rank["layers"] == [0, report["ranks"][0]["layers"][1]]
        assert rank["share"] < 0.56


@pytest.mark.long
def test_the_demo_with_one_rank_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    done = sealring("demo", "--ranks", "1", "--max-tokens", "8", "--prompt", "Hello.")
    assert done.code == 0
    assert "tokens identical  yes" in done.out
    assert "single" in done.out
    assert "\nhop " not in done.out


@pytest.mark.slow
@pytest.mark.parametrize("command", [("demo",), ("serve", "--port", "0")])
def test_a_model_that_can_never_be_served_ends_the_wait(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.path(), folder, ignore=shutil.ignore_patterns("sealring.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "perceptron"}))
    done = sealring(*command, "--model", folder, "--json")
    assert done.code == 1
    error = done.json()["error"]
    assert "Model type perceptron not supported" in error["what"]
    assert (error["what"] in done.err, error["advice"] in done.err) == (True, True)
    assert error["exit_code"] == 1
    assert "the ring cannot serve: " in done.err
    assert "Model type perceptron not supported" in done.err
    assert "That should not happen" not in done.err
    assert "its log ends with" not in done.err


@pytest.mark.long
def test_a_demo_tells_a_tie_from_an_error(tmp_path: Path) -> None:
    """Two tokens whose logits differ in the last place, and whose log probabilities, which mlx-lm
    compares, are equal after rounding."""
    folder = tmp_path / "model"
    shutil.copytree(tiny.path(), folder, ignore=shutil.ignore_patterns("sealring.json"))
    weights = dict(mx.load(str(folder / "model.safetensors")))
    rows, norm = "model.embed_tokens.weight", "model.norm.weight"
    likely = weights[rows][FIRST_TOKEN] * (1 + 2**-22)
    weights[rows] = mx.concatenate([weights[rows][:-1], likely[None]])
    weights[norm] = weights[norm] * 1e-3  # small logits, beside which the sum of all is large
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    done = sealring("demo", "--model", folder, "--max-tokens", "4", "--json")
    assert done.code == 0
    report = done.json()
    assert report["single_token_ids"][0] == FIRST_TOKEN
    assert report["token_ids"][0] == len(weights[rows]) - 1
    assert (report["identical"], report["tie"], report["first_difference"]) == (False, True, 0)


@pytest.mark.slow
def test_a_demo_says_that_there_is_no_chat_template(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.path(), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    done = sealring("demo", "--ranks", "1", "--model", folder, "--max-tokens", "4")
    assert done.code == 0
    assert "This model has no chat template: a prompt is continued as it stands." in done.out
    assert "tokens identical  yes" in done.out


@pytest.mark.slow
def test_a_demo_says_that_mlx_lm_itself_raised(tmp_path: Path) -> None:
    """An eos_token_id that only mlx-lm reads, for the generation's settings have another."""
    folder = tmp_path / "model"
    shutil.copytree(tiny.path(), folder, ignore=shutil.ignore_patterns("sealring.json"))
    config = json.loads((folder / "config.json").read_text())
    settings = {"eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 1.5}))
    done = sealring("demo", "--model", folder, "--ranks", "1", "--max-tokens", "2")
    assert done.code == 1
    assert "tokens identical  not compared: mlx-lm itself raised an error" in done.out
    assert "mlx-lm itself raised an error with this model: TypeError" in done.err
    assert "sealring verify" in done.err
    assert "the engines start, load their layers" in done.err


def test_what_mlx_lm_raises_is_told_in_words(tmp_path: Path) -> None:
    """The comparison fails on what the ring does without: a class that is to be the tokenizer."""
    folder = tmp_path / "model"
    shutil.copytree(tiny.path(), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": "4"}))
    failed = pytest.raises(OperationError, match="mlx-lm itself raised an error: TypeError")
    with failed, one_process(folder):
        pass


@pytest.mark.slow
def test_mlx_lm_is_compared_with_where_transformers_refuses_the_configuration(
    tmp_path: Path,
) -> None:
    """As that of Nemotron-H and of Granite's hybrids, whose ring answers."""
    folder = Path(shutil.copytree(tiny.path(), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "initializer_range": None}))
    with one_process(folder) as odd, one_process(tiny.path()) as single:
        answer, expected = (each.generate("Tell me a story.", 12) for each in (odd, single))
    assert (answer.tokens, answer.text) == (expected.tokens, expected.text)


def test_what_is_more_than_rounding_is_no_tie() -> None:
    unit = 2.0**-23
    assert Gap(0.0, unit).is_tie
    assert Gap(4 * unit, unit).is_tie
    assert not Gap(5 * unit, unit).is_tie


@pytest.mark.parametrize("ranks", ["0", "9", "17"])
def test_a_demo_of_no_ring(ranks: str) -> None:
    done = sealring("demo", "--ranks", ranks)
    assert done.code == 2
    assert "ranks" in done.err


def test_every_bench_reports_its_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROUNDS", 3)
    monkeypatch.setattr(measure, "ROUND_SECONDS", 0.005)
    monkeypatch.setattr(hop, "ROUNDS", 2)
    monkeypatch.setattr(hop, "TRIPS", 20)
    for command, lines in (("codec", 4), ("handshake", 1), ("hop", 4)):
        results = sealring("bench", command, "--json").json()
        assert len(results) == lines
        for result in results:
            assert result["ours"] > 0
            assert result["ratio"] == pytest.approx(result["ours"] / result["yardstick"])
            assert result["name"]
            assert result["unit"]
            assert result["yardstick_name"]
    assert "ratio" in sealring("bench", "handshake").out


@pytest.mark.long
def test_the_solo_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solo, "TURNS", 1)
    monkeypatch.setattr(solo, "TOKENS", 8)
    (result,) = sealring("bench", "solo", "--json").json()
    assert result["ratio"] > 0


def python(program: str) -> subprocess.CompletedProcess[str]:
    """A *program* that has run in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from sealring.cli import run; run(['--help']);"
        "print(*(m for m in ('mlx', 'mlx_lm', 'trio', 'transformers', 'pydantic',"
        " 'cryptography', 'sealring_model') if m in sys.modules), file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = python(program)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert done.stderr.strip() == ""
    assert spent < 2.0  # 0.25 s of a core on an idle machine


def test_commands_that_need_no_model_import_no_mlx(tmp_path: Path) -> None:
    program = (
        "import sys; from sealring.cli import run;"
        f"run(['keygen', {str(tmp_path / 'k')!r}]);"
        "run(['status', '--config', 'none.toml']);"
        "print(*(m for m in ('mlx', 'mlx_lm', 'transformers') if m in sys.modules))"
    )
    done = python(program)
    assert done.stdout.splitlines()[-1] == ""


def test_a_node_imports_no_web_server_that_it_does_not_run() -> None:
    program = (
        "import sys, sealring_trio.node.service;"
        "print(*(m for m in ('h11', 'starlette', 'transformers') if m in sys.modules))"
    )
    done = python(program)
    assert done.stdout == "\n"


def test_help_teaches() -> None:
    program = (
        "from sealring.cli import COMMANDS, run;"
        "[(run([c, '--help']), print('\\f', end='')) for c in COMMANDS]"
    )
    done = python(program)
    pages = done.stdout.split("\f")
    for command, page in zip(COMMANDS, pages, strict=False):
        usage, _, text = page.partition("\n")
        assert f"sealring {command}" in usage
        assert f"    sealring {command}" in text  # an example
        assert (
            command in ("digest", "status", "bench", "vectors", "decode", "peer") or "Next" in text
        )
        assert max(map(len, page.splitlines())) <= 80
    assert "sealring demo" in sealring("--help").out


def test_tokens_that_come_at_once_have_no_pace() -> None:
    """As those that stand for no text."""
    assert pace([7.0, 7.0]) == pace([7.0]) == pace([]) == 0.0
    assert pace([7.0, 7.5, 8.0]) == 2.0

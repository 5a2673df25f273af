"""The floors of the house: what may import what, read from the source of every module."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PURE = {
    # The standard library's parts that touch nothing outside the process.
    "__future__",
    "abc",
    "base64",
    "binascii",
    "bisect",
    "collections",
    "contextlib",
    "enum",
    "fractions",
    "functools",
    "hmac",
    "ipaddress",
    "itertools",
    "math",
    "operator",
    "struct",
    "typing",
    # The two dependencies.
    "attrs",
    "cryptography",
    "sealring_protocol",
}
PROTOCOL = "protocol/sealring_protocol"
CONFORMANCE = f"{PROTOCOL}/conformance/"
CONFORMANCE_ALSO = {
    "__main__.py": {"argparse", "json", "pathlib", "signal", "sys"},  # the command
    "files.py": {"json", "pathlib"},  # reads the vectors
    "kinds.py": {"hashlib", "re"},
    "report.py": {"random"},  # cuts at places that a seed gives
    "result.py": {"hashlib", "json"},
}
"""What modules of the room that runs the vectors import beside; the other modules, nothing."""


@functools.cache
def imports(folder: str) -> list[tuple[str, str]]:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [(str(path.relative_to(ROOT)), alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                found.append((str(path.relative_to(ROOT)), node.module or ""))
    return found


def calls(folder: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield str(path.relative_to(ROOT)), node


def test_the_protocol_is_pure():
    modules = imports(PROTOCOL)
    assert len(modules) > 100
    for path, module in modules:
        room, _, name = path.rpartition("/")
        also = CONFORMANCE_ALSO.get(name, set()) if f"{room}/" == CONFORMANCE else set()
        assert module.partition(".")[0] in PURE | also, f"{path} imports {module}"


def test_nothing_of_the_protocol_needs_the_room_that_reads_files():
    for path, module in imports(PROTOCOL):
        if module.startswith("sealring_protocol.conformance"):
            assert path.startswith(CONFORMANCE), f"{path} imports {module}"


def test_the_protocol_draws_no_entropy_but_signing_and_keys_from_seeds():
    banned = {"generate", "urandom", "token_bytes", "generate_private_key", "encapsulate"}
    for path in sorted((ROOT / PROTOCOL).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in banned, f"{path.name}:{node.lineno} calls {node.attr}"


def test_the_only_chance_in_the_protocol_has_a_seed():
    for path, call in calls(PROTOCOL):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "random":
            assert call.func.attr == "Random", f"{path}:{call.lineno}"
            assert call.args, f"{path}:{call.lineno}"


def test_the_protocol_opens_nothing_and_prints_nothing():
    banned = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
    for path, call in calls(PROTOCOL):
        if isinstance(call.func, ast.Name) and path != f"{CONFORMANCE}__main__.py":
            assert call.func.id not in banned, f"{path}:{call.lineno}"


def test_the_room_that_reads_files_writes_none():
    writes = {"write_text", "write_bytes", "mkdir", "touch", "unlink", "rename", "rmdir"}
    for path, call in calls(CONFORMANCE):
        if isinstance(call.func, ast.Attribute):
            assert call.func.attr not in writes, f"{path}:{call.lineno}"


@pytest.mark.parametrize("name", ["sealring_trio", "sealring", "trio"])
def test_the_model_does_not_know_the_adapter(name):
    modules = imports("model")
    assert len(modules) > 50
    for path, module in modules:
        assert module.partition(".")[0] != name, f"{path} imports {module}"


def test_nothing_that_is_installed_knows_the_tools():
    for folder in ("protocol", "model", "io_trio", "daemon"):
        for path, module in imports(folder):
            assert not module.startswith("sealring_tools"), f"{path} imports {module}"


def test_the_client_needs_httpx2_alone():
    for path, module in imports("daemon/sealring_client"):
        name = module.partition(".")[0]
        assert name in {*sys.stdlib_module_names, "httpx2"}, f"{path} imports {module}"


APPLICATION = {
    "sealring",
    "cyclopts",
    "jinja2",
    "llguidance",
    "prometheus_client",
    "platformdirs",
    "prompt_toolkit",
    "rich",
    "segno",
    "starlette",
}


def test_the_adapter_knows_no_application():
    """`sealring-trio` alone is a node that can be embedded: no HTTP server, no page, no command."""
    modules = imports("io_trio")
    assert len(modules) > 200
    for path, module in modules:
        assert module.partition(".")[0] not in APPLICATION, f"{path} imports {module}"


def test_the_adapter_is_thin():
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "io_trio").rglob("*.py"))
    assert lines <= 10_000


ROOMS = {
    PROTOCOL: (
        *("limits", "errors", "words", "table", "codec", "security", "link", "relay", "joining"),
        *("control", "control/epoch", "control/scheduler", "control/head"),
        *("events", "links", "voting", "diagnosis", "role", "node", "conformance"),
    ),
    "model/sealring_model": (
        *("errors", "mlx_lm_import", "machine", "stage", "loading", "text", "channel", "sampling"),
        *("lookahead", "draft", "engine", "tiny", "verify"),
    ),
    "io_trio/sealring_trio": (
        *("errors", "units", "processes", "net", "fetching", "files"),
        *("collective", "engine", "node"),
    ),
    "daemon/sealring": (
        *("output", "logs", "files", "forecast", "text", "generation", "dialects", "structured"),
        *("text_worker", "http", "dashboard", "local", "joining", "discovery"),
        *("service", "verify", "cli", "__main__"),
    ),
}
"""The rooms of each package, in order. A room imports what stands before it."""


def room_of(module: str, rooms: tuple[str, ...]) -> str:
    """The innermost of *rooms* that holds *module*, a path below its package."""
    inner = [room for room in rooms if f"{module}/".startswith(f"{room}/")]
    assert inner, f"{module} is in no room: add it to ROOMS, in its place"
    return max(inner, key=len)


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms_have_an_order_and_no_circle(folder):
    rooms, package = ROOMS[folder], folder.rpartition("/")[2]
    for path, module in imports(folder):
        name, _, below = module.partition(".")
        own = path.removeprefix(f"{folder}/").removesuffix(".py").removesuffix("/__init__")
        if name != package or not below or own == "__init__":
            continue
        before = rooms.index(room_of(below.replace(".", "/"), rooms))
        assert before <= rooms.index(room_of(own, rooms)), f"{path} imports {module}"


TWICE = {"Dial", "Event", "State", "WaitSignature", "WaitStore"}
"""Both ends of the handshake have these."""


def test_a_public_class_has_a_name_of_its_own():
    places: dict[str, list[str]] = {}
    for folder in ROOMS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(path.name)
    assert {name: where for name, where in places.items() if len(where) > 1}.keys() == TWICE


PARSES_JSON = {
    "dialects/messages.py": "runs in a text worker",
    "structured/forms.py": "runs in a text worker",
    "text_worker.py": "is the text worker",
    "text/workers.py": "reads what this node's own text workers say, of few values (is_small)",
    "local/ring.py": "is a command, which reads the logs of its own nodes",
    "local/node_socket.py": "is a command, which reads what its own node says",
    "local/reference.py": "is a child process of a command, and its parent",
    "local/chat_session.py": "is a command, which reads a private file of its user",
    "verify/judge.py": "is a command, which reads what its own child says",
    "loading/foreign_json.py": "is where the rest is parsed",
    "text/argument_types.py": "reads one argument that the ring's own model took longer to write",
    "text/readers.py": "reads a name or a text that the ring's own model took longer to write",
    "text/tokens.py": "reads what the tokenizers library has made of a file that was checked",
    "verify.py": "reads what its own parent says",
    "node/service.py": "reads what installed this program",
    "sealring_client/__init__.py": "is a client, which reads what a ring answers it",
}
"""Every module that calls `json.loads`, and why that is no text of others, or cannot cost the node
anything. Other texts go through `parse_foreign`, which counts values before it parses."""


def test_json_that_others_wrote_is_parsed_in_one_place():
    found = set()
    for folder in ("io_trio/sealring_trio", "daemon", "model/sealring_model"):
        for path, call in calls(folder):
            name = path.removeprefix(f"{folder}/").removeprefix("sealring/")
            if ast.unparse(call.func) in ("json.loads", "json.load"):
                found.add(name)
    assert found == PARSES_JSON.keys()


@pytest.mark.parametrize("folder", ["protocol", "model", "io_trio", "daemon"])
def test_what_is_installed_needs_nothing_of_the_repository(folder):
    beside = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {"spec", "tests", "training"} <= beside
    for path, module in imports(folder):
        assert module.partition(".")[0] not in beside, f"{path} imports {module}"


def test_modules_open_with_their_theory_and_stay_short():
    for folder in ("protocol", "model", "io_trio", "daemon", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            assert ast.get_docstring(ast.parse(text)), f"{path} says nothing of itself"
            assert len(text.splitlines()) <= 1000, f"{path} is too long to hold one thing"

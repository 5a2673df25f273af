"""Runs a client's script in the client's environment, and reads what it says."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from tests.clients.catalog import FEATURES, UNSERVED, Client
from tests.clients.install import place_of
from tests.clients.rings import Rings

HERE: Final = Path(__file__).parent
LIMIT: Final = 600  # seconds for all of one client

QUIET: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LANGSMITH_TRACING": "false",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "NEXT_TELEMETRY_DISABLED": "1",
}
"""What keeps clients from asking anyone but the ring."""


@attrs.frozen
class Outcome:
    """One feature of one client: *why* it fails, or nothing."""

    client: str
    version: str
    api: str
    feature: str
    why: str

    @property
    def may_fail(self) -> str | None:
        """Why it may fail, if it may."""
        return UNSERVED.get((self.client, self.api, self.feature))

    @property
    def is_right(self) -> bool:
        """Whether it holds, or is known not to."""
        return not self.why or self.may_fail is not None


def attempt(
    client: Client, version: str, cache: Path, rings: Rings, features: Sequence[str] = ()
) -> list[Outcome]:
    """What *client*'s script says of each feature, or of *features* alone."""
    place = place_of(client, cache)
    script = HERE / client.script
    with tempfile.TemporaryDirectory(prefix="sealring-") as home:
        if script.suffix == ".mjs":  # imports are found from where the script lies
            folder = place / "scripts"
            folder.mkdir(exist_ok=True)
            for each in script.parent.glob("*.mjs"):
                (folder / each.name).write_text(each.read_text())
            command = ["node", str(folder / script.name)]
        elif client.is_node:  # a program of npm's that a script of ours drives
            command = ["python3", str(script)]
        else:
            command = [str(place / "bin" / "python"), str(script)]
        environment = {
            "PATH": f"{place / 'bin'}:{place / 'node_modules' / '.bin'}:{os.environ['PATH']}",
            "HOME": home,
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(HERE / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **QUIET,
            **rings.told(),
            **{name: value for name, value in os.environ.items() if name == "RING_VERBOSE"},
        }
        try:
            done = subprocess.run(
                [*command, *features], env=environment, cwd=home, capture_output=True, text=True,
                timeout=LIMIT, check=False,
            )  # fmt: skip
            out, why = done.stdout, (done.stderr.strip().splitlines() or ["nothing"])[-1]
            if "RING_VERBOSE" in os.environ:
                print(done.stderr)
        except subprocess.TimeoutExpired as late:
            out = late.stdout.decode() if isinstance(late.stdout, bytes) else (late.stdout or "")
            why = f"it took longer than {LIMIT} s"
            done = None
    told = [json.loads(line) for line in out.splitlines() if line.startswith('{"api"')]
    outcomes = [
        Outcome(client.name, version, each["api"], each["feature"], each["why"]) for each in told
    ]
    for each in outcomes:
        assert each.feature in FEATURES, each
    if done is None or done.returncode or (not outcomes and not features):
        outcomes.append(Outcome(client.name, version, "", "answer", f"its script failed: {why}"))
    return outcomes

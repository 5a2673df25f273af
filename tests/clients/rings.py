"""The two rings: the tiny model, and one that plays scripts.

What a script is begun with, its model's template decides: the result of a call that it knows, or
the name of the agent's own tool, or else the last text. So agents, which say much around what a
person asks, are answered as well.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
from sealring.local.ring import local_ring
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports

from tests.api import scripted
from tests.api.scripted import END

COMMAND = "echo sun''ny"  # what an agent runs; its output has no quotes

SCRIPTS = [
    *scripted.SCRIPTS,
    ["sunny", "It is", " sun", "ny in", " Paris.", END],
    [
        "run-bash",
        '<tool_call>{"name": "Bash", ',
        f'"arguments": {{"command": "{COMMAND}", "description": "Says it"}}}}',
        "</tool_call>",
    ],
    [
        "run-exec",
        '<tool_call>{"name": "exec_command", ',
        f'"arguments": {{"cmd": "{COMMAND}"}}}}',
        "</tool_call>",
    ],
]

TEMPLATE = (
    "{% set last = messages[-1] %}"
    "{% set offered = tools | default([], true) | map(attribute='function.name') | list %}"
    "{% for tool_call in last.tool_calls or [] %}<tool_call>{{ tool_call.name }}{% endfor %}"
    "{% if last.role == 'tool' %}{{ 'sunny' if 'sunny' in last.content else 'nothing' }}"
    "{% elif 'weather' in last.content and 'Bash' in offered %}run-bash"
    "{% elif 'weather' in last.content and 'exec_command' in offered %}run-exec"
    "{% elif 'ponder' in last.content %}think"
    "{% else %}"
    "{% for word in ['weather', 'think', 'fruit', 'endless', 'nothing'] %}"
    "{% if word in last.content %}{{ word }}{% endif %}{% endfor %}"
    "{% endif %}"
)


@attrs.frozen
class Rings:
    """Where the rings serve, without ``/v1``, and the key of both."""

    tiny: str
    scripted: str
    key: str

    def told(self) -> dict[str, str]:
        """What a script finds in its environment."""
        return {
            "RING_TINY": self.tiny,
            "RING_SCRIPTED": self.scripted,
            "RING_KEY": self.key,
            "RING_TOKENIZER": str(tiny.path()),
        }


@contextlib.contextmanager
def rings() -> Iterator[Rings]:
    """Both rings, until the block ends."""
    key = f"sk-{secrets.token_hex(24)}"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        (model := folder / "scripted").mkdir()
        scripted.build(model, SCRIPTS)
        about = model / "tokenizer_config.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"chat_template": TEMPLATE}))
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        for path, address in zip((tiny.path(), model), addresses, strict=True):
            stack.enter_context(local_ring(1, path, api=address, api_key=key))
        yield Rings(*(f"http://{address}" for address in addresses), key)

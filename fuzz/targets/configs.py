"""The files that people write: a node's config and a roster's draft.

Input: which of them, then the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from sealring.files.cluster import build_roster, read_draft, write_draft
from sealring.files.config import Config, load_config
from sealring_protocol.security.identity import SoftwareSigner
from sealring_trio.errors import UserError

from fuzz.source import Source

NAMED: Final = 'key = "a"\nroster = "b"\ncoordinator = "c"\nlisten = "h:1"\nmodel = "tiny"\n'
CONFIGS: Final = (
    NAMED,
    NAMED + 'layers = [2, 2]\nmemory = "3.5G"\napi = "[::1]:7480"\ntimeout = 60.5\n',
    NAMED + 'strategy = "tp"\ncollectives = "trusted-link"\nbackend = "nccl"\ngroup_timeout = 9\n',
    NAMED + 'tp = 2\ngroups = 2\nrows = 8\nqueue = 4\nprefixes = 0\napi = "off"\n',
    NAMED + 'suites = ["aes-256-gcm"]\nstate = "s"\nkeylog = "k"\n',
)
KEY: Final = SoftwareSigner.from_scalar(1).public_key.hex()
DRAFTS: Final = (
    'name = "home"\ncluster = "' + 64 * "0" + '"\ninner_seal = true\n',
    'name = "home"\ncluster = "' + 64 * "a" + '"\ninner_seal = false\ntensor_parallelism = false\n'
    f'[[member]]\nname = "desk"\npublic_key = "{KEY}"\naddresses = ["h:1", "[::1]:2"]\n'
    'trust = "hardware"\n',
)
LONGEST_REFUSAL: Final = 2000
"""Characters for each line of the file, at most, that is at fault."""


def seeds() -> Iterator[bytes]:
    """Files with every key, whole and cut off."""
    for number, files in enumerate((CONFIGS, DRAFTS)):
        for file in files:
            yield bytes([number]) + file.encode()
            yield bytes([number]) + file[:-2].encode()


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sealring-")


def check(data: bytes) -> None:
    """It is taken, or refused with words; what was taken of a draft can be written and read."""
    source = Source(data)
    is_draft = source.flag()
    path = Path(_folder().name) / "file.toml"
    path.write_bytes(source.rest())
    try:
        if is_draft:
            draft = read_draft(path)
            write_draft(path, draft)
            assert read_draft(path) == draft
            signed = build_roster(draft, 1, 0, 1)
            assert len(signed.members) == len(draft.member)
        else:
            _check_config(load_config(path))
    except UserError as error:
        _check_refusal(error, 1 + data.count(b"\n"))


def _check_config(config: Config) -> None:
    assert 0 < config.listen[1] < 1 << 16
    assert config.memory is None or config.memory > 0
    assert config.timeout > 0
    assert config.group_timeout > 0
    assert config.tp >= 1
    assert config.suites


def _check_refusal(error: UserError, lines: int) -> None:
    assert error.what
    assert len(str(error)) < LONGEST_REFUSAL * lines

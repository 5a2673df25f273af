"""What a member says that it has of a model: whatever it says, nothing leads out of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from sealring_protocol.codec.messages import Get
from sealring_trio.fetching.members import MAX_FILES, MAX_SIZE, read_listing

_FILES = {"config.json": 700, "model-00001-of-00002.safetensors": 1 << 33, "tokenizer.model": 9}


def seeds() -> Iterator[bytes]:
    """A listing, whole and with what may not be in one."""
    names = ["../x.json", "/x.json", "a/b.json", ".x.json", "sealring.partial.json", "x\\y.json"]
    tensors = {"model.norm.weight": "0" * 64, "model.layers.0.mlp.up_proj.weight": ""}
    whole = {"files": _FILES, "tensors": tensors, "pins": ["0", str(2**64 - 1)]}
    yield json.dumps(whole).encode()
    yield json.dumps({**whole, "files": dict.fromkeys(names, 1)}).encode()
    yield json.dumps({**whole, "pins": [1, "-1", "9" * 20]}).encode()
    yield json.dumps({**whole, "tensors": {"a": None}}).encode()


def check(data: bytes) -> None:
    """It is taken or refused; each file of it may be asked for, and is written where it should."""
    try:
        found = read_listing(data)
    except ValueError:
        return
    assert len(found.files) <= MAX_FILES
    for name, file in found.files.items():
        Get(name, 0, 1)
        assert PurePosixPath(name).name == name.replace("\\", "/") == name
        assert not name.lower().startswith((".", "sealring.partial."))
        assert 0 <= file.size <= MAX_SIZE
    assert all(0 <= pin < 1 << 64 for pin in found.pins)
    assert all(told == "" or len(bytes.fromhex(told)) == 32 for told in found.tensors.values())

"""Hostile model folders: manifests, weights, tokenizers and templates that another wrote."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
from sealring.generation.generation import Generator
from sealring.text.workers import TextWorkers
from sealring_model import tiny
from sealring_model.errors import LoadError, TextError
from sealring_model.loading.model_folder import describe
from sealring_model.loading.weights import write_manifest
from sealring_model.text.tokens import Tokenizer, check_tokenizer
from sealring_protocol.diagnosis import Cause
from sealring_trio.errors import OperationError

from tests.attacks.test_floods import at_work
from tests.attacks.test_local import INTRUDER
from tests.rows import rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the model that ships with sealring."""
    return Path(shutil.copytree(tiny.path(), tmp_path / "model"))


@pytest.mark.parametrize("name", ["sealring.partial", "sealring.json"])
def test_a_manifest_is_written_over_nothing_that_the_folder_points_to(
    folder: Path, tmp_path: Path, name: str
) -> None:
    profile = tmp_path / "profile"
    profile.write_text("of the operator")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(profile)
    assert write_manifest(folder).is_file()
    assert profile.read_text() == "of the operator"
    assert not (folder / "sealring.json").is_symlink()


DEEP = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"


def replaced(name: str, text: str) -> Callable[[Path], None]:
    """Write *text* into file *name* of the folder."""
    return lambda folder: (folder / name).write_text(text) and None


def configured(key: str, value: Any) -> Callable[[Path], None]:
    """Set *key* of the configuration."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))

    return change


def a_tensor_with(**fields: Any) -> Callable[[Path], None]:
    """Set *fields* of the first tensor in the weights' header."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        data = file.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        first = next(name for name in header if name != "__metadata__")
        header[first].update(fields)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return change


def a_header(text: str) -> Callable[[Path], None]:
    """Have *text* for the weights' header."""
    data = struct.pack("<Q", len(text)) + text.encode()
    return lambda folder: (folder / "model.safetensors").write_bytes(data) and None


def linked(name: str, to: str) -> Callable[[Path], None]:
    """Have *name* lead *to* somewhere."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(to)

    return change


def a_pipe(name: str) -> Callable[[Path], None]:
    """Have a pipe for *name*, which holds up who reads it."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


FOLDERS = {
    "configuration too deep": replaced("config.json", DEEP),
    "layer types are a number": configured("layer_types", 5),
    "model type is a list": configured("model_type", []),
    "the number of layers is a text": configured("num_hidden_layers", "x"),
    "configuration without end": linked("config.json", "/dev/zero"),
    "configuration is a pipe": a_pipe("config.json"),
    "tokenizer without end": linked("tokenizer.json", "/dev/zero"),
    "tokenizer is a pipe": a_pipe("tokenizer.json"),
    "weights are a pipe": a_pipe("model.safetensors"),
    "weights lead nowhere": linked("model.safetensors", "/nowhere"),
    "weights are a folder": linked("model.safetensors", "/"),
    "header too deep": a_header(DEEP),
    "shape of negative numbers": a_tensor_with(shape=[-1, -1], dtype="U8", data_offsets=[0, 1]),
    "shape of fractions": a_tensor_with(shape=[1.0], dtype="U8", data_offsets=[0, 1]),
    "shape without bound": a_tensor_with(shape=[float("inf")]),
    "shape that is empty for its size": a_tensor_with(shape=[2**40, 0], data_offsets=[0, 0]),
    "shape of a million numbers": a_header(
        json.dumps({"x": {"dtype": "U8", "shape": [2**31 - 1] * 1_000_000, "data_offsets": [0, 1]}})
    ),
    "places of fractions": a_tensor_with(shape=[1], dtype="U8", data_offsets=[0.0, 1.0]),
    "layer of 5,000 digits": a_header(
        json.dumps(
            {f"layers.{'9' * 5000}.x": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
        )
    ),
    "index of a list": replaced("model.safetensors.index.json", '{"weight_map": []}'),
    "index of numbers": replaced("model.safetensors.index.json", '{"weight_map": {"a": 1}}'),
    "manifest too deep": replaced("sealring.json", DEEP),
    "nothing, any more": shutil.rmtree,
}


@pytest.mark.parametrize("spoil", FOLDERS.values(), ids=FOLDERS)
def test_a_hostile_model_is_refused_and_told(folder: Path, spoil: Callable[[Path], None]) -> None:
    spoil(folder)
    with pytest.raises(LoadError):
        describe(folder)


@pytest.mark.parametrize("value", ["x" * 3_000_000, "\0\x1b[2J"], ids=["long", "hidden"])
def test_an_error_that_has_words_of_a_file_can_be_shown(folder: Path, value: str) -> None:
    configured("vocab_size", value)(folder)
    with pytest.raises(LoadError) as caught:
        describe(folder)
    assert len(str(caught.value)) < 5000
    assert str(caught.value).isprintable()


def in_tokenizer(key: str, value: Any) -> Callable[[Path], None]:
    """Set *key* of the tokenizer's configuration."""

    def change(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))

    return change


def decoding(*steps: dict[str, Any]) -> Callable[[Path], None]:
    """Have the tokenizer decode in *steps*."""

    def change(folder: Path) -> None:
        file = folder / "tokenizer.json"
        described = json.loads(file.read_text())
        described["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, *steps]}
        file.write_text(json.dumps(described))

    return change


SEARCH = {"type": "Replace", "pattern": {"Regex": "(.|.)*[^\\x00-\\x7f]"}, "content": ""}
"""It takes time that doubles with each character, up to where its library panics."""

STRIP = {"type": "Strip", "content": "f", "start": 0, "stop": 1000}
"""It panics for a text that has fewer characters, all of which are to go."""


def test_a_token_that_makes_the_tokenizer_panic_is_an_error_of_its_answer(folder: Path) -> None:
    decoding(STRIP)(folder)
    tokenizer = Tokenizer(folder)
    (token,) = tokenizer.encode_part("f")
    words = tokenizer.stream()
    with pytest.raises(TextError, match="makes no text"):
        words.add(token)
    assert tokenizer.token_bytes(token) == b""  # after another text it adds nothing


GROW = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}
"""Each makes a text ten times as long."""

KEEP = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
BETWEEN = {"type": "Replace", "pattern": {"String": ""}, "content": "e" * 10}
SLOW = {"type": "Replace", "pattern": {"String": "e" * 100_000 + "f"}, "content": ""}


def with_a_token(text: str) -> Callable[[Path], None]:
    """Have *text* for one of the tokenizer's tokens."""

    def change(folder: Path) -> None:
        file = folder / "tokenizer.json"
        described = json.loads(file.read_text())
        last = described["added_tokens"][-1]
        described["added_tokens"].append({**last, "id": 10_000, "content": text})
        file.write_text(json.dumps(described))

    return change


TOKENIZERS = {
    "decoder that grows a text": decoding(*[GROW] * 10),
    "decoder that grows a text between its characters": decoding(*[BETWEEN] * 10),
    "decoder of a suffix that is everywhere": decoding(
        *[{"type": "BPEDecoder", "suffix": ""}] * 40
    ),
    "decoder of many steps": decoding(*[KEEP] * 100_000),
    "decoder that looks for a long text": decoding(SLOW),
    "decoder of nested steps": decoding({"type": "Sequence", "decoders": [GROW] * 10}),
    "token without end": with_a_token("e" * 1_000_000),
    "decoder that searches": decoding(SEARCH),
    "too deep": replaced("tokenizer.json", DEEP),
    "no object": replaced("tokenizer.json", "[]"),
    "settings too deep": replaced("tokenizer_config.json", DEEP),
    "class is a number": in_tokenizer("tokenizer_class", 5),
    "mark is a number": in_tokenizer("eos_token", 5),
    "parser outside": in_tokenizer("tool_parser_type", "../../parser"),
    "template outside": in_tokenizer("chat_template_type", "..template"),
    "end is a text": replaced("generation_config.json", '{"eos_token_id": ["x"]}'),
    "end without bound": replaced("generation_config.json", '{"eos_token_id": [1e400]}'),
}


@pytest.mark.parametrize("spoil", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_hostile_tokenizer_is_refused_and_told(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(folder)
    with pytest.raises(LoadError):
        Tokenizer(folder)


def test_a_token_as_long_as_no_model_has_one(folder: Path) -> None:
    """And a decoder of more steps than any."""
    decoding(*[KEEP] * 6)(folder)
    with_a_token("e" * 1000)(folder)
    assert Tokenizer(folder).encode("Once")


@pytest.mark.parametrize("settings", ["config.json", "tokenizer_config.json"])
def test_no_code_of_a_models_folder_is_run(folder: Path, settings: str) -> None:
    (folder / "intruder.py").write_text(INTRUDER)
    places = {"AutoConfig": "intruder.C", "AutoTokenizer": ["intruder.T", "intruder.T"]}
    file = folder / settings
    file.write_text(json.dumps({**json.loads(file.read_text()), "auto_map": places}))
    assert Tokenizer(folder).encode("Once")
    assert not (folder / "was-run").exists()


def test_tensors_in_one_place(folder: Path) -> None:
    """Else a header of many large ones would have each of them fetched and hashed."""
    fields = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
    other = {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}
    text = json.dumps({"layers.0.x": fields, "layers.0.y": other}).encode()
    data = struct.pack("<Q", len(text)) + text + b"abc"
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(LoadError, match="overlap"):
        describe(folder)


def in_file(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Have *change* made to the JSON of file *name*."""

    def spoil(folder: Path) -> None:
        file = folder / name
        value = json.loads(file.read_text())
        change(value)
        file.write_text(json.dumps(value))

    return spoil


def sparse(name: str, size: int) -> Callable[[Path], None]:
    """Have a file *name* of *size* bytes."""

    def spoil(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return spoil


def long_marks(told: dict[str, Any]) -> None:
    """40 marks of 4,000 characters."""
    last = told["added_tokens"][-1]
    for at in range(40):
        content = f"<|{at}" + "\N{GOTHIC LETTER AHSA}" * 4000
        told["added_tokens"].append({**last, "id": 5000 + at, "content": content})


UNREADABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a template of 20 GiB": (sparse("chat_template.jinja", 20 << 30), "bytes, and"),
    "another template of 20 GiB": (
        sparse("additional_chat_templates/tools.jinja", 20 << 30),
        "bytes, and",
    ),
    "merges of 80 MiB": (sparse("merges.txt", 80 << 20), "bytes, and"),
    "a tokenizer that another library reads": (
        replaced("tekken.json", "[" + "[]," * 3_000_000 + "1]"),
        "values, and",
    ),
    "a table of a normalizer": (
        replaced("normalizer.json", "[" + "[]," * 900_000 + "1]"),
        "values",
    ),
    "a tokenizer by another name": (
        in_tokenizer("fast_tokenizer_files", ["tokenizer.4.0.0.json"]),
        "fast_tokenizer_files",
    ),
}


@pytest.mark.parametrize(("spoil", "why"), UNREADABLE.values(), ids=UNREADABLE)
def test_no_library_reads_a_file_that_is_too_large(
    folder: Path, spoil: Callable[[Path], None], why: str
) -> None:
    spoil(folder)
    with pytest.raises(LoadError, match=why):
        check_tokenizer(folder)


def test_no_object_is_made_of_what_a_configuration_counts(folder: Path) -> None:
    configured("num_labels", 10**12)(folder)
    assert Tokenizer(folder).encode("Once")


FREEZING = "(" + "|".join([r"[\x00-\x7f]"] * 7) + ")*[^\\x00-\\x7f]"
"""A regular expression that a text of a few characters keeps busy for long."""


def freezing(told: dict[str, Any]) -> None:
    """Cut each text in 400 ways that take long."""
    step = {
        "type": "Split",
        "pattern": {"Regex": FREEZING},
        "behavior": "Isolated",
        "invert": False,
    }
    told["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [step] * 400 + [told["pre_tokenizer"]],
    }


def growing(told: dict[str, Any]) -> None:
    """Make 2^40 letters of one."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    told["normalizer"] = {"type": "Sequence", "normalizers": [step] * 40}


def far_word(told: dict[str, Any]) -> None:
    """A word with an id beyond all."""
    vocab = {letter: at for at, letter in enumerate("abc")} | {"d": 20_000_000}
    told["model"] = {"type": "BPE", "vocab": vocab, "merges": []}


LOADS: dict[str, tuple[Callable[[Path], None], str]] = {
    "A1: a pre-tokenizer that searches": (in_file("tokenizer.json", freezing), "processor time"),
    "A2: a normalizer that grows": (in_file("tokenizer.json", growing), "memory|processor time"),
    "A3: a word far beyond the others": (in_file("tokenizer.json", far_word), "20,000,000"),
    "A5: marks of 4,000 characters": (in_file("tokenizer.json", long_marks), "4,0.. characters"),
    "A6: numbers that hash alike": (
        replaced(
            "added_tokens.json", json.dumps({f"k{n}": n * ((1 << 61) - 1) for n in range(30_000)})
        ),
        "processor time|ids? ",
    ),
}


@pytest.mark.parametrize(
    ("spoil", "why"),
    rows(
        LOADS,
        "A3: a word far beyond the others",
        "A5: marks of 4,000 characters",
        ci=["A2: a normalizer that grows"],
    ),
)
async def test_a_hostile_tokenizer_costs_a_worker_and_not_the_node(
    folder: Path, spoil: Callable[[Path], None], why: str
) -> None:
    """The worker is ended, and the cause is that of the ring's not serving."""
    spoil(folder)
    async with at_work(folder) as head, trio.open_nursery() as nursery:
        generator = Generator(head.runtime, folder)
        generator.texts = TextWorkers(folder, seconds=SECONDS)
        process = psutil.Process()
        before, began = process.memory_info().rss, time.thread_time()
        nursery.start_soon(generator.texts.serve)
        await generator.warm_up()
        assert time.thread_time() - began < 1
        assert process.memory_info().rss - before < 64 << 20
        obstacle = generator.permanent_obstacle()
        assert obstacle is not None
        assert obstacle.cause is Cause.NO_TOKENIZER
        assert re.search(why, obstacle.what)
        assert not generator.serving
        began = time.thread_time()
        with pytest.raises(OperationError, match=why):  # and no other worker tries it
            await generator.vocabulary()
        assert not generator.loading
        nursery.cancel_scope.cancel()


SECONDS = 6
"""Seconds of processor time for a worker; the shipped model's tokenizer takes 1.7."""

NODE = """
import sys, trio
from sealring.service import service
from sealring.text.workers import TextWorkers
from sealring_model import tiny

async def main():
    texts = TextWorkers(tiny.path())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(texts.serve)
        words = await texts.vocabulary()
        assert words.stream().add(300)
        nursery.cancel_scope.cancel()
    print(*{"transformers", "tokenizers", "mlx_lm", "huggingface_hub"}.intersection(sys.modules))

trio.run(main)
"""


def test_a_node_that_makes_text_of_tokens_imports_no_tokenizer() -> None:
    done = subprocess.run([sys.executable, "-c", NODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

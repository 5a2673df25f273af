"""Real rings in which a rank that has nothing gets its share from the other members."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from sealring.local.ring import (
    LocalNode,
    running_node,
    wait_until_up,
    write_cluster,
)
from sealring_model.loading import model_store
from sealring_model.loading.model_store import LOG, ORIGIN, PartialModel
from sealring_model.loading.weights import read_entries, tensors_of, write_manifest

from tests.fetching.test_ring import PATIENCE, tokens, until

MODEL = "home/model"
SPLIT = [1, 5, 1]


class Ring:
    """Three nodes. All but *bare* have a model's folder of their own; *bare* has nothing, and asks
    the others."""

    def __init__(self, folder: Path, folders: list[Path], bare: int = 1) -> None:
        self.folder = folder
        self.bare = bare
        self.configs = write_cluster(folder, len(folders), Path("x"), SPLIT[: len(folders)])
        for rank, config in enumerate(self.configs):
            line = f'model = "{folders[rank]}"'
            if rank == bare:
                line = f'model = "{MODEL}"\nfetch = "members"\noffline = true'
            config.write_text(config.read_text().replace('model = "x"', line))

    def node(self, rank: int) -> contextlib.AbstractContextManager[LocalNode]:
        place = {
            "HF_HOME": str(self.folder / "empty"),
            model_store.VARIABLE: str(self.folder / "store"),
        }
        return running_node(self.configs[rank], place=place)

    def share(self) -> tuple[PartialModel, list[str]] | None:
        """What the bare rank has, and the tensors that it owns; None if it has nothing yet."""
        for found in (self.folder / "store" / "home--model").glob(f"*/{ORIGIN}"):
            if found.parent.name.startswith("."):
                continue  # it is being made, and gets another name
            model = PartialModel.open(found.parent)
            assert model is not None
            first = sum(SPLIT[: self.bare])
            owned = tensors_of(model.entries, sum(SPLIT), first, first + SPLIT[self.bare])
            return model, [name for names in owned.values() for name in names]
        return None


@pytest.mark.slow
def test_a_rank_that_has_nothing_gets_its_share_from_the_head_and_resumes(
    tmp_path: Path, source: Path, expected: list[int]
) -> None:
    ring = Ring(tmp_path, [source] * 3)
    with ring.node(0) as head, ring.node(2) as last:
        wait_until_up(head)
        wait_until_up(last)
        with ring.node(1) as node:
            model, names = until(ring.share)
            size = sum(model.entries[name].size for name in names)
            while not model.bytes_here(names):
                assert node.process.poll() is None, node.log_tail()
                model.refresh()
            node.process.kill()
            node.process.wait()
        model.refresh()
        here = model.bytes_here(names)
        assert 0 < here < size
        before = (model.folder / LOG).read_text()
        with ring.node(1) as node:
            wait_until_up(node)
            assert tokens(head) == expected
            told = node.log.read_text()
        after = (model.folder / LOG).read_text()
        assert after.startswith(before)
        came = [json.loads(line) for line in after[len(before) :].splitlines()]
        again = sum(line["end"] - line["begin"] for line in came if "begin" in line)
        assert again == size - here
        assert told.count("asking rank0 what") == 1, "what the model is was known the second time"
    model.refresh()
    assert sorted(model.hashes) == sorted(names)


@pytest.mark.long
def test_a_wrong_byte_on_the_head_is_named_and_the_share_comes_from_another(
    tmp_path: Path, source: Path, expected: list[int]
) -> None:
    head_copy, last_copy = (Path(shutil.copytree(source, tmp_path / f"copy{i}")) for i in (0, 2))
    for folder in (head_copy, last_copy):
        write_manifest(folder)
    entries = read_entries(head_copy)
    names = tensors_of(entries, sum(SPLIT), 1, 6)[3]
    entry = max((entries[name] for name in names), key=lambda entry: entry.size)
    # In the middle of a tensor, where no sample of the pins looks.
    with entry.file.open("r+b") as stream:
        stream.seek(entry.offset + entry.size // 2)
        byte = stream.read(1)
        stream.seek(entry.offset + entry.size // 2)
        stream.write(bytes([byte[0] ^ 1]))
    ring = Ring(tmp_path, [head_copy, Path("none"), last_copy])
    with ring.node(0) as head, ring.node(1) as node, ring.node(2) as last:
        for each in (head, node, last):
            wait_until_up(each)
        assert tokens(head) == expected
        assert f"tensor {entry.name} of rank0 is not what the manifest says" in node.log.read_text()


@pytest.mark.long
def test_a_rank_that_waits_for_a_member_says_so_and_goes_on_when_there_is_one(
    tmp_path: Path, source: Path, expected: list[int]
) -> None:
    ring = Ring(tmp_path, [source] * 3)
    with ring.node(1) as node:
        until(
            lambda: "waiting for a member that gives home/model: rank0 at" in node.log.read_text()
        )
        with ring.node(0) as head, ring.node(2) as last:
            for each in (head, last, node):
                wait_until_up(each)
            assert tokens(head) == expected


@pytest.mark.long
def test_the_head_may_be_the_one_that_has_nothing(
    tmp_path: Path, source: Path, expected: list[int]
) -> None:
    ring = Ring(tmp_path, [source] * 3, bare=0)
    with ring.node(1) as one, ring.node(2) as two, ring.node(0) as head:
        for each in (one, two, head):
            wait_until_up(each)
        assert tokens(head) == expected


@pytest.mark.long
def test_a_node_that_waits_for_a_member_ends_with_whoever_started_it(
    tmp_path: Path, source: Path
) -> None:
    ring = Ring(tmp_path, [source] * 3)
    with ring.node(1) as node:
        until(lambda: "waiting for a member" in node.log.read_text())
        node.lifeline.close()
        assert node.process.wait(PATIENCE) == 0

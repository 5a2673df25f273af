"""Room as control groups have it: the tightest from the process's own group to the topmost."""

import pytest
from sealring_model.machine import memory_available

GIB = 1 << 30
NONE = 9223372036854771712


@pytest.fixture
def made(tmp_path):
    """Makes a ``/proc/self`` and the tree of groups that it speaks of."""

    def make(membership, mount, groups):
        proc, top = tmp_path / "self", tmp_path / "groups"
        proc.mkdir()
        (proc / "cgroup").write_text(membership)
        (proc / "mountinfo").write_text(
            "22 1 0:21 / /proc rw - proc proc rw\n" + mount.format(top=top)
        )
        for path, files in groups.items():
            folder = top / path
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")
        return proc

    return make


V2 = "30 22 0:26 / {top} rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "30 22 0:26 {root} {{top}} rw - cgroup cgroup rw,memory\n"


def v2(limit, used, high="max", idle=0):
    stat = f"anon 5\ninactive_file {idle}\nslab 3"
    return {"memory_max": limit, "memory_current": used, "memory_high": high, "memory_stat": stat}


CASES = {
    "own": ({"a": {}, "a/b": v2(4 * GIB, GIB)}, 3 * GIB),
    "above": ({"a": v2(2 * GIB, GIB), "a/b": v2(4 * GIB, GIB)}, GIB),
    "high": ({"a/b": v2("max", GIB, high=3 * GIB)}, 2 * GIB),
    "high below max": ({"a/b": v2(4 * GIB, GIB, high=2 * GIB)}, GIB),
    "idle": ({"a/b": v2(4 * GIB, 3 * GIB, idle=GIB)}, 2 * GIB),
    "over": ({"a/b": v2(GIB, 2 * GIB)}, 0),
    "none": ({"a/b": v2("max", GIB), "a": v2("max", GIB)}, None),
}


@pytest.mark.parametrize(("groups", "left"), CASES.values(), ids=CASES)
def test_version_two(made, groups, left):
    assert memory_available(made("0::/a/b\n", V2, groups)) == left


@pytest.mark.parametrize("root", ["/", "/docker/abc"])
def test_version_one_beside_two(made, root):
    """A container may see its own group as the topmost, under the name that the host gives it."""
    path = "a" if root == "/" else "docker/abc/a"
    groups = {
        "a": {
            "memory_limit_in_bytes": 2 * GIB,
            "memory_usage_in_bytes": GIB,
            "memory_stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}",
        },
        "": {"memory_limit_in_bytes": NONE, "memory_usage_in_bytes": 9},
    }
    proc = made(f"4:memory:/{path}\n3:cpu:/x\n0::/\n", V1.format(root=root), groups)
    assert memory_available(proc) == GIB + GIB // 2


def test_a_system_without_groups(tmp_path):
    assert memory_available(tmp_path) is None

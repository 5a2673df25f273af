"""How many descriptors a node asks for, and what of them clients may have."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sealring.http.connections import MAX_CONNECTIONS, RESERVED, WANTED, for_clients


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(256, 1024, 1024), (1024, 4096, 4096), (1024, 100_000, WANTED), (20_000, 20_000, 20_000)],
)
def test_the_soft_limit_is_raised(soft: int, hard: int, raised: int) -> None:
    program = (
        "import resource\n"
        f"most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        f"assert {hard} <= most or most == resource.RLIM_INFINITY, 'too low'\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from sealring.http.connections import raise_limit\n"
        "told = raise_limit()\n"
        "print(told, resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if "too low" in done.stderr:
        pytest.skip(f"the hard limit here is below {hard}")
    assert done.stdout.split() == [str(raised)] * 2, done.stderr


def test_links_engines_and_files_keep_theirs() -> None:
    assert for_clients(WANTED) >= MAX_CONNECTIONS
    assert for_clients(256) == 1  # what a node needs itself comes first
    for limit in (1024, 4096, WANTED):
        assert RESERVED + 2 * for_clients(limit) <= limit
    assert for_clients(1024) > 200

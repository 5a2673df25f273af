"""What importing the protocol costs and brings: ``python -m tests.import_cost [MODULE]``.

Each import is in a fresh interpreter, and the best of several counts; where other programs have
the processor it still is too high, so that a number of milliseconds is no test. The exit code is 1
above the 150 ms that are promised.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

ROUNDS: Final = 10
PROMISED_MS: Final = 150

_CODE: Final = """
import json, sys, time
before = set(sys.modules)
wall, cpu = time.perf_counter(), time.process_time()
__import__(sys.argv[1])
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({
    "wall_ms": round(1000 * wall, 1),
    "cpu_ms": round(1000 * cpu, 1),
    "brings": sorted(tops - set(sys.stdlib_module_names)),
}))
"""


def once(module: str) -> dict[str, Any]:
    """One import: milliseconds, and what came in that is not of the standard library."""
    command = [sys.executable, "-c", _CODE, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def best(module: str) -> dict[str, Any]:
    """The quickest of several."""
    return min((once(module) for _ in range(ROUNDS)), key=lambda one: one["wall_ms"])


if __name__ == "__main__":
    found = best(sys.argv[1] if len(sys.argv) > 1 else "sealring_protocol.link")
    print(json.dumps(found))
    sys.exit(found["wall_ms"] > PROMISED_MS)

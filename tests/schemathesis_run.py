"""Schemathesis against a ring of one with the tiny model: requests made from ``/openapi.json``,
right and wrong ones, must get answers that it describes, and none that is a fault of the server.

    uv run --group clients python -m tests.schemathesis_run --seconds 60 --seed 1

Answers of more than a few tokens are the ring's own subject: `hooks` bounds what is generated. A
request's 503 is an answer of a server that is full, and so no fault.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from sealring.http.gate import PREFIXES
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_model import tiny
from sealring_trio.collective.loopback import free_ports

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
START_SECONDS = 60.0
STREAMS = "/v1/cluster/events"  # it never ends


def main() -> int:
    """Run it; the status is Schemathesis' own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="time for all requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=50, help="most requests of one endpoint")
    given = parser.parse_args()
    if shutil.which("schemathesis") is None:
        print("Schemathesis is not here: use uv run --group clients", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        address = f"127.0.0.1:{free_ports(1)[0]}"
        (config,) = write_cluster(folder, 1, tiny.path(), api=address)
        head = stack.enter_context(running_node(config))
        wait_until_up(head)
        end = time.monotonic() + START_SECONDS
        while httpx2.get(f"http://{address}/readyz").status_code != 200:
            if time.monotonic() > end:
                raise TimeoutError("the ring does not serve")
        command = ["schemathesis", "run", f"http://{address}/openapi.json"]
        command += ["--checks", ",".join(CHECKS), "--seed", str(given.seed)]
        command += ["--max-examples", str(given.examples), "--max-time", str(given.seconds)]
        command += ["--exclude-path", STREAMS, "--generation-database", "none"]
        hooks = {"SCHEMATHESIS_HOOKS": "tests.schemathesis_hooks", "NO_COLOR": "1"}
        hooks["PYTHONPATH"] = str(Path(__file__).parent.parent)
        done = subprocess.run(command, cwd=folder, env=os.environ | hooks, check=False)
        status = done.returncode
        return _tell(httpx2.get(f"http://{address}/metrics").text) or status


def _tell(metrics: str) -> int:
    """Print how often each path gave which status. 1 if an endpoint that generates never did: then
    nothing was tried."""
    answered = Counter(
        {
            (sample.labels["path"], sample.labels["status"]): int(sample.value)
            for family in text_string_to_metric_families(metrics)
            for sample in family.samples
            if sample.name == "sealring_http_requests_total"
        }
    )
    for (path, status), count in sorted(answered.items()):
        print(f"{path} {status}: {count}")
    missing = [path for path in PREFIXES if not answered[path, "200"]]
    for path in missing:
        print(f"no request of {path} was answered", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())

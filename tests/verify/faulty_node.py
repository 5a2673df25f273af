"""`sealring`, whose nodes have an engine with a fault (`faults`)."""

from __future__ import annotations

import sys
from functools import partial

from sealring.cli import run
from sealring_trio.node import service

if __name__ == "__main__":
    service.build_runtime = partial(service.build_runtime, module="tests.verify.faulty_engine")
    sys.exit(run(sys.argv[1:]))

"""An engine with a fault: python -m tests.verify.faulty_engine, as `sealring_model.engine.main`."""

from __future__ import annotations

import os
import sys

from sealring_model.engine.main import main

from tests.verify.faults import FAULTS, VARIABLE

if __name__ == "__main__":
    FAULTS[os.environ[VARIABLE]]()
    sys.exit(main())

"""A neighbour on a busy machine: a process that computes all the time and wants nothing else.

``python -m sealring_trio.processes.launcher sealring_tools.bench.neighbour`` runs one, which ends
with whoever started it.
"""

from __future__ import annotations

if __name__ == "__main__":
    while True:
        pass

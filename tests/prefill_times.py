"""How long a prompt takes in virtual time, beside one machine that does nothing else.

``uv run python -m tests.prefill_times`` prints the figures of docs/benchmarks.md, "Long prompts".
Ranks are equal; what they take is in `tests.node.test_prefill`.
"""

from __future__ import annotations

from sealring_protocol.control.requests import Request

from tests.node.test_prefill import TOKEN, longest_wait, read, ring

TOKENS = 4000
ROWS = 8


def beside_rows(world: int) -> tuple[float, float]:
    """Seconds that the prompt takes while eight rows decode, and the longest that one of those
    waits for a token."""
    cluster = ring(world, rows=ROWS + 1)
    read(cluster, 9, 200)
    rows = [cluster.submit(Request((1, 2, 3 + row), 3000)) for row in range(ROWS)]
    cluster.run_until(lambda: all(len(cluster.tokens[uid]) > 8 for uid in rows))
    prompt = cluster.submit(Request((7,) * TOKENS, 1))
    start = cluster.now
    waited = longest_wait(cluster, rows, lambda: bool(cluster.tokens[prompt]))
    return cluster.now - start, waited


def main() -> None:
    """Print all of it."""
    for world in (2, 3, 4):
        cluster = ring(world)
        read(cluster, 1, 200)
        print(f"{world} ranks: {TOKENS * TOKEN * world / read(cluster, 2, TOKENS):.2f}")
    for world in (2, 4):
        took, waited = beside_rows(world)
        ratio = TOKENS * TOKEN * world / took
        print(f"{world} ranks beside {ROWS} rows: {ratio:.2f}; a row waits {waited:.2f} s at most")
    for delay in (0.02, 0.2):
        cluster = ring(2, delay=delay)
        read(cluster, 1, 200)
        print(f"2 ranks, links of {1e3 * delay:.0f} ms: {read(cluster, 2, TOKENS):.1f} s")


if __name__ == "__main__":
    main()

"""The commands of `sealring bench`."""

from __future__ import annotations

import cyclopts
from sealring_tools.bench.shown import print_results
from sealring_tools.cli.bench_decode import batch, masks, plan, speculate
from sealring_tools.cli.bench_endurance import faults, soak
from sealring_tools.cli.bench_prefill import prefill
from sealring_tools.cli.bench_serve import serve
from sealring_tools.cli.bench_tensor import AsList, auto, comms, gpus, tp

HELP = """\
Measure the protocol beside its yardsticks.

Ours and the yardstick take turns in the same run, and medians of many turns
are set beside each other, so the ratio holds on a busy machine too. Codec
and handshake use one thread for both ends.

    sealring bench codec
    sealring bench hop --json
"""

app = cyclopts.App(name="bench", help=HELP)


@app.command
def codec(*, json: AsList = False) -> None:
    """Messages to frames to messages, plain and sealed, beside OpenSSL.

    64-byte messages a second, and GB/s of tensor frames of 1 MiB, with the
    outer seal alone and with the inner seal too.
    """
    from sealring_tools.bench.codec import measure  # noqa: PLC0415 - each bench loads its own

    print_results(measure(), json)


@app.command
def handshake(*, json: AsList = False) -> None:
    """Full mutual handshakes a second, ML-KEM included, beside TLS 1.3."""
    from sealring_tools.bench.handshake import measure  # noqa: PLC0415

    print_results(measure(), json)


@app.command
def hop(*, json: AsList = False) -> None:
    """One hop of 8 KiB between two processes, beside a plain trio message.

    And its parts, measured in the same way: a node's socket code alone, with
    the cipher, and with the message's encoding.
    """
    from sealring_tools.bench.hop import measure  # noqa: PLC0415

    print_results(measure(), json)


@app.command
def solo(*, json: AsList = False) -> None:
    """A ring of one rank beside mlx-lm's own generator, 25M parameters, f32."""
    from sealring_tools.bench.solo import measure  # noqa: PLC0415

    print_results(measure(), json)


@app.command
def length(*, json: AsList = False) -> None:
    """Time per token late in a long answer beside early in it, 25M, f32.

    A ring of two ranks, and one process of mlx-lm in turns with it: attention
    reads a longer cache in both, and a ring adds nothing to that.
    """
    from sealring_tools.bench.length import measure  # noqa: PLC0415

    print_results(measure(), json)


@app.command
def overtake(*, json: AsList = False) -> None:
    """Time to the first token of a short prompt behind one of 4,000 tokens.

    Beside what it may take: its own time alone and two chunks of the other.
    """
    from sealring_tools.bench.overtake import measure  # noqa: PLC0415

    print_results(measure(), json)


for _each in (comms, tp, auto, gpus, prefill, batch, speculate, masks, plan, serve, soak, faults):
    app.command(_each)

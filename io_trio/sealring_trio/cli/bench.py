"""`sealring bench codec | handshake | hop | solo`."""

from __future__ import annotations

import cyclopts

from sealring_trio.bench.measure import Result
from sealring_trio.cli.output import print_json, print_table

HELP = """\
Measure the protocol beside its yardsticks.

Ours and the yardstick take turns in the same run, and medians of many turns
are set beside each other, so the ratio holds on a busy machine too. Codec
and handshake use one thread for both ends.

    sealring bench codec
    sealring bench hop --json
"""

app = cyclopts.App(name="bench", help=HELP, help_format="rich")


@app.command
def codec(*, json: bool = False) -> None:
    """Messages to frames to messages, plain and sealed, beside OpenSSL.

    64-byte messages a second, and GB/s of tensor frames of 1 MiB, with the
    outer seal alone and with the inner seal too.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.codec import measure  # noqa: PLC0415 - each bench loads its own

    _print(measure(), json)


@app.command
def handshake(*, json: bool = False) -> None:
    """Full mutual handshakes a second, ML-KEM included, beside TLS 1.3.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.handshake import measure  # noqa: PLC0415

    _print(measure(), json)


@app.command
def hop(*, json: bool = False) -> None:
    """One hop of 8 KiB between two processes, beside a plain trio message.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.hop import measure  # noqa: PLC0415

    _print(measure(), json)


@app.command
def solo(*, json: bool = False) -> None:
    """A ring of one rank beside mlx-lm's own generator, 25M parameters, f32.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.solo import measure  # noqa: PLC0415

    _print(measure(), json)


def _print(results: list[Result], json: bool) -> None:
    if json:
        print_json(
            [
                {
                    "name": result.name,
                    "unit": result.unit,
                    "ours": result.ours,
                    "yardstick": result.yardstick,
                    "yardstick_name": result.yardstick_name,
                    "ratio": result.ratio,
                }
                for result in results
            ]
        )
        return
    print_table(
        "Medians of alternating turns",
        ["what", "yardstick", "unit", "ours", "its", "ratio"],
        [
            (
                result.name,
                result.yardstick_name,
                result.unit,
                _number(result.ours),
                _number(result.yardstick),
                f"{result.ratio:.2f}",
            )
            for result in results
        ],
        numbers_from=3,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" if value < 100 else f"{value:.1f}"

"""``python -m sealring_protocol.conformance``: the conformance vectors of sealring/1.

Without options it runs them against the Python implementation. An implementation of your own is
asked and compared like this, where ``answer`` is a program that reads questions and writes
answers, one line of JSON each:

    python -m sealring_protocol.conformance --ask | ./answer > answers
    python -m sealring_protocol.conformance --answers answers

    a question   {"id": "frame/one", "kind": "frames", "input": {...}}
    its answer   {"id": "frame/one", "result": "valid", "output": {...}}
    or           {"id": ..., "result": "LIMIT_EXCEEDED", "released": SHA-256, "why": ...}
    or           {"id": ..., "skip": "not implemented yet"}

The README.md beside the vectors says what each kind of vector asks. Questions have each vector as
a whole; a stream should also be taken byte by byte and in pieces, and what is cut short refused.

The exit code is 0 if all that was run did as the vectors say, 1 if something differed, and 2 if
nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from sealring_protocol.conformance import report
from sealring_protocol.conformance.files import Json, NoVectors, chosen, find_folder, load
from sealring_protocol.conformance.result import questions, read_answers


def main(arguments: list[str] | None = None) -> int:
    """Run the command line in *arguments*. Returns the exit code."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        places = asked.vectors or [find_folder()]
        if asked.where:
            print(*places, sep="\n")
            return 0
        families = chosen(load(*places), asked.family)
        if asked.ask:
            for line in questions(families):
                print(line)
            return 0
        if asked.answers is None:
            return _tell(report.check(families), asked.json)
        answers = read_answers(_lines(asked.answers))
        _know_all(answers, families)
        return _tell(report.check_answers(families, answers), asked.json)
    except NoVectors as error:
        sys.stderr.write(f"{error}\n{error.advice}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sealring_protocol.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "vectors",
        nargs="*",
        type=Path,
        metavar="VECTORS",
        help="a folder of vectors, or the file of a family; left out: those of the repository "
        "that holds the working folder, or else the installed ones",
    )
    parser.add_argument(
        "--family",
        action="append",
        default=[],
        metavar="NAME",
        help="this family alone: the name of a file without .json; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--where", action="store_true", help="print where the vectors are")
    what.add_argument("--ask", action="store_true", help="print the questions")
    what.add_argument(
        "--answers", metavar="FILE", help="compare these answers; - is the standard input"
    )
    return parser


def _lines(file: str) -> list[str]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise NoVectors(
            f"{file} cannot be read: {error}", "Name the file of the answers."
        ) from None
    return text.splitlines()


def _know_all(answers: dict[str, Json], families: dict[str, list[Json]]) -> None:
    asked = {vector["id"] for vectors in families.values() for vector in vectors}
    unknown = sorted(answers.keys() - asked)
    if unknown:
        raise NoVectors(
            f"{unknown[0]} is answered, and no vector has that id",
            "Ask and compare with the same vectors and families.",
        )


def _tell(done: dict[str, report.Family], as_json: bool) -> int:
    everything = report.total(done.values())
    if as_json:
        families = {name: one.facts() for name, one in done.items()}
        print(json.dumps({"families": families, **everything.facts()}))
    else:
        print(f"{'family':18}{'vectors':>9}{'negative':>9}{'runs':>9}{'failed':>9}{'not run':>9}")
        for name, one in [*done.items(), ("in all", everything)]:
            counts = one.vectors, one.negative, one.runs.total(), len(one.failed)
            print(f"{name:18}", *(f"{n:>9,}" for n in (*counts, one.skipped.total())), sep="")
        print("", *report.verdict(everything), sep="\n")
    if not everything.runs:
        return 2
    return int(bool(everything.failed))


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--ask | head` ends like any other command
    sys.exit(main())

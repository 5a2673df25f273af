"""Lines of the product's Python code, by room.

``python -m tools.lines``              this checkout
``python -m tools.lines CHECKOUT``     another one, older or newer

*code* is lines that are neither blank nor comment nor docstring; *lines* is all of them.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from typing import Final

from tools.arguments import about_a_checkout

PACKAGES: Final = (
    "protocol/sealring_protocol",
    "model/sealring_model",
    "io_trio/sealring_trio",
    "daemon/sealring",
)
_NOTHING: Final = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(text: str) -> int:
    """The lines of *text* that hold code."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOTHING:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return len(held)


def main() -> int:
    """Count, and print a table or JSON."""
    parser = about_a_checkout("tools.lines", __doc__)
    asked = parser.parse_args()
    files: Counter[str] = Counter()
    code: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for package in PACKAGES:
        folder = asked.checkout / package
        if not folder.is_dir():
            parser.error(f"{asked.checkout} is no checkout of sealring: it has no {package}")
        for path in folder.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for room in (str(path.parent.relative_to(asked.checkout)), package + " in all", "all"):
                files[room] += 1
                code[room] += code_lines(text)
                lines[room] += len(text.splitlines())
    if asked.json:
        rooms = {r: {"files": files[r], "code": code[r], "lines": lines[r]} for r in sorted(code)}
        print(json.dumps(rooms))
        return 0
    print(f"{'room':44}{'files':>7}{'code':>9}{'lines':>9}")
    for room in sorted(code):
        print(f"{room:44}{files[room]:>7,}{code[room]:>9,}{lines[room]:>9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

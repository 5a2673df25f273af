"""What a model may write: everything that Markdown has, and what tries to become more than text."""

from __future__ import annotations

import itertools
import json
import tempfile
from typing import Any, Final

from playwright.sync_api import Locator, Page, expect

EVERYTHING: Final = """# A heading

There are **two** ways, `code`, *this* and ~~that~~; see [the docs](https://docs.example/ "x").
A bare https://example.org/a_b_c and ![a chart](https://pictures.example/track.png?who=me).

1. one
2. two
   - inside

> A quotation.

| n | of |
|--:|:--:|
| 1 | 2  |

```python
@decorated
def norm(self, x: float = 1e-3) -> float:
    \"\"\"Text.\"\"\"
    return self.x ** 2 + "s"  # comment
```

```diff
- gone
+ new
```

```html
<a href="x" class='y'>&amp;</a>
```

    indented
"""

HOSTILE: Final = (
    "<script>globalThis.hit = 1</script>",
    "<img src=x onerror='globalThis.hit = 1'>",
    "<img src=https://pictures.example/a.png>",
    "![x](https://pictures.example/b.png)",
    "![x](data:image/svg+xml,<svg/onload=alert(1)>)",
    "![x](/dashboard/icon.svg)",
    "[x](javascript:globalThis.hit=1)",
    "[x](JaVaScRiPt&colon;globalThis.hit=1)",
    "[x](&#106;avascript:globalThis.hit=1)",
    "[x](java\tscript:globalThis.hit=1)",
    "[x](vbscript:x) [x](file:///etc/passwd) [x](blob:http://x/y)",
    "[x](data:text/html,<script>globalThis.hit=1</script>)",
    "[x](//pictures.example/c) [x](/v1/requests) [x](#ring) [x](?a)",
    "<javascript:globalThis.hit=1>",
    "[x]: javascript:globalThis.hit=1\n\n[x]",
    "<svg><script>globalThis.hit=1</script><animate onbegin=globalThis.hit=1></svg>",
    "<svg xmlns='http://www.w3.org/2000/svg' onload='globalThis.hit=1'/>",
    "<math><mtext><table><mglyph><style><img src=x onerror=globalThis.hit=1>",
    "<math href='javascript:globalThis.hit=1'>x</math>",
    "<style>body { display: none }</style>",
    "<p style='position:fixed;inset:0'>x</p>",
    "<link rel=stylesheet href=https://pictures.example/d.css>",
    "<iframe src=https://pictures.example srcdoc='<script>top.hit=1</script>'></iframe>",
    "<form action=https://pictures.example><button formaction=x>Log in</button></form>",
    "<base href=https://pictures.example/><meta http-equiv=refresh content=0;url=//x>",
    "<object data=x></object><embed src=x><video><source onerror=globalThis.hit=1></video>",
    "<a id=chat-form name=chat-text href=x>clobber</a>",
    "<details open ontoggle=globalThis.hit=1>",
    "```<img/src=x/onerror=globalThis.hit=1>\n</code></pre><script>globalThis.hit=1</script>\n```",
    "```__proto__\n1\n```\n\n```constructor\n1\n```",
    "| a |\n|---|\n| <img src=x onerror=globalThis.hit=1> |",
    "# <b onmouseover=globalThis.hit=1>x",
    "`</code><script>globalThis.hit=1</script>`",
    r"$\href{javascript:globalThis.hit=1}{x}$ $\url{javascript:globalThis.hit=1}$",
    r"$\class{hit}{x} \id{log}{x} \style{position:fixed}{x} \data{a=b}{x}$",
    r"$\color{red;background:url(https://pictures.example)} x \text{<img src=x>}$",
    r"$\includegraphics{https://pictures.example/e.png}$ $\rule{1e9em}{1e9em}$ \(x\)",
    "\u202egnp.exe \u0000 \ufeff \ud7ff &lt;script&gt;globalThis.hit=1&lt;/script&gt; &NewLine;",
)

CATASTROPHES: Final = {
    "quotations in quotations": ">" * 50_000 + " x",
    "lists in lists": "".join("  " * depth + "- x\n" for depth in range(400)),
    "open brackets": "[" * 50_000,
    "links in links": "[a](" * 20_000,
    "pictures in pictures": "![[" * 20_000 + "x",
    "marks": "*a **a " * 20_000,
    "marks on both sides": "**x*" * 15_000,
    "code spans": "".join("x" + "`" * length for length in range(400)),
    "angles": "<" * 50_000 + "a@b." * 5_000,
    "entities": "&" * 50_000,
    "an unclosed comment": "<!-- " * 20_000,
    "a table of many columns": "|" * 5_000 + "\n" + "|-" * 5_000 + "\n" + "|x" * 5_000,
    "one word": "x" * 1_000_000,
    "one line of code": "```js\n" + "(" * 1_000_000 + "\n```",
    "many lines of code": "```\n" + "a line of code\n" * 70_000 + "```",
    "many elements": "*a* " * 250_000,
    "many paragraphs": "a paragraph\n\n" * 80_000,
    "signs of money": "$a " * 60_000,
    "formulas in formulas": "$" + "\\frac{" * 2_000 + "$ \\(" + "{" * 4_000 + "\\)",
    "formulas that grow": r"$\def\x{\x\x}\x$ " * 300,
    "formulas that do not end": "$$ a\n" * 20_000 + "\\[ b\n\n" * 5_000,
    "many formulas": "$x_1^2$ " * 20_000,
    "references": "".join(f"[r{n}]: https://x.example/{n}\n" for n in range(20_000)) + "[r1]",
    "addresses": "https://x.example/" + "a" * 100_000 + " http://" * 20_000,
}


_numbers = itertools.count(1)


def conversation(*answers: str, **more: Any) -> dict[str, Any]:
    """A conversation in which the model gave *answers*."""
    messages: list[dict[str, Any]] = []
    for answer in answers:
        messages.append({"role": "user", "content": "Go on."})
        messages.append({"role": "assistant", "content": answer, **more})
    return {"title": f"Imported {next(_numbers)}", "messages": messages}


def show(page: Page, *answers: str, **more: Any) -> Locator:
    """Have *page* import and show *answers*; returns where they are when all is drawn."""
    told = conversation(*answers, **more)
    saved = {"format": "sealring-conversations", "version": 1, "conversations": [told]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(saved, file)
        file.flush()
        page.locator("#import-file").set_input_files(file.name)
        expect(page.locator("#chat-title")).to_have_text(told["title"])
    expect(page.locator(".message[aria-busy]")).to_have_count(0)
    return page.locator(".message.assistant")

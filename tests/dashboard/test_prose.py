"""What a model writes is shown as it is meant, and is never more than text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Request, expect

from tests.dashboard.browser import Tab, needs_chromium
from tests.dashboard.texts import CATASTROPHES, EVERYTHING, HOSTILE, show
from tests.serving import Served

pytestmark = needs_chromium


@pytest.fixture
def page(tab: Tab, served: Served) -> Iterator[Page]:
    elsewhere: list[str] = []

    def asked(request: Request) -> None:
        elsewhere.append(request.url)

    with tab.at(served.url) as page:
        page.on("request", asked)
        expect(page.locator("#state")).to_have_text("serving")
        yield page
        page.remove_listener("request", asked)
        home = urlsplit(served.url).netloc
        assert [url for url in elsewhere if urlsplit(url).netloc not in (home, "")] == []


@pytest.mark.slow
def test_markdown_is_shown_as_it_is_meant(page: Page) -> None:
    answer = show(page, EVERYTHING, reasoning="I *think*.").locator(".text")
    assert answer.evaluate(OUTLINE) == [
        "h3 A heading",
        "p There are two ways, code, this and that; see the docs. A bare "
        "https://example.org/a_b_c and Picture: a chart.",
        "ol one two inside",
        "blockquote A quotation.",
        "table n of 1 2",
        "figure python Copy @decorated def norm(self, x: float = 1e-3) -> float: "
        '"""Text.""" return self.x ** 2 + "s" # comment',
        "figure diff Copy - gone + new",
        "figure html Copy <a href=\"x\" class='y'>&amp;</a>",
        "figure text Copy indented",
    ]
    link = answer.get_by_role("link", name="the docs")
    assert link.get_attribute("href") == "https://docs.example/"
    assert link.get_attribute("rel") == "noopener noreferrer"
    assert link.get_attribute("target") == "_blank"
    picture = answer.get_by_role("link", name="Picture: a chart")
    assert "not loaded" in (picture.get_attribute("title") or "")
    assert answer.locator("img").count() == 0
    expect(answer.locator("figure").first.locator(".hl-keyword").first).to_have_text("def")
    thoughts = page.locator(".reasoning")
    expect(thoughts.locator("em")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator("em")).to_have_text("think")


OUTLINE = r"""
(e) => [...e.children].map((b) => `${b.localName} ${b.innerText.replace(/\s+/g, ' ').trim()}`)
"""

FORMULAS = r"""
Euler: $e^{i\pi} + 1 = 0$, and \(a_1\) costs $5 or $10, not \$3 or $ 4 $.

$$
\begin{aligned} a &= b \\
- c &= \frac{d}{2} \end{aligned}
$$

\[ \sqrt{x} \]

As it is: $\nosuchthing{$ and `$x$`.

> $$ y $$
"""


@pytest.mark.slow
def test_formulas_are_shown_as_such(page: Page) -> None:
    answer = show(page, FORMULAS).locator(".text")
    expect(answer.locator("math")).to_have_count(5)
    expect(answer.locator("p").first.locator("math").first.locator("msup mi").first).to_have_text(
        "e"
    )
    expect(answer.locator("p").first).to_contain_text("costs $5 or $10, not $3 or $ 4 $.")
    expect(answer.locator("> math[display=block]")).to_have_count(2)
    expect(answer.locator("mtr")).to_have_count(2)
    expect(answer.locator("blockquote math")).to_have_count(1)
    expect(answer).to_contain_text(r"As it is: $\nosuchthing{$ and $x$.")
    assert answer.locator("math").first.evaluate("e => e.namespaceURI").endswith("MathML")


ELEMENTS = {
    "article",
    "a",
    "blockquote",
    "br",
    "button",
    "code",
    "del",
    "details",
    "div",
    "em",
    "figcaption",
    "figure",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "ol",
    "p",
    "path",
    "pre",
    "s",
    "span",
    "strong",
    "summary",
    "svg",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
    "b",
    *("math", "mrow", "mi", "mo", "mn", "mtext", "mstyle", "mpadded", "mspace"),
}
ATTRIBUTES = {
    *(
        "display",
        "displaystyle",
        "scriptlevel",
        "mathvariant",
        "stretchy",
        "width",
        "height",
        "depth",
    ),
    "aria-busy",
    "aria-hidden",
    "aria-label",
    "class",
    "d",
    "hidden",
    "href",
    "rel",
    "role",
    "start",
    "tabindex",
    "target",
    "title",
    "type",
    "viewBox",
}


@pytest.mark.slow
def test_what_is_hostile_is_text(page: Page) -> None:
    texts = ["\n\n".join(HOSTILE), *HOSTILE[:3]]
    shown = show(page, *texts, reasoning="\n\n".join(HOSTILE), end="stop")
    found = json.loads(page.locator("#log-list").evaluate(CONTENTS))
    assert set(found["elements"]) <= ELEMENTS
    assert set(found["attributes"]) <= ATTRIBUTES
    assert set(found["schemes"]) <= {"http:", "https:"}
    assert all(cls.isascii() and "constructor" not in cls for cls in found["classes"])
    assert page.evaluate("globalThis.hit ?? null") is None
    expect(shown.nth(1)).to_contain_text("<script>globalThis.hit = 1</script>")
    expect(page.get_by_role("textbox", name="Your message")).to_be_visible()


CONTENTS = """
(list) => {
  const all = [...list.querySelectorAll('*')];
  const unique = (values) => [...new Set(values)];
  return JSON.stringify({
    elements: unique(all.map((e) => e.localName)),
    attributes: unique(all.flatMap((e) => [...e.attributes].map((a) => a.name))),
    classes: unique(all.flatMap((e) => [...e.classList])),
    schemes: unique(all.filter((e) => e.href).map((e) => e.protocol)),
  });
}
"""


@pytest.mark.slow
def test_a_text_that_grows_is_shown_as_a_whole_one_is(page: Page) -> None:
    text = "\n\n".join((EVERYTHING, *HOSTILE, EVERYTHING, "A [late] link.\n"))
    assert page.evaluate(GROWN, [text, ""]) == [True, True]
    assert page.evaluate(GROWN, ["A [late] link.\n\nMore.\n\n", "[late]: https://x.example/"]) == [
        False,
        True,
    ]


GROWN = """async ([text, last]) => {
  const { Prose } = await import("/dashboard/prose/prose.js");
  const places = [0, 1].map(() => document.createElement("div"));
  document.body.append(...places);
  const growing = new Prose(places[0]);
  const all = text + last;
  for (let end = 31; end < all.length + 31; end += 31) {
    growing.write(all.slice(0, end));
    await growing.work;
  }
  await new Prose(places[1]).end(all);
  const alike = () => places[0].innerHTML === places[1].innerHTML;
  const before = alike();
  await growing.end(all);
  return [before, alike()];
}"""


@pytest.mark.slow
def test_titles_tools_and_questions_are_text_too(page: Page) -> None:
    bad = "<img src=x onerror='globalThis.hit = 1'>"
    call = {"id": bad, "name": bad, "arguments": bad}
    show(page, "x", calls=[call], end="tool_calls")
    for name in ("settings-open",):
        page.locator(f"#{name}").click()
    page.get_by_label("Title").fill(bad)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#chat-title")).to_have_text(bad)
    expect(page.locator(".call b")).to_have_text(bad)
    expect(page.get_by_role("textbox", name=f"Result of {bad}")).to_be_visible()
    assert page.locator("img").count() == 0
    assert page.evaluate("globalThis.hit ?? null") is None


LONGEST_TASK = 1000
"""Milliseconds that the page may be held up by one text; some 100 on a quiet machine."""


def holds(page: Page, name: str) -> None:
    page.evaluate(WATCH)
    show(page, CATASTROPHES[name])
    assert max(page.evaluate("globalThis.tasks"), default=0) < LONGEST_TASK, name
    box = page.get_by_role("textbox", name="Your message")
    box.fill(f"After {name} it types.")
    expect(box).to_have_value(f"After {name} it types.")


@pytest.mark.slow
def test_no_text_stops_the_page(page: Page) -> None:
    for name in CATASTROPHES:
        holds(page, name)
        if name == "many elements":
            expect(page.locator(".message.assistant .plain")).to_be_visible()


WATCH = """
() => {
  globalThis.tasks = [];
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) globalThis.tasks.push(each.duration);
  }).observe({ type: "longtask" });
}
"""

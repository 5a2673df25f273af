"""The ring's view of the page, in front of a real ring; and what holds of both views."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.files.models import TINY, find_model

from tests.dashboard.browser import Tab, needs_chromium, window
from tests.dashboard.rings import Guarded, guarded
from tests.dashboard.texts import EVERYTHING, show
from tests.serving import PATIENCE, Served

pytestmark = needs_chromium


@pytest.fixture
def page(tab: Tab, served: Served) -> Iterator[Page]:
    with tab.at(f"{served.url}/#ring") as page:
        expect(page.locator("#state")).to_have_text("serving")
        yield page


LONG = 1000
"""Tokens of an answer that is not over before somebody has looked at it and pressed a button."""


@contextmanager
def busy(served: Served) -> Iterator[list[str]]:
    """A request that runs until the block ends, or somebody cancels it; its id comes first."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "n": 16,
        "min_tokens": LONG,
        "max_tokens": LONG,
        "stream": True,
    }
    url = f"{served.url}/v1/chat/completions"
    over = threading.Event()
    begun = threading.Event()
    ids: list[str] = []

    def ask() -> None:
        while not over.is_set():
            with httpx2.stream("POST", url, json=body, timeout=PATIENCE) as response:
                for line in response.iter_lines():
                    if not ids and line.startswith("data: {"):
                        ids.append(json.loads(line.removeprefix("data: "))["id"])
                        begun.set()
                    if over.is_set():
                        return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        yield ids
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_the_ring_is_told_to_the_eye_and_to_the_ear(page: Page) -> None:
    expect(page).to_have_title("tiny · sealring")
    drawing = page.get_by_role("img", name="A ring of 2 that serves. rank 0, rank0: layers 0–3;")
    expect(drawing.locator(".node[data-state=good]")).to_have_count(2)
    expect(drawing.locator(".hop[data-state=good] .lock")).to_have_count(2)
    cards = page.get_by_role("list", name="Ranks").get_by_role("listitem")
    expect(cards).to_have_count(2)
    for number, layers in enumerate(("0–3", "4–7")):
        expect(cards.nth(number)).to_contain_text(f"rank{number}")
        details = cards.nth(number).locator("dl").inner_text()
        assert re.search(rf"layers\s+{layers}", details)
        assert re.search(r"memory\s+\d+(\.\d+)? MiB", details)
        assert re.search(r"trust\s+software", details)
    assert re.search(r"round trip\s+[\d.]+ (µs|ms)", cards.nth(1).inner_text())
    for role in ("banner", "main"):
        expect(page.get_by_role(role)).to_be_visible()
    assert page.evaluate("scrollY") == 0  # its address is no place in it
    for name in ("Ring", "Load last five minutes", "Requests"):
        expect(page.get_by_role("region", name=name, exact=True)).to_be_visible()


DRAWN_OPEN = """async () => {
  const { Ring } = await import("/dashboard/ring.js");
  const cluster = await (await fetch("/v1/cluster")).json();
  const drawn = ["svg", "p", "ul"].map((name) => document.createElementNS(
    name === "svg" ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", name));
  document.body.append(...drawn);
  const ring = new Ring(...drawn);
  return [true, false].map((sealed) => {
    ring.show({ ...cluster, collective: { backend: "ring", sealed } });
    const locks = [...drawn[0].querySelectorAll(".lock")];
    return [locks.filter((lock) => getComputedStyle(lock).display !== "none").length,
            drawn[1].textContent.includes("not sealed")];
  });
}"""


@pytest.mark.slow
def test_links_that_carry_open_sums_have_no_lock(page: Page) -> None:
    assert page.evaluate(DRAWN_OPEN) == [[2, False], [0, True]]


AWAY = "it is away (for 7 s)"
DRAWN_SMALLER = """async (why) => {
  const { Ring } = await import("/dashboard/ring.js");
  const cluster = await (await fetch("/v1/cluster")).json();
  const drawn = ["svg", "p", "ul"].map((name) => document.createElementNS(
    name === "svg" ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", name));
  document.body.append(...drawn);
  const ring = new Ring(...drawn);
  const out = { ...cluster.ranks[1], rank: 2, name: "den", in_ring: false, ready: false,
    present: false, layers: [], outside: why };
  const witness = { ...out, outside: "", witness: true };
  const away = { ...witness, links: { control: false } };
  return [[out], [witness], [away], []].map((more) => {
    ring.show({ ...cluster, ranks: [...cluster.ranks, ...more] });
    return [drawn[0].querySelectorAll(".hop").length,
      [...drawn[0].querySelectorAll("[data-state=out] title")].map((each) => each.textContent),
      drawn[1].textContent.split(". ")[0],
      [...drawn[2].children].map((card) => [".is", ".trouble"].map(
        (part) => card.querySelector(part).textContent)).at(-1)];
  });
}"""


@pytest.mark.slow
def test_who_is_left_out_is_drawn_beside_the_ring(page: Page) -> None:
    assert page.evaluate(DRAWN_SMALLER, AWAY) == [
        [
            2,
            ["den: left out"],
            "A ring of 2, of 3, that serves",
            ["left out", AWAY],
        ],
        [2, ["den: witness"], "A ring of 2 that serves", ["witness", ""]],
        [2, ["den: witness"], "A ring of 2 that serves", ["witness, away", ""]],
        [2, [], "A ring of 2 that serves", ["rank 1", ""]],
    ]


DRAWN_FETCHING = """async () => {
  const { Ring } = await import("/dashboard/ring.js");
  const cluster = await (await fetch("/v1/cluster")).json();
  const drawn = ["svg", "p", "ul"].map((name) => document.createElementNS(
    name === "svg" ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", name));
  document.body.append(...drawn);
  new Ring(...drawn).show({ ...cluster, ranks: cluster.ranks.map((rank) => ({
    ...rank, ready: false, fetched_bytes: rank.rank, fetch_bytes: 4 * rank.rank })) });
  return [...drawn[2].children].map((card) => [
    card.querySelector("progress:not([hidden])")?.value ?? null,
    card.querySelector(".is").textContent]);
}"""


@pytest.mark.slow
def test_a_rank_that_fetches_has_a_bar(page: Page) -> None:
    assert page.evaluate(DRAWN_FETCHING) == [[None, "loading"], [0.25, "fetching"]]


@pytest.mark.slow
def test_a_load_is_seen(page: Page, served: Served) -> None:
    with busy(served):
        expect(page.locator("#now-tokens")).not_to_have_text("0")
        expect(page.locator("#ring-drawing")).to_have_class("flowing")
        expect(page.locator("#now-decode")).not_to_have_text("0")
        expect(page.locator("#now-hop")).to_have_text(re.compile(r"[\d.]+ (µs|ms)"))
        plot = page.get_by_role(
            "img", name=re.compile(r"^Tokens per second, .*: \d.* now, at most")
        )
        expect(plot.locator(".line.tokens")).to_have_attribute("d", re.compile("L"))
        plot.hover(position={"x": plot.bounding_box()["width"] - 2, "y": 20})
        expect(page.locator("figure").first.locator(".reading")).to_contain_text(" · ")


@pytest.mark.slow
def test_a_running_request_is_cancelled_by_its_button(page: Page, served: Served) -> None:
    with busy(served) as ids:
        name = ids[0][-6:]
        row = page.get_by_role("list", name="Running requests").get_by_role("listitem")
        row = row.filter(has_text=name)  # what the page shows may be a second old
        expect(row.first).to_contain_text("decoding")
        expect(page.locator("#request-count")).to_have_text("1 running")
        button = row.first.get_by_role("button", name="Cancel request")
        button.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text(f"Request {name} is cancelled.")
        over = page.get_by_role("list", name="Just finished").get_by_role("listitem")
        # Before its client leaves, which would end it as well.
        expect(over.filter(has_text=name)).to_contain_text("cancelled")
    bar = over.filter(has_text=name).get_by_role("img")
    assert "compute" in bar.get_attribute("aria-label")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(320, 640), (768, 1024), (1920, 1080)])
def test_any_width_is_enough(tab: Tab, served: Served, width: int, height: int) -> None:
    with tab.at(f"{served.url}/#ring", size={"width": width, "height": height}) as page:
        expect(page.locator("#state")).to_have_text("serving")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for part in page.locator("section.panel").all():
            box = part.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert part.evaluate("e => e.scrollWidth <= e.clientWidth")


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(tab: Tab, served: Served, scheme: str) -> None:
    """At least 4.5 to 1, as WCAG asks of text, for every colour of text on its own ground."""
    with tab.at(f"{served.url}/#ring", color_scheme=scheme) as page:
        expect(page.locator("#state")).to_have_text("serving")
        pairs = json.loads(page.evaluate(CONTRASTS))
        page.get_by_role("link", name="Chat", exact=True).click()
        show(page, EVERYTHING)
        pairs += json.loads(page.evaluate(CONTRASTS))
    assert len(pairs) > 15
    assert (luminance(pairs[0][1]) < 0.1) == (scheme == "dark")
    for ink, ground, text in pairs:
        low, high = sorted((luminance(ink), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ink, ground)


CONTRASTS = """
() => {
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
  };
  const found = {};
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!text || !e.checkVisibility() || e.closest('svg, [disabled], dialog, .skip')) continue;
    const pair = [getComputedStyle(e).color, ground(e)];
    found[pair.join()] ??= [...pair, e.textContent.trim().slice(0, 40)];
  }
  return JSON.stringify(Object.values(found));
}
"""


@pytest.mark.slow
def test_nothing_moves_for_whoever_wants_it_still(tab: Tab, served: Served) -> None:
    with tab.at(f"{served.url}/#ring", reduced_motion="reduce") as page, busy(served):
        expect(page.locator("#ring-drawing")).to_have_class("flowing")
        assert page.evaluate("document.getAnimations().length") == 0


@pytest.mark.slow
def test_the_page_runs_and_shows_nothing_of_others(served: Served) -> None:
    for path in ("/", "/dashboard/main.js", "/dashboard/style.css"):
        headers = httpx2.get(f"{served.url}{path}").headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert policy.endswith("require-trusted-types-for 'script'; trusted-types sealring")
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    text = httpx2.get(f"{served.url}/").text
    assert "style=" not in text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|https?://", text)
    assert httpx2.get(f"{served.url}/dashboard/../pages.py").status_code == 404
    assert httpx2.get(f"{served.url}/dashboard/none.js").status_code == 404


@pytest.fixture(scope="module")
def closed() -> Iterator[Guarded]:
    """A ring that asks for a key."""
    with guarded() as ring:
        yield ring


@pytest.mark.slow
def test_a_key_is_asked_for_and_kept_in_this_tab(browser: Browser, closed: Guarded) -> None:
    with window(browser, closed.url, expected="a status of 401") as page:
        dialog = page.get_by_role("dialog", name="This ring asks for a key")
        field = dialog.get_by_label("API key")
        expect(field).to_be_focused()
        page.keyboard.press("Escape")
        field.fill("sk-sealring-wrong")
        field.press("Enter")
        expect(dialog.get_by_role("alert")).to_have_text("This key is not known.")
        field.fill(closed.key)
        dialog.get_by_role("button", name="Use this key").click()
        expect(page.locator("#state")).to_have_text("serving")
        expect(dialog).to_be_hidden()
        page.reload()
        expect(page.locator("#state")).to_have_text("serving")
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.get_by_role("textbox", name="Your message").fill("Hello.")
        page.keyboard.press("Enter")
        expect(page.locator(".cost")).to_be_visible()


@pytest.mark.slow
def test_a_head_that_goes_away_and_comes_back(browser: Browser, closed: Guarded) -> None:
    with window(browser, closed.url, expected="Failed to load resource") as page:
        page.get_by_label("API key").fill(closed.key)
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("serving")
        page.locator("#chat-text").fill("What I was about to say")
        closed.stop()
        expect(page.locator("#state")).to_have_text("out of reach")
        expect(page.locator("#notice")).to_contain_text("The head was stopped.")
        expect(page.get_by_role("status")).to_have_text("The ring is out of reach.")
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        page.get_by_role("link", name="Ring").click()
        for name in ("tokens", "prompt", "queued", "prefill", "decode", "hop", "guesses"):
            expect(page.locator(f"#now-{name}")).to_have_text("–")
        expect(page.locator("#ring-drawing .rate")).to_have_text("–")
        closed.start()
        expect(page.get_by_role("alert")).to_have_text("Connected again.")
        expect(page.locator("#state")).to_have_text("serving")
        page.get_by_role("link", name="Chat", exact=True).click()
        expect(page.locator("#chat-text")).to_have_value("What I was about to say")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.slow
def test_a_ring_that_waits_says_for_what(browser: Browser, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    configs = write_cluster(tmp_path, 2, find_model(TINY), api=f"127.0.0.1:{port}")
    with running_node(configs[0]) as head:
        wait_until_up(head)
        with window(browser, f"http://127.0.0.1:{port}") as page:
            expect(page.locator("#state")).to_have_text("not serving")
            expect(page.locator("#why")).to_contain_text("rank 1 (rank1) cannot be reached")
            expect(page.locator("#ranks")).to_contain_text("missing")


@pytest.mark.slow
def test_a_name_that_the_head_does_not_know_is_said_with_its_cure(
    browser: Browser, served: Served
) -> None:
    """As behind a proxy: the page's files are served, and what the API says is shown."""
    url = served.url.replace("127.0.0.1", "proxy.localhost")  # which Chromium takes for loopback
    with window(browser, url, expected="403") as page:
        notice = page.locator("#notice")
        expect(notice).to_contain_text('allowed_hosts = ["proxy.localhost"]')
        expect(page.locator("#state-text")).to_have_text("out of reach")

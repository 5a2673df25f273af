"""The chat, in front of a ring of the tiny model, and of one whose every answer is known."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.api import scripted
from tests.api.conftest import UNDER_WAY
from tests.dashboard.browser import DESKTOP, Tab, needs_chromium, window
from tests.dashboard.rings import OneRank
from tests.dashboard.test_prose import LONGEST_TASK, WATCH
from tests.dashboard.texts import show
from tests.serving import PATIENCE, Served

pytestmark = needs_chromium

LINES = [f"Line {n} of *{n}* and `{n}`.\n" + "\n" * (n % 9 == 0) for n in range(200)]
CODE = [f"def f{n}(x):  # {n}\n    return x + {n}\n" for n in range(200)]
SCRIPTS = [
    *scripted.SCRIPTS,
    ["document", *LINES, "\n```python\n", *CODE, "```\n", "That is all.", scripted.END],
]


@pytest.fixture
def page(tab: Tab, served: Served) -> Iterator[Page]:
    with tab.at(served.url) as page:
        expect(page.locator("#state")).to_have_text("serving")
        yield page


def ask(page: Page, text: str) -> None:
    box = page.locator("#chat-text")
    box.fill(text)
    box.press("Enter")


def answers(page: Page, count: int) -> Locator:
    """The answers on the page, once there are *count* of them, all complete."""
    shown = page.locator(".message.assistant:not(.writing)")
    expect(shown).to_have_count(count)
    expect(page.locator(".message[aria-busy]")).to_have_count(0)
    return shown


def exported(page: Page, button: str) -> str:
    """What a download of the conversation's settings holds."""
    page.locator("#settings-open").click()
    with page.expect_download() as saving:
        page.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    return Path(saving.value.path()).read_text()


def ended(url: str) -> str:
    """How the latest request at *url* ended."""
    end = time.monotonic() + PATIENCE
    while (state := httpx2.get(f"{url}/v1/requests").json()["data"][0]["state"]) in UNDER_WAY:
        assert time.monotonic() < end
    return str(state)


@pytest.mark.slow
def test_one_types_at_once_and_the_answer_says_what_it_cost(page: Page, served: Served) -> None:
    expect(page.locator("#chat-text")).to_be_focused()
    # The browser tries an `autofocus` after that, in a closed dialog too, and complains.
    expect(page.locator("[autofocus]")).to_have_count(0)
    page.keyboard.type("Count to twenty.")
    page.keyboard.press("Enter")
    (cost,) = answers(page, 1).locator(".cost").all_inner_texts()
    assert re.fullmatch(
        r"\d+ tokens · [\d.]+ tokens/s · first after [\d.]+ m?s( · \d+ known from before)?"
        r" · rank0 \(layers? [\d–]+\) → rank1 \(layers? [\d–]+\)",
        cost,
    )
    expect(page.get_by_role("status")).to_have_text(re.compile("^The model says: |words"))
    ask(page, "And again?")
    answers(page, 2)
    second, first = httpx2.get(f"{served.url}/v1/requests").json()["data"][:2]
    assert second["prompt_tokens"] > first["prompt_tokens"] + first["tokens"]  # it goes on
    page.get_by_role("link", name="New conversation").click()
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator("#chat-text")).to_be_focused()


@pytest.mark.slow
def test_conversations_stay_in_this_browser(page: Page) -> None:
    ask(page, "Hello.")
    said = answers(page, 1).locator(".text").inner_text()
    page.locator("#settings-open").click()
    page.get_by_label("Title").fill("A greeting")
    page.get_by_label("System prompt").fill("Be kind.")
    page.get_by_label("Temperature").fill("3")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#wrong-temperature")).to_contain_text("a number from 0 to 2")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Save").click()
    page.reload()
    answer = answers(page, 1)
    expect(answer.locator(".text")).to_have_text(said)
    expect(answer.locator(".cost")).to_contain_text("rank0")
    saved = json.loads(exported(page, "JSON"))
    (conversation,) = saved["conversations"]
    assert conversation["settings"] == {"system": "Be kind.", "temperature": 0, "seed": 7}
    assert [each["content"] for each in conversation["messages"]] == ["Hello.", said]
    text = exported(page, "Markdown")
    parts = ("# A greeting", "## System prompt\n\nBe kind.", "## You\n\nHello.", said)
    assert all(part in text for part in parts)
    items = page.get_by_role("list", name="Conversations in this browser").get_by_role("listitem")
    expect(items).to_have_text(["A greeting"])
    items.get_by_role("button", name="Delete “A greeting”").click()
    expect(items).to_have_count(0)
    expect(page.locator(".message")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    items.get_by_role("link", name="A greeting").click()
    answers(page, 1)
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


@pytest.mark.slow
def test_what_is_saved_or_deleted_stays_so_if_the_page_is_reloaded_at_once(page: Page) -> None:
    show(page, "An answer.")
    page.locator("#settings-open").click()
    for seed in map(str, range(5)):
        page.get_by_label("Seed").fill(seed)
        press_and_reload(page, page.get_by_role("button", name="Save"))
        answers(page, 1)
        page.locator("#settings-open").click()
        expect(page.get_by_label("Seed")).to_have_value(seed)
    press_and_reload(page, page.locator("#conversation-delete"))
    expect(page.locator("#no-conversations")).to_have_text("Nothing yet.")


def press_and_reload(page: Page, button: Locator) -> None:
    """Press *button* when the reloaded page is on its way: nothing of this one runs after it."""
    with page.expect_navigation():
        button.evaluate(PRESSED_LATE)


PRESSED_LATE = """
(button) => {
  location.reload();
  const end = performance.now() + 200;
  while (performance.now() < end);
  button.click();
}
"""


@pytest.mark.slow
def test_files_that_are_no_conversations_are_refused(page: Page) -> None:
    (head,) = [{"format": "sealring-conversations", "version": 1}]
    for data, why in (
        (b"{", "no JSON"),
        (b'{"conversations": []}', "no file of conversations"),
        (json.dumps({**head, "conversations": [{"messages": 1}]}).encode(), "no list of at most"),
        (json.dumps({**head, "conversations": [{"messages": [{}]}]}).encode(), "of no known kind"),
    ):
        file: Any = {"name": "a.json", "mimeType": "application/json", "buffer": data}
        page.locator("#import-file").set_input_files(file)
        expect(page.locator("#import-told")).to_contain_text(why)


@pytest.mark.slow
def test_the_keyboard_stops_edits_and_copies(page: Page, served: Served) -> None:
    ask(page, "Tell me a long story about a fox.")
    expect(page.locator(".assistant .text")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(page.locator(".cost")).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert ended(served.url) == "request_cancelled"
    page.locator("#chat-text").press("ArrowUp")
    field = page.get_by_role("textbox", name="The message, to be changed")
    expect(field).to_have_value("Tell me a long story about a fox.")
    field.fill("Hello.")
    field.press("Enter")
    expect(page.locator(".message.user .text")).to_have_text("Hello.")
    first = answers(page, 1)
    name = page.url
    first.get_by_role("button", name="Answer again").click()
    answers(page, 1)
    assert page.url == name
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy this answer").click()
    expect(page.get_by_role("status")).to_have_text("Copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".assistant .text").inner_text()


@pytest.mark.slow
def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.locator("#skip").focus()
    seen = [page.evaluate(FOCUSED)]
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
    names = [name for name, outline in seen]
    assert names == [
        *("skip", "to-chat", "to-ring", "conversation-new", "import"),
        *("settings-open", "log", "chat-text", "chat-picture"),
    ]
    assert [name for name, outline in seen if outline != "solid"] == []


FOCUSED = """
() => {
  const e = document.activeElement;
  const drawn = e.id === 'chat-text' ? e.form : e;
  return [e.id || e.textContent, getComputedStyle(drawn).outlineStyle];
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(320, 568), (844, 390)])
def test_a_phone_has_all_of_it(browser: Browser, served: Served, width: int, height: int) -> None:
    phone = {"viewport": {"width": width, "height": height}, "has_touch": True, "is_mobile": True}
    with window(browser, served.url, **phone) as page:
        expect(page.locator("#state")).to_have_text("serving")
        show(page, "```\n" + "x" * 300 + "\n```\n\n" + "y" * 300 + "\n\n|a|b|\n|-|-|\n|1|2|\n")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("document.documentElement.scrollHeight") <= height
        for name in ("state", "to-ring", "chat-text", "chat-send", "settings-open"):
            box = page.locator(f"#{name}").bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= height
        assert page.locator("#chat-text").evaluate("e => getComputedStyle(e).fontSize") == "16px"
        page.get_by_role("button", name="Edit this message").tap()
        for name in ("Cancel", "Send"):  # on one line
            box = page.locator(".edit").get_by_role("button", name=name).bounding_box()
            assert box is not None
            assert box["height"] < 40
        page.locator(".edit").get_by_role("button", name="Cancel").tap()
        page.locator("#settings-open").tap()
        inside = "e => e.scrollWidth <= e.clientWidth"
        assert page.locator("dialog[open]").evaluate(inside)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Conversations").tap()
        expect(page.get_by_role("link", name="New conversation")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("link", name="New conversation")).to_be_hidden()
        page.locator("#to-ring").tap()
        expect(page.get_by_role("region", name="Ring", exact=True)).to_be_visible()


@pytest.mark.slow
def test_what_is_on_the_screen_comes_first(browser: Browser, served: Served) -> None:
    """A long conversation is there at once, as it was written; its end is read before the rest."""
    with window(browser, served.url, viewport=DESKTOP) as page:
        expect(page.locator("#state")).to_have_text("serving")
        page.evaluate(ORDER)
        show(page, *(f"Answer *{n}*.\n\n```python\nx = {n}\n```" for n in range(150)))
        first, blank = page.evaluate("[globalThis.order[0], globalThis.blank]")
        assert "Answer 149." in first
        assert blank == 0
        expect(page.locator(".assistant em")).to_have_count(150)


ORDER = """
() => {
  globalThis.order = [];
  new MutationObserver((records) => {
    for (const { target } of records) {
      if (target.hasAttribute("aria-busy")) continue;
      globalThis.blank ??= document.querySelectorAll(".assistant .text:empty").length;
      order.push(target.innerText);
    }
  }).observe(document.body, { subtree: true, attributeFilter: ["aria-busy"] });
}
"""


@pytest.mark.slow
def test_earlier_versions_of_an_answer_and_of_a_question_stay(page: Page) -> None:
    focused = "document.activeElement.id || document.activeElement.ariaLabel"
    ask(page, "Count to twenty.")
    (first,) = answers(page, 1).locator(".text").all_inner_texts()
    page.get_by_role("button", name="Answer again").press("Enter")
    expect(page.locator("#chat-text")).to_be_focused()
    (second,) = answers(page, 1).locator(".text").all_inner_texts()
    expect(page.locator(".assistant .versions")).to_have_text("2 of 2")
    page.get_by_role("button", name="The version before").press("Enter")
    expect(page.locator(".assistant .text")).to_have_text(first)
    expect(page.locator(".assistant .versions")).to_have_text("1 of 2")
    assert page.evaluate(focused) == "The version after"
    page.get_by_role("button", name="Edit this message").press("Enter")
    field = page.get_by_role("textbox", name="The message, to be changed")
    field.fill("Hello.")
    field.press("Enter")
    expect(page.locator("#chat-text")).to_be_focused()
    answers(page, 1)
    expect(page.locator(".user .versions")).to_have_text("2 of 2")
    expect(page.locator(".assistant .versions")).to_have_count(0)
    saved = json.loads(exported(page, "JSON"))
    page.reload()
    answers(page, 1)
    page.get_by_role("button", name="The version before").click()
    expect(page.locator(".user .text")).to_have_text("Count to twenty.")
    expect(page.locator(".assistant .text")).to_have_text(first)
    page.get_by_role("button", name="The version after").nth(1).click()
    expect(page.locator(".assistant .text")).to_have_text(second)
    file: Any = {"name": "a", "mimeType": "application/json", "buffer": json.dumps(saved).encode()}
    page.locator("#import-file").set_input_files(file)
    expect(page.locator(".user .versions")).to_have_text("2 of 2")
    page.get_by_role("button", name="The version before").click()
    expect(page.locator(".assistant .versions")).to_have_text("1 of 2")


@pytest.mark.slow
def test_conversations_are_searched(page: Page) -> None:
    show(page, "About a **badger**.")
    show(page, "About a fox.")
    items = page.get_by_role("list", name="Conversations in this browser").get_by_role("listitem")
    expect(items).to_have_count(2)
    search = page.get_by_role("searchbox", name="Search conversations")
    search.fill("BADGER about")
    expect(items).to_have_count(1)
    search.fill("no such thing")
    expect(page.locator("#no-conversations")).to_have_text("Nothing found.")
    search.fill("")
    expect(items).to_have_count(2)


@pytest.mark.slow
def test_a_head_that_was_stopped_is_not_waited_for_in_words(stage: Page) -> None:
    """What the page says is so: nobody tries to bring the head back but people."""
    url = f"{stage.url.split('#')[0]}v1/cluster"
    cluster = {**httpx2.get(url).json(), "draining": True}
    told = json.dumps({"cluster": cluster, "samples": {"at_ms": []}, "over": []})
    stage.route("**/v1/cluster/events", lambda route: route.abort(), times=20)
    stage.route(
        "**/v1/cluster/events",
        lambda route: route.fulfill(content_type="text/event-stream", body=f"data: {told}\n\n"),
        times=1,
    )
    stage.reload()
    expect(stage.get_by_role("alert")).to_contain_text("once somebody has started it again")


@pytest.mark.slow
def test_a_picture_is_refused_with_the_reason(page: Page) -> None:
    button = page.get_by_role("button", name="Add a picture")
    expect(button).to_have_attribute("aria-disabled", "true")
    button.click(force=True)
    expect(page.locator("#chat-hint")).to_have_text("No pictures: tiny is given text alone")


@pytest.fixture(scope="module")
def played() -> Iterator[OneRank]:
    """One rank of a model whose every answer is known."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        model = Path(folder) / "scripted"
        model.mkdir()
        scripted.build(model, SCRIPTS)
        ring = OneRank(Path(folder), model)
        ring.start()
        try:
            yield ring
        finally:
            ring.stop()


@pytest.fixture
def stage(tab: Tab, played: OneRank) -> Iterator[Page]:
    with tab.at(played.url, expected="Failed to load resource") as page:
        expect(page.locator("#state")).to_have_text("serving")
        yield page


@pytest.mark.slow
def test_reasoning_is_folded(stage: Page) -> None:
    ask(stage, "think")
    answer = answers(stage, 1)
    expect(answer.locator(".text")).to_have_text("The answer.")
    expect(answer.locator(".reasoning .prose")).to_be_hidden()
    answer.locator("summary").click()
    expect(answer.locator(".reasoning .prose")).to_have_text("I ponder.")


TOOL = '[{"type": "function", "function": {"name": "get_weather"}}]'


@pytest.mark.slow
def test_a_tool_is_called_and_its_result_goes_back(stage: Page) -> None:
    stage.locator("#settings-open").click()
    stage.locator("#set-more summary").click()
    stage.locator("#set-tools").fill("[")
    stage.get_by_role("button", name="Save").click()
    expect(stage.locator("#wrong-tools")).to_contain_text("JSON list of tools")
    stage.locator("#set-tools").fill(TOOL)
    stage.get_by_role("button", name="Save").click()
    ask(stage, "weather")
    call = answers(stage, 1).locator(".call")
    expect(call).to_contain_text("Calls the tool get_weather")
    expect(call.locator("code")).to_have_text('{\n  "city": "Paris"\n}')
    result = stage.get_by_role("textbox", name="Result of get_weather")
    result.fill("fruit")
    result.press("Enter")
    expect(answers(stage, 2).nth(1).locator(".text")).to_have_text("apple banana cherry")
    expect(stage.get_by_role("textbox", name="Your message")).to_be_visible()


@pytest.mark.slow
def test_what_the_head_refuses_is_said_in_its_place(stage: Page) -> None:
    def set_tools(text: str) -> None:
        stage.locator("#settings-open").click()
        tools = stage.locator("#set-tools")
        if not tools.is_visible():
            stage.locator("#set-more summary").click()
        tools.fill(text)
        stage.get_by_role("button", name="Save").click()

    set_tools('[{"type": "nonsense"}]')
    ask(stage, "fruit")
    trouble = stage.get_by_role("group", name="Why there is no answer")
    expect(trouble).to_contain_text("tools")
    expect(trouble).to_contain_text("Change the message or this conversation's settings")
    set_tools("")
    trouble.get_by_role("button", name="Ask again").click()
    expect(answers(stage, 1).locator(".text")).to_have_text("apple banana cherry")
    expect(trouble).to_be_hidden()


@pytest.mark.slow
def test_a_refusal_with_a_time_is_waited_for(stage: Page) -> None:
    """The head's own answer to a full queue, given by the browser in its place."""
    error = {"message": "The ring is busy.", "type": "x", "code": "rate_limit_exceeded"}
    refusal = {"status": 429, "headers": {"retry-after": "1"}, "body": json.dumps({"error": error})}
    place = "**/v1/chat/completions"
    stage.route(place, lambda route: route.fulfill(content_type="application/json", **refusal))
    ask(stage, "fruit")
    again = stage.get_by_role("button", name="Ask again")
    expect(again).to_have_text("Ask again in 1 s")
    expect(again).to_be_disabled()
    stage.unroute(place)
    expect(again).to_be_enabled()
    again.click()
    expect(answers(stage, 1).locator(".text")).to_have_text("apple banana cherry")


@pytest.mark.slow
@pytest.mark.parametrize("code", ["head_lost", "taken_over"])
def test_an_answer_goes_on_where_a_follower_had_lost_the_head(stage: Page, code: str) -> None:
    """What a follower says of that, given by the browser in its place; and what a head says to whom
    another page has taken the answer over from, which would take it back for ever."""
    name = f"chatcmpl-{'0' * 24}"

    def said(number: int, text: str) -> str:
        event = {"id": name, "choices": [{"delta": {"content": text}, "finish_reason": None}]}
        return f"id: {name}:{number}\ndata: {json.dumps(event)}\n\n"

    error = {"message": "It is so.", "type": "x", "code": code}
    end = f"data: {json.dumps({'id': name, 'error': error, 'resumable': True})}\n\n"
    asked: list[str] = []

    def go_on(route: Route) -> None:
        asked.append(route.request.headers["last-event-id"])
        rest = said(1, " banana") + "data: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=rest)

    begun = {"content_type": "text/event-stream", "body": said(0, "apple") + end}
    stage.route("**/v1/chat/completions", lambda route: route.fulfill(**begun))
    stage.route(f"**/v1/streams/{name}", go_on)
    ask(stage, "fruit")
    trouble = stage.get_by_role("group", name="Why there is no answer")
    if code == "head_lost":
        expect(answers(stage, 1).locator(".text")).to_have_text("apple banana")
        assert asked == [f"{name}:0"]
        expect(trouble).to_be_hidden()
    else:
        expect(trouble).to_contain_text("It is so.")
        assert not asked


@pytest.mark.slow
def test_a_long_answer_comes_smoothly_and_whole(stage: Page) -> None:
    stage.evaluate(WATCH)
    ask(stage, "document")
    answer = answers(stage, 1)
    assert max(stage.evaluate("globalThis.tasks"), default=0) < LONGEST_TASK
    expect(answer.locator(".text > p").last).to_have_text("That is all.")
    code = answer.locator("figure code").evaluate("e => e.textContent")
    assert code == "".join(CODE)
    assert answer.locator("em").count() == len(LINES)
    top = "e => e.scrollHeight - e.scrollTop - e.clientHeight"
    assert stage.locator("#log").evaluate(top) < 2  # it was followed to its end
    stage.reload()
    assert answers(stage, 1).locator("figure code").evaluate("e => e.textContent") == code


@pytest.mark.slow
def test_a_head_that_hangs_takes_nothing_along(stage: Page, played: OneRank) -> None:
    """Neither what is typed nor an answer that comes: it goes on when the head does."""
    ask(stage, "endless")
    answer = stage.locator(".assistant .text")
    expect(answer).to_contain_text("lala")
    stage.locator("#chat-text").fill("What I was about to say")
    expect(stage.locator("#rate-now")).to_contain_text("tokens/s")
    with played.hanging():
        expect(stage.locator("#state")).to_have_text("out of reach")
        expect(stage.locator("#rate-now")).to_have_text("")
        expect(stage.get_by_role("alert")).to_contain_text("what you have typed stays here")
        had = answer.inner_text()
        assert "lala" in had
    expect(stage.get_by_role("alert")).to_have_text("Connected again.")
    expect(stage.locator("#state")).to_have_text("serving")
    expect(answer).to_contain_text(had.strip() + "lalalala")
    stage.get_by_role("button", name="Stop").click()
    expect(stage.locator(".cost")).to_contain_text("stopped")
    assert ended(played.url) == "request_cancelled"
    assert not stage.get_by_role("group", name="Why there is no answer").count()
    expect(stage.locator("#chat-text")).to_have_value("What I was about to say")
    expect(stage.get_by_role("button", name="Send")).to_be_enabled()
    expect(stage.locator("#chat-hint")).to_contain_text("Enter sends")


@pytest.mark.slow
def test_an_answer_goes_on_when_the_page_is_loaded_again(stage: Page, played: OneRank) -> None:
    """Without a gap or a double: every token is the same, and they are counted."""
    stage.locator("#settings-open").click()
    stage.get_by_label("Most tokens").fill("4000")
    stage.get_by_role("button", name="Save").click()
    ask(stage, "endless")
    stage.reload()
    expect(stage.locator(".assistant .text")).to_contain_text("lala")
    with played.hanging():
        wait_until_kept(stage, "lala")
    stage.reload()
    answers(stage, 1)
    said, answer = json.loads(exported(stage, "JSON"))["conversations"][0]["messages"]
    assert (said["content"], answer["end"]) == ("endless", "length")
    assert answer["content"] == "la" * 4000
    assert "asked" not in answer
    newest = httpx2.get(f"{played.url}/v1/requests").json()["data"][0]
    assert (newest["id"], newest["tokens"]) == (answer["id"], 4000)


@pytest.mark.slow
@pytest.mark.parametrize("had", [0, 2])
def test_a_page_that_is_loaded_again_asks_for_what_it_has_not_kept(stage: Page, had: int) -> None:
    """The head is away before that, and for a moment after; the browser answers in its place."""
    name = f"chatcmpl-{'0' * 24}"
    texts = ["apple", " banana", " cherry"]
    events = [
        f"id: {name}:{at}\ndata: "
        + json.dumps({"id": name, "choices": [{"delta": {"content": text}, "finish_reason": None}]})
        + "\n\n"
        for at, text in enumerate(texts)
    ]
    posts: list[tuple[str, str | None]] = []
    asked: list[tuple[bool, str]] = []
    loaded = False

    def begin(route: Route) -> None:
        posts.append((route.request.headers["idempotency-key"], route.request.post_data))
        if had or loaded:
            give(route, events[:had] if had else events)

    def go_on(route: Route) -> None:
        asked.append((loaded, route.request.headers["last-event-id"]))
        if [late for late, _ in asked].count(True) > 1:
            give(route, events[had:])
        else:
            route.abort()

    def give(route: Route, some: list[str]) -> None:
        end = "data: [DONE]\n\n" if some[-1] == events[-1] else ""
        route.fulfill(content_type="text/event-stream", body="".join(some) + end)

    stage.route("**/v1/chat/completions", begin)
    stage.route("**/v1/streams/*", go_on)
    ask(stage, "fruit")
    wait_until_kept(stage, "".join(texts[:had]))
    loaded = True
    stage.reload()
    expect(answers(stage, 1).locator(".text")).to_have_text("apple banana cherry")
    assert len(posts) == (1 if had else 2)
    assert len(set(posts)) == 1
    assert {last for _, last in asked} == ({f"{name}:1"} if had else set())


SAVED = """
(text) => new Promise((resolve) => {
  const opened = indexedDB.open("sealring", 1);
  opened.onsuccess = () => {
    const all = opened.result.transaction("bodies").objectStore("bodies").getAll();
    all.onsuccess = () => {
      opened.result.close();
      const last = all.result.map(({ messages }) => messages.at(-1));
      resolve(last.some(({ asked, content }) => asked && content.endsWith(text)));
    };
  };
})
"""


@pytest.mark.slow
def test_what_had_come_stays_where_the_head_has_the_rest_no_longer(
    stage: Page, played: OneRank
) -> None:
    """The answer of a head that has let the stream go, given by the browser in its place."""
    error = {"message": "There is no such stream.", "type": "x", "code": "stream_not_found"}
    body = json.dumps({"error": error})
    stage.route("**/v1/streams/*", lambda route: route.fulfill(status=404, body=body))
    ask(stage, "endless")
    expect(stage.locator(".assistant .text")).to_contain_text("lala")
    with played.hanging():
        expect(stage.locator("#state")).to_have_text("out of reach")
        trouble = stage.get_by_role("group", name="Why there is no answer")
        expect(trouble).to_contain_text("The head has the rest no longer.")
        expect(trouble).to_contain_text("What had come stays here")
        assert "lala" in stage.locator(".assistant .text").inner_text()
        expect(stage.get_by_role("button", name="Send")).to_be_disabled()
        trouble.get_by_role("button", name="Ask again").click()
        expect(stage.locator("#chat-hint")).to_have_text("The ring does not serve just now.")
    expect(stage.locator("#state")).to_have_text("serving")
    newest = httpx2.get(f"{played.url}/v1/requests").json()["data"][0]["id"]
    httpx2.delete(f"{played.url}/v1/requests/{newest}")
    assert ended(played.url) == "request_cancelled"


def wait_until_kept(page: Page, text: str) -> None:
    """Wait until *page* keeps an answer that ends with *text* so far. `Page.wait_for_function`
    takes the promise itself for a yes."""
    for _ in range(600):
        if page.evaluate(SAVED, text):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"the page does not keep {text!r}")

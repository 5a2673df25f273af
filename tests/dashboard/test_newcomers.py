"""A machine that waits to join, on the page of a real head, and who decides there."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from playwright.sync_api import Browser, Page, expect
from sealring.joining.fingerprint import fingerprint
from sealring_protocol.joining.invitation import Invitation

from tests.dashboard.browser import needs_chromium, window
from tests.io_trio.helpers import sealring
from tests.io_trio.test_cli_start import announced, start
from tests.joining.doors import Machine

pytestmark = needs_chromium

MARKUP = "<img src=x onerror=alert(1)>"
SPOKEN = """
() => {
  const spoken = document.getElementById("spoken");
  globalThis.heard = [];
  new MutationObserver(() => heard.push(spoken.textContent)).observe(spoken, { childList: true });
}
"""


@contextmanager
def knocking(machine: Machine, invitation: str) -> Iterator[None]:
    """*machine* asks to join until the block ends, or it is answered."""
    given = Invitation.decode(invitation)
    thread = threading.Thread(target=trio.run, args=(machine.join, given))
    thread.start()
    yield
    thread.join()


def key_of(config: Path, *options: str) -> str:
    made = sealring("apikey", "new", *options, "--config", config, "--json")
    return str(made.json()["key"])


def enter(page: Page, key: str) -> None:
    page.get_by_role("dialog", name="This ring asks for a key").get_by_label("API key").fill(key)
    page.keyboard.press("Enter")


@pytest.mark.slow
def test_a_machine_waits_and_whoever_may_decides(browser: Browser) -> None:
    machine = Machine(MARKUP, system=f"{MARKUP} \u05d0")
    words = fingerprint(machine.signer.public_key).replace("-", " ")
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        began, url = start(Path(folder), "--json")
        config = Path(folder) / "desk" / "node.toml"
        with began:
            invitation = announced(began)["invitation"]
            began.until("the ring is ready: epoch")
            with (
                window(browser, url, expected="a status of 401") as other,
                window(browser, url, expected="a status of 401") as own,
                knocking(machine, invitation),
            ):
                waits = other.get_by_role("region", name="A machine waits to join")
                expect(waits).to_contain_text(words)
                expect(other.get_by_role("status")).to_contain_text(f"Its four words are {words}")
                expect(waits.locator(".says")).to_contain_text(MARKUP + r" \u05d0")
                expect(waits.locator("img")).to_have_count(0)
                expect(other).to_have_title("A machine waits to join · sealring")
                # Without a key nobody decides here.
                command = f"sealring machines accept --config node.toml {words.replace(' ', '-')}"
                expect(waits.locator(".command")).to_have_text(command)
                expect(waits.get_by_role("button")).to_have_count(0)
                other.set_viewport_size({"width": 320, "height": 640})
                assert other.evaluate("document.documentElement.scrollWidth") == 320

                other.evaluate(SPOKEN)
                enter(other, key_of(config, "bob"))
                expect(waits.locator(".how")).to_contain_text("This API key may ask, and may not")
                expect(waits.get_by_role("button")).to_have_count(0)

                enter(own, key_of(config, "owner", "--admit"))
                button = own.get_by_role("button", name=f"Decide about {MARKUP}")
                button.focus()
                own.keyboard.press("Enter")
                question = own.get_by_role("dialog", name=f"May {MARKUP} join?")
                expect(question).to_contain_text("Do the same four words stand on that machine?")
                expect(question.locator(".words")).to_have_text(words)
                expect(question.get_by_role("button", name="Not now")).to_be_focused()
                own.keyboard.press("Escape")
                expect(question).to_be_hidden()
                expect(button).to_be_focused()
                own.keyboard.press("Enter")
                question.get_by_role("button", name="Yes, let it in").press("Enter")
                expect(question).to_be_hidden()
                done = f"{MARKUP} is a member now"
                expect(own.locator(".how")).to_have_text(f"{done}.")
                expect(other.locator(".how")).to_have_text(
                    f"{done}: the API key 'owner' has let it in."
                )
                assert any(done in text for text in other.evaluate("heard"))
            assert machine.ended is True
            began.until("the API key 'owner' lets in")

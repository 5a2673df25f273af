"""Takes the README's pictures: the page of a ring of three ranks on this machine, at work.

``python -m docs.picture`` writes ``page.png``, the ring's view, and ``chat.png`` beside this
module. It needs a Chromium: one that is installed, or the one that the variable CHROMIUM names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Final

from playwright.sync_api import expect, sync_playwright

FILE: Final = Path(__file__).with_name("page.png")
CHAT: Final = Path(__file__).with_name("chat.png")
SECONDS: Final = 12.0
"""How long the ring works before the picture is taken: the load's curve needs some seconds."""


def _ask(url: str) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
        "n": 4,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


def _take(url: str, chromium: str) -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            _ask(url)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            page.goto(f"{url}/")
            expect(page.locator("#state")).to_have_text("serving")
            for text in ("Tell me a story about a fox.", "And one about a crow."):
                page.locator("#chat-text").fill(text)
                page.locator("#chat-text").press("Enter")
                expect(page.locator("#chat-send")).to_be_visible(timeout=60_000)
            expect(page.locator(".message[aria-busy]")).to_have_count(0)
            page.screenshot(path=CHAT)
            page.goto(f"{url}/#ring")
            page.wait_for_timeout(SECONDS * 1000)
            page.screenshot(path=FILE)
            browser.close()
    finally:
        over.set()
        worker.join()


def main() -> int:
    """Serve, ask, and take the picture."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        sys.stderr.write("there is no Chromium: install one, or name one in CHROMIUM\n")
        return 2
    command = [sys.executable, "-m", "sealring", "serve", "--ranks", "3", "--port", "0"]
    with subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as serve:
        try:
            text = ""
            while not text.endswith("\n}\n"):
                line = serve.stdout.readline() if serve.stdout is not None else ""
                if not line:
                    sys.stderr.write("sealring serve has ended\n")
                    return 1
                text += line
            _take(json.loads(text)["url"], chromium)
        finally:
            serve.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())

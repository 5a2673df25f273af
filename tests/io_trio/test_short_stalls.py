"""A rank of a real ring stalls: its caches are kept, and nothing is read again."""

from __future__ import annotations

import threading

import pytest
from sealring.local.ring import local_ring
from sealring_model import tiny

from tests.io_trio.helpers import wait_for
from tests.io_trio.test_ring import PROMPT, stopped
from tests.serving import PATIENCE

STORY = " ".join([PROMPT] * 80)


@pytest.mark.slow
def test_a_rank_that_stalls_keeps_what_it_has_read() -> None:
    # A busy machine breaks no link for so long, which would begin an epoch more.
    with local_ring(2, tiny.path(), options={"patience": 10}) as (head, rank):
        fields = {"prompt": STORY, "max_tokens": 100}
        events: list[dict[str, object]] = []
        begun = threading.Event()

        def listen() -> None:
            for event in head.ask("generate", fields):
                events.append(event)
                if event["event"] == "text":
                    begun.set()

        before = head.log.read_text()
        listener = threading.Thread(target=listen)
        listener.start()
        assert begun.wait(3 * PATIENCE)  # the story is long, and the machine may be busy
        with stopped(rank):
            wait_for(head, "missing", [1])
        listener.join(3 * PATIENCE)
        whole = list(head.ask("generate", fields))[-1]
        assert events[-1]["token_ids"] == whole["token_ids"]
        told = head.log.read_text().removeprefix(before)
        assert told.count("; caches are kept") == 1
        assert "has kept nothing" not in told

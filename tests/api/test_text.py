"""Stop strings, reasoning and tool calls in text that comes in any pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring.dialects.replies import MAX_CALL, AnswerText, CallText, Part
from sealring.dialects.schema import MAX_STOP
from sealring_model.text.detokenizer import StopText
from sealring_model.text.readers import Content, Reasoning
from sealring_model.text.tokens import ParsedCall, ToolFormat

LETTERS = st.text("ab<", max_size=24)


def cut(text: str, places: list[int]) -> list[str]:
    """*text* in pieces."""
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


PLACES = st.lists(st.integers(0, 40), max_size=8)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3)


@given(LETTERS, STOPS, PLACES)
def test_text_up_to_the_first_stop(text: str, stops: list[str], places: list[int]) -> None:
    words = StopText(stops)
    given = [words.add(piece) for piece in cut(text, places)]
    end = next((n for n in range(len(text) + 1) if text[:n].endswith(tuple(stops))), None)
    longest = max((len(s) for s in stops if end and text[:end].endswith(s)), default=0)
    assert "".join(given) + words.rest() == (text if end is None else text[: end - longest])
    assert bool(words.found) == (end is not None)
    if end is None:
        shown = ""
        for piece in given:
            shown += piece
            assert not any(shown.endswith(stop) for stop in stops)


@given(LETTERS, STOPS, PLACES)
def test_only_what_may_begin_a_stop_is_held(text: str, stops: list[str], places: list[int]) -> None:
    words, seen, given = StopText(stops), "", ""
    for piece in cut(text, places):
        seen, given = seen + piece, given + words.add(piece)
        if words.found:
            break
        begun = [s[:n] for s in stops for n in range(len(s)) if seen.endswith(s[:n])]
        assert given == seen[: len(seen) - max(map(len, begun), default=0)]


def test_long_stops_that_repeat_themselves() -> None:
    stops = ["a" * size + "b" for size in range(MAX_STOP - 17, MAX_STOP - 1)]
    words = StopText(stops)
    given = "".join(words.add("aaaa") for _ in range(400))
    assert given == "a" * (1600 - MAX_STOP + 2)
    assert words.add("c") == "a" * (MAX_STOP - 2) + "c"
    assert words.add("a" * 1600 + "b") == "a" * (1600 - MAX_STOP + 2)
    assert words.found == stops[-1]


@given(LETTERS, PLACES)
def test_nothing_waits_where_nothing_is_looked_for(text: str, places: list[int]) -> None:
    words = StopText(())
    pieces = cut(text, places)
    assert [words.add(piece) for piece in pieces] == pieces


def read_json(text: str, tools: object) -> object:
    return json.loads(text)


TOOLS = ToolFormat("<call>", "</call>", "call", read_json)
OPEN = ToolFormat("[CALLS]", "", "calls", read_json)
THINK = ("<think>", "</think>")
Told = Part | ParsedCall
FUNCTIONS = [{"function": {"name": "f"}}]
F = ParsedCall("f", '{"x": 1}')
CALL = '<call>{"name": "f", "arguments": {"x": 1}}</call>'

ANSWERS: dict[str, tuple[str, ToolFormat | None, dict[str, bool], list[Told]]] = {
    "plain": ("Hello.", TOOLS, {}, [Content("Hello.")]),
    "a call": (CALL, TOOLS, {}, [F]),
    "a call with what is no text": (
        '<call>{"name": "f", "arguments": {"x": "\\ud800"}}</call>',
        TOOLS,
        {},
        [Content('<call>{"name": "f", "arguments": {"x": "\\ud800"}}</call>')],
    ),
    "text and two calls": (f"Wait. {CALL}\n{CALL}", TOOLS, {}, [Content("Wait. "), F, F]),
    "text after a call": (f"{CALL}\n\nDone.", TOOLS, {}, [F, Content("Done.")]),
    "no call": ("<call>oops</call>", TOOLS, {}, [Content("<call>oops</call>")]),
    "half a call": ('<call>{"name": "f"', TOOLS, {}, [Content('<call>{"name": "f"')]),
    "a call that is not closed": (CALL[: -len("</call>")], TOOLS, {}, [F]),
    "a call begun by the prompt": (CALL[len("<call>") :], TOOLS, {"calling": True}, [F]),
    "to the end": ('[CALLS]{"name": "f", "arguments": {"x": 1}}', OPEN, {}, [F]),
    "several at once": (f"[CALLS][{CALL[6:-7]}, {CALL[6:-7]}]", OPEN, {}, [F, F]),
    "calls where none may be": (CALL, None, {}, [Content(CALL)]),
    "a tool that is not there": (
        '<call>{"name": "g", "arguments": {}}</call>',
        TOOLS,
        {},
        [Content('<call>{"name": "g", "arguments": {}}</call>')],
    ),
    "a name that is none": (
        '<call>{"name": 1, "arguments": {}}</call>',
        TOOLS,
        {},
        [Content('<call>{"name": 1, "arguments": {}}</call>')],
    ),
    "reasoning": (
        "<think>\nHm.</think>\n\nYes.",
        TOOLS,
        {},
        [Reasoning("Hm."), Content("Yes.")],
    ),
    "reasoning begun by the prompt": (
        f"\nHm.</think>{CALL}",
        TOOLS,
        {"reasoning": True},
        [Reasoning("Hm."), F],
    ),
    "reasoning without end": ("<think>Hm", None, {}, [Reasoning("Hm")]),
    "marks that are none": ("a < b <thin>", TOOLS, {}, [Content("a < b <thin>")]),
}


def joined(parts: list[Part], tools: ToolFormat | None) -> list[Told]:
    """*parts*, with their calls read, and neighbours of one kind as one."""
    whole: list[Told] = []
    for part in [told for one in parts for told in read_call(one, tools)]:
        match whole, part:
            case [*_, Content(before)], Content(text):
                whole[-1] = Content(before + text)
            case [*_, Reasoning(before)], Reasoning(text):
                whole[-1] = Reasoning(before + text)
            case _:
                whole.append(part)
    return whole


def read_call(part: Part, tools: ToolFormat | None) -> list[Told]:
    if not isinstance(part, CallText):
        return [part]
    assert tools is not None
    try:
        return [*tools.parse(part.text, FUNCTIONS)]
    except ValueError:
        return [part.otherwise]


@pytest.mark.parametrize(("text", "tools", "begins", "parts"), ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_parts_of_an_answer(
    text: str, tools: ToolFormat | None, begins: dict[str, bool], parts: list[Told], size: int
) -> None:
    answer = AnswerText(THINK, tools, **begins)
    told = [p for at in range(0, len(text), size) for p in answer.add(text[at : at + size])]
    assert joined(told + answer.end(), tools) == parts


@pytest.mark.parametrize("more", [0, 1])
def test_a_call_has_so_many_characters_at_most(more: int) -> None:
    answer = AnswerText(THINK, TOOLS)
    parts = answer.add("<call>")
    for _ in range(MAX_CALL // 64):
        parts += answer.add("<" * 64)
    parts += answer.add("x" * more + "</call>That was it.")
    text = "<" * MAX_CALL + "x" * more
    if more:
        assert joined(parts, TOOLS) == [Content(f"<call>{text}</call>That was it.")]
    else:
        assert parts == [
            CallText(text, Content(f"<call>{text}</call>")),
            Content("That was it."),
        ]

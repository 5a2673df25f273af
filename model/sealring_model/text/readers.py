"""Reads an answer's tool calls, and a whole answer in channels, as the model's tokens come.

`formats` says which model writes which format. A reader here is a generator over an `Input`: it
takes what has come, appends `Part`s to the input's *parts*, and yields where it needs more text. So
it does not matter in which pieces the text comes, and a call's arguments are passed on while the
model still writes them.

No text makes a reader raise. Each takes time linear in the text, whatever it is, and keeps a
bounded part of it: a header of `MAX_HEADER` characters, or a value of `MAX_VALUE` whose type has to
be known before it can be passed on. Text that turns out to be no call is given back, as it was, up
to the character that shows it (`Text`); from there it is looked at anew.

A call is one of a function that there is. Once its name is known it is a call, whatever follows:
arguments are JSON as far as the model wrote them. An answer that ends within a call ends the call.
A call of another function is read alike, but given back as it was, so that the calls after it are
calls (`Input.begin`).

Formats whose arguments are JSON are passed on as the model wrote them, but for line breaks within
strings, which JSON forbids and models write. Formats with one element for each argument say nothing
of types; there the function's schema decides (`argument_types`): a text stays a text, and a
value that does not fit its schema is passed on as a text.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from typing import Final

import attrs

from sealring_model.text.argument_types import MAX_VALUE, TEXT, TYPES, Element, Kind, Value, quoted

MAX_HEADER: Final = 1024
"""Most characters of what comes before a call's arguments, and of an argument's name."""

MAX_DEPTH: Final = 64
"""Most elements within each other."""


@attrs.frozen
class Reasoning:
    """Text that the model thinks with."""

    text: str


@attrs.frozen
class Content:
    """Text for the reader."""

    text: str


@attrs.frozen
class Text:
    """Text that looked like a call, and is none: content, or reasoning, as what is around it."""

    text: str


@attrs.frozen
class CallStart:
    """A call of function *name* begins; *id* is empty if the model gave none."""

    name: str
    id: str = ""


@attrs.frozen
class CallPart:
    """More of the arguments of the call that began last: a part of a JSON text."""

    text: str


@attrs.frozen
class CallEnd:
    """The call that began last is over."""


Part = Reasoning | Content | Text | CallStart | CallPart | CallEnd
Functions = Mapping[str, Mapping[str, Kind]]
"""The arguments of each function that may be called, by name."""

Steps = Generator[None, None, None]
Found = Generator[None, None, str]

_BLANK: Final = " \t\r\n"
_AT_ONCE: Final = 1024
"""Characters that are read at once: what is left of them is copied at each step."""


class NoCall(Exception):
    """What was read is no call."""


class Input:
    """Text that comes in pieces, and the *parts* that are made of it.

    What is taken is kept until `begin`, in case it is no call; with *whole* it is not.
    """

    def __init__(self, mark: str) -> None:
        self.whole = False
        self.parts: list[Part] = []
        self.held = ""  # what has come and is not taken
        self.ended = False
        self.thinks = False  # whether what comes next is reasoning
        self.calls = 0  # that have begun
        self._plain = False  # whether what is taken is text: a call of no function that there is
        self._taken: list[str] | None = [mark]

    def take(self, size: int) -> str:
        """The next *size* characters, which have come."""
        text, self.held = self.held[:size], self.held[size:]
        if self._plain:
            self.parts.append(Text(text))
        elif self._taken is not None:
            self._taken.append(text)
        return text

    def given_back(self) -> str:
        """What was taken since the last call began or ended."""
        text, self._taken = "".join(self._taken or ()), []
        return text

    def begin(self, name: str, id: str = "") -> None:
        """A call of *name* begins. Without one it is no call, but text, up to `following`."""
        if not name:
            if text := self.given_back():
                self.parts.append(Text(text))
            self._plain = True
            return
        self.parts.append(CallStart(name, id))
        self.calls += 1
        self._taken = None

    def add(self, text: str) -> None:
        """Pass on *text* of arguments."""
        if text and not self._plain:
            self.parts.append(CallPart(text))

    def finish(self) -> None:
        """The call that began is over. What follows may be no call again."""
        if self._plain:
            return
        self.parts.append(CallEnd())
        self._taken = None if self.whole else []

    def take_whole(self) -> None:
        """Keep nothing of what is taken."""
        self.whole, self._taken = True, None

    def more(self) -> Generator[None, None, bool]:
        """Wait for a character; whether there is one."""
        while not self.held and not self.ended:
            yield
        return bool(self.held)

    def peek(self) -> Found:
        """The next character that is not blank, untaken; empty at the end. Raises `NoCall` if it is
        long in coming, and no call has begun."""
        blank = 0
        while True:
            size = len(self.held) - len(self.held.lstrip(_BLANK))
            if self.calls and not (self._taken or self._plain):
                self.held = self.held[size:]
            elif size:
                self.take(min(size, MAX_HEADER - blank))
                blank += size
                if blank > MAX_HEADER:
                    raise NoCall
            if self.held or self.ended:
                return self.held[:1]
            yield

    def following(self) -> Found:
        """What `peek` finds after a call, where another may begin."""
        found = yield from self.peek()
        self._plain = False
        return found

    def at(self, marks: Sequence[str]) -> Found:
        """Which of *marks* comes next, untaken; empty if none does."""
        while True:
            longer = [mark for mark in marks if mark.startswith(self.held)]
            if self.ended or not any(len(mark) > len(self.held) for mark in longer):
                return max(filter(self.held.startswith, marks), key=len, default="")
            yield

    def after(self, size: int, marks: Sequence[str]) -> Generator[None, None, int]:
        """Characters up to the end of that of *marks* which comes after *size* characters and blank
        space, or of the answer if that ends there; 0 if other text comes. Nothing is taken."""
        while True:
            rest = self.held[size:].lstrip(_BLANK)
            at = len(self.held) - len(rest)
            if at - size > MAX_HEADER:
                return 0
            if found := next(filter(rest.startswith, marks), ""):
                return at + len(found)
            if self.ended or not any(mark.startswith(rest) for mark in marks):
                return len(self.held) if any(mark.startswith(rest) for mark in marks) else 0
            yield

    def named(self, size: int, mark: str) -> Found:
        """The text after *size* characters, up to *mark*; empty if that is not near. Nothing is
        taken."""
        while (end := self.held.find(mark, size, size + MAX_HEADER)) < 0:
            if self.ended or len(self.held) >= size + MAX_HEADER:
                return ""
            yield
        return self.held[size:end]

    def until(
        self, marks: Sequence[str], form: re.Pattern[str] | None = None
    ) -> Generator[None, None, tuple[str, str]]:
        """The text up to the first of *marks*, and that mark, untaken. Raises `NoCall` if none
        comes within `MAX_HEADER` characters, or the text is not of *form*."""
        while True:
            found = [(at, mark) for mark in marks if (at := self.held.find(mark)) >= 0]
            at, mark = min(found, key=lambda each: (each[0], -len(each[1])), default=(0, ""))
            size = at if found else len(self.held) - _begun(self.held, marks)
            wrong = form is not None and not form.fullmatch(self.held, 0, size)
            if wrong or size > MAX_HEADER or (self.ended and not found):
                raise NoCall
            if found:
                return self.take(at), mark
            yield

    def upto(self, marks: Sequence[str], emit: Callable[[str], None]) -> Found:
        """*emit* the text up to the first of *marks*, as it comes; that mark, untaken. Empty if the
        answer ends before it."""
        while True:
            found = [(at, mark) for mark in marks if (at := self.held.find(mark)) >= 0]
            if found:
                at, mark = min(found, key=lambda each: (each[0], -len(each[1])))
                if at:
                    emit(self.take(at))
                return mark
            size = len(self.held) - (0 if self.ended else _begun(self.held, marks))
            if size:
                emit(self.take(size))
            if self.ended:
                return ""
            yield


def _begun(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of *text* may be the beginning of one of *marks*."""
    longest = max(map(len, marks)) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks if len(mark) > size):
            return size
    return 0


Reader = Callable[[Input, Functions, str], Steps]
"""Reads what follows the mark that opened a call (empty: the prompt did, or there is none)."""


class Reading:
    """One run of *reader*, after the *mark* that opened it, up to *end*."""

    def __init__(self, reader: Reader, functions: Functions, mark: str, end: str = "") -> None:
        self._input = Input(mark)
        self._end = end
        self._steps = self._run(reader(self._input, functions, mark))
        self.done = False

    @property
    def thinks(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._input.thinks

    @property
    def after(self) -> str:
        """What has not been read, once it is *done*."""
        return self._input.held

    def add(self, text: str) -> list[Part]:
        """The parts that *text* completes."""
        parts: list[Part] = []
        for at in range(0, len(text), _AT_ONCE):
            self._input.held += text[at : at + _AT_ONCE]
            parts += self._go_on()
            if self.done:
                self._input.held += text[at + _AT_ONCE :]
                break
        return joined(parts)

    def end(self) -> list[Part]:
        """The parts that there are when no text follows."""
        self._input.ended = True
        return self._go_on()

    def _go_on(self) -> list[Part]:
        if not self.done:
            self.done = next(self._steps, self) is self
        parts, self._input.parts = self._input.parts, []
        return joined(parts)

    def _run(self, steps: Steps) -> Steps:
        given = self._input
        try:
            yield from steps
            if self._end:
                yield from given.peek()
                if (yield from given.at((self._end,))):
                    given.take(len(self._end))
                elif given.ended and self._end.startswith(given.held):
                    given.take(len(given.held))  # the beginning of the mark
        except NoCall:
            if text := given.given_back():
                given.parts.append(Text(text))


def joined(parts: Iterable[Part]) -> list[Part]:
    """*parts* with neighbours of one kind in one."""
    whole: list[Part] = []
    for part in parts:
        if (
            whole
            and type(whole[-1]) is type(part)
            and isinstance(part, Reasoning | Content | Text | CallPart)
        ):
            whole[-1] = type(part)(whole[-1].text + part.text)  # type: ignore[union-attr]
        else:
            whole.append(part)
    return whole


# JSON


_IN_STRING: Final = re.compile(r'[^"\\\x00-\x1f]+')
_BETWEEN: Final = re.compile(r"[\s0-9A-Za-z+\-.:,]+")
_SCALAR: Final = re.compile(r"[0-9A-Za-z+\-.]+")


def json_value(given: Input, emit: Callable[[str], None]) -> Generator[None, None, bool]:
    """*emit* the JSON value that comes next, as it comes; whether it is whole. It is one by its
    brackets and quotes alone."""
    depth = 0
    while (yield from given.more()):
        char = given.held[0]
        if char == '"':
            emit(given.take(1))
            if not (yield from _rest_of_string(given, emit)):
                return False
        elif char in "{[":
            emit(given.take(1))
            depth += 1
        elif char in "}]" and depth:
            emit(given.take(1))
            depth -= 1
        elif depth and (run := _BETWEEN.match(given.held)):
            emit(given.take(run.end()))
        elif depth:
            return False
        else:
            yield from _scalar(given, emit)
        if not depth:
            return True
    return False


def _scalar(given: Input, emit: Callable[[str], None]) -> Steps:
    while (yield from given.more()) and (run := _SCALAR.match(given.held)):
        emit(given.take(run.end()))


def _rest_of_string(given: Input, emit: Callable[[str], None]) -> Generator[None, None, bool]:
    """*emit* a JSON string that has begun, up to its end; whether that comes."""
    while (yield from given.more()):
        if run := _IN_STRING.match(given.held):
            emit(given.take(run.end()))
        elif given.held[0] == "\\":
            while len(given.held) < 2 and not given.ended:
                yield
            emit(given.take(2))
        elif given.held[0] == '"':
            emit(given.take(1))
            return True
        else:
            emit(json.dumps(given.take(1))[1:-1])
    return False


def _kept(parts: list[str], limit: int) -> Callable[[str], None]:
    """What keeps text in *parts*, and raises `NoCall` beyond *limit* characters."""
    size = 0

    def keep(text: str) -> None:
        nonlocal size
        size += len(text)
        if size > limit:
            raise NoCall
        parts.append(text)

    return keep


def _string(given: Input) -> Found:
    """The JSON string that comes next. Raises `NoCall` if there is none."""
    if (yield from given.peek()) != '"':
        raise NoCall
    parts: list[str] = []
    if not (yield from json_value(given, _kept(parts, MAX_HEADER))):
        raise NoCall
    return _unquoted("".join(parts))


def _unquoted(text: str) -> str:
    """The text that a JSON string stands for. Raises `NoCall` if it stands for none."""
    try:
        meant = str(json.loads(text))
        meant.encode()  # lone surrogates, which JSON can carry, are no text
    except ValueError:
        raise NoCall from None
    return meant


def known(name: str, functions: Functions) -> str:
    """The function that is meant by *name*; empty if there is none."""
    name = name.strip().strip("\"'")
    names = (name, name.removeprefix("functions."))
    return next((each for each in names if each in functions), "")


def _arguments(given: Input) -> Steps:
    first = yield from given.peek()
    empty = first not in ('"', "{", "[")
    if first == '"':  # JSON within a text
        parts: list[str] = []
        whole = yield from json_value(given, _bounded(parts, given))
        try:
            given.add(_unquoted("".join(parts)) if whole else "".join(parts))
        except NoCall:
            given.add("".join(parts))
    elif empty and first:
        parts = []
        yield from json_value(given, _first(parts))
        if (scalar := "".join(parts).strip()) and scalar != "null":
            given.add(scalar)
            empty = False
    elif first:
        yield from json_value(given, given.add)
    if empty:
        given.add("{}")
    given.finish()


def _bounded(parts: list[str], given: Input) -> Callable[[str], None]:
    """What keeps text in *parts*, up to `MAX_VALUE`; what is longer is passed on as it is."""
    size = 0

    def keep(text: str) -> None:
        nonlocal size
        size += len(text)
        if size <= MAX_VALUE:
            parts.append(text)
        else:
            given.add("".join(parts) + text)
            parts.clear()

    return keep


def json_calls(given: Input, functions: Functions, mark: str) -> Steps:
    """``{"name": ..., "arguments": {...}}``, or several, in a list or one after the other."""
    listed = (yield from given.peek()) == "["
    if listed:
        given.take(1)
    while True:
        if (yield from given.following()) != "{":
            if not given.calls:
                raise NoCall
            break
        yield from _json_call(given, functions, bare=not mark)
        while (yield from given.peek()) in ("}", "]", ",", ";") and given.held:
            given.take(1)
            given.given_back()


_NAMES: Final = ("name", "function", "tool_name")
_GIVEN: Final = ("arguments", "parameters")


@attrs.define
class _Named:
    """What an object says of the call that it is: its *name*, empty if there is no such function;
    *early* are arguments that came before the name; so many objects are open (*depth*)."""

    name: str | None = None
    id: str = ""
    early: list[str] | None = None
    depth: int = 0


def _json_call(given: Input, functions: Functions, *, bare: bool) -> Steps:
    """One object that names a function and its arguments; of other members nothing is said. A
    *bare* one, which no mark announces, has to have arguments."""
    call = _Named()
    if (yield from _members(given, functions, call)) and call.name is not None:
        given.begin(call.name, call.id)
        yield from _arguments(given)
        yield from _further(given, call.depth)
        return
    if call.name is None or (bare and call.early is None):
        raise NoCall
    given.begin(call.name, call.id)
    arguments = "".join(call.early or ())
    if arguments.startswith('"'):
        with contextlib.suppress(NoCall):
            arguments = _unquoted(arguments)
    given.add(arguments if arguments and arguments != "null" else "{}")
    given.finish()


def _members(given: Input, functions: Functions, call: _Named) -> Generator[None, None, bool]:
    """Read the members of an object into *call*, up to the arguments of a function that it has
    named: whether they come next. Raises `NoCall`."""
    for _ in range(MAX_HEADER):
        first = yield from given.peek()
        if first and first in "{,}":
            call.depth += (first == "{") - (first == "}")
            given.take(1)
            if not call.depth:
                return False
            continue
        key = yield from _string(given)
        if (yield from given.peek()) != ":":
            raise NoCall
        given.take(1)
        first = yield from given.peek()
        if key in _NAMES and first == '"':
            call.name = known((yield from _string(given)), functions)
            if not call.name:
                given.begin("")
        elif key in _GIVEN and call.name is not None:
            return True
        elif key == "id" and first == '"' and call.name != "":
            call.id = yield from _string(given)
        elif key != "function" or first != "{":  # which says what is in it, too
            limit = MAX_VALUE if key in _GIVEN else MAX_HEADER
            kept: list[str] = []
            keep = _dropped if call.name == "" else _kept(kept, limit)
            if not (yield from json_value(given, keep)):
                raise NoCall
            call.early = kept if key in _GIVEN else call.early
    raise NoCall


def _further(given: Input, depth: int) -> Steps:
    """Leave out what an object, of which *depth* are open, has after its arguments."""
    while depth:
        given.given_back()
        first = yield from given.peek()
        if first == '"':
            yield from json_value(given, _dropped)
            if (yield from given.peek()) == ":":
                given.take(1)
                yield from given.peek()
                yield from json_value(given, _dropped)
        elif first and first in ",}":
            given.take(1)
            depth -= first == "}"
        else:
            break
    given.given_back()


def _dropped(text: str) -> None:
    """Keep nothing of *text*."""


# A name, a mark, and JSON


_NAME: Final = re.compile(r"[\w.\- ]*")


def mistral(given: Input, functions: Functions, mark: str) -> Steps:
    """``name[ARGS]{...}``, with ``[CALL_ID]id`` or none; or JSON, as older ones write it."""
    if (yield from given.peek()) in ("[", "{"):
        yield from json_calls(given, functions, mark)
        return
    while (yield from given.following()):
        head, sign = yield from given.until(("[CALL_ID]", "[ARGS]", "{"), _NAME)
        name = known(head, functions)
        id = ""
        if sign == "[CALL_ID]":
            given.take(len(sign))
            id, sign = yield from given.until(("[ARGS]", "{"), _NAME)
        if sign == "[ARGS]":
            given.take(len(sign))
        given.begin(name, id.strip())
        yield from _arguments(given)


@attrs.frozen
class Sections:
    """Calls between marks of their own: *begin*, a name, *sign*, JSON, *end*. The section that they
    are in ends with *last*."""

    begin: str
    sign: str
    end: str
    last: str

    def __call__(self, given: Input, functions: Functions, mark: str) -> Steps:
        """Read the calls of a section."""
        begun = mark == self.begin
        while True:
            yield from given.following()
            if not begun:
                if not (yield from given.at((self.begin,))):
                    if not given.calls:
                        raise NoCall
                    return
                given.take(len(self.begin))
            begun = False
            head, _ = yield from given.until((self.sign,))
            given.take(len(self.sign))
            if head.strip() == "function":  # DeepSeek V3 and R1 say what kind of tool it is
                head, _ = yield from given.until(("{", "```json"))
                if (yield from given.at(("```json",))):
                    given.take(len("```json"))
            name, id = _numbered(head, functions)
            given.begin(name, id)
            yield from _arguments(given)
            yield from given.peek()
            if (yield from given.at(("```",))):
                given.take(3)
                yield from given.peek()
            if (yield from given.at((self.end,))):
                given.take(len(self.end))


_NUMBER: Final = re.compile(r":\d+$")


def _numbered(head: str, functions: Functions) -> tuple[str, str]:
    """The name and the id in *head*; Kimi writes ``functions.name:0``."""
    head = head.strip()
    if _NUMBER.search(head):
        return known(_NUMBER.sub("", head), functions), head
    return known(head, functions), ""


# An element for each argument


@attrs.frozen
class Elements:
    """Calls with an element for each argument: *call*, a name, *named*; for each argument *key*,
    its name, *keyed*, the value, *value*; and *over*. *last* ends the calls. Where a value has
    lines of its own (*lined*), the line breaks around it are none of it. *valued* comes before a
    value that is apart from its name.

    A value ends at *value* where an argument or the end of the call follows. Where that is missing,
    a number ends at any other mark. A text ends at the name of an argument that the function has
    and the call has not yet, or where both the call and the calls end; if that is not on a line of
    its own, and should be, only where the answer ends, too, or other calls begin. Other marks are
    text. An argument that is given twice is passed on twice: what reads the JSON takes the last, as
    mlx-lm and vLLM do.
    """

    call: str
    named: str
    key: str
    keyed: str
    value: str
    over: str
    last: str
    lined: bool = False
    valued: str = ""

    def __call__(self, given: Input, functions: Functions, mark: str) -> Steps:
        """Read calls."""
        if (yield from given.peek()) in ("{", "["):
            yield from json_calls(given, functions, mark)
            return
        while True:
            yield from given.following()
            if self.call:
                if not (yield from given.at((self.call,))):
                    if not given.calls:
                        raise NoCall
                    return
                given.take(len(self.call))
                head, _ = yield from given.until((self.named,))
                name = known(head, functions)
                given.take(len(self.named))
            elif not (name := known((yield from self._bare(given)), functions)):
                raise NoCall
            given.begin(name)
            if not (yield from self._arguments(given, functions.get(name, {}))):
                return
            given.finish()
            if not self.call:
                return

    def _bare(self, given: Input) -> Found:
        """A name that no mark begins: it ends with its line, the first argument, or the call."""
        held = given.held
        try:
            head, _ = yield from given.until(("\n", self.key, self.last))
        except NoCall:
            if not given.ended or len(given.held) > MAX_HEADER:
                raise
            held = given.held
            return given.take(len(held))
        return head

    def _arguments(self, given: Input, kinds: Mapping[str, Kind]) -> Generator[None, None, bool]:
        """Pass on the arguments of a call; whether they are whole."""
        sign = "{"
        marks = tuple(filter(None, (self.key, self.over, self.last, self.call, self._opening)))
        ends = (*marks, self.value)
        left = {*kinds}
        while True:
            found = yield from given.upto(marks, _dropped)
            if found != self.key:
                given.add("{}" if sign == "{" else "}")
                if found and found == self.over:
                    given.take(len(found))
                return True
            given.take(len(found))
            parts: list[str] = []
            found = yield from given.upto((self.keyed, *ends), _first(parts))
            if found == self.keyed and self.valued:
                given.take(len(found))
                found = yield from given.upto((self.valued, *ends), _dropped)
            if not found:
                given.finish()
                return False
            if found in ends:  # it has no value
                continue
            given.take(len(found))
            key, kind = self._key("".join(parts), kinds)
            given.add(f"{sign}{quoted(key)}: ")
            sign = ", "
            left.discard(key)
            value = Value(given.add, kind, lined=self.lined)
            if not (yield from self._value(given, value, left)):
                value.cut()
                given.finish()
                return False
            value.end()

    def _key(self, head: str, kinds: Mapping[str, Kind]) -> tuple[str, Kind]:
        """The name of an argument, and what it may be; DeepSeek's say whether it is a text."""
        key, quote, rest = head.partition('"')
        key = key.strip()
        kind = kinds.get(key, {})
        if quote and 'string="true"' in rest:
            kind = TEXT
        elif quote and 'string="false"' in rest:
            kind = {"types": [*TYPES[:-1]]}
        return key, kind

    def _value(
        self, given: Input, value: Value, left: Container[str]
    ) -> Generator[None, None, bool]:
        """Pass on a value, up to the mark that ends it; whether there is one. The call may have the
        arguments *left* yet."""
        others = tuple(filter(None, (self.key, self.over, self.last)))
        after = tuple(filter(None, (*others, self.call)))
        while found := (yield from given.upto((self.value, *others), value.add)):
            if found != self.value:
                if value.bare or (yield from self._unclosed(given, found, value, left)):
                    return True
            elif (yield from given.after(len(found), after)):
                given.take(len(found))
                return True
            value.add(given.take(len(found)))
        return False

    def _unclosed(
        self, given: Input, found: str, value: Value, left: Container[str]
    ) -> Generator[None, None, bool]:
        """Whether *value*, which nothing closes, ends at the mark *found*, which comes next."""
        size = len(found)
        if found == self.key:
            return self._key((yield from given.named(size, self.keyed)), {})[0] in left
        if found == self.over:
            size = yield from given.after(size, (self.last, self.call))
            if not size or not self.lined or value.on_new_line:
                return size > 0
        return (yield from given.after(size, (self._opening,))) > 0

    @property
    def _opening(self) -> str:
        """The mark that *last* closes."""
        return self.last.replace("/", "", 1)


def _first(parts: list[str]) -> Callable[[str], None]:
    """What keeps text in *parts*, as many characters as a name may have."""
    left = MAX_HEADER

    def keep(text: str) -> None:
        nonlocal left
        if left:
            parts.append(text[:left])
            left -= len(parts[-1])

    return keep


_SPACE: Final = "]<]minimax[>["


def minimax_m3(given: Input, functions: Functions, mark: str) -> Steps:
    """``<invoke name="...">`` with an element for each argument, and elements in it for fields and
    items; a mark of the model's own is before each tag, so what looks like a tag without one is
    text."""
    while True:
        yield from given.following()
        if not (yield from given.at((f'{_SPACE}<invoke name="',))):
            if not given.calls:
                raise NoCall
            return
        given.take(len(f'{_SPACE}<invoke name="'))
        head, _ = yield from given.until((">",))
        name = known(head, functions)
        given.take(1)
        given.begin(name)
        sign = "{"
        kinds = functions.get(name, {})
        left = {*kinds}
        while True:
            yield from given.upto((_SPACE,), _dropped)
            tag = yield from _tag(given)
            if not tag or tag.startswith("/"):
                break
            given.add(f"{sign}{quoted(tag)}: ")
            sign = ", "
            left.discard(tag)
            if not (yield from _element(given, tag, kinds.get(tag, {}), left)):
                given.finish()
                return
        given.add("{}" if sign == "{" else "}")
        given.finish()
        if tag != "/invoke":
            return


def _tag(given: Input) -> Found:
    """The tag that comes next, after the mark before it; empty if none does."""
    if not (yield from given.at((f"{_SPACE}<",))):
        return ""
    if (yield from given.at((f"{_SPACE}</tool_call>",))):
        return ""
    given.take(len(_SPACE) + 1)
    parts: list[str] = []
    if not (yield from given.upto((">",), _first(parts))):
        return ""
    given.take(1)
    return "".join(parts).strip()


def _element(
    given: Input, tag: str, kind: Kind, left: Container[str]
) -> Generator[None, None, bool]:
    """Pass on the value of the element *tag*, which is open; whether it is closed. A text that is
    not ends where the call does, or one of the elements begins that it has *left*."""
    value = Value(given.add, kind)
    yield from given.upto((_SPACE,), value.add)
    closing = f"{_SPACE}</{tag}>"
    if (yield from given.at((closing,))):
        given.take(len(closing))
        if value.text_only or "".join(value.kept).strip():
            value.end()
        else:
            value.replace(Element(tag, kind).json())
        return True
    if value.text_only or "string" in kind.get("types", ()):
        value.be_text()
        while (yield from given.upto((_SPACE,), value.add)):
            if (yield from given.at((f"{_SPACE}<",))):
                name = yield from given.named(len(_SPACE) + 1, ">")
                if name in ("/invoke", f"/{tag}") or name in left:
                    given.take(len(closing) if name == f"/{tag}" else 0)
                    value.end()
                    return True
            value.add(given.take(len(_SPACE)))
        value.cut()
        return False
    opened = [Element(tag, kind)]
    size = 0

    def keep(text: str) -> None:
        nonlocal size
        size += len(text)
        if size <= MAX_VALUE:
            opened[-1].text.append(text)

    while True:
        yield from given.upto((_SPACE,), keep)
        tag = yield from _tag(given)
        if not tag:
            value.cut()
            return False
        if not tag.startswith("/"):
            size += len(tag)
            if len(opened) > MAX_DEPTH or size > MAX_VALUE:
                value.cut()
                return False
            opened.append(Element(tag, opened[-1].inner(tag)))
            continue
        closed = opened.pop()
        if not opened:
            value.replace(closed.json())
            return True
        opened[-1].within.append((closed.tag, closed.json()))


# A whole answer in channels


_MARKS: Final = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
_BEGIN: Final = _MARKS[:3]
_RECIPIENT: Final = re.compile(r"\bto=(?:functions\.)?([\w.\-]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


def harmony(given: Input, functions: Functions, mark: str) -> Steps:
    """An answer of gpt-oss: messages, each with a channel. What it thinks is in ``analysis``; a
    message to a function is a call; all others are content. The answer begins within the header of
    a message, after *mark*."""
    given.take_whole()
    header = yield from _header(given, mark)
    while found := (yield from _message(given, functions, header)):
        given.take(len(found))
        header = (yield from _header(given, found)) if found in _BEGIN else ""


def _message(given: Input, functions: Functions, header: str) -> Found:
    """Pass on a message with *header*; the mark that ends it, untaken."""
    channel, name = _CHANNEL.search(header), _RECIPIENT.search(header)
    if name is not None and name[1] in functions:
        given.begin(name[1])
        arguments = Reading(_rest_of_call, functions, "")
        found = yield from given.upto(_MARKS, lambda text: _read(arguments, text, given))
        given.parts += arguments.end()
        return found
    given.thinks = channel is not None and channel[1] == "analysis"
    kind = Reasoning if given.thinks else Content
    found = yield from given.upto(_MARKS, lambda text: given.parts.append(kind(text)))
    given.thinks = False
    return found


def _rest_of_call(given: Input, functions: Functions, mark: str) -> Steps:
    """The arguments of a call that has begun. What follows them is left out."""
    given.take_whole()
    given.calls = 1
    yield from _arguments(given)


def _read(reading: Reading, text: str, given: Input) -> None:
    """Have *reading*, unless it is done, read *text* for *given*."""
    if not reading.done:
        given.parts += reading.add(text)


def _header(given: Input, head: str) -> Found:
    """The header that begins with *head*, up to the message; empty if what comes is no header."""
    if not head:
        yield from given.peek()
        if not (yield from given.at(("to=", "assistant", *_MARKS))):
            return ""
    while not head.endswith("<|message|>"):
        parts: list[str] = []
        found = yield from given.upto(_MARKS, _first(parts))
        head += "".join(parts)
        if not found or found in ("<|end|>", "<|return|>", "<|call|>"):
            if found:
                given.take(len(found))
            return ""
        given.take(len(found))
        head = (head + found)[-2 * MAX_HEADER :]
    return head

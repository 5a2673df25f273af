"""Answers as OpenAI's responses: a list of items (reasoning, messages, calls), whole and as typed
events.

Each item is added, filled by deltas and done before the next one begins. Events are numbered, and
the last one has the whole response. What the model thinks is the text of a reasoning item, or its
summary where a client asked for one: there is no other summary of it here.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from pydantic_core import from_json
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Content, Reasoning
from sealring_protocol.control.requests import TokenOut

from sealring.dialects.errors import ApiError
from sealring.dialects.replies import (
    KEEPALIVE,
    About,
    Delta,
    Finish,
    TokenBytes,
    add_json,
    chat_logprobs,
    cut,
    json_bytes,
)
from sealring.generation.trace import Trace

Body = dict[str, Any]
Keep = Callable[[bytes, tuple[bytes, ...]], None]
"""Keeps a response, given as JSON, and the items of its output."""

_INPUT: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_UNQUOTED: Final = re.compile(
    r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|'
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})+"
)
"""Whole characters of a JSON string."""

_BEGINS: Final = 1024
"""Characters within which a text begins, or is not streamed."""

_UNREAD: Final = re.compile(r'((?:[^"\\]|\\.)*)"', re.DOTALL)
"""The rest of a JSON string that ends."""

_CALLED: Final = {"input": "custom_tool_call_input", "arguments": "function_call_arguments"}
_FAILED: Final = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


@attrs.frozen
class Wanted:
    """How a client wants a response: *echo* are fields that it repeats, as a JSON object; *names*
    says which tools the functions are (`responses.Names`); with *summary* reasoning is told
    as its summary."""

    echo: bytes
    names: Mapping[str, Sequence[Any]]
    summary: bool


class _Called:
    """The arguments of a call as they are streamed. Those of a *custom* tool hold a text, which is
    what it is given."""

    def __init__(self, *, custom: bool) -> None:
        self.custom = custom
        self._sent: list[str] = []
        self._rest = ""  # of a custom tool's arguments
        self._within = False  # the text

    def add(self, text: str) -> str:
        """What is to be sent of more *text*."""
        if not self.custom:
            return text
        self._rest += text
        if not self._within:
            if (begun := _INPUT.match(self._rest)) is None:
                self._rest = self._rest[:_BEGINS]
                return ""
            self._within, self._rest = True, self._rest[begun.end() :]
        if (run := _UNQUOTED.match(self._rest)) is None:
            if self._rest.startswith('"'):
                self._rest = '"'  # what follows the text is none of it
            return ""
        try:
            told = str(from_json(f'"{run[0]}"'))
        except ValueError:
            return ""
        self._rest = self._rest[run.end() :]
        self._sent.append(told)
        return told

    def end(self, arguments: str) -> tuple[str, str]:
        """What is still to be sent of *arguments*, and all that the call is given: what has been
        sent, with that. What cannot be read of a text that ends is passed on as it is."""
        if not self.custom:
            return "", arguments
        if not self._within:
            given = _input(arguments)
            return given, given
        ended = _UNREAD.match(self._rest)
        rest = ended[1] if ended else ""
        return rest, "".join(self._sent) + rest


@attrs.define
class _Open:
    """The item that is being filled: its *body* as it was added, its text so far as UTF-8, and the
    log probabilities as JSON without brackets. Of a call *called* says what has been sent of
    that."""

    body: Body
    called: _Called | None = None
    text: bytearray = attrs.field(factory=bytearray)
    logprobs: bytearray = attrs.field(factory=bytearray)


@attrs.frozen
class _Event:
    """The event of *body*, whose last field is *name*. Its value is *last*, JSON already: with log
    probabilities it is large."""

    body: Body
    name: str
    last: bytes


class ResponseShape:
    """One response. Log probabilities of its text are told, with *bytes_of* each token, when that
    is given, and of *most* others in its place. *keep* gets it when it is complete."""

    silence = KEEPALIVE

    def __init__(
        self,
        about: About,
        wanted: Wanted,
        bytes_of: TokenBytes | None,
        keep: Keep | None,
        most: int = 0,
    ) -> None:
        self._about = about
        self._wanted = wanted
        self._bytes_of = bytes_of
        self._most = most
        self._keep = keep
        self._number = 0
        self.kept = 0
        self._done: list[bytes] = []  # items, as JSON
        self._open: _Open | None = None
        self._finish = Finish("stop")
        self._thought = 0

    def opening(self) -> bytes:
        """The response before it has anything."""
        begun = self._response("in_progress")
        return self._about_all("response.created", begun) + self._about_all(
            "response.in_progress", begun
        )

    def add(self, delta: Delta) -> Iterator[Body | _Event]:
        """The events of *delta*, and of the items that it ends and begins."""
        self._thought += delta.thought
        tokens = delta.tokens[delta.thought :]
        if delta.finish is not None:
            self._finish = delta.finish
        for part in delta.said:
            match part:
                case Content(text):
                    yield from self._write("message", text, tokens)
                    tokens = ()
                case Reasoning(text):
                    yield from self._write("reasoning", text, ())
                case CallStart():
                    yield from self._close()
                    yield from self._call(part)
                case CallPart(text):
                    yield from self._called(text)
                case CallEnd():
                    yield from self._close()
        if delta.finish is not None:
            if self._open is None and not self._done:
                yield from self._write("message", "", tokens)
            yield from self._close()

    def event(self, body: Body | _Event) -> bytes:
        """*body* as an event with its number."""
        if isinstance(body, _Event):
            head = self.event(body.body).removesuffix(b"}\n\n")
            return b'%b,"%b":%b}\n\n' % (head, body.name.encode(), body.last)
        told = {"type": body["type"], "sequence_number": self._number, **body}
        self._number += 1
        return f"event: {body['type']}\ndata: ".encode() + json_bytes(told) + b"\n\n"

    def closing(self, trace: Trace) -> bytes:
        """The whole response."""
        kind = "response.incomplete" if self._status == "incomplete" else "response.completed"
        return self._about_all(kind, *self.whole(trace))

    def failure(self, error: ApiError) -> bytes:
        """The response as far as it came, and *error*."""
        code = _FAILED.get(error.status, "server_error")
        told = {"code": code, "message": error.message}
        return self._about_all("response.failed", self._response("failed", error=told))

    def whole(self, trace: Trace) -> tuple[bytes]:
        """The response in one piece, which is also kept."""
        usage = {
            "input_tokens": trace.prompt_tokens,
            "input_tokens_details": {"cached_tokens": trace.cached_tokens},
            "output_tokens": trace.tokens,
            "output_tokens_details": {"reasoning_tokens": min(self._thought, trace.tokens)},
            "total_tokens": trace.prompt_tokens + trace.tokens,
        }
        made = self._response(self._status, usage=usage)
        if self._keep is not None:
            self._keep(made, tuple(self._done))
        return (made,)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish.reason == "length" else "completed"

    def _response(self, status: str, usage: Body | None = None, error: Body | None = None) -> bytes:
        short = {"reason": "max_output_tokens"} if status == "incomplete" else None
        told = {
            "id": self._about.id,
            "object": "response",
            "created_at": self._about.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": short,
            "model": self._about.model,
            "usage": usage,
        }
        # What the client sent may be large. It was made JSON by a text worker.
        output = b",".join(self._done)
        return json_bytes(told)[:-1] + b',"output":[%b],%b' % (output, self._wanted.echo[1:])

    def _about_all(self, kind: str, response: bytes) -> bytes:
        """The event *kind*, whose last field is the *response*."""
        return self.event(_Event({"type": kind}, "response", response))

    def _write(self, kind: str, text: str, tokens: tuple[TokenOut, ...]) -> Iterator[Body | _Event]:
        """Add *text* to the item of *kind*, which may begin with it. Where its *tokens* are `cut`,
        all of it is in the first event."""
        item = self._open
        if item is None or item.body["type"] != kind:
            yield from self._close()
            yield from self._begin(kind)
            item = self._open
        assert item is not None  # noqa: S101  it has begun
        for part in cut(tokens):
            more = self._more(item, text, part)
            if text or more.get("logprobs"):
                yield self._of_part(f"{self._text_event(kind)}.delta", item, more)
            text = ""

    def _more(self, item: _Open, text: str, tokens: Sequence[TokenOut]) -> Body:
        """Add *text* and the log probabilities of *tokens* to *item*; what their event has."""
        before = len(item.text) + len(item.logprobs)
        item.text += text.encode()
        more: Body = {"delta": text}
        if item.body["type"] == "message":
            told = []
            if self._bytes_of is not None:
                told = chat_logprobs(tokens, self._bytes_of, self._most)
            add_json(item.logprobs, told)
            more["logprobs"] = told
        self.kept += len(item.text) + len(item.logprobs) - before
        return more

    def _text_event(self, kind: str) -> str:
        if kind == "message":
            return "response.output_text"
        return f"response.reasoning_{'summary_' if self._wanted.summary else ''}text"

    def _part_event(self, kind: str) -> str:
        summary = kind == "reasoning" and self._wanted.summary
        return "response.reasoning_summary_part" if summary else "response.content_part"

    def _begin(self, kind: str) -> list[Body | _Event]:
        """Open an item of *kind* with an empty part."""
        body: Body
        if kind == "message":
            body = {"id": _name("msg"), "type": kind, "status": "in_progress"}
            body |= {"role": "assistant", "content": []}
        else:
            body = {"id": _name("rs"), "type": kind, "status": "in_progress"}
            body |= {"summary": []} if self._wanted.summary else {"summary": [], "content": []}
        item = self._open = _Open(body)
        added = self._of_part(f"{self._part_event(kind)}.added", item, {})
        return [
            self._of_item("response.output_item.added", body),
            _Event(added, "part", self._part(kind, "", b"")),
        ]

    def _part(self, kind: str, text: str, logprobs: bytes | bytearray) -> bytes:
        """The JSON of a part of an item of *kind*."""
        if kind == "message":
            part = json_bytes({"type": "output_text", "text": text, "annotations": []})
            return b'%b,"logprobs":[%b]}' % (part[:-1], bytes(logprobs))
        name = "summary_text" if self._wanted.summary else "reasoning_text"
        return json_bytes({"type": name, "text": text})

    def _close(self) -> Iterator[Body | _Event]:
        """End the item that is open."""
        item, self._open = self._open, None
        if item is None:
            return
        if item.called is not None:
            yield from self._close_call(item, item.called)
            return
        kind = item.body["type"]
        text = item.text.decode()
        last = self._of_part(f"{self._text_event(kind)}.done", item, {"text": text})
        if kind == "message":
            yield _Event(last, "logprobs", b"[%b]" % bytes(item.logprobs))
        else:
            yield last
        part = self._part(kind, text, item.logprobs)
        yield _Event(self._of_part(f"{self._part_event(kind)}.done", item, {}), "part", part)
        place = "content" if kind == "message" or not self._wanted.summary else "summary"
        status = "incomplete" if self._finish.reason == "length" else "completed"
        body = {name: value for name, value in item.body.items() if name != place}
        head = json_bytes({**body, "status": status})[:-1]
        made = b'%b,"%b":[%b]}' % (head, place.encode(), part)
        yield self._done_event(made)
        self._done.append(made)

    def _call(self, call: CallStart) -> list[Body | _Event]:
        """The event of *call*, an item that its arguments fill."""
        name, namespace, custom = self._wanted.names.get(call.name, (call.name, "", False))
        kind = "custom_tool_call" if custom else "function_call"
        body: Body = {"id": _name("ctc" if custom else "fc"), "type": kind, "status": "in_progress"}
        body |= {
            "call_id": call.id,
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            _field(body): "",
        }
        self._open = _Open(body, _Called(custom=bool(custom)))
        return [self._of_item("response.output_item.added", body)]

    def _called(self, text: str) -> list[Body | _Event]:
        """The events of more *text* of a call's arguments."""
        item = self._open
        if item is None or item.called is None:
            return []
        said = text.encode()
        item.text += said
        self.kept += len(said)
        return self._of_call(item, item.called.add(text))

    def _of_call(self, item: _Open, more: str) -> list[Body | _Event]:
        """The event of *more* of what the call *item* is given."""
        kind = f"response.{_CALLED[_field(item.body)]}.delta"
        place = {"item_id": item.body["id"], "output_index": len(self._done)}
        return [{"type": kind, **place, "delta": more}] if more else []

    def _close_call(self, item: _Open, called: _Called) -> list[Body | _Event]:
        """The events of the call *item* at its end."""
        rest, given = called.end(item.text.decode())
        field = _field(item.body)
        body = {**item.body, "status": "completed", field: given}
        if self._finish.reason == "length":
            body["status"] = "incomplete"
        place = {"item_id": body["id"], "output_index": len(self._done)}
        name = {} if called.custom else {"name": body["name"]}
        done = json_bytes(body)
        events = self._of_call(item, rest)
        events += [
            {"type": f"response.{_CALLED[field]}.done", **place, **name, field: given},
            self._done_event(done),
        ]
        self._done.append(done)
        return events

    def _done_event(self, item: bytes) -> _Event:
        place = {"type": "response.output_item.done", "output_index": len(self._done)}
        return _Event(place, "item", item)

    def _of_item(self, kind: str, item: Body) -> Body:
        return {"type": kind, "output_index": len(self._done), "item": item}

    def _of_part(self, kind: str, item: _Open, more: Body) -> Body:
        index = "summary_index" if "summary" in kind else "content_index"
        place = {"item_id": item.body["id"], "output_index": len(self._done), index: 0}
        return {"type": kind, **place, **more}


def _field(body: Body) -> str:
    """The field of a call's *body* that has what it is given."""
    return "input" if body["type"] == "custom_tool_call" else "arguments"


def _name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _input(arguments: str) -> str:
    """The text that the model gave a custom tool; all that it wrote, if that is not as asked."""
    try:
        given = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return arguments
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments

"""What a chat's body says of its conversation: messages and their parts, tools and their calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import pydantic

from sealring.api.values import MAX_PARTS, Model, Name, Several


class Function(Model):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _OfFunction(Model):
    """What is of a function, which it has as an object; or flat, as in the Responses API."""

    type: Literal["function"]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _nested(cls, given: Any) -> Any:
        if isinstance(given, dict) and "name" in given and "function" not in given:
            function = {name: value for name, value in given.items() if name != "type"}
            return {"type": given.get("type"), "function": function}
        return given


class Tool(_OfFunction):
    """A tool; functions are the only kind."""

    function: Function


class NamedFunction(Model):
    """The function that has to be called."""

    name: Name


class NamedTool(_OfFunction):
    """The tool that has to be called."""

    function: NamedFunction


class TextPart(Model):
    """A part of a message; the second and third kind are the Responses API's."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalPart(Model):
    """A part of an earlier answer that refused."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What it says."""
        return self.refusal


Parts = Annotated[list[TextPart | RefusalPart], Several(max_length=MAX_PARTS)]


class CalledFunction(Model):
    """A call that the model made; *arguments* is a JSON text, or what it says."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CalledTool(Model):
    """A tool call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Model):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Parts | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[CalledTool], Several(max_length=MAX_PARTS)] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """Its content in one piece."""
        return _joined(self.content or "")


def renew(messages: Iterable[Message]) -> None:
    """Say what older clients say of functions in *messages* as tools, and thoughts under their one
    name."""
    latest = ""
    for at, message in enumerate(messages):
        if message.reasoning_content is None:
            message.reasoning_content = message.reasoning
        if (called := message.function_call) is not None and not message.tool_calls:
            latest = f"call_{at}"
            message.tool_calls = [CalledTool(id=latest, function=called)]
        if message.role == "function":
            message.role, message.tool_call_id = "tool", latest or f"call_{message.name}"


class Prediction(Model):
    """What the answer is likely to contain."""

    type: Literal["content"]
    content: str | Parts

    @property
    def text(self) -> str:
        """Its content in one piece."""
        return _joined(self.content)


def _joined(content: str | Sequence[TextPart | RefusalPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)

"""Fields of other servers that this one does not serve, and rules for values of a body.

A field that would change the answer, and cannot be honoured here, is refused by name (`REFUSED`):
an answer without it would be wrong. It passes with null, and with a value that asks for what is
done anyway. All other fields that a body may have here and that are not known pass, since clients
send them to any server. They have no effect, and the answer's header `IGNORED_HEADER` names them;
`IGNORED` says of the common ones why.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Container, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from typing import Any, Final

import attrs
import pydantic

from sealring.dialects.errors import unsupported

IGNORED_HEADER: Final = "x-sealring-ignored"

ADAPTED_HEADER: Final = "x-sealring-adapted"
"""Names what was changed to fit: in a conversation that the model's template refused, and
``max_tokens`` where the answer has less room than was asked for."""

TOOLS_HEADER: Final = "x-sealring-tools"
"""Says ``in-words`` where the model's template has no tools, and a message describes them;
``as-json`` where it must call one, too: its answer is held to the JSON of a call."""

MAX_IGNORED: Final = 16
"""Names in the header; after that it ends with dots."""

LONGEST_NAME: Final = 64
_NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{2 * LONGEST_NAME}}}")


@attrs.frozen
class Refusal:
    """What is said of a field. It passes *unless* it has another value than these; a list, text or
    object without contents passes as well. *only* names the one endpoint that refuses it."""

    says: str
    unless: tuple[Any, ...] = ()
    only: str = ""

    def passes(self, value: Any) -> bool:
        """Whether *value* asks for nothing that is not done."""
        if value is None or (isinstance(value, (list, dict, str)) and not value):
            return True
        # A number is no bool here, though Python has True == 1.
        return any(
            value == each and isinstance(value, bool) == isinstance(each, bool)
            for each in self.unless
        )


_SAMPLER: Final = "This way of drawing tokens is not served."
_BEAMS: Final = "Answers are drawn one token at a time here; there is no search over beams."
_RENAMED: Final = "This field is called '{}' here; use that."
_THINKING: Final = (
    "Say 'reasoning_effort', or 'chat_template_kwargs': {\"enable_thinking\": false}."
)
_TOOLS: Final = "Text completions have no tools; use /v1/chat/completions."

REFUSED: Final[Mapping[str, Refusal]] = {
    # other names of what there is
    "functions": Refusal(_TOOLS, only="completion"),
    "function_call": Refusal(_TOOLS, ("none", "auto"), only="completion"),
    "max_output_tokens": Refusal(_RENAMED.format("max_tokens")),
    "max_new_tokens": Refusal(_RENAMED.format("max_tokens")),
    "n_predict": Refusal(_RENAMED.format("max_tokens"), (-1,)),
    "num_predict": Refusal(_RENAMED.format("max_tokens"), (-1,)),
    "repeat_penalty": Refusal(_RENAMED.format("repetition_penalty"), (1,)),
    "rep_pen": Refusal(_RENAMED.format("repetition_penalty"), (1,)),
    "stop_sequences": Refusal(_RENAMED.format("stop")),
    "system": Refusal("Say it as the first message, with the role 'system'.", only="chat"),
    "prompt": Refusal("A chat has 'messages'; /v1/completions takes a prompt.", only="chat"),
    "messages": Refusal("/v1/chat/completions takes messages.", only="completion"),
    "enable_thinking": Refusal(_THINKING),
    "thinking": Refusal(_THINKING),
    "thinking_budget": Refusal("Reasoning has no budget of its own here; use 'max_tokens'."),
    "reasoning": Refusal(_THINKING),
    # what the answer is drawn from
    "repetition_context_size": Refusal(
        "Here 'repetition_penalty' looks at the whole prompt and answer."
    ),
    "repeat_last_n": Refusal(
        "Here 'repetition_penalty' looks at the whole prompt and answer.", (-1,)
    ),
    "best_of": Refusal("'best_of' other than 'n' is not supported: all choices are given out."),
    "use_beam_search": Refusal(_BEAMS, (False,)),
    "num_beams": Refusal(_BEAMS, (1,)),
    "length_penalty": Refusal(_BEAMS, (1,)),
    "early_stopping": Refusal(_BEAMS, (False,)),
    "no_repeat_ngram_size": Refusal(_SAMPLER, (0,)),
    "typical_p": Refusal(_SAMPLER, (1,)),
    "mirostat": Refusal(_SAMPLER, (0,)),
    "mirostat_mode": Refusal(_SAMPLER, (0,)),
    "dry_multiplier": Refusal(_SAMPLER, (0,)),
    "xtc_probability": Refusal(_SAMPLER, (0,)),
    "top_a": Refusal(_SAMPLER, (0,)),
    "tfs": Refusal(_SAMPLER, (1,)),
    "tfs_z": Refusal(_SAMPLER, (1,)),
    "epsilon_cutoff": Refusal(_SAMPLER, (0,)),
    "eta_cutoff": Refusal(_SAMPLER, (0,)),
    "top_n_sigma": Refusal(_SAMPLER, (-1, 0)),
    "smoothing_factor": Refusal(_SAMPLER, (0,)),
    "dynatemp_range": Refusal(_SAMPLER, (0,)),
    "temperature_last": Refusal(_SAMPLER, (False,)),
    "penalty_alpha": Refusal(_SAMPLER, (0,)),
    "encoder_repetition_penalty": Refusal(_SAMPLER, (1,)),
    "samplers": Refusal("The order of the samplers is fixed here."),
    "sampler_order": Refusal("The order of the samplers is fixed here."),
    "sampler_priority": Refusal("The order of the samplers is fixed here."),
    "logits_processors": Refusal("Processors of logits are code, and requests bring none here."),
    # what the prompt is made of
    "chat_template": Refusal(
        "A chat template is a program, and requests bring none here: the model's own is used. "
        "Render the prompt yourself and send it to /v1/completions."
    ),
    "mm_processor_kwargs": Refusal("This server takes text alone."),
    "media_io_kwargs": Refusal("This server takes text alone."),
    "data_sources": Refusal("This server searches no documents."),
    "suffix": Refusal("Gaps are filled by /v1/completions alone.", only="chat"),
    "echo": Refusal("/v1/completions echoes its prompt; a chat does not.", (False,), only="chat"),
    "tools": Refusal(_TOOLS, only="completion"),
    "tool_choice": Refusal(_TOOLS, ("none", "auto"), only="completion"),
    # what is given
    "audio": Refusal("This server gives text alone."),
    "include_reasoning": Refusal("Reasoning is always given, in a field of its own.", (True,)),
    "return_tokens_as_token_ids": Refusal("Tokens are given as text here.", (False,)),
    "return_token_ids": Refusal("Tokens are given as text here.", (False,)),
    "return_tokens": Refusal("Tokens are given as text here.", (False,)),
    "return_hidden_states": Refusal("Hidden states are not given.", (False,)),
    # where it runs
    "background": Refusal("Requests are answered at once here.", (False,)),
    "lora_name": Refusal("A request cannot choose an adapter; the config has it."),
    "lora": Refusal("A request cannot choose an adapter; the config has it."),
    "adapters": Refusal("A request cannot choose an adapter; the config has it."),
}
"""Fields that change the answer elsewhere and are not served here, with what is said of each."""

IGNORED: Final[Mapping[str, str]] = {
    "metadata": "Nothing is kept of a request but its trace.",
    "priority": "Callers take turns.",
    "prompt_cache_key": "Cached beginnings are found by their tokens.",
    "prompt_cache_retention": "Snapshots are kept while there is room.",
    "safety_identifier": "Nobody learns of it.",
    "service_tier": "There is one.",
    "spaces_between_special_tokens": "The text is the tokens' own; no spaces are added.",
    "store": "Only /v1/responses keeps its answers.",
    "user": "Callers are known by their keys.",
    "verbosity": "No model here has such a setting; ask for it in a message.",
    "web_search_options": "This server does not search the web.",
}
"""Fields that no answer depends on, which clients send to any server."""


def refuse(body: Mapping[str, Any], endpoint: str) -> None:
    """Raise `ApiError` for the first field of *body* that *endpoint* does not serve."""
    for name in body:
        refusal = REFUSED.get(name)
        if refusal is None or refusal.only not in ("", endpoint):
            continue
        if not refusal.passes(_plain(name, body)):
            raise unsupported(name, refusal.says)


def _plain(name: str, body: Mapping[str, Any]) -> Any:
    """The value of field *name*; null if it only says what another field says."""
    value = body[name]
    return None if name == "best_of" and value == (body.get("n") or 1) else value


def without_effect(
    body: Mapping[str, Any], asked: pydantic.BaseModel, passed: Container[str]
) -> tuple[str, ...]:
    """The names in *body* that have no effect: *asked*, which is made of it, does not have them,
    nor do its objects. Those of *passed* are no matter. At most so many that a header shows them.
    """
    return tuple(islice(_unknown(body, asked, passed, ""), MAX_IGNORED + 1))


def _unknown(
    sent: Mapping[str, Any], asked: pydantic.BaseModel, passed: Container[str], before: str
) -> Iterator[str]:
    fields = type(asked).model_fields
    known = {field.alias or name: name for name, field in fields.items()}
    for name, value in sent.items():
        if value is None or name in passed:
            continue
        if name not in known:
            yield before + name[: 2 * LONGEST_NAME + 1]
        elif isinstance(value, dict):
            inner = getattr(asked, known[name])
            if isinstance(inner, pydantic.BaseModel):
                yield from _unknown(value, inner, (), f"{before}{name}.")


def adapt(headers: MutableMapping[str, str], name: str) -> None:
    """Add to *headers* that field *name* was changed to fit."""
    names = headers.get(ADAPTED_HEADER, "").split(", ")
    headers[ADAPTED_HEADER] = ", ".join(filter(None, dict.fromkeys([*names, name])))


def headers_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """The headers that say what the *fields* of a text worker's answer say of a request."""
    headers = {}
    for header, field in ((IGNORED_HEADER, "ignored"), (ADAPTED_HEADER, "adapted")):
        names = fields.get(field)
        if isinstance(names, list) and names:
            # What is no name may not go into a header.
            first = names[:MAX_IGNORED]
            shown = [n if isinstance(n, str) and _NAME.fullmatch(n) else "?" for n in first]
            dots = ["..."] * (len(names) > MAX_IGNORED)
            headers[header] = ", ".join(shown + dots)
    if fields.get("in_words") is True:
        headers[TOOLS_HEADER] = "as-json" if fields.get("plain") is True else "in-words"
    return headers


UNSERVED_PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("image_url", "image", "input_image", "image_embeds", "computer_screenshot"),
        "Images are not served: no vision tower is loaded. Send text alone, or describe the image.",
    ),
    **dict.fromkeys(
        ("input_audio", "audio_url", "audio", "video_url", "video", "input_video"),
        "Audio and video are not served: only the language model is loaded. Send text alone.",
    ),
    **dict.fromkeys(
        ("file", "input_file", "document", "container_upload"),
        "Files are not read here, unless they are text. Send their text as a part of type 'text'.",
    ),
}
"""Kinds of a message's parts that other servers take, with what is said of each."""

_TEXT_FILE: Final = re.compile(
    r"data:(?:text/[\w.+-]+|application/(?:[\w.]+\+)?(?:json|xml|yaml))(?:;[\w=-]+)*?;base64,"
)


def past(said: Sequence[bool]) -> int:
    """How many of a conversation's entries belong to earlier turns, where *said* says which ones
    the model said: all up to its last. Those that the conversation ends with are being gone on
    with."""
    end = len(said)
    while end and said[end - 1]:
        end -= 1
    return next((at for at in range(end, 0, -1) if said[at - 1]), 0)


def left_out(kind: str, place: str, before: set[str], *, history: bool) -> str:
    """The text that stands for a part of *kind* at *place*, which is no text. It is empty if a
    part right *before* it has that text, which is added there: parts are short, and their texts
    are not. Raises `ApiError` unless the part is of the *history*: of what is asked now it cannot
    be left out."""
    if not history or kind not in UNSERVED_PARTS:
        says = UNSERVED_PARTS.get(kind, "The model reads text alone.")
        raise unsupported(place, f"{place} is of type '{kind}'. {says}")
    noun = re.sub("input_|_url|_embeds|_upload|computer_", "", kind)
    text = f"[{noun} left out: this model reads text alone]"
    if text in before:
        return ""
    before.add(text)
    return text


def text_of_file(data: Any, name: Any = None) -> str | None:
    """The text of a file that is given as the URL *data*, under its *name*; None if it is no
    text."""
    if not isinstance(data, str) or (head := _TEXT_FILE.match(data)) is None:
        return None
    try:
        text = base64.b64decode(data[head.end() :], validate=True).decode()
    except ValueError:
        return None
    return text if not isinstance(name, str) else f"{name}:\n{text}"


OF_CHAT: Final = frozenset(
    (
        "bad_words",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "guided_whitespace_pattern",
        "ignore_eos",
        "logit_bias",
        "min_tokens",
        "n",
        "prompt_logprobs",
        "repetition_penalty",
        "response_format",
        "stop_token_ids",
        "structured_outputs",
    )
)
"""Fields that change the answer, which chat and text completions alone have."""


def refuse_of_chat(body: Any) -> None:
    """Raise `ApiError` for the first field of *body*, one of responses or messages, that would
    change the answer elsewhere."""
    if not isinstance(body, dict):
        return
    for name in sorted(OF_CHAT & body.keys()):
        if not Refusal("", (False, 1)).passes(body[name]):
            raise unsupported(name, f"/v1/chat/completions has '{name}'; this endpoint has not.")


def with_text_alone(messages: Any) -> tuple[Any, list[str]]:
    """*messages*, unchecked yet, with texts for parts that are none, and where these were. Raises
    `ApiError` for the first in the last turn."""
    if not isinstance(messages, list):
        return messages, []
    roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
    history = past([role == "assistant" for role in roles])
    places: list[str] = []
    made = list(messages)
    for at, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            parts = list(content)
            out: set[str] = set()
            for number, part in enumerate(content):
                kind = part.get("type") if isinstance(part, dict) else None
                if isinstance(kind, str) and kind in UNSERVED_PARTS:
                    place = f"messages.{at}.content.{number}"
                    file = part.get("file")
                    given = file if isinstance(file, dict) else part
                    text = text_of_file(given.get("file_data"), given.get("filename"))
                    if text is None:
                        text = left_out(kind, place, out, history=at < history)
                        places.append(place)
                    else:
                        out.clear()
                    parts[number] = {"type": "text", "text": text}
                else:
                    out.clear()
            made[at] = {**message, "content": parts}
    return made, places
